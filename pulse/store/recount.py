"""Count the tasks that each counter stands for, and find what nobody would find: read in one snapshot.

Counters are compared with their tasks, copies of settings with what they copy, and verifications with what they wait
for. Waiting tasks and their places are in `recount_places`, concurrency keys in `recount_keys`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import and_, case, func, or_, select

from orbit.tables import namespace
from pulse.states import HOLDING_PERMIT, TERMINAL, UNFINISHED, TaskState, VerificationState
from pulse.store.recount_keys import key_drifts_find
from pulse.store.recount_places import misplaced_find
from pulse.tables import gate, queue, queue_backlog, queue_usage, quota, quota_backlog, task, verification

if TYPE_CHECKING:
    from orbit.database import Transaction


class Drift(Struct, frozen=True):
    """A counter that is not what its tasks say, or a row without its counterpart.

    `subject` is the id of a queue, gate, key, task or verification; `entry` the whole key of an entry that is too many.
    """

    name: str
    subject: bytes
    stored: int
    counted: int
    entry: tuple[Any, ...] = ()


def _count_if(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


_PER_QUEUE = select(
    task.c.queue_id,
    _count_if(task.c.state.in_(sorted(HOLDING_PERMIT))),
    _count_if(task.c.state == TaskState.LEASED),
    _count_if(task.c.state.in_(sorted(UNFINISHED))),
).group_by(task.c.queue_id)
_COUNTERS = (
    select(
        queue.c.id,
        queue_usage.c.active,
        queue_usage.c.leased_unstarted,
        queue_backlog.c.unfinished,
        or_(
            queue_usage.c.paused != queue.c.paused,
            queue_usage.c.max_concurrency != queue.c.max_concurrency,
            queue_usage.c.rate_per_second != queue.c.rate_per_second,
            queue_backlog.c.max_unfinished_tasks != queue.c.max_unfinished_tasks,
        ).label("is_other"),
    )
    .join(queue_usage, queue_usage.c.queue_id == queue.c.id, isouter=True)
    .join(queue_backlog, queue_backlog.c.queue_id == queue.c.id, isouter=True)
)
# The tasks behind a gate are those of its source, which an index finds.
_BEHIND = and_(task.c.source_id == gate.c.id, task.c.gate_id == gate.c.id, task.c.state == TaskState.RUNNING)
_GATES = (
    select(gate.c.id, gate.c.in_flight, _count_if(task.c.id.is_not(None) & gate.c.is_open.is_(False)))
    .join(task, _BEHIND, isouter=True)
    .group_by(gate.c.id, gate.c.in_flight)
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
# Whoever wants or has an answer is found by its instant; an open one hears of its task's end, if that is to come.
_FORGOTTEN = (
    select(verification.c.id)
    .join(task, task.c.id == verification.c.id, isouter=True)
    .where(
        verification.c.state != VerificationState.SETTLED,
        or_(
            and_(verification.c.state != VerificationState.OPEN, verification.c.due_at.is_(None)),
            and_(
                verification.c.state == VerificationState.OPEN,
                or_(task.c.id.is_(None), task.c.state.in_(sorted(TERMINAL)), task.c.state == TaskState.NEEDS_REVIEW),
            ),
        ),
    )
)


def drifts_find(tx: Transaction) -> list[Drift]:
    """Recount every counter, and check that every unfinished task is where somebody will find it.

    Read it in a snapshot: it takes several statements, and tasks move between two of them.
    """
    drifts: list[Drift] = []
    real = {row[0]: tuple(map(int, row[1:])) for row in list[Any](tx.rows(_PER_QUEUE))}
    for row in list[Any](tx.rows(_COUNTERS)):
        if row.active is None or row.unfinished is None:
            drifts.append(Drift("counters", row.id, 0, 1))
            continue
        for name, held, counted in zip(
            ("active", "leased_unstarted", "unfinished"), row[1:4], real.get(row.id, (0, 0, 0)), strict=True
        ):
            if held != counted:
                drifts.append(Drift(name, row.id, int(held), counted))
        if row.is_other:
            drifts.append(Drift("settings", row.id, 0, 1))
    drifts += [Drift(*found) for found in misplaced_find(tx)]
    drifts += [Drift(*found) for found in key_drifts_find(tx)]
    marks = [*tx.rows(_MISMARKED_USAGE), *tx.rows(_MISMARKED_BACKLOG)]
    drifts += [Drift("quota", row[0], int(row[1]), 1 - int(row[1])) for row in list[Any](marks)]
    gates = [Drift("in_flight", row[0], row[1], int(row[2])) for row in list[Any](tx.rows(_GATES))]
    drifts += [drift for drift in gates if drift.stored != drift.counted]
    return drifts + [Drift("verification", row.id, 0, 1) for row in tx.rows(_FORGOTTEN)]
