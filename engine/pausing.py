"""Pause and resume, as the pure core sees them: what stands still, and by how much it goes on later.

The tasks stand behind Pulse's gate, which the shell closes and opens in the same transaction; results that come
meanwhile are kept aside, so a paused instance is advanced by its operators only. The instance's own budget stands still
like that of one that waits for a person.

The surprising rule: whatever ends an instance ends its pause first.
"""

from __future__ import annotations

from dataclasses import replace

from definitions.graph import UntilSpec
from engine import children
from engine.draft import Draft
from engine.instance import Pause, Step
from engine.states import Control, InstanceState, StepState
from engine.stimulus import ChildQuiet, GateQuiet, PauseRequested, ResumeRequested
from orbit.clock import SECOND, Micros

_TASKS = "@tasks"  # stands in `Pause.noisy` for whatever runs behind the instance's gate
PAUSABLE = frozenset({InstanceState.RUNNING, InstanceState.NEEDS_RECOVERY, InstanceState.COMPENSATING})


def apply(draft: Draft, stimulus: PauseRequested | GateQuiet | ChildQuiet | ResumeRequested) -> None:
    """Take a pause, its becoming quiet, or its end; what is already so changes nothing."""
    match stimulus:
        case PauseRequested():
            _pause(draft, stimulus)
        case GateQuiet():
            _quiet(draft, _TASKS, "instance.tasks_quiet", None)
        case ChildQuiet():
            # One of an earlier pause says nothing about this one.
            if draft.pause is not None and draft.pause.paused_at == stimulus.paused_at:
                _quiet(draft, children.token(stimulus.step, stimulus.round), "step.child_quiet", stimulus.step)
        case ResumeRequested():
            _resume(draft, stimulus)


def _pause(draft: Draft, stimulus: PauseRequested) -> None:
    if draft.state not in PAUSABLE:
        return
    if draft.pause is not None:
        if stimulus.parent_paused_at != draft.pause.parent_paused_at and stimulus.parent_paused_at is not None:
            is_own = draft.pause.is_own or not draft.pause.with_parent
            draft.pause = replace(draft.pause, parent_paused_at=stimulus.parent_paused_at, is_own=is_own)
            draft.record("instance.paused_with_parent")
        return
    noisy = children.follow_all(draft)
    in_flight = stimulus.in_flight + len(noisy)
    if stimulus.in_flight:
        noisy = (_TASKS, *noisy)
    draft.steer(Control.PAUSING if noisy else Control.PAUSED)
    draft.pause = Pause(stimulus.reason, stimulus.by, draft.now, noisy, stimulus.parent_paused_at)
    facts = {"reason": stimulus.reason, "by": stimulus.by}
    if noisy:
        draft.record("instance.pausing", in_flight=in_flight, **facts)
    else:
        draft.record("instance.paused", **facts)


def _quiet(draft: Draft, token: str, kind: str, step: str | None) -> None:
    """Note that a part of what ran is quiet; with the last one the instance is."""
    pause = draft.pause
    if draft.control is not Control.PAUSING or pause is None:
        return
    noisy = tuple(each for each in pause.noisy if each != token)
    draft.pause = replace(pause, noisy=noisy)
    if not noisy:
        draft.steer(Control.PAUSED)
        draft.record("instance.paused")
    elif noisy != pause.noisy:
        draft.record(kind, step)


def _resume(draft: Draft, stimulus: ResumeRequested) -> None:
    pause = draft.pause
    if pause is None:
        return
    if stimulus.from_parent and pause.is_own:
        draft.pause = replace(pause, parent_paused_at=None, is_own=False)
        draft.record("instance.stays_paused")
        return
    since = pause.paused_at
    for step in draft.unfinished():
        _go_on(draft, step, since)
    children.follow_all(draft)
    draft.steer(Control.ACTIVE)
    facts = {"reason": stimulus.reason, "by": stimulus.by}
    draft.record("instance.resumed", paused_seconds=(draft.now - since) / SECOND, **facts)


def _go_on(draft: Draft, step: Step, since: Micros) -> None:
    """Shift a step's times by the pause; under review its bound stands still anyway until that is closed."""
    if step.state is StepState.NEEDS_REVIEW:
        return
    # A step that a recovery has entered during the pause has stood still from then on only.
    span = draft.now - max(since, step.entered_at)
    # An instant that a workflow waits for is one of the world's, which no pause puts off.
    is_absolute = isinstance(draft.flow.nodes[step.id].spec, UntilSpec)
    draft.change(
        step,
        due_at=step.due_at if is_absolute else _later(step.due_at, span),
        timeout_at=_later(step.timeout_at, span),
        start_by_at=_later(step.start_by_at, span),
    )


def _later(at: Micros | None, span: Micros) -> Micros | None:
    return None if at is None else at + span


def still_running(pause: Pause) -> tuple[str, ...]:
    """Say in words what a pause that is not quiet waits for."""
    return tuple("its tasks" if token == _TASKS else f"the child of step {token}" for token in pause.noisy)


def awaits_tasks(pause: Pause) -> bool:
    """Tell whether a pause that is not quiet waits for what runs behind the instance's gate."""
    return not pause.noisy or _TASKS in pause.noisy
