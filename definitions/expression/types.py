"""The types that the checker knows before anything runs.

They come from JSON Schemas (`definitions.schema`) and from literals; whatever no schema describes is DYN and is checked
when it is evaluated. NUMBER is a JSON number that may be an integer or a double, so no arithmetic takes it unconverted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field


class Kind(StrEnum):
    """The kind of a value, in the words that messages use."""

    DYN = "any value"
    NULL = "null"
    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    NUMBER = "number"
    STRING = "string"
    LIST = "list"
    MAP = "object"


class Type(Struct, frozen=True):
    """A type; `items` belongs to LIST, the others to MAP. `closed`: no field but those in `fields` can exist."""

    kind: Kind
    items: Type | None = None
    fields: Mapping[str, Type] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    closed: bool = False

    def __str__(self) -> str:
        if self.kind is Kind.LIST and self.items is not None and self.items.kind is not Kind.DYN:
            return f"list of {self.items}"
        return self.kind.value


DYN = Type(Kind.DYN)
NULL = Type(Kind.NULL)
BOOL = Type(Kind.BOOL)
INT = Type(Kind.INT)
DOUBLE = Type(Kind.DOUBLE)
NUMBER = Type(Kind.NUMBER)
STRING = Type(Kind.STRING)
LIST = Type(Kind.LIST, items=DYN)
MAP = Type(Kind.MAP)

NUMERIC = frozenset({Kind.INT, Kind.DOUBLE, Kind.NUMBER})


def may_equal(left: Type, right: Type) -> bool:
    """Tell whether `==` of the two can ever be true."""
    if Kind.DYN in (left.kind, right.kind):
        return True
    # `x == null` is legal for every x: it is how one asks for null.
    if Kind.NULL in (left.kind, right.kind):
        return True
    return left.kind is right.kind or {left.kind, right.kind} <= NUMERIC


def join(types: list[Type]) -> Type:
    """Return the type that all of `types` have, else DYN."""
    if not types:
        return DYN
    first = types[0]
    if all(other == first for other in types[1:]):
        return first
    kinds = {other.kind for other in types}
    if len(kinds) == 1:
        return Type(first.kind, items=DYN if first.kind is Kind.LIST else None)
    if kinds <= NUMERIC:
        return NUMBER
    return DYN


def union(types: list[Type]) -> Type:
    """Return the type of a value that has one of `types`: what only some objects have is optional, not unknown."""
    if not types or any(kind.kind is not Kind.MAP for kind in types):
        return join(types)
    fields: dict[str, Type] = {}
    for name in dict.fromkeys(name for kind in types for name in kind.fields):
        having = [kind.fields[name] for kind in types if name in kind.fields]
        is_described = all(name in kind.fields or kind.closed for kind in types)
        fields[name] = union(having) if is_described else DYN
    required = frozenset[str].intersection(*(kind.required for kind in types))
    return Type(Kind.MAP, fields=fields, required=required, closed=all(kind.closed for kind in types))


def of_value(value: object) -> Type:
    """Return the type of a JSON value that is known now."""
    match value:
        case None:
            return NULL
        case bool():
            return BOOL
        case int():
            return INT
        case float():
            return DOUBLE
        case str():
            return STRING
        case list():
            return Type(Kind.LIST, items=join([of_value(item) for item in value]))
        case dict():
            fields = {key: of_value(item) for key, item in value.items()}
            return Type(Kind.MAP, fields=fields, required=frozenset(fields), closed=True)
        case _:
            return DYN
