"""Validators of values by a definition's JSON Schemas: `jsonschema`, with patterns in linear time and no network.

The surprising rule: a schema's `$schema` is left out of its validator, because `jsonschema` would go on with its own
keywords, and so with backtracking patterns, wherever it meets one. And `jsonschema` is loaded with the first validator:
that takes as long as checking a definition of a hundred steps, and most definitions are checked without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from orbit.jsontext import Json
from orbit.schemas.patterns import pattern

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_Errors = Iterator["ValidationError"]

_SHOWN_MAX = 5


def validator_of(schema: Json) -> Draft202012Validator:
    """Make a validator of a schema that `definitions.schema` has found to be sound."""
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    return _maker()(schema)


@lru_cache(maxsize=1)
def meta_validator() -> Draft202012Validator:
    """Make the validator of schemas themselves."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(Draft202012Validator.META_SCHEMA)


@lru_cache(maxsize=1)
def _maker() -> Callable[[Json], Draft202012Validator]:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend
    from referencing import Registry

    own: dict[str, Any] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    made: Any = cast("Any", extend)(Draft202012Validator, own)
    # A registry of its own knows nothing and fetches nothing: a reference that leaves the schema fails.
    return lambda schema: made(schema, registry=Registry())


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _pattern(validator: Any, text: str, instance: Json, _schema: Json) -> _Errors:
    if validator.is_type(instance, "string") and not pattern(text).search(instance):
        yield _error(f"{instance[:100]!r} does not match {text!r}")


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
        yield _error(f"Additional properties are not allowed ({shown})")
    elif isinstance(others, dict):
        for name in extra:
            yield from validator.descend(instance[name], others, path=name)
