"""YAML text to a positioned tree, by our own strict rules for scalars and keys.

Works on libyaml's events, so that nothing is built before it has been counted: an alias bomb, a thousand brackets and a
long list are refused where they pass their limit. Only unquoted JSON numbers, `true`, `false`, `null` and nothing at
all are not text; what YAML 1.1 makes of `no`, `12:30` or `2024-01-01` does not happen here.
Nodes are never changed; they are not frozen because a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from definitions.codes import Code
from definitions.findings import Findings
from definitions.limits import DEPTH_MAX, INT64_MAX, INT64_MIN, YAML_NODES_MAX
from definitions.source import Source

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same events; without libyaml only slower

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "": None}
_INTEGER_CHARACTERS_MAX = 20  # "-9223372036854775808"

# Characters that no editor shows; U+0085, U+2028 and U+2029 are line breaks to YAML 1.1 and to nobody else.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class Scalar(Struct):
    """A text, number, bool or null; `text` is what was written, less quotes and escapes; `start` an index."""

    value: str | int | float | bool | None
    text: str
    style: str | None  # None for plain, else ' " | >
    start: int
    end: int
    place: tuple[int, int]


class Sequence(Struct):
    """A list."""

    items: tuple[YamlNode, ...]
    start: int
    place: tuple[int, int]


class Mapping(Struct):
    """An object: key text → (key, value), in the order of the file, without the refused entries."""

    entries: dict[str, tuple[Scalar, YamlNode]]
    start: int
    place: tuple[int, int]


class Broken(Struct):
    """A part that has its finding already; whoever meets it says nothing more."""

    start: int
    place: tuple[int, int]


YamlNode = Scalar | Sequence | Mapping | Broken


class _Stop(Exception):
    """Nothing after this point of the file can be read; the finding has been added."""


def read_yaml(source: Source, findings: Findings) -> YamlNode | None:
    """Return the tree of the one document, or None if it can't be read further; findings tell why."""
    if _refuse_characters(source, findings):
        return None
    try:
        loader = _Loader(source.text)
        try:
            reader = _Reader(_events(loader, source, findings), findings)
            tree = reader.document()
        finally:
            loader.dispose()
    except _Stop:
        return None
    _refuse_tabs(source, findings, reader.spans)
    return tree


def _refuse_characters(source: Source, findings: Findings) -> bool:
    found = False
    for match in _FORBIDDEN.finditer(source.text):
        found = True
        message = f"the character U+{ord(match.group()):04X} is not allowed in a definition"
        hint = 'write it as an escape in double quotes, such as "\\u2028"'
        findings.at_index(Code.YAML_CHARACTER, match.start(), message, hint)
        if findings.full:
            break
    return found


def _events(loader: Any, source: Source, findings: Findings) -> Iterator[Any]:
    try:
        next_event, end = loader.get_event, yaml.StreamEndEvent
        while type(event := next_event()) is not end:
            yield event
    except yaml.MarkedYAMLError as error:
        _add_syntax_error(error, source, findings)
        raise _Stop from None
    except (yaml.YAMLError, ValueError) as error:  # a reader's error has no mark; ValueError is libyaml's binding's
        findings.at(Code.YAML_SYNTAX, (1, 1), str(error).splitlines()[0])
        raise _Stop from None


