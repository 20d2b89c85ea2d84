"""Recount concurrency keys: counters against holders, holders against tasks, and whether a task sleeps for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import func, select

from pulse.states import HOLDING_PERMIT, TaskState
from pulse.store.key import key_id
from pulse.store.key_limit import KeyLimit, limit_of, limits_read
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
_LIMITS = select(key.c.id, key.c.namespace_id, key.c.name, key.c.max_concurrency)
_HOLDS = task.c.state.in_(sorted(HOLDING_PERMIT)) & task.c.concurrency_keys.is_not(None)
_HOLDING = select(task.c.id, task.c.namespace_id, task.c.concurrency_keys).where(_HOLDS)
_HELD = select(key_holder.c.task_id, key_holder.c.key_id)
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
    """Compare keys' counters, holders, lines and limits with the tasks and with what was set; read in one snapshot."""
    drifts = [KeyDrift("key_active", row[0], int(row[1]), int(row[2])) for row in list[Any](tx.rows(_ACTIVE))]
    drifts += _holders(tx)
    asleep = {row.key_id for row in tx.rows(_UNMARKED)}
    lines = [(row.key_id, row.lane_id) for row in tx.rows(_OPEN_LINES)]
    for lane_id in sorted({lane for _, lane in lines}):
        in_ready = _keys_in_ready(tx, lane_id)
        asleep |= {identifier for identifier, lane in lines if lane == lane_id and identifier not in in_ready}
    drifts += [KeyDrift("key_asleep", identifier, 1, 0) for identifier in sorted(asleep)]
    return drifts + [KeyDrift("key_limit", row.id, row.max_concurrency, limit) for row, limit in _unlike(tx)]


def _unlike(tx: Transaction) -> list[tuple[Any, int]]:
    """Read keys that carry another limit than the one in force for them, with that one."""
    known: dict[bytes, dict[bytes, KeyLimit]] = {}
    found: list[tuple[Any, int]] = []
    for row in list[Any](tx.rows(_LIMITS)):
        if row.namespace_id not in known:
            known[row.namespace_id] = limits_read(tx, row.namespace_id)
        limit = limit_of(row.name, known[row.namespace_id])
        if limit != row.max_concurrency:
            found.append((row, limit))
    return found


def _holders(tx: Transaction) -> list[KeyDrift]:
    """Compare who holds keys with the tasks in flight; no more than are in flight, so they are compared here."""
    said: dict[bytes, set[bytes]] = {}
    written: dict[bytes, set[bytes]] = {}
    for row in tx.rows(_HOLDING):
        said[row.id] = {key_id(row.namespace_id, name.encode()) for name in _NAMES.decode(row.concurrency_keys)}
    for row in tx.rows(_HELD):
        written.setdefault(row.task_id, set()).add(row.key_id)
    nothing: set[bytes] = set()
    both = [(each, written.get(each, nothing), said.get(each, nothing)) for each in sorted(said.keys() | written)]
    return [KeyDrift("key_holder", each, len(held), len(wanted)) for each, held, wanted in both if held != wanted]


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
