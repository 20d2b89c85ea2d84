"""Where the characters of a text stand in the file they come from.

An expression lives inside a YAML scalar, which may be quoted, folded or indented; `Positions` maps an offset in its
text to a line and column of the file. It leaves the scanning of scalars to `definitions.scalars`. Lines and columns
count from 1, and columns count characters, not bytes.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

_OFFSET, _LINE, _COLUMN = 0, 1, 2


class Positions(Struct, frozen=True, gc=False):
    """Runs of `(offset, line, column)`: from each offset on, columns rise with the characters."""

    runs: tuple[tuple[int, int, int], ...] = ((0, 1, 1),)

    def locate(self, offset: int) -> tuple[int, int]:
        """Return the line and column of the character at `offset`."""
        runs = self.runs
        index = 0 if len(runs) == 1 else max(bisect_right(runs, offset, key=lambda run: run[_OFFSET]) - 1, 0)
        start, line, column = runs[index]
        return line, column + max(offset - start, 0)

    def from_offset(self, offset: int) -> Positions:
        """Return the positions of the text that begins at `offset` of this one."""
        if offset == 0 and self.runs[0][_OFFSET] == 0:
            return self
        line, column = self.locate(offset)
        later = tuple((start - offset, row, place) for start, row, place in self.runs if start > offset)
        return Positions(((0, line, column), *later))
