"""Expressions: a strict subset of CEL with positions at publish and at run time.

Text goes through lexer, parser, checker and generator, and becomes nested Python closures. It is total: no clock, no
I/O, no loops, int64 with an error on overflow, and no truthiness. `docs/expressions.md` lists what differs from CEL.
"""

from __future__ import annotations

from definitions.expression.checker import Environment, StepFacts
from definitions.expression.errors import EvaluationError, ExpressionInvalid, Problem
from definitions.expression.expression import (
    Checked,
    Expression,
    check_expression,
    compile_expression,
    stored_expression,
)
from definitions.expression.types import Kind, Type

__all__ = [
    "Checked",
    "Environment",
    "EvaluationError",
    "Expression",
    "ExpressionInvalid",
    "Kind",
    "Problem",
    "StepFacts",
    "Type",
    "check_expression",
    "compile_expression",
    "stored_expression",
]
