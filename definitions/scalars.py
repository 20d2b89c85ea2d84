"""Where each character of a YAML scalar's value stands in the file, for all five styles.

The scalar is scanned a second time by YAML's rules for folding, escapes and indentation, and the outcome is compared
with the value that libyaml gave: where the two differ, the scalar's first character is the position of all. A finding
is then less exact, never wrong about its line's neighbourhood.
"""

from __future__ import annotations

import re

from definitions.positions import Positions
from definitions.source import Source
from definitions.yaml_tree import Scalar

_HEXADECIMAL_LENGTHS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
_HEADER = re.compile(r"[|>](?:([+-])?([1-9])?|([1-9])([+-])?)[ \t]*(?:#[^\n]*)?")


class _Out:
    """The characters of the value so far, and the index in the file that each comes from."""

    __slots__ = ("characters", "indexes")

    def __init__(self) -> None:
        self.characters: list[str] = []
        self.indexes: list[int] = []

    def put(self, character: str, index: int) -> None:
        self.characters.append(character)
        self.indexes.append(index)


def positions_of(scalar: Scalar, source: Source) -> Positions:
    """Return the positions of `scalar.text` in the file."""
    text = source.text
    if scalar.style is None and text.startswith(scalar.text, scalar.start):
        return Positions(*scalar.place)
    if scalar.style in ("'", '"') and text[scalar.start + 1 : scalar.end - 1] == scalar.text:
        line, column = scalar.place
        return Positions(line, column + 1)  # one line without escapes: the common case needs no scan
    out = _Out()
    if scalar.style in ("|", ">"):
        _scan_block(text, scalar, out)
    elif scalar.style is None:
        _scan_flow(text, scalar.start, scalar.end, out, quote="")
    else:
        _scan_flow(text, scalar.start + 1, scalar.end - 1, out, quote=scalar.style)
    if "".join(out.characters[: len(scalar.text)]) != scalar.text:
        return Positions(*scalar.place)
    return Positions.of(_runs(out.indexes, source))


def _runs(indexes: list[int], source: Source) -> tuple[tuple[int, int, int], ...]:
    runs: list[tuple[int, int, int]] = []
    before = -2
    for offset, index in enumerate(indexes):
        if index != before + 1 or (before >= 0 and source.text[before] in "\r\n"):
            runs.append((offset, *source.locate(index)))
        before = index
    return tuple(runs) or ((0, 1, 1),)


def _scan_flow(text: str, start: int, end: int, out: _Out, *, quote: str) -> None:
    """Scan a plain or quoted scalar: escapes by quote, and line folding."""
    at = start
    while at < end:
        character = text[at]
        if character in " \t\r\n":
            at = _fold(text, at, end, out)
        elif quote == "'" and character == "'":
            out.put("'", at)
            at += 2
        elif quote == '"' and character == "\\":
            at = _escape(text, at, end, out)
        else:
            out.put(character, at)
            at += 1


def _fold(text: str, at: int, end: int, out: _Out) -> int:
    """Copy blanks inside a line; turn a line break with the blanks around it into a space or into line feeds."""
    stop = at
    breaks: list[int] = []
    while stop < end and text[stop] in " \t\r\n":
        if text[stop] == "\r" and text[stop + 1 : stop + 2] == "\n":
            stop += 1
        if text[stop] in "\r\n":
            breaks.append(stop)
        stop += 1
    if not breaks:
        for index in range(at, stop):
            out.put(text[index], index)
    elif len(breaks) == 1:
        out.put(" ", breaks[0])
    else:
        for index in breaks[1:]:
            out.put("\n", index)
    return stop


def _escape(text: str, at: int, end: int, out: _Out) -> int:
    character = text[at + 1 : at + 2]
    length = _HEXADECIMAL_LENGTHS.get(character)
    if length is not None:
        digits = text[at + 2 : at + 2 + length]
        out.put(chr(int(digits, 16)), at)
        return at + 2 + length
    if character in ("\r", "\n"):
        # An escaped line break vanishes with the blanks after it; further empty lines stay as line feeds.
        at += 3 if text[at + 1 : at + 3] == "\r\n" else 2
        while at < end and text[at] in " \t\r\n":
            if text[at] == "\n":
                out.put("\n", at)
            at += 1
        return at
    out.put(_ESCAPES.get(character, character), at)
    return at + 2


def _scan_block(text: str, scalar: Scalar, out: _Out) -> None:
    header = _HEADER.match(text, scalar.start)
    if header is None:
        return
    at = _after_break(text, header.end())
    indent = _indent(text, scalar, header, at)
    breaks: list[int] = []
    at = _blank_lines(text, at, indent, breaks)
    while at < scalar.end and _column(text, at) == indent:
        for index in breaks:
            out.put("\n", index)
        more_indented = text[at] in " \t"
        while at < len(text) and text[at] not in "\r\n":
            out.put(text[at], at)
            at += 1
        line_break = at
        at = _after_break(text, at)
        breaks = []
        at = _blank_lines(text, at, indent, breaks)
        last = at >= len(text) or _column(text, at) != indent or at >= scalar.end
        folds = scalar.style == ">" and not more_indented and not last and text[at] not in " \t"
        if not folds:
            out.put("\n", line_break)
        elif not breaks:
            out.put(" ", line_break)
    for index in breaks:
        out.put("\n", index)


def _after_break(text: str, at: int) -> int:
    if text.startswith("\r\n", at):
        return at + 2
    return at + 1 if text[at : at + 1] in ("\r", "\n") and at < len(text) else at


def _column(text: str, at: int) -> int:
    start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    return at - start


def _indent(text: str, scalar: Scalar, header: re.Match[str], at: int) -> int:
    """Return the indentation of the content: that of its first line with a character, or as the header says."""
    explicit = header.group(2) or header.group(3)
    first = at
    while first < scalar.end:
        end = first
        while end < len(text) and text[end] == " ":
            end += 1
        if text[end : end + 1] not in ("\r", "\n", ""):
            break
        first = _after_break(text, end)
        if first == end:
            break
    spaces = 0
    while text[first + spaces : first + spaces + 1] == " ":
        spaces += 1
    if explicit is None:
        return spaces
    # With an explicit indicator the parent's indentation is not known here: the value's first line tells it.
    leading = len(scalar.text) - len(scalar.text.lstrip(" "))
    return max(spaces - leading, int(explicit))


def _blank_lines(text: str, at: int, indent: int, breaks: list[int]) -> int:
    """Pass empty lines and the indentation of the next one, and keep the line breaks passed."""
    while True:
        column = 0
        while column < indent and text[at : at + 1] == " ":
            at += 1
            column += 1
        if text[at : at + 1] not in ("\r", "\n") or at >= len(text):
            return at
        breaks.append(at)
        at = _after_break(text, at)
