"""Examine what Pulse has stored, and repair what can be: counters, copies, places and holders, waits that nobody ends.

Both may run beside nodes. All is compared in one snapshot; a repair judges again under locks, adds the difference and
never sets a counter. What nobody can judge from rows is only reported: a person must see it first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pulse.fairness import entries_make
from pulse.gates import release_of
from pulse.keys import places_leave
from pulse.quotas import quotas_mark
from pulse.schedules.store import schedules_mend, schedules_wrong
from pulse.states import TERMINAL, TaskState, WaitReason
from pulse.store.gate import gates_lock, tasks_hold, tasks_release, tasks_unmark
from pulse.store.lanes import delayed_insert, ready_insert
from pulse.store.recount import Drift, drifts_find
from pulse.store.repair import (
    COUNTERS,
    KEYS,
    PLACES,
    counter_add,
    gates_of,
    held_write,
    holders_mend,
    limits_copy,
    lined_read,
    settings_copy,
    strays_take_out,
    sweep_again,
    tasks_put_in,
    turn_read,
    turn_take,
    usage_add,
    verifications_remember,
    waiters_wake,
)
from pulse.store.rows import LockedTask, ready_key, tasks_lock, tasks_read

if TYPE_CHECKING:
    from orbit.database import Database, Transaction

__all__ = ["Drift", "examine", "is_repairable", "repair"]

T = TypeVar("T")

_USAGE = frozenset({"active", "leased_unstarted"})
_SCHEDULES = frozenset({"schedule_backlog", "schedule_asleep"})
_OTHERS = frozenset({"settings", "quota", "held", "deadline", "verification"}) | _SCHEDULES
_BATCH = 500


def examine(database: Database) -> list[Drift]:
    """Recount everything and return what differs."""
    return database.transaction(_found, is_snapshot=True)


def _found(tx: Transaction) -> list[Drift]:
    return drifts_find(tx) + [Drift(*each) for each in schedules_wrong(tx)]


def is_repairable(drift: Drift) -> bool:
    """Say whether `repair` does anything about it."""
    return drift.name in COUNTERS | PLACES | KEYS | _OTHERS


def repair(database: Database) -> list[Drift]:
    """Repair what can be, and return what was found; examine again to see what is left."""
    turn, found = database.transaction(_counted, is_snapshot=True)
    of: dict[str, list[Drift]] = defaultdict(list)
    for drift in found:
        of[drift.name].append(drift)

    def each(names: Iterable[str], mend: Callable[[Transaction, Sequence[bytes]], None]) -> None:
        subjects = sorted({drift.subject for name in names for drift in of[name]})
        for batch in _batches(subjects):
            database.transaction(partial(_mend, mend, batch))

    each(["key_holder"], holders_mend)
    if of["key_holder"]:
        # Who holds a key has changed by that, and so has what its counter should be.
        turn, again = database.transaction(_counted, is_snapshot=True)
        of |= {name: [drift for drift in again if drift.name == name] for name in COUNTERS}
    drifts = [drift for name in COUNTERS for drift in of[name]]
    if drifts:
        database.transaction(lambda tx: _add(tx, drifts, turn))
    each(["settings"], _settings)
    each(["quota"], quotas_mark)
    each(["key_limit"], limits_copy)
    each(["key_active", "key_asleep", "key_limit"], waiters_wake)
    places = sorted((drift for name in PLACES for drift in of[name]), key=lambda drift: drift.subject)
    for batch in _batches(places):
        database.transaction(partial(_mend, _place, batch))
    each(["held"], _hold)
    each(["deadline"], sweep_again)
    each(["schedule_backlog", "schedule_asleep"], lambda tx, ids: schedules_mend(tx, ids, now=tx.now()))
    each(["verification"], lambda tx, ids: verifications_remember(tx, ids, now=tx.now()))
    return found


def _mend(mend: Callable[[Transaction, Sequence[T]], None], batch: Sequence[T], tx: Transaction) -> None:
    mend(tx, batch)


def _batches(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[first : first + _BATCH] for first in range(0, len(items), _BATCH))


def _counted(tx: Transaction) -> tuple[int, list[Drift]]:
    return turn_read(tx), _found(tx)


def _add(tx: Transaction, drifts: Sequence[Drift], turn: int) -> None:
    """Add differences in the order of locks: gates, keys, then queues' usage, then their backlogs.

    What was found since another repair added it is not there any more: then nothing is added.
    """
    if not turn_take(tx, turn):
        return
    usages: dict[bytes, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_USAGE, 0))
    for drift in drifts:
        if drift.name in _USAGE:
            usages[drift.subject][drift.name] = drift.counted - drift.stored
    for name in ("in_flight", "key_active", "unfinished"):
        if name == "unfinished":
            for queue_id in sorted(usages):
                usage_add(tx, queue_id, **usages[queue_id])
        for drift in sorted((d for d in drifts if d.name == name), key=lambda d: d.subject):
            counter_add(tx, name, drift.subject, difference=drift.counted - drift.stored)


def _settings(tx: Transaction, queue_ids: Collection[bytes]) -> None:
    for queue_id in queue_ids:
        settings_copy(tx, queue_id)


def _place(tx: Transaction, drifts: Sequence[Drift]) -> None:
    """Take out the entries that are too many, and the place that each task's row names; then put in the latter.

    Entries are locked before tasks, as everywhere. A task that has moved meanwhile was placed by who moved it.
    """
    ids = {drift.subject for drift in drifts}
    taken: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for drift in drifts:
        if drift.entry:
            taken[drift.name].add(drift.entry)
    lined = {drift.subject for drift in drifts if drift.name == "line"}
    if lined:
        taken["line"] |= set(lined_read(tx, lined))
    seen = tasks_read(tx, ids)
    for task in seen.values():
        place = _place_of(task)
        if place is not None:
            taken[place[0]].add(place[1])
    strays_take_out(tx, taken)
    locked = tasks_lock(tx, ids)
    placeless = [task for task in locked.values() if (place := _place_of(task)) and place[1] in taken[place[0]]]
    blocked = [task for task in locked.values() if task.id in lined and _is_blocked(task)]
    tasks_put_in(tx, placeless + blocked)


def _is_blocked(task: LockedTask) -> bool:
    return task.state is TaskState.WAITING and task.wait_reason == WaitReason.KEY_BLOCKED


def _place_of(task: LockedTask) -> tuple[str, tuple[Any, ...]] | None:
    """Name the entry that a task's row asks for; None if it stands nowhere, or in a line: its row names no key."""
    if task.state is not TaskState.WAITING or task.wait_reason in (WaitReason.HELD, WaitReason.KEY_BLOCKED):
        return None
    if task.wait_reason == WaitReason.READY:
        return "ready", tuple(ready_key(task).values())
    return "delayed", (task.available_at, task.id)


