"""The writes of a repair: a counter moves by its difference and is never set; a waiting task is placed anew.

Everything is judged again under its lock, in batches: what has moved since it was found is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import exists, func, select, update

from orbit.database.ids import ids_in, through
from pulse.states import HOLDING_PERMIT, TaskState, VerificationState, WaitReason
from pulse.store.key import LineKey, holders_delete, holders_insert, key_ids, line_delete, wakes_insert
from pulse.store.key_limit import copies_write, limit_of, limits_lock
from pulse.store.lanes import ReadyKey, delayed_delete, delayed_insert, ready_delete, ready_insert
from pulse.store.queue import queue_read_locked, queue_write
from pulse.store.rows import LockedTask, ready_key, tasks_lock
from pulse.store.settle import tasks_ready
from pulse.tables import cursor, gate, key, key_holder, key_line, queue_backlog, queue_usage, task, verification

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_COLUMNS: dict[str, Any] = {
    "active": (queue_usage.c.queue_id, queue_usage.c.active),
    "leased_unstarted": (queue_usage.c.queue_id, queue_usage.c.leased_unstarted),
    "unfinished": (queue_backlog.c.queue_id, queue_backlog.c.unfinished),
    "in_flight": (gate.c.id, gate.c.in_flight),
    "key_active": (key.c.id, key.c.active),
}
COUNTERS = frozenset(_COLUMNS)
KEYS = frozenset({"key_holder", "key_asleep", "key_limit"})
PLACES = frozenset({"ready", "delayed", "line"})
_REPAIR = "repair"


def turn_read(tx: Transaction) -> int:
    """Read how many repairs have added to counters: what was counted before another one must not be added again."""
    row = tx.row(select(cursor.c.reached_at).where(cursor.c.name == _REPAIR))
    return 0 if row is None else int(row.reached_at)


def turn_take(tx: Transaction, turn: int) -> bool:
    """Take the turn after this one and keep others out until the commit; False if somebody else has had it."""
    row = tx.row(select(cursor.c.reached_at).where(cursor.c.name == _REPAIR).with_for_update())
    if (0 if row is None else int(row.reached_at)) != turn:
        return False
    if row is None:
        tx.insert(cursor, [{"name": _REPAIR, "reached_at": 1}])
    else:
        tx.expect(update(cursor).where(cursor.c.name == _REPAIR).values(reached_at=turn + 1), count=1)
    return True


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


def settings_copy(tx: Transaction, queue_id: bytes) -> None:
    """Write a queue's settings onto its counters again."""
    found = queue_read_locked(tx, queue_id)
    queue_write(tx, queue_id, found.settings, revision=found.revision)


def strays_take_out(tx: Transaction, entries: Mapping[str, Collection[tuple[Any, ...]]]) -> None:
    """Take entries out of `ready`, `delayed` and lines, by their whole keys."""
    ready_delete(tx, [ReadyKey(*entry) for entry in sorted(entries.get("ready", ()))])
    delayed_delete(tx, [(entry[0], entry[1]) for entry in sorted(entries.get("delayed", ()))])
    line_delete(tx, [LineKey(*entry) for entry in sorted(entries.get("line", ()))])


def lined_read(tx: Transaction, task_ids: Collection[bytes]) -> list[tuple[Any, ...]]:
    """Read all entries that tasks have in lines. No index leads there: it walks over the lines once."""
    query = select(key_line.c.key_id, key_line.c.lane_id, key_line.c.dispatch_at, key_line.c.task_id)
    return [tuple(row) for row in tx.rows(query.where(ids_in(key_line.c.task_id)), {"ids": task_ids})]


def tasks_put_in(tx: Transaction, tasks: Collection[LockedTask]) -> None:
    """Give locked waiting tasks, which stand nowhere, the entry that their rows name, if any.

    A task that was blocked by a key becomes ready: the next claim finds out which of its keys is full, if one is.
    """
    blocked = [task for task in tasks if task.wait_reason == WaitReason.KEY_BLOCKED]
    if blocked:
        tasks_ready(tx, [task.id for task in blocked])
    timed = [task for task in tasks if task.wait_reason in (WaitReason.DELAYED, WaitReason.BACKOFF)]
    ready_insert(
        tx, [ready_key(task) for task in tasks if task.wait_reason == WaitReason.READY] + list(map(ready_key, blocked))
    )
    delayed_insert(tx, [{"due_at": task.available_at, "task_id": task.id} for task in timed])


