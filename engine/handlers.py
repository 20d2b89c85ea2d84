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
from engine.states import StepReason, StepState
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
    node = draft.flow.nodes[step.id]
    assert step.error is not None, f"step {step.id} has failed without an error"
    for index, handler in enumerate(node.handlers):
        if _matches(handler, step.error) and (handler.then is not Handling.RETRY or _may_retry(node, step, index)):
            return _take(draft, step, index)
    return Verdict.UNHANDLED


def begin_again(draft: Draft, step: Step) -> None:
    """Let a step whose handler waited before a retry be entered anew."""
    draft.reopen(step)


def _matches(handler: Handler, error: Failure) -> bool:
    return handler.match in {EVERY_ERROR, error.code, error.failure_class}


def _may_retry(node: Node, step: Step, index: int) -> bool:
    used = 0 if step.retries is None else step.retries[index]
    # What a poll's rounds did is no effect that a further one could repeat; only its last answer counts.
    last = step.error is not None and step.error.may_have_effect
    has_effect = step.doubts > 0 if node.kind is NodeKind.TASK else last
    return used < node.handlers[index].retries_max and not has_effect


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
