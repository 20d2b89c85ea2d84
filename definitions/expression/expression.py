"""The compiled expression and the two ways to get one: for the compiler with checks, for others without."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from definitions.expression.checker import Environment, check
from definitions.expression.errors import EvaluationError, ExpressionInvalid, Fault, FaultCode, Problem, SyntaxProblem
from definitions.expression.functions import type_name
from definitions.expression.generator import Closure, generate
from definitions.expression.parser import parse
from definitions.expression.syntax import Node
from definitions.expression.types import DYN, Type
from definitions.positions import Positions
from orbit.jsontext import Json

_HERE = Positions()

# Definitions repeat themselves (`input.order_id`), and so do their versions: trees are immutable and can be shared.
_KNOWN_CHARACTERS_MAX = 100
parse_known = lru_cache(maxsize=1_024)(parse)


def _tree_of(source: str) -> Node:
    return parse_known(source) if len(source) <= _KNOWN_CHARACTERS_MAX else parse(source)


class Expression(Struct, eq=False, gc=False):
    """A compiled expression: immutable, without side effects, safe to share between threads and greenlets.

    Two expressions are equal if they have the same text at the same place.
    """

    source: str
    step_references: frozenset[str]  # ids of the steps whose output it reads
    positions: Positions
    _run: Closure | None = None

    def _made(self) -> Closure:
        """Make the closures when it is first used: to check, publish or load a definition nothing is evaluated."""
        self._run = run = generate(_tree_of(self.source))
        return run

    def evaluate(self, scope: Mapping[str, Json]) -> Json:
        """Return the value over `scope`, which maps the roots (`input`, `steps`, ...) to JSON values.

        Raises EvaluationError with the code, the words and the place in the published file.
        """
        try:
            return (self._run or self._made())(scope)
        except Fault as fault:
            raise EvaluationError(fault, self.source, self.positions) from None

    def evaluate_condition(self, scope: Mapping[str, Json]) -> bool:
        """Return the value of a condition. Raises EvaluationError, also (NOT_BOOLEAN) if it is no bool."""
        value = self.evaluate(scope)
        if value is True or value is False:
            return value
        fault = Fault(FaultCode.NOT_BOOLEAN, f"a condition gives true or false, this gave {type_name(value)}", 0)
        raise EvaluationError(fault, self.source, self.positions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return self.source == other.source and self.positions == other.positions

    def __hash__(self) -> int:
        return hash((self.source, self.positions))

    def __repr__(self) -> str:
        return f"Expression({self.source!r})"


class Checked(Struct, frozen=True):
    """What the compiler learns: the expression if there are no problems, its type, and what `known` it adds.

    `proves` are the paths that certainly exist once the expression was true, `refutes` once it was false.
    """

    expression: Expression | None
    type: Type
    problems: tuple[Problem, ...]
    proves: frozenset[tuple[str, ...]] = frozenset()
    refutes: frozenset[tuple[str, ...]] = frozenset()


def check_expression(source: str, environment: Environment | None, positions: Positions = _HERE) -> Checked:
    """Parse, check and compile, and collect all problems; never raises for bad text."""
    try:
        tree = _tree_of(source)
    except SyntaxProblem as error:
        return Checked(None, DYN, (error.problem,))
    report = check(tree, environment)
    if report.problems:
        return Checked(None, report.type, tuple(report.problems), report.proves, report.refutes)
    expression = Expression(source, step_references=report.step_references, positions=positions)
    return Checked(expression, report.type, (), report.proves, report.refutes)


def compile_expression(source: str, *, positions: Positions = _HERE) -> Expression:
    """Compile without an environment: every root is allowed and has any type. Raises ExpressionInvalid."""
    checked = check_expression(source, None, positions)
    if checked.expression is None:
        raise ExpressionInvalid(source, checked.problems)
    return checked.expression


def stored_expression(source: str, *, positions: Positions, step_references: frozenset[str]) -> Expression:
    """Return an expression that was compiled and stored before."""
    return Expression(source, step_references=step_references, positions=positions)
