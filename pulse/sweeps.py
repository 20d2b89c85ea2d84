"""The loops of time: delayed tasks become ready, deadlines end what waits, leases that run out are judged.

Every sweep reads ids plainly through an index, locks by primary key in the house's order, and checks again. Any number
of nodes may sweep at once: what one holds, the others skip or find already judged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orbit.clock import SECOND
from orbit.database import Pool, RunAgain
from pulse import limits
from pulse.arrivals import arrivals_by_lane
from pulse.fairness import entries_make
from pulse.keys import places_leave
from pulse.lease import expire, expired
from pulse.policy import Finish, passed_deadline
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import TaskState, WaitReason
from pulse.store.lanes import (
    delayed_delete,
    delayed_lock_due,
    delayed_next,
    ready_insert,
)
from pulse.store.rows import LockedTask, tasks_lock, tasks_lock_free, tasks_read
from pulse.store.settle import tasks_ready
from pulse.store.sweep import DeadlineColumn, cursor_advance, cursor_read, deadlines_passed

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Database, Transaction

_DEADLINE_COLUMNS: tuple[DeadlineColumn, ...] = ("deadline_at", "start_deadline_at")
_TIMED = (WaitReason.DELAYED, WaitReason.BACKOFF)
_SLACK_MICROS = 30 * SECOND  # longer than any transaction lives
_OVERLAP_MICROS = SECOND
_PAGE = 4 * limits.SWEEP_BATCH_MAX


def delayed_sweep(database: Database, around: Surroundings) -> tuple[int, Micros | None]:
    """Make due tasks ready; return how many, and in how many microseconds the next one is due (None: nothing waits)."""

    def work(tx: Transaction) -> tuple[int, Micros | None]:
        following = delayed_next(tx)
        now = tx.now()
        due: list[tuple[Micros, bytes]] = []
        if following is not None and following <= now:
            due = delayed_lock_due(tx, now=now, limit=limits.SWEEP_BATCH_MAX)
            if due:
                _make_ready(tx, due, around)
            following = delayed_next(tx)
        return len(due), None if following is None else max(0, following - now)

    return database.transaction(work, pool=Pool.DISPATCH)


def _make_ready(tx: Transaction, due: list[tuple[Micros, bytes]], around: Surroundings) -> None:
    """Move entries from `delayed` to `ready`; a task that somebody holds is left for the next round."""
    locked = tasks_lock_free(tx, [task_id for _, task_id in due])
    rows = [locked[task_id][0] for _, task_id in due if task_id in locked]
    waiting = [row for row in rows if row.state is TaskState.WAITING and row.wait_reason in _TIMED]
    # An entry whose task no longer waits for it is stale; it goes too.
    delayed_delete(tx, [(due_at, task_id) for due_at, task_id in due if task_id in locked], may_miss=False)
    tasks_ready(tx, [row.id for row in waiting])
    entries = entries_make(tx, waiting)
    ready_insert(tx, entries)
    lanes = arrivals_by_lane(entries)
    changed = frozenset(row.id for row in waiting)
    tx.after_commit(lambda: around.on_ready(lanes))
    tx.after_commit(lambda: around.on_changed(changed))


def lease_sweep(database: Database, around: Surroundings) -> int:
    """End attempts whose lease has passed; return how many."""
    candidates = database.transaction(lambda tx: expired(tx, limit=limits.SWEEP_BATCH_MAX), pool=Pool.DISPATCH)
    if not candidates:
        return 0
    return database.transaction(lambda tx: expire(tx, candidates, around), pool=Pool.DISPATCH)


class DeadlineSweep:
    """End waiting tasks whose start or total deadline has passed. One a node.

    Deadlines are read once, in order, each time from a little before the last instant seen. A transaction that commits
    late may insert a deadline behind that; a slow round from the stored cursor, which lags by the slack, finds it, as
    does a node that starts after all others have died.
    """

    def __init__(self, database: Database, around: Surroundings) -> None:
        self._database = database
        self._around = around
        self._seen_until: dict[DeadlineColumn, Micros] = {}
        self._slow_at: dict[DeadlineColumn, Micros] = {}

    def run_once(self) -> int:
        """Judge all deadlines that have passed since the last time; return how many tasks ended."""
        return sum(self._column(column) for column in _DEADLINE_COLUMNS)

    def _column(self, column: DeadlineColumn) -> int:
        stored, now = self._database.transaction(lambda tx: (cursor_read(tx, column), tx.now()), pool=Pool.DISPATCH)
        is_slow = now - self._slow_at.get(column, 0) > _SLACK_MICROS
        after = stored if is_slow else self._seen_until[column] - _OVERLAP_MICROS
        ended = 0
        page: tuple[Micros, bytes] = (after, b"")
        while True:
            passed = self._read(column, page, now)
            waiting = [task_id for task_id, _, state in passed if state == TaskState.WAITING]
            for start in range(0, len(waiting), limits.SWEEP_BATCH_MAX):
                work = partial(self._end, ids=waiting[start : start + limits.SWEEP_BATCH_MAX])
                ended += self._database.transaction(work, pool=Pool.DISPATCH)
            if len(passed) < _PAGE:
                break
            page = (passed[-1][1], passed[-1][0])
        self._seen_until[column] = now
        if is_slow:
            # Only now, after everything before it was judged: a node that dies here judges again.
            self._slow_at[column] = now
            reached = now - _SLACK_MICROS
            self._database.transaction(lambda tx: cursor_advance(tx, column, to=reached), pool=Pool.DISPATCH)
        return ended

    def _read(
        self, column: DeadlineColumn, after: tuple[Micros, bytes], until: Micros
    ) -> list[tuple[bytes, Micros, str]]:
        def work(tx: Transaction) -> list[tuple[bytes, Micros, str]]:
            return deadlines_passed(tx, column, after=after, until=until, limit=_PAGE)

        return self._database.transaction(work, pool=Pool.DISPATCH)

    def _end(self, tx: Transaction, ids: list[bytes]) -> int:
        read_at = tx.now()
        seen = {row.id: row for row in tasks_read(tx, ids).values() if _passed(row, read_at) is not None}
        places_leave(tx, seen.values(), self._around.on_keys_free)
        locked = tasks_lock(tx, seen.keys())
        now = tx.now()
        settlements: list[Settlement] = []
        for task in locked.values():
            decision = _passed(task, now)
            if task.revision != seen[task.id].revision or decision is None:
                raise RunAgain
            settlements.append(Settlement(task, decision))
        settle(tx, settlements, self._around, now=now)
        return len(settlements)


def _passed(task: LockedTask, now: Micros) -> Finish | None:
    """Say how a waiting task ends if one of its deadlines has passed."""
    error = passed_deadline(task.budget(), now=now) if task.state is TaskState.WAITING else None
    if error is None:
        return None
    return Finish(TaskState.CANCELLED if task.cancel_requested_at is not None else TaskState.FAILED, error)