def _add_syntax_error(error: yaml.MarkedYAMLError, source: Source, findings: Findings) -> None:
    mark = error.problem_mark or error.context_mark
    index = min(mark.index, len(source.text)) if mark else 0
    line, _ = source.locate(index)
    start = source.line_start(line)
    text = source.text[start : index + 1]
    tab = text.find("\t")
    if tab >= 0 and not text[:tab].strip():
        findings.at_index(Code.YAML_TAB, start + tab, "a tab can't indent YAML", "use spaces")
        return
    if source.text[index : index + 1] == "\t":
        findings.at_index(Code.YAML_TAB, index, "a tab can't stand here", "use spaces")
        return
    context = error.context
    if context and error.context_mark and mark and error.context_mark.line != mark.line:
        context += f" that begins on line {error.context_mark.line + 1}"
    words = ", ".join(part for part in (context, error.problem) if part)
    if "nesting depth" in words:
        findings.at_index(Code.TOO_DEEP, index, f"a definition may be nested {DEPTH_MAX} levels deep")
        return
    if "anchor" in words or "alias" in words:
        code = Code.YAML_ANCHOR if "anchor" in words else Code.YAML_ALIAS
        findings.at_index(code, index, "anchors and aliases are not allowed", "put quotes around a text with & or *")
        return
    hint = "put quotes around a text with `: ` or ` #` in it" if "mapping values" in words else None
    if "flow" in words:
        has_hole = "${" in source.text[start : index + 3]
        what = 'it: `"${ input.amount }"`' if has_hole else "a text with `{`, `[`, `]`, `}` or `,` in it"
        hint = f"inside {{ }} and [ ] put quotes around {what}"
    findings.at_index(Code.YAML_SYNTAX, index, words or "this is not YAML", hint)


def _refuse_tabs(source: Source, findings: Findings, spans: list[tuple[int, int]]) -> None:
    """Refuse tabs outside of texts and comments: they look like indentation and are none."""
    at = source.text.find("\t")
    span = 0
    while at >= 0 and not findings.full:
        while span < len(spans) and spans[span][1] <= at:
            span += 1
        inside = span < len(spans) and spans[span][0] <= at
        if inside:
            at = source.text.find("\t", spans[span][1])
            continue
        line, _ = source.locate(at)
        start = max(source.line_start(line), spans[span - 1][1] if span else 0)
        comment = source.text.find("#", start, at)
        if comment < 0:
            findings.at_index(Code.YAML_TAB, at, "a tab stands outside of a text", "use spaces")
        end = source.text.find("\n", at)
        at = source.text.find("\t", end) if end >= 0 else -1


