"""What an expression may see during an advance, and the checks on values.

The roots are those of the language: `input`, `steps`, `instance`, `now`, in a poll `round` and `output`, and where an
error is handled `error`. Values are
loaded by the shell; one that is missing here is asked for by raising ValuesNeeded, which ends the advance so that it
can be called again. A step that was skipped or has failed has no output, and reading it is an EXPRESSION_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from definitions.expression import EvaluationError, Expression
from definitions.expression.functions import to_text
from definitions.graph import BranchSpec, Node
from definitions.limits import CONCURRENCY_KEY_CHARACTERS_MAX, VALUE_BYTES_MAX
from definitions.template import Template
from engine.draft import Draft
from engine.effects import past_slot
from engine.instance import HIDDEN, INPUT, OUTPUT_INVALID, Failure, Instance, Step
from engine.items import items_slot
from engine.states import LOST, Compensation, StepReason, StepState
from orbit.clock import Micros, from_rfc3339, to_rfc3339
from orbit.errors import InvalidRequest
from orbit.ids import to_hex
from orbit.jsontext import Json, dumps
from orbit.redaction import Path, touches

VIOLATIONS_SHOWN = 10
_WITHOUT_OUTPUT = LOST | {StepReason.WAIT_TIMED_OUT}


class ValuesNeeded(Exception):
    """Values that the advance can't do without: step ids and INPUT. Load them and call again."""

    def __init__(self, slots: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(slots)))
        self.slots = slots


class ExpressionFailed(Exception):
    """A step can't go on because an expression or a schema refused a value; `error` becomes the step's."""

    def __init__(self, error: Failure) -> None:
        super().__init__(error.message)
        self.error = error


class _Roots(dict[str, Json]):
    """The roots by name; but for those that are given, each is made only when an expression really reads it."""

    def __init__(self, draft: Draft, **known: Json) -> None:
        super().__init__(known)
        self._draft = draft

    def __contains__(self, name: object) -> bool:
        """Tell whether a root can be read: whoever explains a fault asks."""
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except KeyError:
            return False
        return True

    def __missing__(self, name: str) -> Json:
        item = self._draft.item
        if name == "input":
            return value_of(self._draft, INPUT)
        if name == "instance":
            return self.setdefault(name, _instance(self._draft.before))
        if name == "now":
            return self.setdefault(name, to_rfc3339(self._draft.now))
        if name == "item" and item is not None:
            return value_of(self._draft, items_slot(item.foreach))[item.index]
        if name == "index" and item is not None:
            return item.index
        raise KeyError(name)


class Place(Struct, frozen=True):
    """Where an expression stands, as far as its roots depend on that.

    `error_of` names the step whose error is handled there, `output_of` the poll whose current answer is judged.
    """

    error_of: str | None = None
    output_of: str | None = None
    round_number: int = 0


NOWHERE = Place()


def place_of(node: Node, *, round_number: int = 0, is_judged: bool = False) -> Place:
    """Give the place of a node's expressions; `is_judged` for those that read the poll's own answer."""
    return Place(node.error_of, node.id if is_judged else None, round_number)


def condition(
    draft: Draft, expression: Expression, place: Place = NOWHERE, *, more: Mapping[str, Json] | None = None
) -> bool:
    """Evaluate a condition; `more` are further roots."""
    roots = _roots(draft, expression.step_references, place)
    roots.update(more or {})
    try:
        return expression.evaluate_condition(roots)
    except EvaluationError as error:
        raise ExpressionFailed(_failure(error)) from error


def item_list(draft: Draft, expression: Expression, place: Place = NOWHERE) -> list[Json]:
    """Evaluate what a foreach goes over. Its list is stored, so it is no larger than any value."""
    roots = _roots(draft, expression.step_references, place)
    try:
        value = expression.evaluate(roots)
    except EvaluationError as error:
        raise ExpressionFailed(_failure(error)) from error
    if not isinstance(value, list):
        raise _unfit(expression, "NO_LIST", "a foreach needs a list to go over")
    if len(dumps(value)) > VALUE_BYTES_MAX:
        raise _unfit(expression, "RESULT_TOO_LARGE", f"the list is larger than {VALUE_BYTES_MAX} bytes")
    return list(value)


def output_of(draft: Draft, identifier: str) -> Json:
    """Give the output of a step; null if it has none."""
    step = draft.steps.get(identifier)
    return value_of(draft, identifier) if step is not None and _has_output(step) else None


def instant(draft: Draft, expression: Expression, place: Place = NOWHERE) -> Micros:
    """Evaluate an expression that gives an instant as RFC 3339 text."""
    roots = _roots(draft, expression.step_references, place)
    try:
        value = expression.evaluate(roots)
    except EvaluationError as error:
        raise ExpressionFailed(_failure(error)) from error
    try:
        if isinstance(value, str):
            return from_rfc3339(value)
    except InvalidRequest:
        pass
    message = "an instant as RFC 3339 text with an offset is needed, such as 2026-11-30T12:00:00Z"
    raise _unfit(expression, "NO_INSTANT", message)


def _unfit(expression: Expression, cause: str, message: str) -> ExpressionFailed:
    """Make the error of an expression whose value has the wrong form for its use."""
    line, column = expression.positions.locate(0)
    details = {"cause": cause, "line": line, "column": column, "expression": expression.source}
    return ExpressionFailed(Failure("EXPRESSION_ERROR", message, details))


def render(draft: Draft, template: Template, place: Place = NOWHERE) -> Json:
    """Compute the value of a template."""
    roots = _roots(draft, template.step_references, place)
    try:
        return template.render(roots)
    except EvaluationError as error:
        raise ExpressionFailed(_failure(error)) from error


