"""JSON Schemas (Draft 2020-12) that others wrote: are they valid, and which defaults do they fill.

A schema may refer only to itself (`#/...`): nothing is ever fetched. Validating values is left to `jsonschema`; a
`default` is filled in by `with_defaults`, since a schema's validator never changes what it validates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orbit.jsontext import Json
from orbit.schemas.pattern_syntax import PatternError
from orbit.schemas.patterns import pattern as pattern_of
from orbit.schemas.validation import meta_validator, validator_of

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Location = tuple[str | int, ...]

_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_REFERENCES = ("$ref", "$dynamicRef")
_VIOLATIONS_MAX = 20
_APPLIED_MAX = 1_000  # schemas applied to one value, references followed
_PATTERN_POSITIONS_MAX = 4_096  # of all patterns of a schema: what a text may cost at worst
_FILLED_MAX = 200  # objects that filling in the defaults of one empty object may make

# Objects whose keys are the author's names and whose values are schemas.
_MAPS_OF_SCHEMAS = frozenset({(key,) for key in ("properties", "$defs", "patternProperties", "dependentSchemas")})
# Keywords that hold values, not schemas.
_VALUES = frozenset({"default", "const", "enum", "examples"})


def violations(schema: Json) -> list[tuple[Location, str]]:
    """Return where and why `schema` is no JSON Schema, at most twenty places."""
    if _is_plain(schema):
        return []
    found: dict[Location, str] = dict(_bad_patterns(schema))
    for error in meta_validator().iter_errors(schema):
        found.setdefault(tuple(error.absolute_path), _words(error))
        if len(found) >= _VIOLATIONS_MAX:
            break
    return sorted(found.items(), key=lambda item: [str(part) for part in item[0]])


def _words(error: ValidationError) -> str:
    if error.validator == "enum" or (error.validator == "anyOf" and [*error.absolute_path][-1:] == ["type"]):
        return f"{str(error.instance)[:40]!r} is not a type; types are {', '.join(sorted(_TYPES))}"
    return error.message[:200]


def _bad_patterns(schema: Json) -> Iterator[tuple[Location, str]]:
    # The metaschema leaves the syntax of patterns to a format, which it does not check.
    positions = 0
    has_patterns = False
    unevaluated: Location | None = None
    for location, holder in _subschemas(schema, ()):
        if location[-1:] in _MAPS_OF_SCHEMAS:
            continue
        patterns: list[tuple[Location, object]] = [((*location, "pattern"), holder.get("pattern"))]
        by_name = holder.get("patternProperties")
        if isinstance(by_name, dict):
            patterns += [((*location, "patternProperties", name), name) for name in by_name]
        for place, pattern in patterns:
            if isinstance(pattern, str):
                try:
                    positions += pattern_of(pattern).positions
                except PatternError as error:
                    yield place, f"not a regular expression: {error}"[:200]
                if positions > _PATTERN_POSITIONS_MAX:
                    yield place, f"the patterns of a schema may have {_PATTERN_POSITIONS_MAX} characters, written out"
                    return
        has_patterns = has_patterns or isinstance(by_name, dict)
        unevaluated = (*location, "unevaluatedProperties") if "unevaluatedProperties" in holder else unevaluated
    if has_patterns and unevaluated is not None:
        yield unevaluated, "`unevaluatedProperties` can't stand in a schema with `patternProperties`"


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
    looked_at = {id(holder) for _, holder in _subschemas(schema, ())}
    for location, holder in _subschemas(schema, ()):
        for key in _REFERENCES:
            target = holder.get(key)
            if not isinstance(target, str):
                continue
            if not target.startswith("#"):
                yield (*location, key), "a schema may refer only to itself (`#/$defs/...`): nothing is fetched"
                continue
            found = resolve(schema, target)
            if found is None:
                yield (*location, key), f"the reference {target[:80]} leads nowhere"
            elif isinstance(found, dict) and id(found) not in looked_at:
                yield (*location, key), f"the reference {target[:80]} leads into a value, not to a schema"
        if "$id" in holder or "$anchor" in holder or "$dynamicAnchor" in holder:
            key = next(name for name in ("$id", "$anchor", "$dynamicAnchor") if name in holder)
            yield (*location, key), f"`{key}` is not allowed: refer by path (`#/$defs/...`)"
        if "$schema" in holder and (location or holder["$schema"] != DIALECT):
            yield (*location, "$schema"), f"the dialect is {DIALECT}, and only the whole schema may name it"


def endless_reference(schema: Json) -> Location | None:
    """Return where a schema applies itself to the same value again, or so many schemas that validating has no end."""
    sizes: dict[int, int] = {}

    def size(part: Json, location: Location, above: frozenset[int]) -> int:
        if not isinstance(part, dict):
            return 1
        if id(part) in above:
            raise _Endless(location)
        if id(part) not in sizes:
            inner = above | {id(part)}
            total = 1 + sum(size(other, (*location, key), inner) for key, other in _applied_in_place(schema, part))
            if total > _APPLIED_MAX:
                raise _Endless(location)
            sizes[id(part)] = total
        return sizes[id(part)]

    try:
        for location, holder in _subschemas(schema, ()):
            size(holder, location, frozenset())
    except _Endless as endless:
        return endless.location
    return None


class _Endless(Exception):
    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.location = location


def _applied_in_place(root: Json, schema: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """Yield the schemas that are applied to the very value that `schema` is applied to."""
    for key in _REFERENCES:
        target = schema.get(key)
        if isinstance(target, str) and target.startswith("#"):
            yield key, resolve(root, target)
    for key in ("allOf", "anyOf", "oneOf"):
        several = schema.get(key)
        if isinstance(several, list):
            yield from ((key, each) for each in several)
    for key in ("not", "if", "then", "else"):
        if key in schema:
            yield key, schema[key]
    dependent = schema.get("dependentSchemas")
    if isinstance(dependent, dict):
        yield from (("dependentSchemas", each) for each in dependent.values())


def _subschemas(value: Json, location: Location) -> Iterator[tuple[Location, dict[str, Json]]]:
    # Every object is looked at, also where it is no schema but a default or an example: a `$ref` there is refused too.
    if isinstance(value, dict):
        yield location, value
        for key, item in value.items():
            # A property may have any of these names, and is a schema then.
            if key not in _VALUES or location[-1:] in _MAPS_OF_SCHEMAS:
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
    """Yield each `default` that does not fit the very schema it stands in; the schema must be valid and end."""
    root = None
    for location, holder in _subschemas(schema, ()):
        if location[-1:] in _MAPS_OF_SCHEMAS:
            continue
        if "properties" in holder and _fills_without_end(schema, holder):
            yield (*location, "properties"), "filling in the defaults would make objects without end"
        if "default" not in holder:
            continue
        root = root or validator_of(schema)
        error = next(iter(root.evolve(schema=holder).iter_errors(holder["default"])), None)
        if error is not None:
            yield (*location, "default"), error.message[:200]


def with_defaults(schema: Json, value: Json) -> Json:
    """Return `value` with the `default` of every absent property of its objects filled in; `value` is not changed.

    Properties, items and local references are followed, what is only under `allOf` and the like is not.
    """
    return _filled(schema, schema, value, None)


class _Room(Struct):
    left: int


def _filled(root: Json, schema: Json, value: Json, room: _Room | None) -> Json:
    if not isinstance(schema, dict) or not isinstance(value, (dict, list)):
        return value
    if room is not None:
        room.left -= 1
        if room.left < 0:
            raise _Endless(())
    reference = schema.get("$ref")
    if isinstance(reference, str):
        value = _filled(root, resolve(root, reference), value, room)
    if isinstance(value, list):
        items = schema.get("items")
        return value if items is None else [_filled(root, items, item, room) for item in value]
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return value
    filled: dict[str, Any] = dict(value)
    for name, inner in properties.items():
        if name in filled:
            filled[name] = _filled(root, inner, filled[name], room)
        elif isinstance(inner, dict) and "default" in inner:
            filled[name] = _filled(root, inner, inner["default"], room)
    return filled


def _fills_without_end(root: Json, holder: dict[str, Json]) -> bool:
    """Tell whether filling an empty object makes a new object that is filled again, and so on."""
    try:
        _filled(root, holder, {}, _Room(_FILLED_MAX))
    except (_Endless, RecursionError):
        return True
    return False
