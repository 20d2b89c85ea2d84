"""The text of a definition and where its lines begin: indexes into it become lines and columns."""

from __future__ import annotations

import re
from bisect import bisect_right

_LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Source:
    """A definition's text; lines and columns count from 1, columns in characters."""

    __slots__ = ("_line_starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._line_starts = [0, *(match.end() for match in _LINE_BREAK.finditer(text))]

    def locate(self, index: int) -> tuple[int, int]:
        """Return line and column of the character at `index`."""
        line = bisect_right(self._line_starts, index)
        return line, index - self._line_starts[line - 1] + 1

    def line_start(self, line: int) -> int:
        """Return the index of the first character of `line`."""
        return self._line_starts[line - 1]

    def line_text(self, line: int, *, around_column: int, characters_max: int) -> tuple[str, int]:
        """Return at most `characters_max` characters of `line` around a column, and the column within them.

        Works on the one line's slice only, so that a finding in a huge line costs no more than in a short one.
        """
        if not 1 <= line <= len(self._line_starts):
            return "", 1
        start = self._line_starts[line - 1]
        end = self._line_starts[line] if line < len(self._line_starts) else len(self.text)
        column = min(around_column, end - start + 1)
        first = start if column <= characters_max else start + column - characters_max // 2
        shown = self.text[first : min(end, first + characters_max)].rstrip("\r\n")
        return shown.replace("\t", " "), column - (first - start)
