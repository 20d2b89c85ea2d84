"""Where the characters of a text stand in the file they come from.

An expression lives inside a YAML scalar, which may be quoted, folded or indented; `Positions` maps an offset in its
text to a line and column of the file. It leaves the scanning of scalars to `definitions.scalars`. Lines and columns
count from 1, and columns count characters, not bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct

_OFFSET = 0


class Positions(Struct, frozen=True, gc=False):
    """Where the text begins, and `later` runs of `(offset, line, column)`: from each on, columns rise with characters.

    Few texts have a later run, and those without are all that the garbage collector need not know of.
    """

    line: int = 1
    column: int = 1
    later: tuple[tuple[int, int, int], ...] = ()

    @staticmethod
    def of(runs: Sequence[Sequence[int]]) -> Positions:
        """Make positions of runs, the first of which begins at offset 0."""
        _, line, column = runs[0]
        return Positions(line, column, tuple((run[0], run[1], run[2]) for run in runs[1:]) if len(runs) > 1 else ())

    @property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """All runs; the first begins at offset 0."""
        return ((0, self.line, self.column), *self.later)

    def locate(self, offset: int) -> tuple[int, int]:
        """Return the line and column of the character at `offset`."""
        start, line, column = 0, self.line, self.column
        if self.later and offset >= self.later[0][_OFFSET]:
            start, line, column = self.later[bisect_right(self.later, offset, key=lambda run: run[_OFFSET]) - 1]
        return line, column + max(offset - start, 0)

    def from_offset(self, offset: int) -> Positions:
        """Return the positions of the text that begins at `offset` of this one."""
        if offset == 0:
            return self
        line, column = self.locate(offset)
        if not self.later:
            return Positions(line, column)
        return Positions(
            line, column, tuple((start - offset, row, place) for start, row, place in self.later if start > offset)
        )
