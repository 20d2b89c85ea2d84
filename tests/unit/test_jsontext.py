"""Strict JSON refuses, in words, what other parsers let through."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orbit.jsontext import JsonError, parse

LONG = "9" * 5_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'{{"a": [1, {LONG}]}}', "a number has too many digits"),
        (f"-{LONG}", "a number has too many digits"),
        ('{"a": 1, "b": {"a": 2, "a": 3}}', "the key 'a' stands twice in one object"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[1e999]", "the number 1e999 is too large for a double"),
        ('["\\ud800"]', "a lone surrogate is not a character"),
        ("[" * 33 + "]" * 33, "nested deeper than 32 levels"),
        ("[" * 100_000, "nested deeper than 32 levels"),
        ("[01]", "expecting ',' delimiter at line 1 column 3"),
        (b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_what_is_not_strict_json_is_refused_in_words(text: str | bytes, reason: str) -> None:
    with pytest.raises(JsonError) as refused:
        parse(text)
    assert refused.value.reason == reason


def test_integers_stay_exact_and_are_no_floats() -> None:
    assert [repr(each) for each in parse("[1, 1.0, -0, 123456789012345678901234567890]")] == [
        "1", "1.0", "0", "123456789012345678901234567890",
    ]  # fmt: skip


def test_digits_are_bounded_where_the_interpreter_does_not_bound_them() -> None:
    program = f"from orbit.jsontext import parse; parse('{LONG}')"
    ran = subprocess.run(
        [sys.executable, "-X", "int_max_str_digits=0", "-c", program], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stderr.strip().endswith("JsonError: a number has too many digits")
