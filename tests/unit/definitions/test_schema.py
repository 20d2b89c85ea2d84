"""JSON Schemas: validity with places, references, types, defaults; and durations."""

import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from definitions import limits
from definitions.duration import format_duration, parse_duration
from definitions.expression.types import BOOL, DYN, INT, NUMBER, STRING, Kind
from definitions.schema import type_of_schema
from orbit.schemas.soundness import bad_defaults, endless_reference, foreign_references, violations, with_defaults
from orbit.schemas.validation import validator_of


@pytest.mark.parametrize(
    ("schema", "locations"),
    [
        (True, []),
        ({"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "required": ["a"]}, []),
        ({"type": "strng"}, [("type",)]),
        ({"properties": {"a": {"minLength": -1}, "b": 3}}, [("properties", "a", "minLength"), ("properties", "b")]),
        ({"required": "a"}, [("required",)]),
        ({"required": ["a", "a"]}, [("required",)]),
        ({"pattern": "("}, [("pattern",)]),
        ({"patternProperties": {"[": {}}}, [("patternProperties", "[")]),
        ({"properties": {"pattern": {"type": "string"}}}, []),
        ({"minimum": True}, [("minimum",)]),
    ],
)
def test_violations_have_places(schema: Any, locations: list[tuple[str, ...]]) -> None:
    assert [location for location, _ in violations(schema)] == locations


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, 0),
        ({"$ref": "https://example.com/x.json"}, 1),
        ({"$ref": "other.json#/a"}, 1),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, 1),
        ({"$id": "https://example.com/x", "type": "string"}, 1),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, 1),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, 0),
        ({"default": {"$ref": "https://example.com"}}, 0),
    ],
)
def test_a_schema_refers_only_to_itself(schema: Any, count: int) -> None:
    assert len(list(foreign_references(schema))) == count


def doubling(levels: int) -> dict[str, Any]:
    twice = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/l0", "$defs": {**twice, f"l{levels}": {}}}


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, False),
        ({"allOf": [{"$ref": "#"}]}, False),
        ({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}}, False),
        (doubling(20), False),
        (doubling(5), True),
        ({"type": "object", "properties": {"child": {"$ref": "#"}}}, True),
        ({"items": {"$ref": "#"}}, True),
    ],
)
def test_a_schema_must_end(schema: Any, ends: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    assert (endless_reference(schema) is None) == ends


def test_defaults_must_fit_their_own_schema() -> None:
    schema = {
        "$defs": {"name": {"type": "string"}},
        "properties": {
            "a": {"type": "string", "default": 1},
            "b": {"$ref": "#/$defs/name", "default": "fine"},
            "c": {"$ref": "#/$defs/name", "default": 2},
            "default": {"type": "integer", "default": 3},
        },
    }
    assert [location for location, _ in bad_defaults(schema)] == [
        ("properties", "a", "default"),
        ("properties", "c", "default"),
    ]


def test_types_of_schemas() -> None:
    schema = {
        "type": "object",
        "required": ["i"],
        "additionalProperties": False,
        "properties": {
            "i": {"type": "integer"},
            "n": {"type": ["number"]},
            "s": {"enum": ["a", "b"]},
            "b": {"type": "boolean", "default": False},
            "u": {"type": ["string", "null"]},
            "l": {"type": "array", "items": {"$ref": "#/$defs/s"}},
            "r": {"$ref": "#"},
        },
        "$defs": {"s": {"type": "string"}},
    }
    assert type_of_schema(schema).required == frozenset({"i"})
    found = type_of_schema(schema, has_defaults=True)
    assert (found.kind, found.closed, found.required) == (Kind.MAP, True, frozenset({"i", "b"}))
    fields = found.fields
    assert (fields["i"], fields["n"], fields["s"], fields["b"], fields["u"]) == (INT, NUMBER, STRING, BOOL, DYN)
    assert fields["l"].items == STRING
    assert fields["r"].kind is Kind.MAP


def test_with_defaults_fills_what_is_absent_and_changes_nothing_else() -> None:
    schema = {
        "properties": {
            "a": {"default": 1},
            "b": {"default": {}, "properties": {"c": {"default": [1]}}},
            "d": {"properties": {"e": {"default": 2}}},
        }
    }
    value: dict[str, Any] = {"a": None, "d": {}, "x": 1}
    assert with_defaults(schema, value) == {"a": None, "b": {"c": [1]}, "d": {"e": 2}, "x": 1}
    assert value == {"a": None, "d": {}, "x": 1}
    assert with_defaults(schema, [1]) == [1]
    assert with_defaults({}, {"a": 1}) == {"a": 1}
    listed = {"items": {"$ref": "#/$defs/row"}, "$defs": {"row": {"properties": {"n": {"default": 0}}}}}
    assert with_defaults(listed, [{}, {"n": 1}, 2]) == [{"n": 0}, {"n": 1}, 2]


def test_defaults_that_would_be_filled_for_ever_are_refused() -> None:
    endless = {"properties": {"child": {"$ref": "#", "default": {}}}}
    assert [location for location, _ in bad_defaults(endless)] == [("properties",)]
    doubling = {
        f"l{n}": {"properties": {side: {"$ref": f"#/$defs/l{n + 1}", "default": {}} for side in "ab"}}
        for n in range(12)
    }
    assert list(bad_defaults({"$defs": {**doubling, "l12": {}}}))
    assert not list(bad_defaults({"properties": {"child": {"properties": {"x": {"default": 1}}, "default": {}}}}))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("100ms", 0.1),
        ("30s", 30.0),
        ("10m", 600.0),
        ("1h30m", 5_400.0),
        ("3d", 259_200.0),
        ("1d2h3m4s5ms", 93_784.005),
        ("0s", 0.0),
        ("90m", 5_400.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "1.5s", "-1s", "1s1m", "1m1m", "1 m", "1M", "1w", "1h 30m", "\u0661s", "9" * 20 + "s", "+1s"],
)
def test_no_durations(text: str) -> None:
    assert parse_duration(text) is None


