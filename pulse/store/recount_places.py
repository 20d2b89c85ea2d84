"""Compare every waiting task with the one place that its row names, both ways, by primary key.

A task's entry in `ready` or `delayed` follows from its row alone, so each is looked up and no table is searched for
it: a million tasks cost one walk over them. What the rows of all unfinished tasks tell is read in that same walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, func, literal, or_, select

from pulse.limits import PRIORITY_STEP_MICROS
from pulse.states import HOLDING_PERMIT, UNFINISHED, TaskState, WaitReason
from pulse.tables import attempt, cursor, delayed, gate, key_line, lane, ready, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

# A deadline that lies so far behind a sweep's cursor is read by no sweep any more; those between may be under way.
_MISSED_MICROS = 60 * 1_000_000


class Misplaced(NamedTuple):
    """What differs: its name, the task, what is stored and what its row says; `entry` is the stray entry's key."""

    name: str
    subject: bytes
    stored: int
    counted: int
    entry: tuple[Any, ...] = ()


_IS_WAITING = task.c.state == TaskState.WAITING
_IS_READY = _IS_WAITING & (task.c.wait_reason == WaitReason.READY)
_IS_DELAYED = _IS_WAITING & task.c.wait_reason.in_([WaitReason.DELAYED, WaitReason.BACKOFF])
_IS_BLOCKED = _IS_WAITING & (task.c.wait_reason == WaitReason.KEY_BLOCKED)
_IS_HOLDING = task.c.state.in_(sorted(HOLDING_PERMIT))
# As `rows.ready_key` has it.
_PLACE: ColumnElement[Any] = func.coalesce(
    func.nullif(task.c.fair_at, 0),
    case((task.c.available_at > task.c.accepted_at, task.c.available_at), else_=task.c.accepted_at)
    - task.c.priority * PRIORITY_STEP_MICROS,
)
_AT_PLACE = and_(ready.c.lane_id == task.c.lane_id, ready.c.dispatch_at == _PLACE, ready.c.task_id == task.c.id)
_AT_TIME = and_(delayed.c.due_at == task.c.available_at, delayed.c.task_id == task.c.id)
# The live attempt is the latest one.
_LATEST = and_(attempt.c.task_id == task.c.id, attempt.c.number == task.c.leases_count, attempt.c.finished_at.is_(None))
_NO_PLACE = _IS_READY & ready.c.task_id.is_(None)
_NO_TIME = _IS_DELAYED & delayed.c.task_id.is_(None)
_NO_ATTEMPT = _IS_HOLDING & attempt.c.id.is_(None)
_NO_LANE = lane.c.id.is_(None)
# A closed gate is written onto every unfinished task behind it, and an open one onto none.
_IS_HELD = task.c.held_since.is_not(None)
_MISHELD = or_(
    _IS_HELD & or_(gate.c.id.is_(None), gate.c.is_open),
    gate.c.is_open.is_(False) & task.c.held_since.is_(None),
    _IS_WAITING & ((task.c.wait_reason == WaitReason.HELD) != _IS_HELD),
)


def _walk(missed: ColumnElement[bool]) -> Any:
    flags = {
        "ready": _NO_PLACE,
        "delayed": _NO_TIME,
        "held": _MISHELD,
        "live_attempts": _NO_ATTEMPT,
        "lane": _NO_LANE,
        "deadline": missed,
    }
    return (
        select(task.c.id, _IS_HELD.label("is_held"), *(case((flag, 1), else_=0).label(n) for n, flag in flags.items()))
        .join(lane, lane.c.id == task.c.lane_id, isouter=True)
        .join(ready, and_(_IS_READY, _AT_PLACE), isouter=True)
        .join(delayed, and_(_IS_DELAYED, _AT_TIME), isouter=True)
        .join(attempt, and_(_IS_HOLDING, _LATEST), isouter=True)
        .join(gate, gate.c.id == task.c.gate_id, isouter=True)
        .where(task.c.state.in_(sorted(UNFINISHED)), or_(*flags.values()))
    )


_STRAY_READY = (
    select(ready.c.lane_id, ready.c.dispatch_at, ready.c.task_id)
    .join(task, and_(task.c.id == ready.c.task_id, _IS_READY, _AT_PLACE), isouter=True)
    .where(task.c.id.is_(None))
)
_STRAY_DELAYED = (
    select(delayed.c.due_at, delayed.c.task_id)
    .join(task, and_(task.c.id == delayed.c.task_id, _IS_DELAYED, _AT_TIME), isouter=True)
    .where(task.c.id.is_(None))
)
_STRAY_LINED = (
    select(key_line.c.key_id, key_line.c.lane_id, key_line.c.dispatch_at, key_line.c.task_id)
    .join(task, and_(task.c.id == key_line.c.task_id, _IS_BLOCKED, task.c.lane_id == key_line.c.lane_id), isouter=True)
    .where(task.c.id.is_(None))
)
_BLOCKED = select(task.c.id).where(_IS_BLOCKED)
_LINED = select(key_line.c.task_id, func.count().label("count")).group_by(key_line.c.task_id)
# Live attempts whose task holds no permit, or is not there; of tasks that do, others than the latest.
_STRAY_LIVE = (
    select(attempt.c.task_id)
    .join(task, and_(_IS_HOLDING, _LATEST), isouter=True)
    .where(attempt.c.lease_expires_at.is_not(None), task.c.id.is_(None))
)


def misplaced_find(tx: Transaction) -> list[Misplaced]:
    """Say which unfinished tasks are not where, or not held or swept as, their rows say; read in one snapshot."""
    found: list[Misplaced] = []
    for row in tx.rows(_walk(_missed(_cursors(tx)))):
        found += [Misplaced(name, row.id, 0, 1) for name in ("ready", "delayed", "live_attempts") if getattr(row, name)]
        if row.held:
            found.append(Misplaced("held", row.id, int(row.is_held), 1 - int(row.is_held)))
        found += [Misplaced(name, row.id, 0, 1) for name in ("lane", "deadline") if getattr(row, name)]
    for name, query in (("ready", _STRAY_READY), ("delayed", _STRAY_DELAYED), ("line", _STRAY_LINED)):
        found += [Misplaced(name, row.task_id, 1, 0, tuple(row)) for row in tx.rows(query)]
    found += [Misplaced("live_attempts", row.task_id, 1, 0) for row in tx.rows(_STRAY_LIVE)]
    stray = {each.subject for each in found if each.name == "line"}
    lined: dict[bytes, int] = {row[0]: int(row[1]) for row in list[Any](tx.rows(_LINED))}
    blocked = [row.id for row in tx.rows(_BLOCKED)]
    counts = [(task_id, lined.get(task_id, 0)) for task_id in blocked if task_id not in stray]
    return found + [Misplaced("line", task_id, count, 1) for task_id, count in counts if count != 1]


def _cursors(tx: Transaction) -> dict[str, Micros]:
    return {row.name: int(row.reached_at) for row in tx.rows(select(cursor.c.name, cursor.c.reached_at))}


def _missed(reached: dict[str, Micros]) -> ColumnElement[bool]:
    """Say of a task that waits, whose deadlines do not stand still, that both sweeps have passed it by."""
    total, first = (reached.get(name, 0) - _MISSED_MICROS for name in ("deadline_at", "start_deadline_at"))
    is_first = and_(task.c.starts_count == 0, task.c.start_deadline_at < literal(first))
    return and_(_IS_WAITING, task.c.held_since.is_(None), or_(task.c.deadline_at < literal(total), is_first))
