"""Reads a regular expression of a JSON Schema (ECMA-262, as the schemas' dialect has it) into a tree.

Only what can be matched in linear time: no look-around, no back-references. Groups are for grouping alone, and whether
a repetition is lazy makes no difference to whether a text matches.
"""

from __future__ import annotations

from typing import NoReturn

from msgspec import Struct

CHARACTERS_MAX = 1_024
DEPTH_MAX = 32
REPEATS_MAX = 1_000

Ranges = tuple[tuple[int, int], ...]

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_HEXADECIMAL = {"x": 2, "u": 4}


class PatternError(ValueError):
    """The pattern is no regular expression, or none that can be matched in linear time."""


class Characters(Struct, frozen=True):
    """One character of a set, or of all others."""

    ranges: Ranges
    negated: bool = False


class Anchor(Struct, frozen=True):
    """The start (`^`) or the end (`$`) of the text."""

    is_start: bool


class Chain(Struct, frozen=True):
    """Parts one after the other."""

    parts: tuple[Tree, ...]


class Choice(Struct, frozen=True):
    """One of some parts."""

    parts: tuple[Tree, ...]


class Repeat(Struct, frozen=True):
    """A part, `low` to `high` times; None is without bound."""

    part: Tree
    low: int
    high: int | None


Tree = Characters | Anchor | Chain | Choice | Repeat


def parse_pattern(text: str) -> Tree:
    """Return the tree of a pattern. Raises PatternError."""
    if len(text) > CHARACTERS_MAX:
        message = f"a pattern may have {CHARACTERS_MAX} characters"
        raise PatternError(message)
    parser = _Parser(text)
    tree = parser.choice(0)
    if parser.at < len(text):
        parser.refuse("this `)` closes nothing")
    return tree


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def refuse(self, why: str) -> NoReturn:
        message = f"{why} (character {self.at + 1} of the pattern)"
        raise PatternError(message)

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, expected: str) -> bool:
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def choice(self, depth: int) -> Tree:
        if depth > DEPTH_MAX:
            self.refuse(f"groups may be nested {DEPTH_MAX} deep")
        parts = [self._chain(depth)]
        while self._take("|"):
            parts.append(self._chain(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _chain(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while self._next() and self._next() not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def _atom(self, depth: int) -> Tree:
        character = self._next()
        if character in "*+?":
            self.refuse(f"`{character}` has nothing to repeat")
        self.at += 1
        match character:
            case "^" | "$":
                return Anchor(character == "^")
            case ".":
                return Characters(_LINE_ENDS, negated=True)
            case "[":
                return self._set()
            case "\\":
                return self._escape(in_set=False)
            case "(":
                if self._take("?") and not self._take(":"):
                    self.refuse("`(?` may only be `(?:`: look-around can't be matched in linear time")
                inner = self.choice(depth + 1)
                if not self._take(")"):
                    self.refuse("`)` is missing")
                return inner
            case _:
                return _one(character)

    def _repeated(self, part: Tree) -> Tree:
        character = self._next()
        if not character or character not in "*+?{":
            return part
        if isinstance(part, Anchor):
            self.refuse("an anchor can't be repeated")
        self.at += 1
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(character, (0, None))
        if character == "{":
            low, high = self._counts()
        self._take("?")
        if self._next() and self._next() in "*+?{":
            self.refuse("a repetition can't be repeated without a group")
        return Repeat(part, low, high)

    def _counts(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._next() == "}" else self._number()
        if not self._take("}"):
            self.refuse("`{` must be `{2}`, `{2,}` or `{2,5}`; write `\\{` for the character")
        if high is not None and high < low:
            self.refuse("the numbers of a repetition are in the wrong order")
        return low, high

    def _number(self) -> int:
        start = self.at
        while self._next() and self._next() in "0123456789":
            self.at += 1
        digits = self.text[start : self.at]
        if not digits:
            self.refuse("`{` must be `{2}`, `{2,}` or `{2,5}`; write `\\{` for the character")
        if len(digits) > len(str(REPEATS_MAX)) or int(digits) > REPEATS_MAX:
            self.refuse(f"at most {REPEATS_MAX} repetitions can be counted")
        return int(digits)

    def _set(self) -> Characters:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        if self._next() == "]":
            self.refuse("a set must have a character; write `\\]` for the bracket")
        while not self._take("]"):
            low = self._member()
            if self._next() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                    self.refuse("a range goes from one character to another")
                if high[0][0] < low[0][0]:
                    self.refuse("the characters of a range are in the wrong order")
                ranges.append((low[0][0], high[0][0]))
            else:
                ranges += low
        return Characters(tuple(ranges), negated)

    def _member(self) -> Ranges:
        character = self._next()
        if not character:
            self.refuse("`]` is missing")
        self.at += 1
        if character != "\\":
            return _one(character).ranges
        member = self._escape(in_set=True)
        return _complement(member.ranges) if member.negated else member.ranges

    def _escape(self, *, in_set: bool) -> Characters:
        character = self._next()
        if not character:
            self.refuse("`\\` escapes nothing")
        self.at += 1
        if character.lower() in _CLASSES:
            return Characters(_CLASSES[character.lower()], negated=character.isupper())
        if character in _CONTROLS and not (character == "0" and self._next().isdigit()):
            return _one(_CONTROLS[character])
        if in_set and character == "b":
            return _one("\b")
        if character in _HEXADECIMAL:
            digits = self.text[self.at : self.at + _HEXADECIMAL[character]]
            if len(digits) == _HEXADECIMAL[character] and all(digit in "0123456789abcdefABCDEF" for digit in digits):
                self.at += len(digits)
                return _one(chr(int(digits, 16)))
        if character.isalnum():
            self.at -= 1
            self.refuse(f"`\\{character}` is not supported: it is unknown, or can't be matched in linear time")
        return _one(character)


def _one(character: str) -> Characters:
    return Characters(((ord(character), ord(character)),))


def _complement(ranges: Ranges) -> Ranges:
    """Return the ranges of all other characters; `ranges` are sorted and apart."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), 0x10FFFF]
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start <= end)
