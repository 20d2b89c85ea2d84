"""Query parameters and cursors of lists.

An unknown, repeated or ill-formed parameter is refused like an unknown field. A cursor is the key of the last item
that was shown, so a list stays stable while rows come and go; it is opaque to callers, and never trusted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass

import falcon

from api.models.fields import LABEL_LENGTH_MAX
from orbit.clock import Micros, from_rfc3339
from orbit.errors import InvalidRequest, OrbitError, UnknownField
from orbit.ids import from_hex
from orbit.jsontext import Json, JsonError, dumps, parse

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
WAIT_SECONDS_MAX = 30
_CURSOR_LENGTH_MAX = 1024


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: an instant and an id, the order of most lists."""

    at: Micros
    id: bytes

    def text(self) -> str:
        """Write the cursor for the caller."""
        return cursor_text([self.at, self.id.hex()])


_LABEL_FORM = "a label is asked for as `name=value`"


def label_read(text: str, *, pointer: str | None = None) -> tuple[str, str]:
    """Read a label, written name=value; raises InvalidRequest for anything else."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InvalidRequest(_LABEL_FORM, pointer=pointer)
    return name, value


class Query:
    """A request's query parameters; made with the names that the resource knows."""

    def __init__(self, req: falcon.Request, known: Iterable[str] = ()) -> None:
        self._values: dict[str, str] = {}
        allowed = frozenset(known) if req.params else frozenset()
        for name, value in req.params.items():
            if name not in allowed:
                error = UnknownField(f"the query parameter {name[:80]!r} is not known here")
                raise _named(error, name)
            if not isinstance(value, str):
                raise _named(InvalidRequest("this query parameter is given more than once"), name)
            self._values[name] = value

    def text(self, name: str, *, length_max: int = 256) -> str | None:
        """Return a parameter's text."""
        value = self._values.get(name)
        if value is not None and not 0 < len(value) <= length_max:
            raise self.refused(name, f"1 to {length_max} characters are expected")
        return value

    def word(self, name: str, words: tuple[str, ...]) -> str | None:
        """Return one of a few words."""
        value = self._values.get(name)
        if value is not None and value not in words:
            raise self.refused(name, f"{' or '.join(words)} is expected")
        return value

    def label(self) -> tuple[str, str] | None:
        """Return the name and the value of the label that is asked for."""
        text = self.text("label", length_max=LABEL_LENGTH_MAX)
        if text is None:
            return None
        try:
            return label_read(text)
        except InvalidRequest as error:
            raise self.refused("label", error.message) from None

    def number(self, name: str, *, minimum: int, maximum: int) -> int | None:
        """Return a whole number in a range."""
        value = self._values.get(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(maximum))):
            raise self.refused(name, f"a whole number from {minimum} to {maximum} is expected")
        if not minimum <= int(value) <= maximum:
            raise self.refused(name, f"a whole number from {minimum} to {maximum} is expected")
        return int(value)

    def seconds(self, name: str, *, maximum: float) -> float | None:
        """Return a span in seconds, decimals allowed."""
        value = self._values.get(name)
        if value is None:
            return None
        whole, _, fraction = value.partition(".")
        digits = whole + fraction
        if not (digits.isascii() and digits.isdigit() and len(value) <= 16) or float(value) > maximum:  # noqa: PLR2004
            raise self.refused(name, f"a number of seconds from 0 to {maximum:g} is expected")
        return float(value)

    def identifier(self, name: str) -> bytes | None:
        """Return an id."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return from_hex(value)
        except InvalidRequest as error:
            raise self.refused(name, error.message) from None

    def instant(self, name: str) -> Micros | None:
        """Return an instant."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return from_rfc3339(value)
        except InvalidRequest as error:
            raise self.refused(name, error.message) from None

    def limit(self) -> int:
        """Return how many items the caller wants."""
        return self.number("limit", minimum=1, maximum=LIMIT_MAX) or LIMIT_DEFAULT

    def cursor(self) -> Cursor | None:
        """Return the instant and id of the cursor."""
        parts = self.cursor_parts(2)
        if parts is None:
            return None
        at, identifier = parts
        if not isinstance(at, int) or isinstance(at, bool) or abs(at) >= 2**63 or not isinstance(identifier, str):
            raise self.refused("cursor", "this is not a cursor of this list")
        try:
            return Cursor(at, from_hex(identifier))
        except InvalidRequest:
            raise self.refused("cursor", "this is not a cursor of this list") from None

    def cursor_parts(self, count: int) -> list[Json] | None:
        """Return the parts of a cursor that `cursor_text` wrote; raise InvalidRequest for anything else."""
        value = self._values.get("cursor")
        if value is None:
            return None
        parts = _cursor_read(value)
        if parts is None or len(parts) != count:
            raise self.refused("cursor", "this is not a cursor of this list")
        return parts

    def refused(self, name: str, message: str) -> OrbitError:
        """Make the refusal of a parameter."""
        return _named(InvalidRequest(message), name)


def cursor_text(parts: list[Json]) -> str:
    """Write a cursor."""
    return base64.urlsafe_b64encode(dumps(parts)).rstrip(b"=").decode("ascii")


def _cursor_read(value: str) -> list[Json] | None:
    if len(value) > _CURSOR_LENGTH_MAX:
        return None
    padded = value + "=" * (-len(value) % 4)
    try:
        parts = parse(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, JsonError):
        return None
    return parts if isinstance(parts, list) else None


def _named(error: OrbitError, parameter: str) -> OrbitError:
    error.details = {"parameter": parameter[:80]}
    return error
