"""Strict JSON: parsing that refuses what other parsers let through, and writing that does.

A repeated key, NaN, a lone surrogate, a number beyond a double or nesting over the limit is an error that names its
place. Integers stay exact at any length, and 1 is not 1.0.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

Json = Any  # None | bool | int | float | str | list["Json"] | dict[str, "Json"]: mypy has no useful recursive form.

MAX_DEPTH = 32
_INTEGER_DIGITS_MAX = 4_300  # as the interpreter has it, where a site does not say otherwise


class JsonError(ValueError):
    """The text is not strict JSON; `reason` says why, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                message = f"the key {key!r} stands twice in one object"
                raise JsonError(message)
            seen.add(key)
    return result


def _constant(name: str) -> NoReturn:
    message = f"{name} is not a JSON number"
    raise JsonError(message)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        message = f"the number {text[:40]} is too large for a double"
        raise JsonError(message)
    return value


def _int(text: str) -> int:
    if len(text) > _INTEGER_DIGITS_MAX:
        raise ValueError
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_constant,
    parse_float=_float,
    # The interpreter bounds digits itself, without a call for each number; unless a site has told it not to.
    parse_int=None if sys.get_int_max_str_digits() else _int,
    strict=True,
)


def parse(text: bytes | str, *, max_depth: int = MAX_DEPTH) -> Json:
    """Parse one JSON document strictly.

    Raises JsonError for bad syntax, bytes that are not UTF-8, repeated keys, NaN and Infinity, lone surrogates and
    nesting deeper than `max_depth`.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"not UTF-8 at byte {error.start}"
            raise JsonError(message) from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        message = f"{error.msg[:1].lower()}{error.msg[1:]} at line {error.lineno} column {error.colno}"
        raise JsonError(message) from None
    except JsonError:
        raise
    except ValueError:
        message = "a number has too many digits"
        raise JsonError(message) from None
    except RecursionError:
        raise JsonError(_too_deep(max_depth)) from None
    if text.count("[") + text.count("{") > max_depth:
        _check_depth(value, max_depth)
    if "\\u" in text or "\\U" in text or not text.isascii():
        _check_surrogates(value)
    return value


def _too_deep(max_depth: int) -> str:
    return f"nested deeper than {max_depth} levels"


def _check_depth(value: Json, max_depth: int) -> None:
    """Walk level by level, without recursion, and only through containers."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise JsonError(_too_deep(max_depth))


def _check_surrogates(value: Json) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        message = "a lone surrogate is not a character"
        raise JsonError(message) from None


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def dumps(value: Json) -> bytes:
    """Write a value compactly as UTF-8, keys in their own order. Raises ValueError for NaN and Infinity."""
    return _COMPACT.encode(value).encode("utf-8")
