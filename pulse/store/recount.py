"""Count the tasks that each counter stands for, in one snapshot, and say where they differ.

A table of millions is read here: every statement walks over it once, and looks for counterparts by a key, never by
comparing each row of one table with each of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, func, or_, select

from orbit.tables import namespace
from pulse.states import HOLDING_PERMIT, UNFINISHED, TaskState, WaitReason
from pulse.store.recount_keys import key_drifts_find
from pulse.tables import (
    attempt,
    delayed,
    gate,
    key_line,
    queue,
    queue_backlog,
    queue_usage,
    quota,
    quota_backlog,
    ready,
    task,
)

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that is not what its tasks say, or a row without its counterpart.

    `subject` is the id of a queue, gate, key or task.
    """

    name: str
    subject: bytes
    stored: int
    counted: int


def _count_if(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


_PER_QUEUE = (
    select(
        task.c.queue_id,
        _count_if(task.c.state.in_(sorted(HOLDING_PERMIT))).label("active"),
        _count_if(task.c.state == TaskState.LEASED).label("leased_unstarted"),
        _count_if(task.c.state.in_(sorted(UNFINISHED))).label("unfinished"),
    )
    .group_by(task.c.queue_id)
    .subquery()
)
# One statement, since that is one snapshot: counters and tasks as they were at the same instant.
_COUNTERS = (
    select(
        queue_usage.c.queue_id,
        queue_usage.c.active,
        queue_usage.c.leased_unstarted,
        queue_backlog.c.unfinished,
        *(func.coalesce(_PER_QUEUE.c[name], 0) for name in ("active", "leased_unstarted", "unfinished")),
    )
    .join(queue_backlog, queue_backlog.c.queue_id == queue_usage.c.queue_id)
    .join(_PER_QUEUE, _PER_QUEUE.c.queue_id == queue_usage.c.queue_id, isouter=True)
)
_IS_READY = (task.c.state == TaskState.WAITING) & (task.c.wait_reason == WaitReason.READY)
_IS_DELAYED = (task.c.state == TaskState.WAITING) & task.c.wait_reason.in_([WaitReason.DELAYED, WaitReason.BACKOFF])
_IS_BLOCKED = (task.c.state == TaskState.WAITING) & (task.c.wait_reason == WaitReason.KEY_BLOCKED)
# Behind a gate are tasks of its source only, and those have an index.
_BEHIND = (task.c.source_id == gate.c.id) & (task.c.gate_id == gate.c.id) & task.c.state.in_(sorted(UNFINISHED))
_GATES = (
    select(gate.c.id, gate.c.in_flight, _count_if((task.c.state == TaskState.RUNNING) & gate.c.is_open.is_(False)))
    .join(task, _BEHIND, isouter=True)
    .group_by(gate.c.id, gate.c.in_flight)
)
# A closed gate is written onto every unfinished task behind it, and an open one onto none.
_MISHELD = (
    select(task.c.id, task.c.held_since.is_not(None))
    .join(gate, gate.c.id == task.c.gate_id, isouter=True)
    .where(
        task.c.state.in_(sorted(UNFINISHED)),
        or_(
            task.c.held_since.is_not(None) & or_(gate.c.id.is_(None), gate.c.is_open),
            gate.c.is_open.is_(False) & task.c.held_since.is_(None),
            (task.c.state == TaskState.WAITING)
            & (task.c.held_since.is_not(None) != (task.c.wait_reason == WaitReason.HELD)),
        ),
    )
)
# The quotas of an application are written onto the counters of all its queues, or onto none of them.
_IN_FORCE = and_(
    quota.c.application_id.is_not(None),
    or_(
        quota.c.max_concurrency.is_not(None),
        quota.c.rate_per_second.is_not(None),
        quota_backlog.c.max_unfinished_tasks.is_not(None),
    ),
)


def _mismarked(counters: Any) -> Any:
    """Read queues whose counters carry other quotas than those of their application."""
    marked = counters.c.quota_id.is_not(None)
    return (
        select(counters.c.queue_id, marked)
        .join(queue, queue.c.id == counters.c.queue_id)
        .join(namespace, namespace.c.id == queue.c.namespace_id)
        .join(quota, quota.c.application_id == namespace.c.application_id, isouter=True)
        .join(quota_backlog, quota_backlog.c.application_id == namespace.c.application_id, isouter=True)
        .where(or_(and_(_IN_FORCE, ~marked), and_(~_IN_FORCE, marked)))
    )


_MISMARKED_USAGE = _mismarked(queue_usage)
_MISMARKED_BACKLOG = _mismarked(queue_backlog)
# A task with a permit has one attempt that lives, any other has none.
_LIVING = attempt.c.lease_expires_at.is_not(None)
_UNATTENDED = (
    select(task.c.id, func.count(attempt.c.id))
    .join(attempt, (attempt.c.task_id == task.c.id) & _LIVING, isouter=True)
    .where(task.c.state.in_(sorted(HOLDING_PERMIT)))
    .group_by(task.c.id)
    .having(func.count(attempt.c.id) != 1)
)
_UNNEEDED = (
    select(attempt.c.task_id, func.count(attempt.c.id))
    .join(task, (task.c.id == attempt.c.task_id) & task.c.state.in_(sorted(HOLDING_PERMIT)), isouter=True)
    .where(_LIVING, task.c.id.is_(None))
    .group_by(attempt.c.task_id)
)


def drifts_find(tx: Transaction) -> list[Drift]:
    """Recount every counter and check that every waiting task stands in exactly the one place that its reason names."""
    drifts: list[Drift] = []
    for row in list[Any](tx.rows(_COUNTERS)):
        for name, held, real in zip(("active", "leased_unstarted", "unfinished"), row[1:4], row[4:], strict=True):
            if held != real:
                drifts.append(Drift(name, row[0], int(held), int(real)))
    drifts += _entries(tx, "ready", ready, _IS_READY)
    drifts += _entries(tx, "delayed", delayed, _IS_DELAYED)
    drifts += _entries(tx, "line", key_line, _IS_BLOCKED)
    drifts += [Drift(*found) for found in key_drifts_find(tx)]
    marks = [*tx.rows(_MISMARKED_USAGE), *tx.rows(_MISMARKED_BACKLOG)]
    drifts += [Drift("quota", row[0], int(row[1]), 1 - int(row[1])) for row in list[Any](marks)]
    gates = [Drift("in_flight", row[0], row[1], int(row[2])) for row in list[Any](tx.rows(_GATES))]
    drifts += [drift for drift in gates if drift.stored != drift.counted]
    drifts += [Drift("held", row[0], int(row[1]), 1 - int(row[1])) for row in list[Any](tx.rows(_MISHELD))]
    drifts += [Drift("live_attempts", row[0], int(row[1]), 1) for row in list[Any](tx.rows(_UNATTENDED))]
    drifts += [Drift("live_attempts", row[0], int(row[1]), 0) for row in list[Any](tx.rows(_UNNEEDED))]
    return drifts


def _entries(tx: Transaction, name: str, table: Any, wanted: Any) -> list[Drift]:
    """Compare a table of waiting tasks with the tasks that should stand in it, both ways."""
    # These tables are kept in the order of what they are for, so their rows are counted by task first.
    counted = select(table.c.task_id, func.count().label("entries")).group_by(table.c.task_id).subquery()
    entries = func.coalesce(counted.c.entries, 0)
    missing = (
        select(task.c.id, entries)
        .join(counted, counted.c.task_id == task.c.id, isouter=True)
        .where(wanted, entries != 1)
    )
    stray = select(table.c.task_id).join(task, (task.c.id == table.c.task_id) & wanted, isouter=True)
    lacking: list[Any] = list(tx.rows(missing))
    surplus: list[Any] = list(tx.rows(stray.where(task.c.id.is_(None))))
    return [Drift(name, row[0], int(row[1]), 1) for row in lacking] + [Drift(name, row[0], 1, 0) for row in surplus]