class _Reader:
    """Builds the tree from events; recursion is bounded by the depth limit."""

    def __init__(self, events: Iterator[Any], findings: Findings) -> None:
        self._events = events
        self._findings = findings
        self._nodes = 0
        self.spans: list[tuple[int, int]] = []  # of all scalars, in order

    def document(self) -> YamlNode | None:
        tree: YamlNode | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    place = _place(event)
                    self._findings.at(Code.YAML_SEVERAL_DOCUMENTS, place, "a file holds one definition, not several")
                    raise _Stop
                tree = self._node(next(self._events), 1)
        if tree is None or (isinstance(tree, Scalar) and tree.text == "" and tree.style is None):
            self._findings.at(Code.EMPTY_DOCUMENT, (1, 1), "the definition is empty")
            return None
        return tree

    def _node(self, event: Any, depth: int) -> YamlNode:
        self._nodes += 1
        mark = event.start_mark
        place = (mark.line + 1, mark.column + 1)
        if self._findings.full:
            self._findings.omit()
            raise _Stop
        if self._nodes > YAML_NODES_MAX:
            self._findings.at(Code.TOO_MANY_NODES, place, f"a definition may have {YAML_NODES_MAX} values")
            raise _Stop
        kind = type(event)
        if kind is yaml.AliasEvent:
            message = "aliases are not allowed: what is written is what runs"
            self._findings.at(Code.YAML_ALIAS, place, message, "write the value out, or put quotes around a text")
            return Broken(mark.index, place)
        if event.anchor is not None:
            message = "anchors are not allowed: what is written is what runs"
            self._findings.at(Code.YAML_ANCHOR, place, message, "write the value out, or put quotes around a text")
        if event.tag is not None:
            message = f"tags such as {str(event.tag)[:40]} are not allowed"
            self._findings.at(Code.YAML_TAG, place, message, "put quotes around a text that begins with !")
        if kind is yaml.ScalarEvent:
            return self._scalar(event, mark.index, place)
        if depth > DEPTH_MAX:
            self._findings.at(Code.TOO_DEEP, place, f"a definition may be nested {DEPTH_MAX} levels deep")
            raise _Stop
        if kind is yaml.SequenceStartEvent:
            return self._sequence(event, place, depth)
        return self._mapping(event, place, depth)

    def _sequence(self, start: Any, place: tuple[int, int], depth: int) -> Sequence:
        items = []
        for event in self._events:
            if type(event) is yaml.SequenceEndEvent:
                break
            items.append(self._node(event, depth + 1))
        return Sequence(tuple(items), start.start_mark.index, place)

    def _mapping(self, start: Any, place: tuple[int, int], depth: int) -> Mapping:
        entries: dict[str, tuple[Scalar, YamlNode]] = {}
        for event in self._events:
            if type(event) is yaml.MappingEndEvent:
                break
            key = self._node(event, depth + 1)
            value = self._node(next(self._events), depth + 1)
            if self._is_legal_key(key, entries):
                assert isinstance(key, Scalar)
                entries[key.text] = (key, value)
        return Mapping(entries, start.start_mark.index, place)

    def _is_legal_key(self, key: YamlNode, entries: dict[str, tuple[Scalar, YamlNode]]) -> bool:
        if isinstance(key, Broken):
            return False
        if not isinstance(key, Scalar) or not isinstance(key.value, str):
            hint = f'write "{key.text[:40]}" in quotes' if isinstance(key, Scalar) and key.text else None
            self._findings.at(Code.YAML_KEY_NOT_TEXT, key.place, "a key must be a text", hint)
            return False
        if key.text == "<<":
            message = "merge keys are not allowed: what is written is what runs"
            self._findings.at(Code.YAML_MERGE_KEY, key.place, message, "write the entries out")
            return False
        earlier = entries.get(key.text)
        if earlier is not None:
            message = f"the key `{key.text[:80]}` stands twice; the first is in line {earlier[0].place[0]}"
            self._findings.at(Code.YAML_DUPLICATE_KEY, key.place, message)
            return False
        return True

    def _scalar(self, event: Any, start: int, place: tuple[int, int]) -> Scalar | Broken:
        end = event.end_mark.index
        self.spans.append((start, end))
        text: str = event.value
        style = event.style or None
        if style is not None:
            return Scalar(text, text, style, start, end, place)
        if text in _CONSTANTS:
            return Scalar(_CONSTANTS[text], text, None, start, end, place)
        match = _NUMBER.fullmatch(text)
        if match is None:
            return Scalar(text, text, None, start, end, place)
        number = _number(text, whole=match.group(1) is None and match.group(2) is None)
        if number is None:
            message = f"the number {text[:40]} does not fit 64 bits and would be rounded"
            self._findings.at(Code.NUMBER_RANGE, place, message, "put quotes around it to keep it as text")
            return Broken(start, place)
        return Scalar(number, text, None, start, end, place)


def _number(text: str, *, whole: bool) -> int | float | None:
    if whole:
        if len(text) > _INTEGER_CHARACTERS_MAX:
            return None
        integer = int(text)
        return integer if INT64_MIN <= integer <= INT64_MAX else None
    number = float(text)
    return None if number in (float("inf"), float("-inf")) else number


def _place(event: Any) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def to_json(node: YamlNode) -> Any:
    """Return the tree as a JSON value; broken parts are null."""
    match node:
        case Scalar(value=value):
            return value
        case Sequence(items=items):
            return [to_json(item) for item in items]
        case Mapping(entries=entries):
            return {key: to_json(value) for key, (_, value) in entries.items()}
        case Broken():
            return None


def has_broken(node: YamlNode) -> bool:
    """Tell whether any part of the tree was refused already."""
    match node:
        case Broken():
            return True
        case Sequence(items=items):
            return any(has_broken(item) for item in items)
        case Mapping(entries=entries):
            return any(has_broken(value) for _, value in entries.values())
        case Scalar():
            return False
