"""Follow wake-ups: of each line before a key with room, make the first waiters ready. A claim decides who gets the key.

A wake-up says only that something may have changed; what is so is read here, so none is ever too many. Locks: the
wake-ups (SKIP LOCKED), entries of lines, tasks; a key only to note that it has no line any more. A slow sweep wakes
whatever has room and a line, so that not even a lost wake-up leaves a task asleep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orbit.database import Pool, RunAgain
from pulse import limits
from pulse.arrivals import arrivals_by_lane
from pulse.settle import Surroundings
from pulse.states import TaskState, WaitReason
from pulse.store.fair import shares_prune
from pulse.store.key import (
    LineKey,
    keys_lined,
    keys_prune,
    keys_read,
    line_delete,
    line_heads,
    line_lanes,
    lines_quiet,
    wakes_delete,
    wakes_insert,
    wakes_lock,
)
from pulse.store.lanes import ready_insert
from pulse.store.rows import ready_key, tasks_lock
from pulse.store.settle import tasks_ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbit.clock import Micros
    from orbit.database import Database, Transaction

_PAGE = 1_000


class Prune(Protocol):
    """Forget some of a page of rows; return where the next page begins."""

    def __call__(self, tx: Transaction, *, after: bytes, before: Micros, limit: int) -> bytes | None:
        """Look at one page."""


def keys_wake(database: Database, around: Surroundings) -> int:
    """Follow a batch of wake-ups; return how many there were."""
    return database.transaction(lambda tx: _follow(tx, around), pool=Pool.DISPATCH)


def _follow(tx: Transaction, around: Surroundings) -> int:
    wakes = wakes_lock(tx, limit=limits.KEY_WAKE_BATCH_MAX)
    if not wakes:
        return 0
    rows = keys_read(tx, set(wakes.values()))
    rooms = {row.id: min(row.room, limits.KEY_WAITERS_WOKEN_MAX) for row in rows.values() if row.room > 0}
    lanes = line_lanes(tx, rooms.keys())
    _make_ready(tx, line_heads(tx, {(key, lane): rooms[key] for key, lane in lanes}), around)
    lined = {key for key, _ in lanes}
    lines_quiet(tx, [key for key in rooms if key not in lined and rows[key].has_line])
    wakes_delete(tx, wakes.keys())
    return len(wakes)


def _make_ready(tx: Transaction, entries: Sequence[LineKey], around: Surroundings) -> None:
    """Move entries of lines to `ready`; another waker, or whoever ended a waiter, may have been faster."""
    if not entries:
        return
    line_delete(tx, entries, otherwise=RunAgain())
    tasks = tasks_lock(tx, {entry.task_id for entry in entries})
    for task in tasks.values():
        is_blocked = task.state is TaskState.WAITING and task.wait_reason == WaitReason.KEY_BLOCKED
        assert is_blocked, "who takes a task out of its line does so before it changes the task"
    tasks_ready(tx, tasks.keys())
    placed = [ready_key(task) for task in tasks.values()]
    ready_insert(tx, placed)
    lanes, changed = arrivals_by_lane(placed), frozenset(tasks)
    tx.after_commit(lambda: around.on_ready(lanes))
    tx.after_commit(lambda: around.on_changed(changed))


def lines_sweep(database: Database, around: Surroundings) -> int:
    """Wake every key that has room and a line; return how many."""
    woken, after = 0, b""
    while True:

        def work(tx: Transaction, after: bytes = after) -> list[bytes]:
            found = keys_lined(tx, after=after, limit=_PAGE)
            wakes_insert(tx, found)
            return found

        found = database.transaction(work, pool=Pool.DISPATCH)
        woken += len(found)
        if found:
            around.on_keys_free()
        if len(found) < _PAGE:
            return woken
        after = found[-1]


def keys_forget(database: Database) -> int:
    """Forget concurrency and fairness keys that nobody has used for long; return how many pages were looked at."""
    pages = 0
    for prune in (keys_prune, shares_prune):
        after: bytes | None = b""
        while after is not None:

            def work(tx: Transaction, after: bytes = after, prune: Prune = prune) -> bytes | None:
                return prune(tx, after=after, before=tx.now() - limits.KEY_IDLE_MICROS, limit=_PAGE)

            after = database.transaction(work, pool=Pool.DISPATCH)
            pages += 1
    return pages
