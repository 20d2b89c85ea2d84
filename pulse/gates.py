"""Gates: a generic hold on the tasks of one source. Weave pauses instances with them; Pulse does not know why.

While a gate is closed nothing behind it is claimed, started or tried again; what runs goes on, its results are taken
and its deadlines run. The deadlines of what waits stand still. The surprising rule: a gate counts what runs only while
it is closed, from the tasks that closing locks, so that an open gate costs claims, Starts and results nothing. Locks:
`ready` and `delayed`, tasks, the gate. Whoever closes a gate keeps its source from submitting meanwhile, or lets the
gate's lock do it: submission takes that of every gate that exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.database import RunAgain
from pulse import limits
from pulse.arrivals import arrivals_by_lane
from pulse.fairness import entries_make
from pulse.keys import places_leave
from pulse.settle import Surroundings
from pulse.states import TERMINAL, TaskState, WaitReason
from pulse.store.gate import (
    Gate,
    Release,
    gate_insert,
    gate_write,
    gates_lock,
    tasks_behind,
    tasks_hold,
    tasks_release,
    tasks_unmark,
)
from pulse.store.lanes import delayed_insert, ready_insert
from pulse.store.rows import LockedTask, tasks_lock, tasks_read

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


def gate_create(tx: Transaction, gate_id: bytes, *, namespace_id: bytes) -> None:
    """Make an open gate before the tasks whose `gate_id` and source it is, unless it exists.

    A gate that was never made counts as open: it may be made just before it is first closed.
    """
    if not gates_lock(tx, [gate_id]):
        gate_insert(tx, gate_id, namespace_id=namespace_id)


def gate_close(tx: Transaction, gate_id: bytes, around: Surroundings) -> int:
    """Close a gate and return how many tasks still run behind it.

    If that is not 0, listeners hear `gate_quiet` in the transaction in which the last one stops. Closing a closed gate
    changes nothing.
    """
    seen = tasks_read(tx, tasks_behind(tx, gate_id))
    places_leave(tx, seen.values(), around.on_keys_free)
    gate, tasks = _lock(tx, gate_id, seen)
    if not gate.is_open:
        return gate.in_flight
    held = [task.id for task in tasks if task.state is TaskState.WAITING]
    others = [task.id for task in tasks if task.state is not TaskState.WAITING]
    in_flight = sum(task.state is TaskState.RUNNING for task in tasks)
    tasks_hold(tx, waiting=held, others=others, since=tx.now())
    gate_write(tx, gate_id, is_open=False, in_flight=in_flight)
    tx.after_commit(lambda: around.on_changed(frozenset(held)))
    return in_flight


def gate_open(tx: Transaction, gate_id: bytes, around: Surroundings) -> int:
    """Open a gate and return how many held tasks wait for their turn again, their deadlines later by what they stood.

    Opening an open gate changes nothing.
    """
    gate, tasks = _lock(tx, gate_id, tasks_read(tx, tasks_behind(tx, gate_id)))
    if gate.is_open:
        return 0
    now = tx.now()
    held = [task for task in tasks if task.state is TaskState.WAITING]
    tasks_unmark(tx, [task.id for task in tasks if task.state is not TaskState.WAITING])
    for first in range(0, len(held), limits.RELEASE_BATCH_MAX):
        tasks_release(tx, [release_of(task, now=now) for task in held[first : first + limits.RELEASE_BATCH_MAX]])
    entries = entries_make(tx, [task for task in held if task.available_at <= now])
    ready_insert(tx, entries)
    delayed_insert(tx, [{"due_at": t.available_at, "task_id": t.id} for t in held if t.available_at > now])
    gate_write(tx, gate_id, is_open=True, in_flight=0)
    lanes, changed = arrivals_by_lane(entries), frozenset(task.id for task in held)
    tx.after_commit(lambda: around.on_ready(lanes))
    tx.after_commit(lambda: around.on_changed(changed))
    return len(held)


def _lock(tx: Transaction, gate_id: bytes, seen: dict[bytes, LockedTask]) -> tuple[Gate, list[LockedTask]]:
    """Lock the tasks and the gate; run again if a task came, or waits elsewhere than where it was seen."""
    locked = tasks_lock(tx, seen.keys())
    (gate,) = gates_lock(tx, [gate_id])
    moved = any(row.state is TaskState.WAITING and row.revision != seen[row.id].revision for row in locked.values())
    if moved or tasks_behind(tx, gate_id) - seen.keys():
        raise RunAgain
    return gate, [row for row in locked.values() if row.state not in TERMINAL]


def release_of(task: LockedTask, *, now: Micros) -> Release:
    """Shift a held task's deadlines by the time that it stood.

    One that had passed before that is due now: the sweep of deadlines never looks far back.
    """
    assert task.held_since is not None
    shift = max(0, now - task.held_since)
    failed = task.failed_count + task.lost_count > 0
    later = WaitReason.BACKOFF if failed else WaitReason.DELAYED
    return Release(
        task_id=task.id,
        wait_reason=later if task.available_at > now else WaitReason.READY,
        start_deadline_at=None if task.start_deadline_at is None else max(task.start_deadline_at + shift, now),
        deadline_at=max(task.deadline_at + shift, now),
        revision=task.revision + 1,
    )
