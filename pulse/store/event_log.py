"""The log of events read again in the order of their instants, each with what subscriptions choose by.

An event does not store its queue, task type or workflow: they are found by its subject. So what is about a task whose
row is gone matches only filters that do not ask for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from sqlalchemy import and_, bindparam, or_, select

from orbit.clock import Micros
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.subscription import Facts
from orbit.tables import event
from pulse.store.lanes import lanes_by_id
from pulse.tables import task

if TYPE_CHECKING:
    from orbit.database import Transaction


class LoggedEvent(Struct, frozen=True):
    """An event of the log; `facts` are what filters look at."""

    id: bytes
    created_at: Micros
    facts: Facts


class _Named(Struct, frozen=True):
    """What an event's data may say of its workflow."""

    workflow: str | None = None


_LOG = through(
    select(event.c.id, event.c.created_at, event.c.type, event.c.subject_id, event.c.data)
    .where(
        event.c.namespace_id == bindparam("namespace_id"),
        event.c.created_at >= bindparam("at"),
        event.c.created_at < bindparam("until"),
        or_(
            event.c.created_at > bindparam("at"),
            and_(event.c.created_at == bindparam("at"), event.c.id > bindparam("id")),
        ),
    )
    .order_by(event.c.created_at, event.c.id)
    .limit(bindparam("limit")),
    event,
    "orbit_event_for_list",
)
_TASKS = Hot(through(select(task.c.id, task.c.queue_id, task.c.lane_id).where(ids_in(task.c.id)), task))
_decode = msgspec.json.Decoder(_Named).decode
_WITH_WORKFLOW = ("instance.", "signal.", "step.", "workflow.")


def log_read(
    tx: Transaction, namespace_id: bytes, *, after: tuple[Micros, bytes], until: Micros, limit: int
) -> list[LoggedEvent]:
    """Read a page of a namespace's events, the earliest first, before an instant."""
    at, identifier = after
    parameters = {"namespace_id": namespace_id, "at": at, "id": identifier, "until": until, "limit": limit}
    rows = tx.rows(_LOG, parameters)
    places = _places(tx, [row.subject_id for row in rows if row.type.startswith("task.")])
    found: list[LoggedEvent] = []
    for row in rows:
        queue_id, task_type = places.get(row.subject_id, (None, None))
        if row.type.startswith("queue."):
            queue_id = row.subject_id
        workflow = _decode(row.data).workflow if row.type.startswith(_WITH_WORKFLOW) else None
        found.append(LoggedEvent(row.id, row.created_at, Facts(row.type, queue_id, workflow, task_type)))
    return found


def _places(tx: Transaction, task_ids: Sequence[bytes]) -> dict[bytes, tuple[bytes | None, str | None]]:
    """Find the queue and type of tasks."""
    if not task_ids:
        return {}
    rows = tx.rows(_TASKS, {"ids": set(task_ids)})
    lanes = _types(tx, {row.lane_id for row in rows})
    return {row.id: (row.queue_id, lanes.get(row.lane_id)) for row in rows}


def _types(tx: Transaction, lane_ids: Collection[bytes]) -> dict[bytes, str]:
    return {key: f"{lane.type}@{lane.version}" for key, lane in lanes_by_id(tx, lane_ids).items()}
