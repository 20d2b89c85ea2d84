"""What can be wrong with an expression: at publish a `Problem`, at run time an `EvaluationError`.

`Fault` is the run-time error while it is still inside the closures, where only offsets are known; `Expression.evaluate`
turns it into an `EvaluationError` with line and column.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from definitions.codes import Code
from definitions.positions import Positions


class FaultCode(StrEnum):
    """Why an evaluation gave no value."""

    NO_SUCH_FIELD = "NO_SUCH_FIELD"  # a key that the object does not have
    NO_SUCH_OVERLOAD = "NO_SUCH_OVERLOAD"  # an operator or function does not take values of these types
    INDEX_OUT_OF_RANGE = "INDEX_OUT_OF_RANGE"  # a list has no such position
    INTEGER_OVERFLOW = "INTEGER_OVERFLOW"  # the result does not fit 64 bits
    DIVISION_BY_ZERO = "DIVISION_BY_ZERO"  # of integers or doubles
    NOT_FINITE = "NOT_FINITE"  # a double became infinite
    CONVERSION_FAILED = "CONVERSION_FAILED"  # a text is no number
    DUPLICATE_KEY = "DUPLICATE_KEY"  # a map literal computed the same key twice
    NOT_BOOLEAN = "NOT_BOOLEAN"  # a condition gave something else than true or false
    NOT_TEXT = "NOT_TEXT"  # a value inside a longer text has no text form
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"  # a text or list outgrew its limit


class Problem(Struct, frozen=True):
    """One mistake found at publish; `offset` counts characters of the expression's text."""

    code: Code
    offset: int
    message: str
    hint: str | None = None


class SyntaxProblem(Exception):
    """Ends lexing or parsing: after a syntax error nothing further can be said."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class ExpressionInvalid(ValueError):
    """The text is not an expression; `problems` has at least one entry, in the order of the text."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{problems[0].message} (at character {problems[0].offset + 1} of {source!r})")
        self.source = source
        self.problems = problems


class Fault(Exception):
    """A run-time error at an offset of the expression."""

    def __init__(self, code: FaultCode, message: str, offset: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.offset = offset


class EvaluationError(Exception):
    """An evaluation gave no value; it says why and where in the published file, and never shows more than types."""

    def __init__(self, fault: Fault, source: str, positions: Positions) -> None:
        line, column = positions.locate(fault.offset)
        super().__init__(f"{fault.message} (line {line}, column {column}: {source})")
        self.code: str = fault.code
        self.message = fault.message
        self.line = line
        self.column = column
        self.source = source
