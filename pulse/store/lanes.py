"""Lanes, and what stands in them: `ready` in claim order, `delayed` in order of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BindParameter, bindparam, func, select, tuple_

from orbit.database.hot import Hot
from orbit.database.ids import ids_in
from orbit.ids import new_id
from pulse.tables import delayed, lane, queue, ready

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class LaneKey(NamedTuple):
    """What a lane is: a queue, a task type and its version."""

    queue_id: bytes
    type: str
    version: int


class ReadyKey(NamedTuple):
    """An entry of `ready`: its whole primary key."""

    lane_id: bytes
    dispatch_at: Micros
    task_id: bytes


class Look(NamedTuple):
    """How much of a lane to look at: so many entries, from a place on."""

    lane_id: bytes
    from_at: Micros
    limit: int


_QUEUES: BindParameter[Any] = bindparam("queues", expanding=True)
_TYPES: BindParameter[Any] = bindparam("types", expanding=True)
_FIND = select(lane.c.id, lane.c.queue_id, lane.c.type, lane.c.version).where(
    tuple_(lane.c.queue_id, lane.c.type, lane.c.version).in_(bindparam("keys", expanding=True))
)
_OF_TYPES = (
    select(lane.c.id, queue.c.name, lane.c.queue_id, lane.c.type, lane.c.version)
    .join(queue, queue.c.id == lane.c.queue_id)
    .where(queue.c.namespace_id == bindparam("namespace_id"), queue.c.name.in_(_QUEUES), lane.c.type.in_(_TYPES))
)
_BY_ID = Hot(select(lane.c.id, lane.c.queue_id, lane.c.type, lane.c.version).where(ids_in(lane.c.id)))
_COUNT = Hot(select(func.count()).select_from(lane).where(lane.c.queue_id == bindparam("queue_id")))
_CLAIMABLE = (
    select(ready.c.lane_id, ready.c.dispatch_at, ready.c.task_id)
    .where(ready.c.lane_id == bindparam("lane_id"), ready.c.dispatch_at >= bindparam("from_at"))
    .order_by(ready.c.lane_id, ready.c.dispatch_at, ready.c.task_id)
    .limit(bindparam("limit"))
)
_CLAIMABLE_SEEN = Hot(_CLAIMABLE)
_CLAIMABLE_LOCKED = Hot(_CLAIMABLE.with_for_update(skip_locked=True))
_DUE = Hot(
    select(delayed.c.due_at, delayed.c.task_id)
    .where(delayed.c.due_at <= bindparam("now"))
    .order_by(delayed.c.due_at, delayed.c.task_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_NEXT_DUE = Hot(select(delayed.c.due_at).order_by(delayed.c.due_at, delayed.c.task_id).limit(1), tells_time=True)


def lanes_find(tx: Transaction, keys: Collection[LaneKey]) -> dict[LaneKey, bytes]:
    """Find the ids of lanes that exist. They never change, so each process reads a lane once."""
    found = {key: known for key in keys if (known := tx.known(("lane", key))) is not None}
    missing = sorted(set(keys) - found.keys())
    if missing:
        for row in tx.rows(_FIND, {"keys": [tuple(key) for key in missing]}):
            key = LaneKey(row.queue_id, row.type, row.version)
            found[key] = row.id
            tx.learn({("lane", key): row.id})
    return found


def lane_create(tx: Transaction, key: LaneKey, *, now: Micros) -> bytes:
    """Make a lane; a race with another transaction ends in a duplicate key, and this one runs again."""
    identifier = new_id()
    row = {"id": identifier, "queue_id": key.queue_id, "type": key.type, "version": key.version, "created_at": now}
    tx.insert(lane, [row])
    tx.learn({("lane", key): identifier})
    return identifier


def lanes_count(tx: Transaction, queue_id: bytes) -> int:
    """Count a queue's lanes."""
    row = tx.row(_COUNT, {"queue_id": queue_id})
    return 0 if row is None else int(row[0])


def lanes_of(
    tx: Transaction, namespace_id: bytes, *, queues: Collection[str], types: Collection[str]
) -> dict[bytes, tuple[str, LaneKey]]:
    """Read the lanes that these queues have for these task types: id → queue name and key."""
    if not queues or not types:
        return {}
    parameters = {"namespace_id": namespace_id, "queues": sorted(queues), "types": sorted(types)}
    rows = tx.rows(_OF_TYPES, parameters)
    return {row.id: (row.name, LaneKey(row.queue_id, row.type, row.version)) for row in rows}


def lanes_by_id(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, LaneKey]:
    """Read lanes by id."""
    if not ids:
        return {}
    return {row.id: LaneKey(row.queue_id, row.type, row.version) for row in tx.rows(_BY_ID, {"ids": ids})}


def ready_insert(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Let tasks be claimed."""
    tx.insert(ready, rows)


def ready_heads(tx: Transaction, looks: Sequence[Look]) -> list[list[ReadyKey]]:
    """Look at the first entries of lanes without locking them, in one round trip."""
    return _claimable(tx, _CLAIMABLE_SEEN, looks)


def ready_lock(tx: Transaction, looks: Sequence[Look]) -> list[list[ReadyKey]]:
    """Lock the first free entries of lanes, in claim order, each within one range of the primary key."""
    return _claimable(tx, _CLAIMABLE_LOCKED, looks)


def _claimable(tx: Transaction, statement: Hot, looks: Sequence[Look]) -> list[list[ReadyKey]]:
    if not looks:
        return []
    found = tx.rows_each([(statement, look._asdict()) for look in looks])
    return [[ReadyKey(*tuple(row)) for row in rows] for rows in found]


def ready_delete(tx: Transaction, keys: Sequence[ReadyKey], *, may_miss: bool = True) -> None:
    """Take entries out by primary key, those that are there; or all, where they are locked."""
    tx.delete_many(ready, [key._asdict() for key in keys], may_miss=may_miss)


def delayed_insert(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Let tasks wait for their time."""
    tx.insert(delayed, rows)


def delayed_lock_due(tx: Transaction, *, now: Micros, limit: int) -> list[tuple[Micros, bytes]]:
    """Lock what is due and free, in order of time."""
    return [(row.due_at, row.task_id) for row in tx.rows(_DUE, {"now": now, "limit": limit})]


def delayed_delete(tx: Transaction, keys: Sequence[tuple[Micros, bytes]], *, may_miss: bool = True) -> None:
    """Take entries out by primary key, those that are there; or all, where they are locked."""
    rows = [{"due_at": due_at, "task_id": task_id} for due_at, task_id in keys]
    tx.delete_many(delayed, rows, may_miss=may_miss)


def delayed_next(tx: Transaction) -> Micros | None:
    """Return the next instant at which something becomes due."""
    row = tx.row(_NEXT_DUE)
    return None if row is None else row.due_at
