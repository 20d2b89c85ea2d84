"""Recount concurrency keys: counters against holders, holders against tasks, and whether a task sleeps for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import func, select

from pulse.states import HOLDING_PERMIT, TaskState
from pulse.store.key import key_id
from pulse.tables import key, key_holder, key_line, key_wake, ready, task

if TYPE_CHECKING:
    from orbit.database import Transaction

_NAMES = msgspec.json.Decoder(list[str])
_ACTIVE = (
    select(key.c.id, key.c.active, func.count(key_holder.c.task_id))
    .join(key_holder, key_holder.c.key_id == key.c.id, isouter=True)
    .group_by(key.c.id, key.c.active)
    .having(key.c.active != func.count(key_holder.c.task_id))
)
_HOLDS = task.c.state.in_(sorted(HOLDING_PERMIT)) & task.c.concurrency_keys.is_not(None)
_HELD = (
    select(task.c.id, task.c.namespace_id, task.c.concurrency_keys, key_holder.c.key_id)
    .join(key_holder, key_holder.c.task_id == task.c.id, isouter=True)
    .where(_HOLDS)
)
_STRAY = (
    select(key_holder.c.task_id)
    .join(task, (task.c.id == key_holder.c.task_id) & _HOLDS, isouter=True)
    .where(task.c.id.is_(None))
)
# Lines before a key with room and no wake-up on its way: a waiter of the lane must be in `ready`.
_OPEN_LINES = (
    select(key_line.c.key_id, key_line.c.lane_id)
    .join(key, key.c.id == key_line.c.key_id)
    .join(key_wake, key_wake.c.key_id == key_line.c.key_id, isouter=True)
    .where(key.c.active < key.c.max_concurrency, key_wake.c.id.is_(None))
    .group_by(key_line.c.key_id, key_line.c.lane_id)
)
_UNMARKED = (
    select(key_line.c.key_id)
    .join(key, key.c.id == key_line.c.key_id, isouter=True)
    .where((key.c.id.is_(None)) | key.c.has_line.is_(False))
    .group_by(key_line.c.key_id)
)


class KeyDrift(NamedTuple):
    """What differs: its name, the key or task, what is stored and what was counted."""

    name: str
    subject: bytes
    stored: int
    counted: int


def key_drifts_find(tx: Transaction) -> list[KeyDrift]:
    """Compare keys' counters, holders and lines with the tasks."""
    drifts = [KeyDrift("key_active", row[0], int(row[1]), int(row[2])) for row in list[Any](tx.rows(_ACTIVE))]
    drifts += _holders(tx)
    asleep = {row.key_id for row in tx.rows(_UNMARKED)}
    lines = [(row.key_id, row.lane_id) for row in tx.rows(_OPEN_LINES)]
    for lane_id in sorted({lane for _, lane in lines}):
        in_ready = _keys_in_ready(tx, lane_id)
        asleep |= {identifier for identifier, lane in lines if lane == lane_id and identifier not in in_ready}
    return drifts + [KeyDrift("key_asleep", identifier, 1, 0) for identifier in sorted(asleep)]


def _holders(tx: Transaction) -> list[KeyDrift]:
    said: dict[bytes, set[bytes]] = {}
    written: dict[bytes, set[bytes]] = {}
    for row in tx.rows(_HELD):
        names = _NAMES.decode(row.concurrency_keys)
        said[row.id] = {key_id(row.namespace_id, name.encode()) for name in names}
        written.setdefault(row.id, set()).update({row.key_id} - {None})
    wrong = [KeyDrift("key_holder", t, len(written[t]), len(said[t])) for t in said if said[t] != written[t]]
    return wrong + [KeyDrift("key_holder", row.task_id, 1, 0) for row in tx.rows(_STRAY)]


def _keys_in_ready(tx: Transaction, lane_id: bytes) -> set[bytes]:
    """Return the keys of the tasks in a lane of `ready`."""
    keyed = (
        select(task.c.namespace_id, task.c.concurrency_keys)
        .join(ready, ready.c.task_id == task.c.id)
        .where(ready.c.lane_id == lane_id, task.c.state == TaskState.WAITING, task.c.concurrency_keys.is_not(None))
    )
    return {
        key_id(row.namespace_id, name.encode())
        for row in tx.rows(keyed)
        for name in _NAMES.decode(row.concurrency_keys)
    }
