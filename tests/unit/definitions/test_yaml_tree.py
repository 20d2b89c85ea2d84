"""The YAML reader: our scalar rules, what is refused, hostile files, and columns in every scalar style."""

import json
import time
import tracemalloc
from typing import Any

import pytest

from definitions.findings import Finding, Findings
from definitions.scalars import positions_of
from definitions.source import Source
from definitions.yaml_tree import Mapping, Scalar, YamlNode, read_yaml, to_json

HOSTILE_SECONDS_MAX = 0.3  # of processor time; 0.1 on an idle machine, the rest is room for a busy one
HOSTILE_BYTES_MAX = 64 * 1024 * 1024


def read(text: str) -> tuple[YamlNode | None, tuple[Finding, ...]]:
    source = Source(text)
    findings = Findings(source)
    return read_yaml(source, findings), findings.sorted()


def places(text: str) -> list[tuple[str, int, int]]:
    return [(finding.code.value, finding.line, finding.column) for finding in read(text)[1]]


TEXTS = (
    "no yes on off NO True False NULL ~ 12:30 1:00:00 0123 0x10 0o17 1_000 +1 1. .5 .inf .nan 1e 2024-01-01 "
    "2024-01-01T00:00:00Z 1,5 = < 0b1 00"
)


@pytest.mark.parametrize("text", TEXTS.split())
def test_only_json_is_not_text(text: str) -> None:
    tree, findings = read(f"a: {text}")
    assert (tree and to_json(tree), findings) == ({"a": text}, ())


@pytest.mark.parametrize(
    "text", ["true", "false", "null", "0", "-0", "12", "-9223372036854775808", "1.5", "1e3", "-1.5E-3", "0.10"]
)
def test_json_scalars_have_their_json_value(text: str) -> None:
    tree, _ = read(f"a: {text}")
    assert tree is not None
    found = to_json(tree)["a"]
    assert (type(found), found) == (type(json.loads(text)), json.loads(text))


def test_quoted_and_block_scalars_are_always_text() -> None:
    tree, _ = read("a: \"1\"\nb: 'true'\nc: |\n  12\nd: >-\n  null\n")
    assert tree is not None
    assert to_json(tree) == {"a": "1", "b": "true", "c": "12\n", "d": "null"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\nb:\n  c: 1\n  c: 2\n", [("YAML_DUPLICATE_KEY", 2, 1), ("YAML_DUPLICATE_KEY", 5, 3)]),
        ("a: &x 1\nb: *x\n", [("YAML_ANCHOR", 1, 4), ("YAML_ALIAS", 2, 4)]),
        ("a:\n  <<: {b: 1}\n", [("YAML_MERGE_KEY", 2, 3)]),
        ("a: !!str 1\nb: !x y\n", [("YAML_TAG", 1, 4), ("YAML_TAG", 2, 4)]),
        ("1: a\ntrue: b\n", [("YAML_KEY_NOT_TEXT", 1, 1), ("YAML_KEY_NOT_TEXT", 2, 1)]),
        ("? [x]\n: c\n", [("YAML_KEY_NOT_TEXT", 1, 3)]),
        ("a: 1\n---\nb: 2\n", [("YAML_SEVERAL_DOCUMENTS", 2, 1)]),
        ("a:\tb\n", [("YAML_TAB", 1, 3)]),
        ("a:\n\tb: 1\n", [("YAML_TAB", 2, 1)]),
        ("a: 1\t# note\n", [("YAML_TAB", 1, 5)]),
        ("a: 'x\ty' # a\tb\nb: |\n  x\ty\n", []),
        ("a: 9223372036854775808\nb: 1e999\n", [("NUMBER_RANGE", 1, 4), ("NUMBER_RANGE", 2, 4)]),
        ("a: b: c\n", [("YAML_SYNTAX", 1, 5)]),
        ("a: 'x\n", [("YAML_SYNTAX", 2, 1)]),
        ("a: @b\n", [("YAML_SYNTAX", 1, 4)]),
        ('a: "\\ud800"\n', [("YAML_SYNTAX", 1, 7)]),
        ("a: x\x00y\nb: \x85\n", [("YAML_CHARACTER", 1, 5), ("YAML_CHARACTER", 2, 4)]),
        ("a: \ud800\n", [("YAML_CHARACTER", 1, 4)]),
        ("", [("EMPTY_DOCUMENT", 1, 1)]),
        ("# only a comment\n", [("EMPTY_DOCUMENT", 1, 1)]),
    ],
)
def test_refused_with_place(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert places(text) == expected


def test_a_bracket_that_is_left_open_is_named_by_its_line() -> None:
    assert "begins on line 2" in read("a: 1\nb: {c: d\ne:\n  - f: 1\n")[1][0].message
    assert "begins" not in read("b: {c: d]\n")[1][0].message


def test_a_refused_duplicate_keeps_the_first_value_and_names_its_line() -> None:
    tree, findings = read("a: 1\nb: 2\na: 3\n")
    assert tree is not None
    assert to_json(tree) == {"a": 1, "b": 2}
    assert "line 1" in findings[0].message


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)

