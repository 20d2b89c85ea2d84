"""Hand out tasks in the very transaction that makes them: a claim that needs no look, for lanes that stand empty.

Where a worker of this node has room and the node has just seen that nothing waits in a task's lane, the task is made
LEASED, with its attempt, instead of going through `ready`. It is a short cut and no second way: what has a concurrency
key or a fairness key, what waits for its time or behind a gate, and every queue under a quota goes through a claim.

The surprising rule: permits are taken without a lock taken before, by the transaction's last writes. Where they are not
all free it is rolled back and run again, and for a moment nothing is handed out in those lanes. An offer is a hint of
this process; an embedded database runs its work in another thread, which must not touch the dispatcher: it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulse import limits
from pulse.claim import Assignment, attempt_make
from pulse.placement import Rooms, Seat, place
from pulse.states import TaskState, WaitReason
from pulse.store.execute import NewAttempt, attempts_insert
from pulse.store.rows import LockedTask, Payload, attempts_learn

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.listener import Takings
    from pulse.settle import Surroundings


@dataclass(slots=True)
class HandedOut:
    """Tasks of a batch that were made LEASED, and the attempts that are still to be inserted."""

    now: Micros
    task_ids: set[bytes] = field(default_factory=set)
    attempts: list[NewAttempt] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)

    def insert(self, tx: Transaction) -> None:
        """Insert the attempts, after their tasks."""
        attempts_insert(tx, self.attempts, now=self.now, expires_at=self.now + limits.ASSIGN_MICROS)
        attempts_learn(tx, {item.attempt_id: item.task for item in self.assignments})


def hand_out(
    tx: Transaction, rows: Sequence[dict[str, Any]], around: Surroundings, takings: Takings, *, now: Micros
) -> HandedOut | None:
    """Hand out what fits of new rows of tasks, and change those rows accordingly; None if nothing does."""
    if tx.is_sqlite:
        return None
    plain = [row for row in rows if _is_plain(row)]
    offer = around.offer(Counter(row["lane_id"] for row in plain)) if plain else None
    if offer is None:
        return None
    tx.after_rollback(offer.withdraw)
    plain.sort(key=lambda row: (-row["priority"], row["id"]))
    wanted = [(row["queue_id"], row["lane_id"], row["id"]) for row in plain]
    rooms = Rooms(dict.fromkeys((row["queue_id"] for row in plain), len(plain)))
    handed = HandedOut(now)
    for row, seat in zip(plain, place(wanted, offer.seats, rooms), strict=True):
        if isinstance(seat, Seat):
            attempt, assignment = attempt_make(
                _task(row), _payload(row), seat, fencing_epoch=around.catalog.fencing_epoch, now=now
            )
            handed.task_ids.add(row["id"])
            handed.attempts.append(attempt)
            handed.assignments.append(assignment)
    for row in rows:
        is_handed = row["id"] in handed.task_ids
        row |= {"leases_count": int(is_handed), "revision": 1 + is_handed}
        if is_handed:
            row |= {"state": TaskState.LEASED, "wait_reason": None}
            takings.leases[row["queue_id"]] += 1
    for queue_id, lane_id in {(row["queue_id"], row["lane_id"]) for row in plain}:
        takings.left[queue_id] += offer.waiting.get(lane_id, 0)
    takings.leased_at = now
    tx.after_commit(lambda: offer.deliver(handed.assignments))
    return handed


def _is_plain(row: Mapping[str, Any]) -> bool:
    return row["wait_reason"] == WaitReason.READY and row["concurrency_keys"] is None and row["fairness_key"] is None


_DEFAULTS = dict.fromkeys(
    ("leases_count", "starts_count", "failed_count", "lost_count", "deferred_count", "released_count"), 0
) | {"revision": 1}


def _task(row: Mapping[str, Any]) -> LockedTask:
    return LockedTask(*[row.get(name, _DEFAULTS.get(name)) for name in LockedTask.__struct_fields__])


def _payload(row: Mapping[str, Any]) -> Payload:
    return Payload(*[row[name] for name in Payload.__struct_fields__])
