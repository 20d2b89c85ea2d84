"""How a request is written: what was not given is left out, so that its meaning stays the same as fields are added."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from orbit import jsontext

# Where null is a value of the user's, not an absence.
_PAYLOADS = frozenset({"params", "input", "output", "payload"})


class Request(Struct, frozen=True, kw_only=True):
    """The root of what is sent."""

    def body(self) -> bytes:
        """Write the request. Raises TypeError or ValueError for what is not JSON: NaN, sets, lone surrogates."""
        return jsontext.dumps(self.content())

    def content(self) -> dict[str, Any]:
        """Return the fields that were given."""
        content: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is UNSET or (value is None and name not in _PAYLOADS):
                continue
            content[name] = value.content() if isinstance(value, Request) else value
        return content
