"""Compensation: what an instance has done is undone, one task after the other, before it ends FAILED or CANCELLED.

It begins when no task of the instance is unfinished, so a review holds it. It covers every step whose effect is done or
possible, in the reverse order in which they were decided; the task that undoes step `x` is the work of a step `x.undo`.
A compensation that fails waits for a person and then goes on; its own failure has no handlers and is never undone.

The surprising rule: once begun it is ended by a person's FAIL only. A cancel that comes meanwhile changes what the
instance becomes, not what is undone.
"""

from __future__ import annotations

from definitions.graph import Node, NodeKind
from engine import blocks
from engine.draft import Draft
from engine.effects import EFFECTS, Effect, effects_of, in_order, leaves_something, past_slot, place_of
from engine.flow import Flow, is_undoing, undone_step
from engine.instance import Failure, Instance, Step
from engine.items import own_name
from engine.scope import ValuesNeeded, value_of
from engine.states import INSTANCE_TERMINAL, Compensation, Ending, InstanceState, StepReason, StepState
from engine.stimulus import LateSuccess

AFTER_END = "step.effect_after_end"
BEFORE = "before"  # the detail of a compensation's failure that keeps why the instance ends


def is_underway(instance: Instance | Draft) -> bool:
    """Tell whether an instance undoes what it did, or waits for a person to let it go on with that."""
    return instance.compensation is Compensation.BEGUN


def begin(draft: Draft) -> None:
    """Begin to undo: the last task of an ending instance has ended."""
    draft.move(InstanceState.COMPENSATING)
    draft.compensation = Compensation.BEGUN
    draft.record("instance.compensating", steps=[effect.step for effect in _to_undo(draft)])


def next_node(draft: Draft) -> Node | None:
    """Give the compensation to run next; None when all is undone."""
    effect = next(iter(_to_undo(draft)), None)
    return None if effect is None else draft.flow.compensations[effect.step]


def failed(draft: Draft, step: Step) -> None:
    """Hold the instance for a person because a compensation has failed; why the instance ends is kept."""
    draft.move(InstanceState.NEEDS_RECOVERY)
    draft.error = _with_reason(draft.failure_of(step), draft.error)
    draft.record("instance.needs_recovery", error=draft.error.to_json())


def go_on(draft: Draft) -> None:
    """Take the compensation up again after a person has decided about the one that failed."""
    draft.error = _reason_of(draft.error)
    draft.move(InstanceState.COMPENSATING)
    draft.record("instance.recovered", state=draft.state.value)


def end_cancelled(draft: Draft, error: Failure) -> None:
    """Let the instance end CANCELLED once all is undone; a compensation that failed still waits for a person."""
    held = draft.error if draft.state is InstanceState.NEEDS_RECOVERY else None
    draft.end_as(Ending.CANCELLED, error if held is None else _with_reason(held, error))


def abandon(draft: Draft) -> None:
    """End the instance FAILED with what is left not undone, as a person has decided."""
    draft.compensation = Compensation.ABANDONED
    draft.record("instance.compensation_abandoned", steps=[effect.step for effect in _to_undo(draft)])
    draft.move(InstanceState.ENDING)
    draft.end_as(Ending.FAILED, draft.error)


def effect_seen(draft: Draft, late: LateSuccess) -> None:
    """Take note that a task did its work although it had ended otherwise: to be undone too, or after the end an alarm.

    A terminal instance never changes, so its step stays as it is and a person has to see to the effect.
    """
    if draft.state in INSTANCE_TERMINAL:
        draft.record(AFTER_END, late.step, round=late.round)
        return
    draft.record("step.late_success", late.step, round=late.round)
    step = draft.steps.get(late.step)
    if step is None:
        _late_effect(draft, late.step)  # its item is done with and has been put away
        return
    step = draft.change(step, doubts=step.doubts + 1)
    if step.reason is StepReason.RETRY and draft.flow.nodes[step.id].kind is NodeKind.TASK:
        # No handler does once more what is done: its failure is judged anew.
        assert step.error is not None, f"step {step.id} is tried again without an error"
        draft.fail(step.id, step.error)
    elif draft.flow.guards.faces:
        blocks.late_success(draft, step)


