"""The writes of a repair: a counter moves by its difference and is never set; a waiting task is placed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from pulse.states import HOLDING_PERMIT, TaskState, WaitReason
from pulse.store.key import LineKey, holders_delete, holders_insert, key_ids, line_delete, wakes_insert
from pulse.store.lanes import ReadyKey, delayed_delete, delayed_insert, ready_delete, ready_insert
from pulse.store.rows import LockedTask, ready_key, tasks_lock
from pulse.store.settle import tasks_ready
from pulse.tables import delayed, gate, key, key_holder, key_line, queue_backlog, queue_usage, ready

if TYPE_CHECKING:
    from orbit.database import Transaction

_COLUMNS: dict[str, Any] = {
    "active": (queue_usage.c.queue_id, queue_usage.c.active),
    "leased_unstarted": (queue_usage.c.queue_id, queue_usage.c.leased_unstarted),
    "unfinished": (queue_backlog.c.queue_id, queue_backlog.c.unfinished),
    "in_flight": (gate.c.id, gate.c.in_flight),
    "key_active": (key.c.id, key.c.active),
}
COUNTERS = frozenset(_COLUMNS)
KEYS = frozenset({"key_holder", "key_asleep"})
PLACES = frozenset({"ready", "delayed", "line"})


def counter_add(tx: Transaction, name: str, subject: bytes, *, difference: int) -> None:
    """Add what a recount found to be missing, which is right whatever has been counted since."""
    key, column = _COLUMNS[name]
    tx.expect(update(column.table).where(key == subject).values({column: column + difference}), count=1)


def usage_add(tx: Transaction, queue_id: bytes, *, active: int, leased_unstarted: int) -> None:
    """Add to both counters of a queue's permits at once: they bound each other."""
    statement = update(queue_usage).where(queue_usage.c.queue_id == queue_id)
    values = {
        "active": queue_usage.c.active + active,
        "leased_unstarted": queue_usage.c.leased_unstarted + leased_unstarted,
    }
    tx.expect(statement.values(values), count=1)


def task_place(tx: Transaction, task_id: bytes) -> None:
    """Take every entry of a task out of `ready`, `delayed` and lines, and put in the one that its row names, if any.

    A task that was blocked by a key becomes ready: the next claim finds out which of its keys is full, if one is.
    """
    entries: list[Any] = list(tx.rows(select(ready).where(ready.c.task_id == task_id)))
    times: list[Any] = list(tx.rows(select(delayed).where(delayed.c.task_id == task_id)))
    lines: list[Any] = list(tx.rows(select(key_line).where(key_line.c.task_id == task_id)))
    ready_delete(tx, [ReadyKey(*tuple(entry)) for entry in entries])
    delayed_delete(tx, [(entry.due_at, entry.task_id) for entry in times])
    line_delete(tx, [LineKey(*tuple(entry)) for entry in lines])
    task = tasks_lock(tx, [task_id]).get(task_id)
    if task is not None and task.state is TaskState.WAITING:
        _put_in(tx, task)


def _put_in(tx: Transaction, task: LockedTask) -> None:
    if task.wait_reason == WaitReason.KEY_BLOCKED:
        tasks_ready(tx, [task.id])
    if task.wait_reason in (WaitReason.READY, WaitReason.KEY_BLOCKED):
        ready_insert(tx, [ready_key(task)])
    elif task.wait_reason != WaitReason.HELD:
        delayed_insert(tx, [{"due_at": task.available_at, "task_id": task.id}])


def holders_mend(tx: Transaction, task_id: bytes) -> None:
    """Let the holders of a task's keys be those that its row names; the keys' counters are mended afterwards."""
    task = tasks_lock(tx, [task_id]).get(task_id)
    said = set(key_ids(task)) if task is not None and task.state in HOLDING_PERMIT else set()
    written: set[bytes] = {row.key_id for row in tx.rows(select(key_holder).where(key_holder.c.task_id == task_id))}
    holders_insert(tx, [(identifier, task_id) for identifier in sorted(said - written)])
    holders_delete(tx, [(identifier, task_id) for identifier in written - said])


def waiters_wake(tx: Transaction, key_id: bytes) -> None:
    """Let those that wait for a key be looked at."""
    wakes_insert(tx, [key_id])
