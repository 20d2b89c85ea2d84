"""Move a WAITING task to another time or priority. Locks: its entry in `ready` or `delayed` first, then the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orbit.database import RunAgain
from orbit.errors import InvalidRequest, NotFound, OwnedByWorkflow, StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.store.journal import Actor, AuditRecord, audit_insert
from pulse.arrivals import arrivals_by_lane
from pulse.fairness import entries_make
from pulse.keys import places_leave
from pulse.settle import Surroundings
from pulse.states import SourceKind, TaskState, WaitReason
from pulse.store.lanes import delayed_insert, ready_insert
from pulse.store.recover import Place, place_write
from pulse.store.rows import LockedTask, task_read, tasks_lock

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    """What changes: `priority`, `available_at` (microseconds UTC), or both; None leaves it."""

    task_id: bytes
    expected_revision: int
    reason: str
    priority: int | None = None
    available_at: Micros | None = None


def task_reschedule(
    tx: Transaction, command: Command, actor: Actor, change: Reschedule, around: Surroundings
) -> Answer:
    """Move a waiting task, with audit and receipt, or replay the receipt.

    Raises NotFound, OwnedByWorkflow, StateConflict (not WAITING, another revision), InvalidRequest (past the deadline).
    """

    def make() -> Made:
        seen = task_read(tx, change.task_id)
        if seen is None or seen.namespace_id != command.namespace_id:
            raise NotFound("no such task")
        if seen.source_kind == SourceKind.WORKFLOW:
            raise OwnedByWorkflow("the task belongs to a workflow instance")
        places_leave(tx, [seen], around.on_keys_free)
        task = tasks_lock(tx, [change.task_id])[change.task_id]
        if task.state is not TaskState.WAITING or task.revision != change.expected_revision:
            message = f"the task is {task.state} at revision {task.revision}"
            raise StateConflict(message, details={"state": task.state, "current_revision": str(task.revision)})
        if task.revision != seen.revision:
            raise RunAgain
        now = tx.now()
        place = _place(task, change, now=now)
        place_write(tx, task.id, place, revision=task.revision + 1)
        _put_in(tx, task, place, around)
        audit_insert(tx, _audit(task, actor, change, place), now=now)
        answer = {"id": task.id.hex(), "state": task.state, "revision": str(task.revision + 1)}
        tx.after_commit(lambda: around.on_changed(frozenset({task.id})))
        return Made(task.id, {"task": answer})

    return once(tx, command, make)


def _place(task: LockedTask, change: Reschedule, *, now: Micros) -> Place:
    available_at = task.available_at if change.available_at is None else change.available_at
    if change.available_at is not None and available_at >= task.deadline_at:
        raise InvalidRequest("available_at is not before the task's deadline", pointer="/available_at")
    first = task.budget().start_deadline_at if task.starts_count == 0 else None
    if change.available_at is not None and first is not None and available_at >= first:
        raise InvalidRequest("available_at is not before the task's start deadline", pointer="/available_at")
    priority = task.priority if change.priority is None else change.priority
    if task.held_since is not None:
        return Place(priority, available_at, WaitReason.HELD)
    if available_at <= now:
        return Place(priority, available_at, WaitReason.READY)
    # A back-off stays one unless its time is changed by hand.
    return Place(
        priority, available_at, task.wait_reason if change.available_at is None and task.wait_reason else "DELAYED"
    )


def _put_in(tx: Transaction, task: LockedTask, place: Place, around: Surroundings) -> None:
    if place.wait_reason == WaitReason.HELD:
        return
    if place.wait_reason != WaitReason.READY:
        delayed_insert(tx, [{"due_at": place.available_at, "task_id": task.id}])
        return
    entries = entries_make(tx, [replace(task, priority=place.priority, available_at=place.available_at)])
    ready_insert(tx, entries)
    lanes = arrivals_by_lane(entries)
    tx.after_commit(lambda: around.on_ready(lanes))


def _audit(task: LockedTask, actor: Actor, change: Reschedule, place: Place) -> AuditRecord:
    return AuditRecord(
        namespace_id=task.namespace_id,
        actor=actor,
        operation="task.reschedule",
        subject_kind="task",
        subject_id=task.id,
        reason=change.reason,
        before={"priority": task.priority, "available_at": str(task.available_at)},
        after={"priority": place.priority, "available_at": str(place.available_at)},
    )