def has_undone_all(flow: Flow, instance: Instance) -> bool:
    """Tell whether nothing of what an instance did is left for its parent to undo.

    A child of its own that has succeeded, or has left something, is undone by the task that its definition names.
    """
    return instance.compensation is Compensation.DONE and not any(
        _left_by_child(flow, instance, node)
        for node in flow.graph.nodes
        if node.kind is NodeKind.WORKFLOW and node.id not in flow.compensations
    )


def _left_by_child(flow: Flow, instance: Instance, node: Node) -> bool:
    if node.within is not None:
        around = instance.steps.get(node.within)  # its items have been put away: they may have had children
        return around is not None and around.items is not None and around.items.next > 0
    step = instance.steps.get(node.id)
    return step is not None and leaves_something(flow, instance.steps, step)


def refusal(instance: Instance, step: str) -> str | None:
    """Say why a decision about a step does not fit an instance that undoes what it did; None if it does."""
    if is_underway(instance) and not is_undoing(step):
        return "the instance undoes what it did: only a compensation can be recovered"
    return None


def _to_undo(draft: Draft) -> tuple[Effect, ...]:
    """List what is left to undo, the next first; of what was put away only the latest. Raises ValuesNeeded."""
    left = [
        effect
        for effect in effects_of(draft.flow, draft.steps)
        if draft.flow.compensations[effect.step].id not in draft.steps
    ]
    known = {effect.step for effect in left}
    left += [
        effect
        for effect in _put_away(draft)
        if effect.step not in known and draft.flow.compensations[effect.step].id not in draft.steps
    ]
    return in_order(left)


def _put_away(draft: Draft) -> tuple[Effect, ...]:
    loops = (draft.steps.get(loop) for loop in draft.flow.undone_loops)
    if not any(loop is not None and loop.items is not None and loop.items.next for loop in loops):
        return ()
    found: tuple[Effect, ...] = value_of(draft, EFFECTS)
    return found


def put_away(draft: Draft) -> None:
    """Put the compensations that have ended of steps that were put away beside them."""
    if not draft.flow.undone_loops:
        return
    for step in list(draft.steps.values()):
        item = draft.flow.item_of(step.id) if is_undoing(step.id) else None
        is_done = step.state in {StepState.SUCCEEDED, StepState.SKIPPED}
        if item is not None and is_done and undone_step(step.id) not in draft.steps:
            _put_away(draft)
            draft.settle_undone(step, item)


def _late_effect(draft: Draft, identifier: str) -> None:
    """Let a step that was put away without an effect be undone too, unless that is known or done already."""
    undoing, item = draft.flow.compensations.get(identifier), draft.flow.item_of(identifier)
    if undoing is None or item is None:
        return
    slots = past_slot(own_name(undoing.id), item.index), past_slot(item.foreach, item.index)
    missing = frozenset(slot for slot in slots if slot not in draft.values)
    if missing:
        raise ValuesNeeded(missing)
    undone, past = draft.values[slots[0]], {step.id: step for step in draft.values[slots[1]]}
    step = past.get(identifier)
    if not undone and undoing.id not in draft.steps and step and not leaves_something(draft.flow, past, step):
        draft.add_effects([Effect(identifier, draft.now, place_of(draft.flow, identifier))])


def _with_reason(error: Failure, reason: Failure | None) -> Failure:
    kept = {} if reason is None else {BEFORE: reason.to_json()}
    return Failure(error.code, error.message, {**(error.details or {}), **kept})


def _reason_of(error: Failure | None) -> Failure | None:
    kept = None if error is None else (error.details or {}).get(BEFORE)
    return None if kept is None else Failure.from_json(kept)
