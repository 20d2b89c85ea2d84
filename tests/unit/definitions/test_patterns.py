"""Patterns of JSON Schemas: they match what Python's `re` matches, and no pattern and text can stall a node."""

import random
import re
import time

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from orbit.schemas.pattern_syntax import PatternError
from orbit.schemas.patterns import Pattern

ATOMS = ["a", "b", "c", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"[\W_]", r"\.", r"\x61", r"[a\-b]", "-"]


def patterns() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(ATOMS)

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = st.one_of(inner.map(lambda each: f"({each})"), inner.map(lambda each: f"(?:{each})"), atoms)
        count = st.sampled_from(["", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{0}"])
        repeated = st.tuples(group, count).map("".join)
        return st.one_of(
            st.lists(repeated, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=3).map("|".join),
            st.tuples(st.sampled_from(["^", ""]), inner, st.sampled_from(["$", ""])).map("".join),
            st.tuples(inner, st.sampled_from(["^", "$"]), inner).map("".join),
        )

    return st.recursive(atoms, wider, max_leaves=8)


@given(patterns(), st.lists(st.text(alphabet="abc-._1", max_size=12), min_size=8, max_size=8))
@settings(max_examples=300)
def test_a_pattern_matches_what_pythons_own_does(text: str, samples: list[str]) -> None:
    oracle = re.compile(text, re.ASCII)
    try:
        made = Pattern(text)
    except PatternError as refused:
        # A group may turn out to be nothing but an anchor, which the dialect does not repeat.
        if "an anchor can't be repeated" not in str(refused):
            raise
        reject()
    for sample in ["", *samples]:
        assert made.search(sample) == (oracle.search(sample) is not None), sample


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("^[A-Z]{3}-\\d{4}$", ["ABC-1234"], ["ABC-123", "xABC-1234", "ABC-1234\n", "ABC-12345"]),
        ("^(?:red|green)$", ["red", "green"], ["", "redgreen", "blue"]),
        ("^$", [""], [" "]),
        ("", ["", "anything"], []),
        ("^^a$$", ["a"], ["aa"]),
        ("^$^", [""], ["a"]),
        ("$^", [""], ["a"]),
        ("$(a|^)$", [""], ["a"]),
        ("^$a^", [], ["", "a"]),
        ("(^|,)x(,|$)", ["x", "a,x", "x,b"], ["ax", "xb"]),
        ("\\s", ["\u00a0", " ", "\ufeff"], ["a", "\u200b"]),
        ("^\\d$", ["7"], ["\u0667"]),
        ("^.$", ["\U0001f600", "é"], ["\n", "\r", "\u2028", "ab"]),
        ("^[\\d\\S]$", ["7", "x"], [" "]),
        ("^\\u00e9\\/\\-$", ["é/-"], ["e/-"]),
        ("^a{500}$", ["a" * 500], ["a" * 499, "a" * 501]),
    ],
)
def test_patterns_have_the_meaning_of_their_dialect(text: str, yes: list[str], no: list[str]) -> None:
    made = Pattern(text)
    assert [sample for sample in yes if not made.search(sample)] == []
    assert [sample for sample in no if made.search(sample)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(", "is missing"),
        (")", "closes nothing"),
        ("[a", "is missing"),
        ("[]", "must have a character"),
        ("[b-a]", "wrong order"),
        (r"[\d-z]", "one character to another"),
        ("*", "nothing to repeat"),
        ("a**", "without a group"),
        ("a++", "without a group"),
        ("^*", "anchor"),
        ("a{2", "must be"),
        ("a{3,2}", "wrong order"),
        ("a{1001}", "at most 1000"),
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "linear time"),
        (r"\bword", "linear time"),
        (r"\p{L}", "not supported"),
        ("\\", "escapes nothing"),
        ("(?i)a", "look-around"),
        ("a" * 1_025, "1024 characters"),
        ("((a{40}){40})", "too long"),
        ("(" * 40 + "a" + ")" * 40, "nested"),
    ],
)
def test_what_is_wrong_or_not_linear_is_refused(text: str, words: str) -> None:
    with pytest.raises(PatternError, match=re.escape(words)):
        Pattern(text)


@pytest.mark.requirement("R211")
@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("(a+)+$", "a" * 64_000 + "b"),
        ("^(a|a)*$", "a" * 64_000 + "b"),
        ("a*a*a*a*b", "a" * 64_000),
        ("(a|b)*a(a|b){200}c", "ab" * 32_000),
        ("(a|b)*a(a|b){500}c", "".join(random.Random(1).choices("ab", k=64_000))),  # every set of positions is new
        ("^(.*,){100}x", "a," * 32_000),
        ("([a-z]+)*@", "".join(chr(97 + (number * 7919) % 26) for number in range(64_000))),
    ],
)
def test_r211_no_pattern_stalls_a_node(text: str, sample: str) -> None:
    """A backtracking search takes minutes or for ever here; the bound leaves room for a machine that is busy."""
    made = Pattern(text)
    began = time.thread_time()
    assert made.search(sample) is False
    assert time.thread_time() - began < 10


@pytest.mark.requirement("R211")
@pytest.mark.parametrize("text", ["^" * 1_000, "$" * 1_000, "(" + "^|" * 500 + "^)+$", "(^|$|a)" * 140])
def test_r211_no_row_of_anchors_stalls_a_node(text: str) -> None:
    began = time.thread_time()
    assert Pattern(text).search("") is True
    assert time.thread_time() - began < 3
