"""Pause and resume, as the pure core sees them: what stands still, and by how much it goes on later.

The tasks stand behind Pulse's gate, which the shell closes and opens in the same transaction; results that come
meanwhile are kept aside, so a paused instance is advanced by its operators only. The instance's own budget stands still
like that of one that waits for a person.

The surprising rule: whatever ends an instance ends its pause first.
"""

from __future__ import annotations

from definitions.graph import UntilSpec
from engine.draft import Draft
from engine.instance import Pause, Step
from engine.states import Control, InstanceState, StepState
from engine.stimulus import GateQuiet, PauseRequested, ResumeRequested
from orbit.clock import SECOND, Micros

PAUSABLE = frozenset({InstanceState.RUNNING, InstanceState.NEEDS_RECOVERY})


def apply(draft: Draft, stimulus: PauseRequested | GateQuiet | ResumeRequested) -> None:
    """Take a pause, its becoming quiet, or its end; what is already so changes nothing."""
    match stimulus:
        case PauseRequested():
            _pause(draft, stimulus)
        case GateQuiet():
            if draft.control is Control.PAUSING:
                draft.steer(Control.PAUSED)
                draft.record("instance.paused")
        case ResumeRequested():
            _resume(draft, stimulus)


def _pause(draft: Draft, stimulus: PauseRequested) -> None:
    if draft.control is not Control.ACTIVE or draft.state not in PAUSABLE:
        return
    draft.steer(Control.PAUSING if stimulus.in_flight else Control.PAUSED)
    draft.pause = Pause(stimulus.reason, stimulus.by, draft.now)
    facts = {"reason": stimulus.reason, "by": stimulus.by}
    if stimulus.in_flight:
        draft.record("instance.pausing", in_flight=stimulus.in_flight, **facts)
    else:
        draft.record("instance.paused", **facts)


def _resume(draft: Draft, stimulus: ResumeRequested) -> None:
    if draft.pause is None:
        return
    since = draft.pause.paused_at
    for step in draft.unfinished():
        _go_on(draft, step, since)
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
