"""Waits: for a span, or until an instant that the workflow has computed; those for a signal are `engine.signals`.

The surprising rule: an instant is absolute, so one that has passed already ends its wait at once, and a pause does not
put it off; the bound of such a wait is a budget, which stands still meanwhile.
"""

from __future__ import annotations

from definitions.duration import format_duration
from definitions.graph import Node, SignalSpec, UntilSpec, WaitSpec
from engine import signals
from engine.draft import Draft
from engine.instance import Failure, Step
from engine.scope import instant, place_of
from engine.states import StepReason, StepState
from orbit.clock import seconds, to_rfc3339


def enter(draft: Draft, node: Node) -> None:
    """Enter a WAIT node. Raises ExpressionFailed."""
    if isinstance(node.spec, SignalSpec):
        signals.enter(draft, node, node.spec)
        return
    if isinstance(node.spec, WaitSpec):
        due_at = draft.now + seconds(node.spec.for_seconds)
        draft.enter(node.id, StepState.WAITING, reason=StepReason.TIMER, due_at=due_at)
        draft.record("step.waiting", node.id, reason=StepReason.TIMER.value, seconds=node.spec.for_seconds)
        return
    assert isinstance(node.spec, UntilSpec), f"node {node.id} is no wait"
    until = instant(draft, node.spec.until, place_of(node))
    timeout_at = draft.now + seconds(node.spec.timeout_seconds)
    draft.enter(node.id, StepState.WAITING, reason=StepReason.TIMER, due_at=until, timeout_at=timeout_at)
    draft.record("step.waiting", node.id, reason=StepReason.TIMER.value, until=to_rfc3339(until))


def fire(draft: Draft, node: Node, step: Step) -> None:
    """End a wait whose time has come: it has succeeded, unless that is its bound and not what it waited for."""
    assert step.due_at is not None
    if isinstance(node.spec, SignalSpec):
        signals.time_out(draft, node, step)
        return
    if draft.now >= step.due_at:
        draft.succeed(step.id)
        return
    assert isinstance(node.spec, UntilSpec), f"step {step.id} has a bound and no `until`"
    if node.spec.continue_on_timeout:
        draft.succeed(step.id)
    else:
        message = f"the instant did not come within {format_duration(node.spec.timeout_seconds)}"
        draft.fail(step.id, Failure(signals.TIMED_OUT, message))