def holders_mend(tx: Transaction, task_ids: Collection[bytes]) -> None:
    """Let the holders of tasks' keys be those that their rows name; the keys' counters are mended afterwards."""
    tasks = tasks_lock(tx, task_ids)
    said = {
        (identifier, task.id) for task in tasks.values() if task.state in HOLDING_PERMIT for identifier in key_ids(task)
    }
    query = select(key_holder.c.key_id, key_holder.c.task_id).where(ids_in(key_holder.c.task_id))
    written = {(row.key_id, row.task_id) for row in tx.rows(query, {"ids": task_ids})}
    holders_insert(tx, sorted(said - written))
    holders_delete(tx, sorted(written - said))


def waiters_wake(tx: Transaction, key_ids: Collection[bytes]) -> None:
    """Let those that wait for keys be looked at."""
    wakes_insert(tx, key_ids)


def limits_copy(tx: Transaction, key_ids: Collection[bytes]) -> None:
    """Write the limits in force onto keys again."""
    query = through(select(key.c.id, key.c.namespace_id, key.c.name), key).where(ids_in(key.c.id))
    found: list[Any] = list(tx.rows(query, {"ids": key_ids}))
    for namespace_id in sorted({row.namespace_id for row in found}):
        known = limits_lock(tx, namespace_id)
        copies_write(tx, {row.id: limit_of(row.name, known) for row in found if row.namespace_id == namespace_id})


def gates_of(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Read which gates tasks stand behind: task → gate."""
    query = through(select(task.c.id, task.c.gate_id), task).where(ids_in(task.c.id), task.c.gate_id.is_not(None))
    return {row.id: row.gate_id for row in tx.rows(query, {"ids": task_ids})}


def held_write(tx: Transaction, task_ids: Collection[bytes]) -> None:
    """Let locked tasks, which wait behind no closed gate though they are HELD, be ready; their deadlines stay."""
    statement = through(update(task), task).where(ids_in(task.c.id), task.c.state == TaskState.WAITING)
    values = {"wait_reason": WaitReason.READY, "held_since": None, "revision": task.c.revision + 1}
    tx.expect(statement.values(values), {"ids": task_ids}, count=len(task_ids))


def sweep_again(tx: Transaction, task_ids: Collection[bytes]) -> None:
    """Let the deadline sweeps begin again before the deadlines of these tasks, which they have passed by."""
    for name in ("deadline_at", "start_deadline_at"):
        column = task.c[name]
        first = tx.row(through(select(func.min(column)), task).where(ids_in(task.c.id)), {"ids": task_ids})
        at: Micros | None = None if first is None else first[0]
        if at is not None:
            back = update(cursor).where(cursor.c.name == name, cursor.c.reached_at >= at)
            tx.execute(back.values(reached_at=at - 1))


def verifications_remember(tx: Transaction, ids: Collection[bytes], *, now: Micros) -> None:
    """Let a node act on verifications that nobody would come back to: on those wanted or answered, and ended ones."""
    of_ids = through(update(verification), verification).where(ids_in(verification.c.id))
    waiting = verification.c.state.in_([VerificationState.WANTED, VerificationState.ANSWERED])
    tx.execute(of_ids.where(waiting, verification.c.due_at.is_(None)).values(due_at=now), {"ids": ids})
    goes_on = exists().where(
        task.c.id == verification.c.id,
        task.c.state.in_([TaskState.WAITING, TaskState.LEASED, TaskState.RUNNING]),
    )
    ended = of_ids.where(verification.c.state == VerificationState.OPEN, ~goes_on)
    tx.execute(ended.values(state=VerificationState.ANSWERED, due_at=now), {"ids": ids})
