"""What Pulse calls inside the transaction in which an owned task ends, or goes into or out of review.

It only inserts stimuli and never touches the instance's row, so a result never waits for a runner. The surprising rule:
the wake-up is the row; the call after COMMIT only spares this process the wait for its next probe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.instance import HIDDEN, Failure
from engine.stimulus import GateQuiet, LateSuccess, Outcome, ReviewClosed, ReviewOpened, TaskEnded
from engine.store.stimuli import StoredStimulus, stimuli_insert
from pulse.listener import TaskChange
from pulse.states import TaskState

if TYPE_CHECKING:
    from orbit.database import Transaction

_OUTCOMES = {
    TaskState.SUCCEEDED: Outcome.SUCCEEDED,
    TaskState.FAILED: Outcome.FAILED,
    TaskState.CANCELLED: Outcome.CANCELLED,
}


class InstanceListener:
    """Registered with Pulse by the composition root; `wake` is the local runner's."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def tasks_changed(self, tx: Transaction, changes: Sequence[TaskChange]) -> None:
        """Store one stimulus for each change; pure inserts."""
        if changes:
            stimuli_insert(tx, [(change.owner.instance_id, stimulus_of(change)) for change in changes])
            tx.after_commit(self._wake)

    def gate_quiet(self, tx: Transaction, gate_id: bytes) -> None:
        """Store that nothing runs behind an instance's closed gate any more; the gate's id is the instance's."""
        stimuli_insert(tx, [(gate_id, GateQuiet())])
        tx.after_commit(self._wake)


def stimulus_of(change: TaskChange) -> StoredStimulus:
    """Say what a change of a task is to its instance."""
    step, number = change.owner.step, change.owner.round
    if change.is_late_success:
        return LateSuccess(step, number)
    outcome = _OUTCOMES.get(change.state)
    if outcome is not None:
        return TaskEnded(step, number, outcome, None if outcome is Outcome.SUCCEEDED else _failure(change))
    if change.state is TaskState.NEEDS_REVIEW:
        return ReviewOpened(step, number, _failure(change))
    return ReviewClosed(step, number)


def _failure(change: TaskChange) -> Failure | None:
    if change.error is None:
        return None
    form = json.loads(change.error)
    details = {key: value for key in ("class", "details", "effect_unknown") if (value := form.get(key)) is not None}
    if change.hidden:
        details[HIDDEN] = list(change.hidden)
    return Failure(form.get("code") or "TASK_FAILED", form.get("message") or "the task failed", details or None)
