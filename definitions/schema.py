"""What types JSON Schemas promise; whether they are sound is `orbit.schemas`' business."""

from __future__ import annotations

from msgspec import Struct

from definitions.expression.types import BOOL, DOUBLE, DYN, INT, NULL, NUMBER, STRING, Kind, Type, join, of_value
from orbit.jsontext import Json
from orbit.schemas.soundness import resolve

_SIMPLE = {"string": STRING, "integer": INT, "number": NUMBER, "boolean": BOOL, "null": NULL}
_REF_DEPTH_MAX = 8
assert DOUBLE.kind is not NUMBER.kind, "a JSON number may be written without a fraction and is then an int"


def type_of_schema(schema: Json, *, has_defaults: bool = False) -> Type:
    """Return the type that every valid value has; DYN where the schema does not say or says several.

    `has_defaults`: the value went through `with_defaults`, so that a property with a default is always there.
    """
    return _type_of(schema, _Context(schema, has_defaults), 0)


class _Context(Struct, frozen=True):
    root: Json
    has_defaults: bool


def _type_of(schema: Json, context: _Context, depth: int) -> Type:
    if not isinstance(schema, dict):
        return DYN
    reference = schema.get("$ref")
    if isinstance(reference, str):
        # A recursive schema has no finite type: below a few levels it is dynamic.
        return _type_of(resolve(context.root, reference), context, depth + 1) if depth < _REF_DEPTH_MAX else DYN
    if "const" in schema:
        return of_value(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list) and len(kind) == 1:
        kind = kind[0]
    if kind is None and isinstance(schema.get("enum"), list) and schema["enum"]:
        return join([of_value(value) for value in schema["enum"]])
    if not isinstance(kind, str):
        return DYN
    if kind == "array":
        return Type(Kind.LIST, items=_type_of(schema.get("items"), context, depth + 1))
    if kind == "object":
        return _object_type(schema, context, depth)
    return _SIMPLE.get(kind, DYN)


def _object_type(schema: dict[str, Json], context: _Context, depth: int) -> Type:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if context.has_defaults:
        names |= {name for name, value in properties.items() if isinstance(value, dict) and "default" in value}
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    fields = {name: _type_of(value, context, depth + 1) for name, value in properties.items()}
    return Type(Kind.MAP, fields=fields, required=frozenset(names), closed=closed)