def render_text(draft: Draft, template: Template, place: Place = NOWHERE) -> str:
    """Compute a template that stands for text."""
    value = render(draft, template, place)
    return value if isinstance(value, str) else str(value)


def render_key(draft: Draft, template: Template, place: Place) -> str:
    """Compute a concurrency key; what can be none fails the step."""
    value = render(draft, template, place)
    key = to_text(value) or ""
    if not 1 <= len(key) <= CONCURRENCY_KEY_CHARACTERS_MAX or key.endswith("*"):
        message = f"a concurrency key has 1 to {CONCURRENCY_KEY_CHARACTERS_MAX} characters and does not end in `*`"
        raise ExpressionFailed(Failure("EXPRESSION_ERROR", message, {"cause": "NO_KEY", "key": key[:200]}))
    return key


def choose(draft: Draft, node: Node) -> str:
    """Find the label of the first case of a BRANCH that holds."""
    assert isinstance(node.spec, BranchSpec)
    for case in node.spec.cases:
        if case.when is None or condition(draft, case.when, place_of(node)):
            return case.label
    raise ExpressionFailed(Failure("NO_CASE_HOLDS", "no case of the branch holds, and it has no else"))


def check_output(draft: Draft, node: Node) -> None:
    """Check a step's answer against the schema that it declares, if any."""
    validator = draft.flow.output_validator(node)
    if validator is None:
        return
    hidden = draft.flow.hiding.of_step(node.id).output
    errors = validator.iter_errors(value_of(draft, node.id))
    error = schema_failure(errors, OUTPUT_INVALID, f"the output of {node.id}", hidden=hidden)
    if error is not None:
        raise ExpressionFailed(error)


def schema_failure(errors: Iterable[Any], code: str, what: str, *, hidden: Sequence[Path] = ()) -> Failure | None:
    """Tell of the first violations of a schema, None if there are none; of `hidden` parts only that they do not fit."""
    violations: list[Json] = []
    for error in errors:
        pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path)
        # The library's words quote the value.
        is_hidden = touches(hidden, list(error.absolute_path))
        words = f"does not fit its schema ({error.validator})" if is_hidden else error.message[:500]
        violations.append({"pointer": pointer, "message": words})
        if len(violations) == VIOLATIONS_SHOWN:
            break
    if not violations:
        return None
    first = violations[0]
    return Failure(code, f"{what} does not fit its schema: {first['message']}", {"violations": violations})


def _roots(draft: Draft, references: frozenset[str], place: Place) -> _Roots:
    roots = _Roots(draft, steps=_outputs(draft, references) if references else {})
    if place.round_number:
        roots["round"] = place.round_number
    if place.output_of is not None:
        roots["output"] = value_of(draft, place.output_of)
    if place.error_of is not None:
        roots["error"] = _error(draft.steps[place.error_of])
    return roots


def _instance(instance: Instance) -> Json:
    return {
        "id": to_hex(instance.id),
        "business_key": instance.business_key,
        "started_at": to_rfc3339(instance.started_at),
    }


def _error(step: Step) -> Json:
    """Write the error that is handled; the details are the worker's own, without what the platform adds."""
    error = step.error
    assert error is not None, f"step {step.id} has no error to handle"
    details = {key: value for key, value in (error.details or {}).items() if key != HIDDEN}
    if "class" in details:
        details = details.get("details") or {}
    # Of a block that is the step whose failure it was, of any other step it is the step itself.
    failed = (error.details or {}).get("step", step.id)
    told = {"code": error.code, "message": error.message, "class": error.failure_class, "details": details}
    return {**told, "step": failed}


def _outputs(draft: Draft, references: frozenset[str]) -> dict[str, Json]:
    ended = {
        name: identifier
        for name in references
        if (step := _step_of(draft, identifier := draft.flow.seen_as(name, draft.item))) is not None
        and _has_output(step)
        # A block leaves an output only where an error handler has given it one.
        and (step.reason is StepReason.HANDLED or name not in draft.flow.guards.face_of)
    }
    missing = frozenset(identifier for identifier in ended.values() if identifier not in draft.values)
    if missing:
        raise needed(draft, missing)
    return {name: {"output": draft.values[identifier]} for name, identifier in ended.items()}


def _step_of(draft: Draft, identifier: str) -> Step | None:
    """Give an entered step, where a step of an item is undone also one that was put away with that item."""
    step, item = draft.steps.get(identifier), draft.item
    if step is not None or item is None or draft.compensation is not Compensation.BEGUN:
        return step
    if draft.flow.item_of(identifier) != item:
        return None
    past = value_of(draft, past_slot(item.foreach, item.index))
    return next((each for each in past if each.id == identifier), None)


def _has_output(step: Step) -> bool:
    # What a loser did after its join was decided, or its block given up, came by chance: no expression reads it.
    return step.state is StepState.SUCCEEDED and step.reason not in _WITHOUT_OUTPUT


def value_of(draft: Draft, slot: str) -> Any:
    """Give a value that somebody has loaded. Raises ValuesNeeded."""
    if slot not in draft.values:
        raise needed(draft, frozenset({slot}))
    return draft.values[slot]


def needed(draft: Draft, slots: frozenset[str]) -> ValuesNeeded:
    """Ask for values; with an item's come those of the other items that end in this advance, or each would ask anew."""
    if not draft.arriving.isdisjoint(slots):
        slots |= {slot for slot in draft.arriving if slot not in draft.values}
    return ValuesNeeded(slots)


def _failure(error: EvaluationError) -> Failure:
    details: dict[str, Json] = {
        "cause": error.code,
        "line": error.line,
        "column": error.column,
        "expression": error.source,
    }
    return Failure("EXPRESSION_ERROR", error.message, details)
