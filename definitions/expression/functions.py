"""The functions of the language: their signatures for the checker and their bodies for the generator.

`has` and `default` are not here: they look at how their argument is written, not at its value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from definitions.expression.errors import FaultCode
from definitions.expression.types import BOOL, DOUBLE, INT, STRING, Kind, Type
from definitions.limits import INT64_MAX, INT64_MIN


class Refused(Exception):
    """A function can't take these values; the generator adds the position."""

    def __init__(self, code: FaultCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Function(Struct, frozen=True):
    """One function: the kinds that each parameter takes (a method's target is the first) and its result."""

    parameters: tuple[frozenset[Kind], ...]
    result: Type
    body: Callable[..., Any]
    method: bool  # may be written `target.name(...)`
    plain: bool  # may be written `name(...)`
    cost: int = 10


def type_name(value: object) -> str:
    """Name the type of a value in the language's own words."""
    match value:
        case None:
            return Kind.NULL
        case bool():
            return Kind.BOOL
        case int():
            return Kind.INT
        case float():
            return Kind.DOUBLE
        case str():
            return Kind.STRING
        case list():
            return Kind.LIST
        case dict():
            return Kind.MAP
        case _:
            return type(value).__name__


def _no_overload(function: str, value: object) -> Refused:
    return Refused(FaultCode.NO_SUCH_OVERLOAD, f"{function} does not take {type_name(value)}")


def _size(value: object) -> int:
    if isinstance(value, (str, list, dict)):
        return len(value)
    raise _no_overload("size()", value)


def _strings(name: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise _no_overload(f"{name}()", value)


def _starts_with(text: Any, part: Any) -> bool:
    _strings("startsWith", text, part)
    return bool(text.startswith(part))


def _ends_with(text: Any, part: Any) -> bool:
    _strings("endsWith", text, part)
    return bool(text.endswith(part))


def _contains(text: Any, part: Any) -> bool:
    _strings("contains", text, part)
    return part in text


_TO_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_TO_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _lower(text: Any) -> str:
    _strings("lowerAscii", text)
    return str(text.translate(_TO_LOWER))


def _upper(text: Any) -> str:
    _strings("upperAscii", text)
    return str(text.translate(_TO_UPPER))


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECIMAL_CHARACTERS_MAX = 400  # longer ones can't be a double that anybody meant


def _int(value: object) -> int:
    if isinstance(value, bool):
        raise _no_overload("int()", value)
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise Refused(FaultCode.CONVERSION_FAILED, "int(): the text is not a whole number")
        number = int(value)
    elif isinstance(value, (int, float)):
        number = int(value)  # towards zero, as in CEL
    else:
        raise _no_overload("int()", value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise Refused(FaultCode.INTEGER_OVERFLOW, "int(): the number does not fit 64 bits")
    return number


def _double(value: object) -> float:
    if isinstance(value, bool):
        raise _no_overload("double()", value)
    if isinstance(value, str):
        if len(value) > _DECIMAL_CHARACTERS_MAX or not _DECIMAL.fullmatch(value):
            raise Refused(FaultCode.CONVERSION_FAILED, "double(): the text is not a decimal number")
        number = float(value)
        if math.isinf(number):
            raise Refused(FaultCode.NOT_FINITE, "double(): the number is too large")
        return number
    if isinstance(value, (int, float)):
        return float(value)
    raise _no_overload("double()", value)


def to_text(value: object) -> str | None:
    """Write a scalar as text: true/false, an integer's digits, a double's shortest form; None for other types."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # A whole double is written without a fraction, as CEL does and as JSON readers expect of a number.
            return repr(value).removesuffix(".0")
        case _:
            return None


def _string(value: object) -> str:
    text = to_text(value)
    if text is None:
        raise _no_overload("string()", value)
    return text


_TEXT = frozenset({Kind.STRING})
_NUMBERS = frozenset({Kind.INT, Kind.DOUBLE, Kind.NUMBER, Kind.STRING})

FUNCTIONS: dict[str, Function] = {
    "size": Function((frozenset({Kind.STRING, Kind.LIST, Kind.MAP}),), INT, _size, method=True, plain=True, cost=1),
    "startsWith": Function((_TEXT, _TEXT), BOOL, _starts_with, method=True, plain=False),
    "endsWith": Function((_TEXT, _TEXT), BOOL, _ends_with, method=True, plain=False),
    "contains": Function((_TEXT, _TEXT), BOOL, _contains, method=True, plain=False),
    "lowerAscii": Function((_TEXT,), STRING, _lower, method=True, plain=False),
    "upperAscii": Function((_TEXT,), STRING, _upper, method=True, plain=False),
    "int": Function((_NUMBERS,), INT, _int, method=False, plain=True),
    "double": Function((_NUMBERS,), DOUBLE, _double, method=False, plain=True),
    "string": Function((_NUMBERS | {Kind.BOOL},), STRING, _string, method=False, plain=True),
}

MACROS = frozenset({"has", "default"})

# What CEL has and this language will or will not have: an unknown function is refused, these with their reason.
_NO_LOOPS = "a `foreach` goes through lists, within bounds that are proven"
_NO_TIMES = "instants are RFC 3339 text, for `wait: {until: ...}`"
NEVER = {
    **dict.fromkeys(("all", "exists", "exists_one", "map", "filter"), _NO_LOOPS),
    **dict.fromkeys(("timestamp", "duration"), _NO_TIMES),
    "matches": "regular expressions can take unbounded time",
    "dyn": "values without a schema are dynamic already",
    "uint": "unsigned numbers are not part of the language",
    "bytes": "bytes are not part of the language",
    "type": "types are checked by the schemas",
}
