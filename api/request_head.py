"""The fields of a request's head, read strictly (RFC 9112, section 5) and in one pass.

gevent's server parses heads as e-mail, which forgives: a line that is no field ends the head unseen, and what follows
is taken for the body. Here such a line is an error. What gevent's handler asks of a head is what `RequestHead` has.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol

LINE_BYTES_MAX = 65_536
FIELDS_MAX = 100
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)\r?\n")


class Lines(Protocol):
    """A stream of bytes that is read by lines."""

    def readline(self, size: int, /) -> bytes: ...  # noqa: D102


class RequestHead:
    """A head's fields: name in lower case and value, in their order."""

    status = ""  # gevent's sign that a head is broken; here that is raised

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields
        self._first = dict(reversed(fields))

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of a field, whatever the case of the name."""
        return self._first.get(name.lower(), default)

    getheader = get

    def get_all(self, name: str) -> list[str]:
        """Return all values of a field, in their order."""
        wanted = name.lower()
        return [value for each, value in self.fields if each == wanted]

    def __delitem__(self, name: str) -> None:
        """Take a field out; raise KeyError if there is none."""
        wanted = name.lower()
        del self._first[wanted]
        self.fields = [each for each in self.fields if each[0] != wanted]

    @property
    def typeheader(self) -> str | None:
        """Return the media type of the body as it was sent."""
        return self._first.get("content-type")


class HeadError(ValueError):
    """A head that can't be read; the message is for whoever sent it."""


def head_read(stream: Lines) -> RequestHead:
    """Read fields up to the empty line; raise HeadError for a line that is none, for too many and for an early end."""
    fields: list[tuple[str, str]] = []
    while (line := stream.readline(LINE_BYTES_MAX + 1)) not in {b"\r\n", b"\n"}:
        if len(fields) == FIELDS_MAX:
            raise HeadError(f"the request's head has more than {FIELDS_MAX} fields")
        found = _FIELD.fullmatch(line)
        if found is None:
            fault = f"is longer than {LINE_BYTES_MAX} bytes" if len(line) > LINE_BYTES_MAX else "is not `Name: value`"
            raise HeadError(f"line {len(fields) + 1} after the request line {fault}")
        name, value = found.groups()
        fields.append((_lower(name), value.strip(b" \t").decode("latin-1")))
    return RequestHead(fields)


@lru_cache(maxsize=256)
def _lower(name: bytes) -> str:
    return name.decode("ascii").lower()


@lru_cache(maxsize=256)
def environ_name(name: str) -> str | None:
    """Name a field as WSGI does; None for one with an underscore, which another name could be taken for."""
    return None if "_" in name else f"HTTP_{name.replace('-', '_').upper()}"