HOSTILE = {
    "alias bomb": BOMB,
    "brackets": "[" * 262_144,
    "braces": "{" * 262_144,
    "nested keys": "".join(f"{' ' * level}a:\n" for level in range(600)),
    "question marks": "? " * 100_000,
    "dashes": "- " * 100_000,
    "long list": "- a\n" * 65_000,
    "many keys": "".join(f"k{number}: 1\n" for number in range(20_000)),
    "same key": "a: 1\n" * 52_000,
    "anchors": "- &a b\n" * 37_000,
    "tags": "- !t b\n" * 37_000,
    "documents": "---\n" * 65_000,
    "quotes": '"' * 262_144,
    "comment": "#" * 262_144,
    "one long text": "a: " + "x" * 262_000,
    "commas": "[" + "," * 262_000,
    "tabs": "a: 1\n" + "\t" * 262_000,
    "tab lines": "a: 1\n" + "\t\n" * 130_000,
    "control characters": "\x01" * 262_144,
    "long number": "a: " + "9" * 262_000,
    "unknown escapes": 'a: "' + "\\q" * 130_000 + '"',
    "colons": ":" * 262_144,
    "pipes": "|\n" * 130_000,
    "spaces": "a:" + " " * 262_000 + "b",
    "folds": "a: b\n" + "\n" * 262_000 + "  c",
}


def _seconds_of(text: str) -> float:
    started = time.process_time()
    read(text)
    return time.process_time() - started


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_takes_little_time(name: str) -> None:
    tree, findings = read(HOSTILE[name])
    assert min(_seconds_of(HOSTILE[name]) for _ in range(3)) < HOSTILE_SECONDS_MAX
    assert findings or tree is not None
    assert len(findings) <= 101


@pytest.mark.parametrize("name", ["alias bomb", "many keys", "one long text"])
def test_hostile_file_takes_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        read(HOSTILE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < HOSTILE_BYTES_MAX


STYLES = {
    "plain": "key: one MARK two\n",
    "plain on lines": "key: one\n  two\n\n  three MARK four\n",
    "single": "key: 'one '' MARK two'\n",
    "single on lines": "key: 'one\n    two\n\n\n    MARK four'\n",
    "double": 'key: "one \\u0041 \\x41 \\n \\" MARK two"\n',
    "double on lines": 'key: "one \\\n    two\n\n    three \\t MARK"\n',
    "double with emoji": 'key: "\U0001f600 \\U0001F600 MARK"\n',
    "literal": "key: |\n  one\n    two\n\n  three MARK\n",
    "literal stripped": "key: |-\n  one MARK\n\n",
    "literal with indicator": "key: |2\n    one\n  two MARK\n",
    "literal after blank lines": "key: |\n\n\n  MARK\n",
    "literal with a comment": "key: | # note\n  one MARK\n",
    "folded": "key: >\n  one\n  two\n\n  three\n    four\n  five MARK\n",
    "folded kept": "key: >+\n  one\n  two MARK\n\n",
    "folded more indented": "key: >\n  one\n\n    two MARK\n  three\n",
    "in a list": "key:\n  - >-\n    one\n    MARK\n",
    "in flow": "key: {a: [one, 'two MARK']}\n",
    "after windows line ends": "other: 1\r\nkey: |\r\n  one\r\n  two MARK\r\n",
}


def _marked(node: YamlNode | None) -> Scalar:
    if isinstance(node, Scalar):
        assert "MARK" in node.text
        return node
    children: Any = [value for _, value in node.entries.values()] if isinstance(node, Mapping) else node.items  # type: ignore[union-attr]
    return _marked(next(child for child in children if "MARK" in str(to_json(child))))


@pytest.mark.parametrize("style", STYLES)
def test_column_inside_every_scalar_style(style: str) -> None:
    text = STYLES[style]
    source = Source(text)
    scalar = _marked(read_yaml(source, Findings(source)))
    assert positions_of(scalar, source).locate(scalar.text.index("MARK")) == source.locate(text.index("MARK"))


def test_the_source_line_is_cut_around_the_place_of_a_long_line() -> None:
    _, findings = read("a: [" + "x, " * 5_000 + "*alias]")
    finding = findings[0]
    assert len(finding.excerpt) <= 120
    assert finding.excerpt[finding.caret - 1 :].startswith("*alias")
