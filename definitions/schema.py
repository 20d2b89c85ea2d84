"""JSON Schemas (Draft 2020-12) in definitions: are they valid, what types do they promise, which defaults do they fill.

A schema may refer only to itself (`#/...`): nothing is ever fetched. Validating values is left to `jsonschema`; a
`default` is filled in by `with_defaults`, since a schema's validator never changes what it validates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from definitions.expression.types import BOOL, DOUBLE, DYN, INT, NULL, NUMBER, STRING, Kind, Type, join, of_value
from orbit.jsontext import Json

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Location = tuple[str | int, ...]

_SIMPLE = {"string": STRING, "integer": INT, "number": NUMBER, "boolean": BOOL, "null": NULL}
_TYPES = frozenset({*_SIMPLE, "object", "array"})
_REFERENCES = ("$ref", "$dynamicRef")
_REF_DEPTH_MAX = 8
_VIOLATIONS_MAX = 20
assert DOUBLE.kind is not NUMBER.kind, "a JSON number may be written without a fraction and is then an int"


def violations(schema: Json) -> list[tuple[Location, str]]:
    """Return where and why `schema` is no JSON Schema, at most twenty places."""
    if _is_plain(schema):
        return []
    found: dict[Location, str] = {}
    for error in _meta_validator().iter_errors(schema):
        found.setdefault(tuple(error.absolute_path), _words(error))
        if len(found) >= _VIOLATIONS_MAX:
            break
    return sorted(found.items(), key=lambda item: [str(part) for part in item[0]])


def _words(error: ValidationError) -> str:
    if error.validator == "enum" or (error.validator == "anyOf" and [*error.absolute_path][-1:] == ["type"]):
        return f"{str(error.instance)[:40]!r} is not a type; types are {', '.join(sorted(_TYPES))}"
    return error.message[:200]


@lru_cache(maxsize=1)
def _meta_validator() -> Draft202012Validator:
    return Draft202012Validator(Draft202012Validator.META_SCHEMA)


def _is_plain(schema: Json) -> bool:
    """Tell cheaply that a schema is certainly valid: most use a handful of keywords, and the full check is slow."""
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(_is_plain_keyword(key, value) for key, value in schema.items())


def _is_plain_keyword(key: str, value: Json) -> bool:
    match key:
        case "type":
            return isinstance(value, str) and value in _TYPES
        case "properties" | "$defs":
            return isinstance(value, dict) and all(map(_is_plain, value.values()))
        case "items" | "additionalProperties":
            return _is_plain(value)
        case "required":
            return isinstance(value, list) and all(isinstance(item, str) for item in value) and _unique(value)
        case "enum":
            return isinstance(value, list)
        case "minLength" | "maxLength" | "minItems" | "maxItems":
            return type(value) is int and value >= 0
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            return type(value) in (int, float)
        case "title" | "description" | "format":
            return isinstance(value, str)
        case "default" | "const":
            return True
        case _:
            return False


def _unique(names: list[str]) -> bool:
    return len(set(names)) == len(names)


def foreign_references(schema: Json) -> Iterator[tuple[Location, str]]:
    """Yield each reference that leaves the schema or leads nowhere, and each other dialect, with the reason."""
    for location, holder in _subschemas(schema, ()):
        for key in _REFERENCES:
            target = holder.get(key)
            if not isinstance(target, str):
                continue
            if not target.startswith("#"):
                yield (*location, key), "a schema may refer only to itself (`#/$defs/...`): nothing is fetched"
            elif resolve(schema, target) is None:
                yield (*location, key), f"the reference {target[:80]} leads nowhere"
        if "$id" in holder or "$anchor" in holder or "$dynamicAnchor" in holder:
            key = next(name for name in ("$id", "$anchor", "$dynamicAnchor") if name in holder)
            yield (*location, key), f"`{key}` is not allowed: refer by path (`#/$defs/...`)"
        dialect = holder.get("$schema", DIALECT)
        if dialect != DIALECT:
            yield (*location, "$schema"), f"the dialect is {DIALECT}"


def _subschemas(value: Json, location: Location) -> Iterator[tuple[Location, dict[str, Json]]]:
    # Every object is looked at, also where it is no schema but a default or an example: a `$ref` there is refused too.
    if isinstance(value, dict):
        yield location, value
        for key, item in value.items():
            if key not in ("default", "const", "enum", "examples"):
                yield from _subschemas(item, (*location, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _subschemas(item, (*location, index))


def resolve(root: Json, reference: str) -> Json | None:
    """Return what a local reference names, or None."""
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found if isinstance(found, (dict, bool)) else None


def bad_defaults(schema: Json) -> Iterator[tuple[Location, str]]:
    """Yield each `default` that does not fit the very schema it stands in; the schema must be valid."""
    for location, holder in _subschemas(schema, ()):
        if "default" not in holder or (location and location[-1] in ("properties", "$defs")):
            continue
        local = {key: value for key, value in holder.items() if key not in _REFERENCES}
        error = next(iter(Draft202012Validator(local).iter_errors(holder["default"])), None)
        if error is not None:
            yield (*location, "default"), error.message[:200]


def type_of_schema(schema: Json, root: Json = None, depth: int = 0) -> Type:
    """Return the type that every valid value has; DYN where the schema does not say or says several."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return DYN
    reference = schema.get("$ref")
    if isinstance(reference, str):
        # A recursive schema has no finite type: below a few levels it is dynamic.
        return type_of_schema(resolve(root, reference), root, depth + 1) if depth < _REF_DEPTH_MAX else DYN
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
        return Type(Kind.LIST, items=type_of_schema(schema.get("items"), root, depth + 1))
    if kind == "object":
        return _object_type(schema, root, depth)
    return _SIMPLE.get(kind, DYN)


def _object_type(schema: dict[str, Json], root: Json, depth: int) -> Type:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    names |= {name for name, value in properties.items() if isinstance(value, dict) and "default" in value}
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    fields = {name: type_of_schema(value, root, depth + 1) for name, value in properties.items()}
    return Type(Kind.MAP, fields=fields, required=frozenset(names), closed=closed)


def with_defaults(schema: Json, value: Json) -> Json:
    """Return `value` with the `default` of every absent property of its objects filled in; `value` is not changed."""
    if not isinstance(schema, dict) or not isinstance(value, dict):
        return value
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return value
    filled: dict[str, Any] = dict(value)
    for name, inner in properties.items():
        if name in filled:
            filled[name] = with_defaults(inner, filled[name])
        elif isinstance(inner, dict) and "default" in inner:
            filled[name] = with_defaults(inner, inner["default"])
    return filled