def _hold(tx: Transaction, task_ids: Collection[bytes]) -> None:
    """Write what their gates say onto tasks: those behind a closed one are held, the others go on."""
    seen = tasks_read(tx, task_ids)
    places_leave(tx, seen.values(), _nobody_hears)
    behind = gates_of(tx, task_ids)
    tasks = tasks_lock(tx, task_ids)
    closed = {gate.id for gate in gates_lock(tx, set(behind.values())) if not gate.is_open} if behind else set()
    unmoved = [task for task in tasks.values() if task.revision == seen[task.id].revision]
    now = tx.now()
    waiting = [task for task in unmoved if task.state is TaskState.WAITING]
    others = [task for task in unmoved if task.state not in TERMINAL and task.state is not TaskState.WAITING]

    def is_held(task: LockedTask) -> bool:
        return behind.get(task.id) in closed

    tasks_hold(
        tx,
        waiting=[task.id for task in waiting if is_held(task)],
        others=[task.id for task in others if is_held(task)],
        since=now,
    )
    tasks_unmark(tx, [task.id for task in others if not is_held(task)])
    free = [task for task in waiting if not is_held(task)]
    stood = [task for task in free if task.held_since is not None and task.wait_reason == WaitReason.HELD]
    tasks_release(tx, [release_of(task, now=now) for task in stood])
    odd = [task for task in free if task not in stood]
    if odd:
        held_write(tx, [task.id for task in odd])
    ready = [task for task in stood if task.available_at <= now] + odd
    ready_insert(tx, entries_make(tx, ready))
    delayed_insert(tx, [{"due_at": t.available_at, "task_id": t.id} for t in stood if t.available_at > now])


def _nobody_hears() -> None:
    """Nodes find wake-ups by themselves; there is none in this process."""
