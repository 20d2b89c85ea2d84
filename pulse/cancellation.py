"""Cancel: WAITING and LEASED tasks at once and atomically against Start; of others the intent is kept.

A RUNNING task stays unfinished until its worker answers or its lease is judged; one in review until a verdict. Locks:
`ready` or `delayed` first, tasks, attempts, then counters in `settle`. Which entry to lock is learned by a plain read,
and checked again under the task's lock; where the task has moved meanwhile, the whole transaction is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.database import RunAgain
from orbit.errors import NotFound, OwnedByWorkflow
from orbit.idempotency import Answer, Command, Made, once
from orbit.store.journal import Actor, AuditRecord, audit_insert
from pulse.keys import places_leave
from pulse.policy import Finish
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import TERMINAL, AttemptState, SourceKind, TaskState
from pulse.store.cancel import cancels_store
from pulse.store.rows import LockedTask, attempts_live_of, attempts_lock, task_read, tasks_lock, tasks_read

if TYPE_CHECKING:
    from orbit.database import Transaction


class Cancel(Struct, frozen=True):
    """A wish to cancel one task, and why."""

    task_id: bytes
    reason: str


class CancelOutcome(Struct, frozen=True):
    """What became of the wish: the task's state now, and whether its intent is kept for later."""

    state: TaskState
    is_wanted: bool


def task_cancel(tx: Transaction, command: Command, actor: Actor, cancel: Cancel, around: Surroundings) -> Answer:
    """Cancel a task for a caller outside, with audit and receipt, or replay the receipt.

    Raises NotFound, OwnedByWorkflow for a workflow's task.
    """
    return once(tx, command, lambda: cancel_now(tx, command.namespace_id, actor, cancel, around))


def cancel_now(tx: Transaction, namespace_id: bytes, actor: Actor, cancel: Cancel, around: Surroundings) -> Made:
    """Cancel a task for a caller outside, with its audit record; the caller keeps the receipt.

    Raises NotFound, OwnedByWorkflow for a workflow's task.
    """
    task = task_read(tx, cancel.task_id)
    if task is None or task.namespace_id != namespace_id:
        message = "no such task"
        raise NotFound(message)
    if task.source_kind == SourceKind.WORKFLOW:
        message = "the task belongs to a workflow instance; cancel the instance"
        raise OwnedByWorkflow(message)
    outcome = tasks_cancel(tx, [cancel], around)[cancel.task_id]
    record = AuditRecord(
        namespace_id=task.namespace_id,
        actor=actor,
        operation="task.cancel",
        subject_kind="task",
        subject_id=task.id,
        reason=cancel.reason,
        before={"state": task.state},
        after={"state": outcome.state, "cancel_requested": outcome.is_wanted},
    )
    audit_insert(tx, record, now=tx.now())
    answer = {"id": task.id.hex(), "state": outcome.state, "cancel_requested": outcome.is_wanted}
    return Made(task.id, {"task": answer})


def tasks_cancel(tx: Transaction, cancels: Sequence[Cancel], around: Surroundings) -> dict[bytes, CancelOutcome]:
    """Cancel tasks inside the caller's transaction; tasks that do not exist are left out of the answer."""
    reasons = {cancel.task_id: cancel.reason for cancel in cancels}
    seen = tasks_read(tx, reasons.keys())
    places_leave(tx, seen.values(), around.on_keys_free)
    tasks = tasks_lock(tx, seen.keys())
    live = {attempt.task_id: attempt.id for attempt in attempts_live_of(tx, tasks.keys())}
    attempts = attempts_lock(tx, live.values())
    now = tx.now()
    outcomes: dict[bytes, CancelOutcome] = {}
    settlements: list[Settlement] = []
    wanted: dict[bytes, tuple[LockedTask, str]] = {}
    for task_id, task in tasks.items():
        match task.state:
            case TaskState.WAITING:
                _check_unmoved(seen[task_id], task)
                settlements.append(Settlement(task, Finish(TaskState.CANCELLED)))
                outcomes[task_id] = CancelOutcome(TaskState.CANCELLED, is_wanted=False)
            case TaskState.LEASED:
                attempt = attempts[live[task_id]]
                ended = Settlement(task, Finish(TaskState.CANCELLED), attempt, AttemptState.ABANDONED)
                settlements.append(ended)
                outcomes[task_id] = CancelOutcome(TaskState.CANCELLED, is_wanted=False)
            case state if state in TERMINAL:
                outcomes[task_id] = CancelOutcome(state, is_wanted=False)
            case state:
                if task.cancel_requested_at is None:
                    wanted[task_id] = (task, reasons[task_id])
                outcomes[task_id] = CancelOutcome(state, is_wanted=True)
    cancels_store(tx, wanted, now=now)
    if wanted:
        notices = {task_id: reason for task_id, (_, reason) in wanted.items()}
        tx.after_commit(lambda: around.on_cancel_wanted(notices))
        tx.after_commit(lambda: around.on_changed(frozenset(notices)))
    settle(tx, settlements, around, now=now)
    return outcomes


def _check_unmoved(seen: LockedTask, locked: LockedTask) -> None:
    if seen.revision != locked.revision:
        raise RunAgain
