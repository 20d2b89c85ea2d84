"""What the compiler finds: code, place, words, the source line with a caret, and a hint.

All findings of a file are collected in one pass and sorted by place. Their number is bounded: a file that is wrong
everywhere gets the first hundred and a note.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from definitions.codes import Code
from definitions.expression import Problem
from definitions.limits import FINDINGS_MAX, LINE_SHOWN_MAX
from definitions.positions import Positions
from definitions.source import Source


class Finding(Struct, frozen=True):
    """One mistake; `excerpt` is the source line, cut around the place if it is long, `caret` the column in it."""

    code: Code
    line: int
    column: int
    message: str
    hint: str | None
    excerpt: str
    caret: int

    def render(self, file: str = "definition.yaml") -> str:
        """Write the finding for people, in the form that terminals and editors turn into links."""
        lines = [f"{file}:{self.line}:{self.column}: {self.code}: {self.message}"]
        if self.excerpt:
            lines += [f"    {self.excerpt}", f"    {' ' * (self.caret - 1)}^"]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Write the finding for programs."""
        return {
            "code": self.code.value,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "hint": self.hint,
            "source_line": self.excerpt,
            "caret": self.caret,
        }


class Findings:
    """Collects findings; beyond the limit none is kept, so that hostile files cost no more than others."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._found: list[Finding] = []
        self._seen: set[tuple[Code, int, int]] = set()
        self._omitted = False
        # Whether no further finding would be kept. Asked for every value of a file, so it is no property.
        self.full = False

    def __bool__(self) -> bool:
        return bool(self._found)

    def omit(self) -> None:
        """Note that there may be findings that are not kept."""
        self._omitted = True

    def at(self, code: Code, place: tuple[int, int], message: str, hint: str | None = None) -> None:
        """Add a finding at a line and column; the same code at the same place is kept once."""
        key = (code, *place)
        if key in self._seen:
            return
        if self.full:
            self.omit()
            return
        self._seen.add(key)
        line, column = place
        excerpt, caret = self._source.line_text(line, around_column=column, characters_max=LINE_SHOWN_MAX)
        self._found.append(Finding(code, line, column, message, hint, excerpt, caret))
        self.full = len(self._found) >= FINDINGS_MAX

    def at_index(self, code: Code, index: int, message: str, hint: str | None = None) -> None:
        """Add a finding at an index of the source text."""
        self.at(code, self._source.locate(index), message, hint)

    def add_problem(self, problem: Problem, positions: Positions) -> None:
        """Add a problem of an expression whose text has these positions."""
        self.at(problem.code, positions.locate(problem.offset), problem.message, problem.hint)

    def sorted(self) -> tuple[Finding, ...]:
        """Return all findings by place, and a note where some were left out."""
        found = sorted(self._found, key=lambda finding: (finding.line, finding.column, finding.code))
        if self._omitted:
            message = f"there is more to find than these {FINDINGS_MAX} findings"
            found.append(Finding(Code.TOO_MANY_FINDINGS, found[-1].line, found[-1].column, message, None, "", 1))
        return tuple(found)