def test_the_smallest_span_is_exactly_its_limit() -> None:
    assert parse_duration("100ms") == limits.SPAN_SECONDS_MIN


HOSTILE = {"$ref": "http://127.0.0.1:9/x.json"}


@pytest.mark.requirement("R211")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/default", "default": HOSTILE},
        {"$ref": "#/$defs/a/const", "$defs": {"a": {"const": HOSTILE}}},
        {"$ref": "#/examples/0", "examples": [HOSTILE]},
        {"properties": {"default": HOSTILE}},
        {"properties": {"enum": {"items": HOSTILE}}},
        {"properties": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}},
    ],
)
def test_no_schema_hides_a_reference_in_a_value_or_behind_a_name(schema: Any) -> None:
    assert len(list(foreign_references(schema))) >= 1


def test_a_property_may_be_named_like_a_keyword() -> None:
    schema = {"properties": {"const": {"type": "string"}, "default": {"$ref": "#/properties/const"}}}
    assert list(foreign_references(schema)) == []
    assert [error.message for error in validator_of(schema).iter_errors({"default": 1})] == [
        "1 is not of type 'string'"
    ]


def test_a_validator_fetches_nothing() -> None:
    with pytest.raises(Unresolvable):
        list(validator_of(HOSTILE).iter_errors(1))


@pytest.mark.requirement("R211")
def test_r211_patterns_are_matched_in_linear_time_wherever_they_stand() -> None:
    bad, text = "^(a+)+$", "a" * 50_000 + "b"
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"value": {"pattern": bad}},
        "patternProperties": {bad: {"type": "string"}},
        "additionalProperties": {"$ref": "#/$defs/more"},
        "$defs": {"more": {"anyOf": [{"$ref": "#"}, {"pattern": bad}]}},
    }
    assert violations(schema) == []
    began = time.thread_time()
    assert [error.validator for error in validator_of(schema).iter_errors({"value": text})] == ["pattern"]
    assert list(validator_of(schema).iter_errors({text: {"value": "aaa"}})) == []
    assert [error.validator for error in validator_of(schema).iter_errors({"aaa": 1})] == ["type"]
    assert time.thread_time() - began < 3


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        (
            {"additionalProperties": False, "patternProperties": {"^x": {}}, "properties": {"a": {}}},
            {"a": 1, "xb": 2},
            True,
        ),
        ({"additionalProperties": False, "patternProperties": {"^x": {}}, "properties": {"a": {}}}, {"b": 2}, False),
        ({"additionalProperties": {"type": "string"}}, {"b": 2}, False),
        ({"additionalProperties": True}, {"b": 2}, True),
        ({"additionalProperties": False}, [1], True),
        ({"patternProperties": {"b$": {"minimum": 3}}}, {"ab": 2}, False),
        ({"pattern": "^a"}, 7, True),
        ({"pattern": "b"}, "abc", True),
    ],
)
def test_our_keywords_mean_what_the_standard_says(schema: Any, value: Any, valid: bool) -> None:  # noqa: FBT001
    assert validator_of(schema).is_valid(value) is valid
    assert Draft202012Validator(schema).is_valid(value) is valid


def test_patterns_have_a_limit_together_and_no_unevaluated_properties_beside_them() -> None:
    many = {"properties": {f"p{number}": {"pattern": f"a{{{900 + number}}}"} for number in range(5)}}
    assert [location for location, _ in violations(many)] == [("properties", "p4", "pattern")]
    both = {"patternProperties": {"a": {}}, "items": {"unevaluatedProperties": False}}
    assert [location for location, _ in violations(both)] == [("items", "unevaluatedProperties")]
