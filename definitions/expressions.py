"""Compiles the expressions and templates of YAML values, with every problem at its place in the file."""

from __future__ import annotations

from collections.abc import Iterator

from definitions import advice
from definitions.codes import Code
from definitions.expression import Checked, Environment, check_expression
from definitions.expression.errors import Problem
from definitions.expression.types import Kind
from definitions.findings import Findings
from definitions.positions import Positions
from definitions.scalars import positions_of
from definitions.source import Source
from definitions.template import TEXT_KINDS, CheckedTemplate, Template, check_template, escape
from definitions.yaml_tree import Mapping, Scalar, Sequence, YamlNode, to_json
from orbit.jsontext import Json


class ExpressionCompiler:
    """Knows the file, so that offsets in a value become lines and columns."""

    def __init__(self, source: Source, findings: Findings) -> None:
        self._source = source
        self._findings = findings

    def condition(self, scalar: Scalar, environment: Environment) -> Checked:
        """Compile a condition; one that can't be true or false is a finding."""
        checked, positions = self._expression(scalar, environment, what="a condition")
        if checked is None:
            return check_expression("true", environment)
        if not checked.problems and checked.type.kind not in (Kind.BOOL, Kind.DYN):
            message = f"a condition must be true or false, this is {checked.type}"
            hint = "compare it, such as `x != null` or `x > 0`"
            self._findings.add_problem(Problem(Code.CONDITION_NOT_BOOLEAN, 0, message, hint), positions)
        return checked

    def instant(self, scalar: Scalar, environment: Environment) -> Checked | None:
        """Compile an expression that gives an instant as text; one that can't be text is a finding."""
        checked, positions = self._expression(scalar, environment, what="this")
        if checked is not None and not checked.problems and checked.type.kind not in (Kind.STRING, Kind.DYN):
            message = f"an instant is a text such as '2026-11-30T12:00:00Z', this is {checked.type}"
            hint = (
                advice.quoted_instant(scalar.text) or "name a field that holds an instant, such as `input.not_before`"
            )
            self._findings.add_problem(Problem(Code.TYPE_MISMATCH, 0, message, hint), positions)
        return checked

    def items(self, scalar: Scalar, environment: Environment) -> Checked | None:
        """Compile an expression that gives a list; one that can't be a list is a finding."""
        checked, positions = self._expression(scalar, environment, what="this")
        if checked is not None and not checked.problems and checked.type.kind not in (Kind.LIST, Kind.DYN):
            message = f"a foreach goes over a list, this is {checked.type}"
            hint = "name a field that holds a list, or write `[a, b]`"
            self._findings.add_problem(Problem(Code.TYPE_MISMATCH, 0, message, hint), positions)
        return checked

    def _expression(self, scalar: Scalar, environment: Environment, *, what: str) -> tuple[Checked | None, Positions]:
        """Compile a scalar that is an expression as a whole; None if it is written as a template."""
        positions = positions_of(scalar, self._source)
        text = scalar.text
        leading = len(text) - len(text.lstrip())
        positions = positions.from_offset(leading) if leading else positions
        text = text.strip()
        if text.startswith("${") and text.endswith("}"):
            message = f"{what} is an expression and needs no `${{` and `}}`"
            hint = f"write `{text[2:-1].strip()[:80]}`"
            self._findings.add_problem(Problem(Code.EXPRESSION_SYNTAX, 0, message, hint), positions)
            return None, positions
        checked = check_expression(text, environment, positions)
        for problem in checked.problems:
            self._findings.add_problem(problem, positions)
        return checked, positions

    def template(self, node: YamlNode | None, environment: Environment, *, absent: Json = None) -> CheckedTemplate:
        """Compile a JSON value with holes; `absent` is what stands for one that is not written."""
        if node is None:
            return check_template(absent, environment)
        places = dict(self._places(node, ""))
        checked = check_template(to_json(node), environment, places)
        for located in checked.problems:
            self._findings.add_problem(located.problem, located.positions)
        return checked

    def text(self, scalar: Scalar, environment: Environment, *, what: str) -> Template | None:
        """Compile a text with holes; one that can't be a text when it is filled in is a finding."""
        checked = self.template(scalar, environment)
        if checked.template is not None and checked.type.kind not in TEXT_KINDS:
            message = f"{what} must be a text, this is {checked.type}"
            self._findings.at(Code.TYPE_MISMATCH, scalar.place, message, "take a field of it")
        return checked.template

    def _places(self, node: YamlNode, pointer: str) -> Iterator[tuple[str, Positions]]:
        match node:
            case Scalar(value=str() as text) if "${" in text:
                yield pointer, positions_of(node, self._source)
            case Sequence(items=items):
                for index, item in enumerate(items):
                    yield from self._places(item, f"{pointer}/{index}")
            case Mapping(entries=entries):
                for key, (_, value) in entries.items():
                    yield from self._places(value, f"{pointer}/{escape(key)}")
            case _:
                return
