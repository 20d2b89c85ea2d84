"""Concurrency keys in force: taken all or none by a claim, given back in the transaction that ends their use.

A task that meets a full key leaves `ready` for the line of that key and its lane. What must always hold: while a line
has waiters, its key is full, or a waiter of that lane is in `ready`, or a wake-up is on its way. So whatever may end
that (a release, a raised limit, a task that leaves `ready` without taking its keys, a claim that leaves room) inserts a
wake-up, which locks nothing; `pulse.waker` follows them. The order of locks: tasks, attempts, gates, keys by id, usage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulse.states import TaskState, WaitReason
from pulse.store.key import (
    NO_KEYS,
    KeyRow,
    LineKey,
    holders_delete,
    holders_insert,
    key_id,
    key_ids,
    key_names,
    keys_give,
    keys_insert,
    keys_line,
    keys_lock,
    keys_take,
    line_delete,
    tasks_block,
    wakes_insert,
)
from pulse.store.key_limit import limit_of, limits_lock
from pulse.store.lanes import ReadyKey, delayed_delete, ready_delete
from pulse.store.rows import ready_key

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.store.rows import LockedTask

OnFree = Callable[[], None]  # a key may have room for tasks that wait for it


@dataclass(slots=True)
class KeyRooms:
    """The locked keys of a batch of tasks, and what they have left while it is decided."""

    of_task: Mapping[bytes, tuple[bytes, ...]]
    rows: Mapping[bytes, KeyRow]
    left: dict[bytes, int] = field(default_factory=dict)

    def full(self, task_id: bytes) -> bytes | None:
        """Return the first of a task's keys that is full; None if it may take all of them."""
        return next((key for key in self.of_task.get(task_id, NO_KEYS) if self.left[key] <= 0), None)

    def take(self, task_id: bytes) -> None:
        """Let a task take all its keys."""
        for key in self.of_task.get(task_id, NO_KEYS):
            self.left[key] -= 1


def rooms_lock(tx: Transaction, tasks: Iterable[LockedTask]) -> KeyRooms:
    """Lock the keys of tasks whose locks are held; where no task has any this costs nothing."""
    keyed = [task for task in tasks if task.concurrency_keys is not None]
    if not keyed:
        return KeyRooms({}, {})
    of_task = {task.id: key_ids(task) for task in keyed}
    wanted = {key for keys in of_task.values() for key in keys}
    rows = keys_lock(tx, wanted)
    if len(rows) < len(wanted):
        rows |= _make(tx, keyed, rows.keys())
    return KeyRooms(of_task, rows, {key: row.room for key, row in rows.items()})


def _make(tx: Transaction, tasks: Sequence[LockedTask], known: Iterable[bytes]) -> dict[bytes, KeyRow]:
    """Make the keys that are used for the first time, each with the limit that holds for it."""
    seen = set(known)
    by_namespace: dict[bytes, dict[bytes, bytes]] = {}
    for task in tasks:
        for text in key_names(task):
            name = text.encode()
            identifier = key_id(task.namespace_id, name)
            if identifier not in seen:
                by_namespace.setdefault(task.namespace_id, {})[identifier] = name
    made: dict[bytes, KeyRow] = {}
    for namespace_id in sorted(by_namespace):
        in_force = limits_lock(tx, namespace_id)
        for identifier, name in by_namespace[namespace_id].items():
            made[identifier] = KeyRow(identifier, namespace_id, name, limit_of(name, in_force), 0, has_line=False)
    keys_insert(tx, list(made.values()), now=tx.now())
    return made


def rooms_write(
    tx: Transaction, rooms: KeyRooms, granted: Iterable[bytes], blocked: Mapping[bytes, LineKey], *, now: Micros
) -> bool:
    """Write who took keys and who goes into a line; say whether somebody else may go on now.

    `granted` are ids of tasks, `blocked` goes from a task's id to its place in a line. All have left `ready`.
    """
    pairs = [(key, task_id) for task_id in granted for key in rooms.of_task.get(task_id, NO_KEYS)]
    if not pairs and not blocked:
        return False
    moved = Counter(key for key, _ in pairs)
    keys_take(tx, moved, now=now)
    keys_line(tx, {entry.key_id for entry in blocked.values() if not rooms.rows[entry.key_id].has_line})
    holders_insert(tx, pairs)
    tasks_block(tx, list(blocked.values()))
    left = moved.keys() | {key for task_id in blocked for key in rooms.of_task[task_id]}
    free = [key for key in left if rooms.left[key] > 0 and rooms.rows[key].has_line]
    wakes_insert(tx, free)
    return bool(free)


def keys_release(tx: Transaction, tasks: Sequence[LockedTask], on_free: OnFree) -> None:
    """Give back the keys of tasks that stop to be LEASED or RUNNING; tasks without keys cost nothing."""
    pairs = [(key, task.id) for task in tasks if task.concurrency_keys is not None for key in key_ids(task)]
    if not pairs:
        return
    given = Counter(key for key, _ in pairs)
    rows = keys_lock(tx, given.keys())
    keys_give(tx, given)
    holders_delete(tx, pairs)
    free = [key for key, row in rows.items() if row.has_line and row.room + given[key] > 0]
    if free:
        wakes_insert(tx, free)
        tx.after_commit(on_free)


def places_leave(tx: Transaction, rows: Iterable[LockedTask], on_free: OnFree) -> None:
    """Take waiting tasks out of where they stand, as their rows were read; this locks before their own locks are taken.

    One that leaves `ready` without taking its keys may have been the one that others of its line relied on.
    """
    waiting = [row for row in rows if row.state is TaskState.WAITING]
    ready = [row for row in waiting if row.wait_reason == WaitReason.READY]
    ready_delete(tx, [ReadyKey(**ready_key(row)) for row in ready])
    timed = [row for row in waiting if row.wait_reason in (WaitReason.DELAYED, WaitReason.BACKOFF)]
    delayed_delete(tx, [(row.available_at, row.id) for row in timed])
    line_delete(tx, [entry for row in waiting if row.wait_reason == WaitReason.KEY_BLOCKED for entry in _lines(row)])
    relied_on = {key for row in ready for key in key_ids(row)}
    if relied_on:
        wakes_insert(tx, relied_on)
        tx.after_commit(on_free)


def _lines(row: LockedTask) -> list[LineKey]:
    """Name the entries of which a blocked task has exactly one: its row does not tell which key was full."""
    return [LineKey(key, **ready_key(row)) for key in key_ids(row)]
