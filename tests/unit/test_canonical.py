"""JSON as bytes for machines says the same as strict JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orbit.canonical import canonical, compact, digest
from orbit.jsontext import dumps, parse

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_reads_as_the_value_that_it_was(value: Any) -> None:
    assert parse(compact(value)) == value == parse(canonical(value))
    # 1 is not 1.0, and keys keep their order.
    assert json.dumps(parse(compact(value))) == json.dumps(parse(dumps(value)))


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, Any]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))


def test_a_canonical_form_stays_what_it_was() -> None:
    value = {"b": [1, 1.0, -0.0, 10**30], "a": {"é": "\u2028", "": None}}
    assert canonical(value) == '{"a":{"":null,"é":"\u2028"},"b":[1,1.0,-0.0,1000000000000000000000000000000]}'.encode()
