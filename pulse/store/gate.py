"""Gates' rows, and the tasks behind one: found by their source, so that ungated tasks pay for no index.

A closed gate is written onto every unfinished task behind it (`held_since`), under the tasks' locks. So claims, Starts
and results learn of it from the rows that they lock anyway, and only what ends behind a closed gate touches its row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select, update

from orbit.database.ids import ids_in, through
from pulse.states import UNFINISHED, TaskState, WaitReason
from pulse.tables import gate, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate under its lock; `in_flight` counts what runs behind it while it is closed, and is 0 while it is open."""

    id: bytes
    is_open: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class Release:
    """What a held task becomes when its gate opens."""

    task_id: bytes
    wait_reason: WaitReason
    start_deadline_at: Micros | None
    deadline_at: Micros
    revision: int


_LOCK = select(gate.c.id, gate.c.is_open, gate.c.in_flight).where(ids_in(gate.c.id)).order_by(gate.c.id)
_LOCK = through(_LOCK.with_for_update(), gate)
_BEHIND = select(task.c.id).where(
    task.c.source_id == bindparam("gate_id"),
    task.c.gate_id == bindparam("gate_id"),
    task.c.state.in_(sorted(UNFINISHED)),
)
_GATES_OF = through(select(task.c.gate_id).where(ids_in(task.c.id), task.c.gate_id.is_not(None)), task)
_HOLD = through(
    update(task)
    .where(ids_in(task.c.id), task.c.state == TaskState.WAITING)
    .values(wait_reason=WaitReason.HELD, held_since=bindparam("since"), revision=task.c.revision + 1),
    task,
)
_MARK = through(
    update(task)
    .where(ids_in(task.c.id), task.c.state.in_(sorted(UNFINISHED - {TaskState.WAITING})))
    .values(held_since=bindparam("since")),
    task,
)


def gate_insert(tx: Transaction, gate_id: bytes, *, namespace_id: bytes) -> None:
    """Make an open gate."""
    tx.insert(gate, [{"id": gate_id, "namespace_id": namespace_id, "is_open": True, "in_flight": 0}])


def gates_lock(tx: Transaction, ids: Collection[bytes]) -> list[Gate]:
    """Lock gates in the order of their ids; one that was never made is left out."""
    return [Gate(row.id, bool(row.is_open), row.in_flight) for row in tx.rows(_LOCK, {"ids": ids})]


def gate_write(tx: Transaction, gate_id: bytes, *, is_open: bool, in_flight: int) -> None:
    """Open or close a locked gate."""
    tx.expect(update(gate).where(gate.c.id == gate_id).values(is_open=is_open, in_flight=in_flight), count=1)


def gates_leave(tx: Transaction, task_ids: Collection[bytes]) -> list[bytes]:
    """Count tasks that stop to run behind closed gates; return the gates behind which nothing runs any more."""
    if not task_ids:
        return []
    rows: Sequence[Any] = tx.rows(_GATES_OF, {"ids": task_ids})
    leaving = Counter[bytes](row.gate_id for row in rows)
    left = {locked.id: locked.in_flight - leaving[locked.id] for locked in gates_lock(tx, leaving)}
    assert len(left) == len(leaving), f"{len(left)} of {len(leaving)} gates of held tasks were there"
    tx.update_many(gate, rows=[{"id": key, "in_flight": left[key]} for key in left])
    return [gate_id for gate_id, count in left.items() if count == 0]


def tasks_behind(tx: Transaction, gate_id: bytes) -> set[bytes]:
    """Read, without locks, which unfinished tasks stand behind a gate."""
    return {row.id for row in tx.rows(_BEHIND, {"gate_id": gate_id})}


def tasks_hold(tx: Transaction, *, waiting: Collection[bytes], others: Collection[bytes], since: Micros) -> None:
    """Write a closed gate onto locked tasks: those that wait are HELD, the others will be where they would wait."""
    if waiting:
        tx.expect(_HOLD, {"ids": waiting, "since": since}, count=len(waiting))
    if others:
        tx.expect(_MARK, {"ids": others, "since": since}, count=len(others))


def tasks_unmark(tx: Transaction, ids: Collection[bytes]) -> None:
    """Take a closed gate off locked tasks that do not wait."""
    if ids:
        tx.expect(_MARK, {"ids": ids, "since": None}, count=len(ids))


def tasks_release(tx: Transaction, releases: Sequence[Release]) -> None:
    """Let locked held tasks wait for something else, with their deadlines shifted."""
    rows = [
        {
            "id": item.task_id,
            "wait_reason": item.wait_reason,
            "start_deadline_at": item.start_deadline_at,
            "deadline_at": item.deadline_at,
            "held_since": None,
            "revision": item.revision,
        }
        for item in releases
    ]
    tx.update_many(task, rows=rows, where={"wait_reason": WaitReason.HELD})
