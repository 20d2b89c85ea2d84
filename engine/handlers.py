"""Error handlers: what becomes of a failed step whose definition has an `on_error` that matches.

The first handler that matches takes the failure: by its code, its class, or `*`. A retry that is used up, or that must
not be, matches no more, and the next handler is asked. Only a step that is decided FAILED comes here: one whose time is
up has been asked to stop and has waited for its task's end, and one under review waits for a person.

The surprising rule: a retry is refused where a task of the step may have had its effect all the same (its output did
not fit, its outcome is unknown, or its success was reported late). The other ways of handling are not: they start no
second task for the step.
"""

from __future__ import annotations

from enum import Enum

from definitions.graph import Handler, Handling, Node, NodeKind, handler_case
from definitions.names import EVERY_ERROR
from engine.draft import Draft
from engine.instance import Failure, Step
from engine.scope import ExpressionFailed, Place, render
from engine.states import LOST, StepReason, StepState
from orbit.clock import Micros, seconds

BACKOFF_MICROS_MAX = seconds(86_400.0)


class Verdict(Enum):
    """What the flow does with a failed step."""

    UNHANDLED = 0  # no handler takes it
    HANDLED = 1  # the flow goes on
    ENTER = 2  # it has to be entered again now
    END = 3  # the instance fails


def judge(draft: Draft, step: Step) -> Verdict:
    """Let the first handler that matches take a failed step; what the flow then does is the answer."""
    assert step.error is not None, f"step {step.id} has failed without an error"
    index = find(draft, step.id, step.error)
    return Verdict.UNHANDLED if index is None else _take(draft, step, index)


def find(draft: Draft, identifier: str, error: Failure) -> int | None:
    """Find the first handler of a step, or of a block by its face, that takes an error; None if none does."""
    for index, handler in enumerate(draft.flow.nodes[identifier].handlers):
        is_bound = handler.then is Handling.RETRY
        if _matches(handler, error) and (not is_bound or _may_retry(draft, identifier, index, error)):
            return index
    return None


def begin_again(draft: Draft, step: Step) -> None:
    """Let a step whose handler waited before a retry be entered anew."""
    draft.reopen(step)


def _matches(handler: Handler, error: Failure) -> bool:
    return handler.match in {EVERY_ERROR, error.code, error.failure_class}


def _may_retry(draft: Draft, identifier: str, index: int, error: Failure) -> bool:
    step = draft.steps.get(identifier)
    used = 0 if step is None or step.retries is None else step.retries[index]
    node = draft.flow.nodes[identifier]
    return used < node.handlers[index].retries_max and not _may_have_effect(draft, node, step, error)


def _may_have_effect(draft: Draft, node: Node, step: Step | None, error: Failure) -> bool:
    """Tell whether something that a retry would do again may have been done although it ended otherwise."""
    guard = draft.flow.guards.faces.get(node.id)
    if guard is not None:
        return error.may_have_effect or any(
            _is_in_doubt(draft.flow.nodes[each.id], each) for each in draft.flow.steps_in(guard, draft.steps)
        )
    if node.kind is NodeKind.TASK and step is not None:
        return step.doubts > 0
    # What a poll's rounds did is no effect that a further one could repeat; only its last answer counts.
    return error.may_have_effect


def _is_in_doubt(node: Node, step: Step) -> bool:
    if step.state is StepState.SUCCEEDED and step.reason not in LOST:
        return False
    has_doubts = step.doubts > 0 and node.kind is NodeKind.TASK
    return has_doubts or (step.error is not None and step.error.may_have_effect)


def _take(draft: Draft, step: Step, index: int) -> Verdict:
    node = draft.flow.nodes[step.id]
    handler = node.handlers[index]
    assert step.error is not None
    draft.record(
        "step.error_handled",
        step.id,
        handler=index + 1,
        match=handler.match,
        then=handler.then.value,
        code=step.error.code,
    )
    match handler.then:
        case Handling.RETRY:
            return _retry(draft, step, index)
        case Handling.CONTINUE:
            return _go_on(draft, step, handler)
        case Handling.STEPS:
            draft.change(step, reason=StepReason.HANDLED, chosen=handler_case(index))
            draft.decided.append(step.id)
            return Verdict.HANDLED
        case Handling.FAIL:
            return Verdict.END


def _retry(draft: Draft, step: Step, index: int) -> Verdict:
    node = draft.flow.nodes[step.id]
    counts = list(step.retries or (0,) * len(node.handlers))
    gap = _gap_micros(node.handlers[index], counts[index])
    counts[index] += 1
    if gap == 0:
        draft.reopen(draft.change(step, retries=tuple(counts)))
        return Verdict.ENTER
    due_at = draft.now + gap
    draft.change(
        step, StepState.WAITING, reason=StepReason.RETRY, due_at=due_at, finished_at=None, retries=tuple(counts)
    )
    draft.record("step.waiting", step.id, reason=StepReason.RETRY.value)
    return Verdict.HANDLED


def _gap_micros(handler: Handler, used: int) -> Micros:
    """Say how long to wait before a retry: the handler's back-off, doubled for each one before, a day at most."""
    return min(seconds(handler.backoff_seconds) << min(used, 40), BACKOFF_MICROS_MAX)


def _go_on(draft: Draft, step: Step, handler: Handler) -> Verdict:
    try:
        value = None if handler.value is None else render(draft, handler.value, Place(error_of=step.id))
    except ExpressionFailed as failed:
        # The handler itself is wrong: handling that too could go on for ever, so it is left to a person.
        draft.change(step, error=failed.error)
        return Verdict.UNHANDLED
    draft.keep(step.id, value)
    draft.decide(step.id, StepState.SUCCEEDED, reason=StepReason.HANDLED, error=step.error)
    draft.record("step.succeeded", step.id)
    return Verdict.HANDLED
