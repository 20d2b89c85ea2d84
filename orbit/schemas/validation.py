"""Validators of values by a definition's JSON Schemas: `jsonschema`, with patterns in linear time and no network.

The surprising rule: a schema's `$schema` is left out of its validator, because `jsonschema` would go on with its own
keywords, and so with backtracking patterns, wherever it meets one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry

from orbit.jsontext import Json
from orbit.schemas.patterns import pattern

_Errors = Iterator[ValidationError]

_SHOWN_MAX = 5


def validator_of(schema: Json) -> Draft202012Validator:
    """Make a validator of a schema that `definitions.schema` has found to be sound."""
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    # A registry of its own knows nothing and fetches nothing: a reference that leaves the schema fails.
    validator: Draft202012Validator = _Validator(schema, registry=Registry())
    return validator


def _pattern(validator: Any, text: str, instance: Json, _schema: Json) -> _Errors:
    if validator.is_type(instance, "string") and not pattern(text).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {text!r}")


def _pattern_properties(validator: Any, by_pattern: dict[str, Json], instance: Json, _schema: Json) -> _Errors:
    if not validator.is_type(instance, "object"):
        return
    for text, inner in by_pattern.items():
        made = pattern(text)
        for name, value in instance.items():
            if made.search(name):
                yield from validator.descend(value, inner, path=name, schema_path=text)


def _additional_properties(validator: Any, others: Json, instance: Json, schema: dict[str, Json]) -> _Errors:
    if not validator.is_type(instance, "object"):
        return
    known = schema.get("properties", {})
    patterns = [pattern(text) for text in schema.get("patternProperties", {})]
    extra = [name for name in instance if name not in known and not any(made.search(name) for made in patterns)]
    if others is False and extra:
        shown = ", ".join(repr(name[:100]) for name in extra[:_SHOWN_MAX])
        yield ValidationError(f"Additional properties are not allowed ({shown})")
    elif isinstance(others, dict):
        for name in extra:
            yield from validator.descend(instance[name], others, path=name)


_Validator: Any = cast("Any", extend)(
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)
