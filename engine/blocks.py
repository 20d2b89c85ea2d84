"""Blocks whose failures are handled: how one is given up, when its handlers judge it, how it is done once more.

A failure inside that nothing nearer takes gives the nearest block up whose handlers match it: what waits in the block
is cancelled, what runs is asked to stop, nothing more is entered. Only when all of that has ended, reviews included,
does the block itself fail, by its face, and the handlers judge that failure as they do any step's. So no handler of a
block starts anything while a task in it may still take effect.

The surprising rule: which handler takes the failure is asked twice, first to know whether to give the block up, and
again when it is at rest. What has ended meanwhile can forbid a retry that was allowed before.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine import foreach, handlers
from engine.draft import Draft
from engine.flow import Flow
from engine.guards import Guard
from engine.instance import Failure, Instance, Step
from engine.states import STEP_UNFINISHED, StepReason, StepState


def takes_failure(draft: Draft, step: Step) -> bool:
    """Give up the nearest block around a failed step whose handlers take its failure; tell whether there is one."""
    for face in _asked(draft.flow, step.id):
        row = draft.steps.get(face)
        guard = draft.flow.guards.faces[face]
        if row is not None and not _is_open(row):
            continue  # it has ended without the step
        if row is not None and row.reason is StepReason.BLOCK_FAILED:
            return True
        error = _cause(draft, step)
        if handlers.find(draft, face, error) is not None:
            give_up(draft, guard, error)
            return True
    return False


def _asked(flow: Flow, identifier: str) -> Iterator[str]:
    yield from flow.guards.asked.get(identifier, ())
    if flow.lanes.absorbers.get(identifier) is not None:
        return  # a join inside of all others takes it
    item = flow.item_of(identifier)
    if item is not None:
        if item.foreach in flow.guards.faces:
            yield item.foreach
        yield from flow.guards.asked.get(item.foreach, ())


def _is_open(face: Step) -> bool:
    return face.state is StepState.WAITING


def _cause(draft: Draft, step: Step) -> Failure:
    """Give a failure with the step whose it is, as it may be shown; that of a block names the step in it already."""
    assert step.error is not None, f"step {step.id} has failed without an error"
    failure = step.error if "step" in (step.error.details or {}) else step.failure
    return draft.flow.hiding.failure(step.id, failure)


def give_up(draft: Draft, guard: Guard, error: Failure) -> None:
    """Stop what has not ended of a block; when nothing of it runs any more, it fails with this error."""
    if guard.is_foreach:
        foreach.give_up(draft, draft.steps[guard.face], error)
    else:
        face = draft.steps.get(guard.face)
        reason = StepReason.BLOCK_FAILED
        if face is None:
            draft.enter(guard.face, StepState.WAITING, reason=reason, due_at=draft.now, error=error)
        else:
            fields = {"reason": reason, "due_at": draft.now, "error": error, "finished_at": None}
            draft.change(face, StepState.WAITING, **fields)
        draft.record("step.waiting", guard.face, reason=reason.value, code=error.code)
        for name in guard.members:
            foreach.write_off(draft, name)
        for step in list(draft.flow.steps_in(guard, draft.steps)):
            if step.waits_for_decision:
                draft.change(step, reason=reason)
    draft.blocks[guard.face] = None


def close(draft: Draft, step: Step) -> bool:
    """Give up a block whose own end has failed while something of it is open; tell whether that was so."""
    guard = draft.flow.guards.faces.get(step.id)
    if guard is None or guard.is_foreach or is_at_rest(draft, guard):
        return False
    assert step.error is not None, f"step {step.id} has failed without an error"
    if handlers.find(draft, step.id, step.error) is None:
        return False
    give_up(draft, guard, step.error)
    return True


def judge(draft: Draft, face: str) -> None:
    """Let a block that was given up fail, if nothing of it runs any more."""
    step = draft.steps.get(face)
    if step is None or step.state is not StepState.WAITING or step.reason is not StepReason.BLOCK_FAILED:
        return
    if is_at_rest(draft, draft.flow.guards.faces[face]):
        assert step.error is not None, f"block {face} was given up without an error"
        draft.fail(face, step.error)


def is_at_rest(draft: Draft, guard: Guard) -> bool:
    """Tell whether everything in a block is decided."""
    if any(member not in draft.steps for member in guard.members):
        return False
    return not any(step.state in STEP_UNFINISHED for step in draft.flow.steps_in(guard, draft.steps))


def was_given_up(flow: Flow, instance: Instance, face: str) -> bool:
    """Tell whether a failed block has failed because it was given up, with all that is in it."""
    guard = flow.guards.faces.get(face)
    return guard is not None and any(
        step.reason is StepReason.BLOCK_FAILED for step in flow.steps_in(guard, instance.steps)
    )


def begin_again(draft: Draft, face: Step) -> Step | None:
    """Prepare a branch or parallel block, whose face was taken back, to be done once more; give its first step.

    None if it is no such block. The face waits for its lanes, as one does that a person has reopened.
    """
    guard = draft.flow.guards.faces.get(face.id)
    if guard is None or guard.is_foreach:
        return None
    opener = draft.steps[guard.opener]
    done = [draft.reset(member) for member in guard.members if member in draft.steps]
    rounds = max(step.round for step in (face, *done))
    draft.enter(face.id, StepState.WAITING, reason=StepReason.JOIN, due_at=draft.now, round=rounds - face.round)
    draft.record("step.waiting", face.id, reason=StepReason.JOIN.value)
    return opener


def late_success(draft: Draft, step: Step) -> None:
    """Judge anew the failure of a block that waits to be done once more: something in it has been done after all."""
    for face in draft.flow.faces_around(step.id):
        row = draft.steps.get(face)
        if row is not None and row.state is StepState.WAITING and row.reason is StepReason.RETRY:
            assert row.error is not None, f"block {face} is tried again without an error"
            draft.fail(face, row.error)


def is_waiting_for_lanes(step: Step) -> bool:
    """Tell whether a step is the end of a block that is done once more."""
    return step.state is StepState.WAITING and step.reason is StepReason.JOIN


def ends_elsewhere(draft: Draft, join: str) -> bool:
    """Tell whether a JOIN without a live way closes a handled block that has begun: its ways end the instance."""
    guard = draft.flow.guards.faces.get(join)
    opener = None if guard is None else draft.steps.get(guard.opener)
    return opener is not None and opener.state is StepState.SUCCEEDED
