"""Statements about signals: stored once for each identity, read under the lock of whom they are for, taken once.

Whoever stores, reads or takes a signal of an instance holds the lock of the instance's row; of one that has no instance
yet, the lock of its business key (`store.admissions`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, case, delete, func, select

from engine.instance import Signal
from engine.tables import signal as table
from orbit.clock import Micros
from orbit.database.ids import ids_in, through

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSignal:
    """A signal's row. `instance_id` None: it waits for an instance, by the hash `waits_for` of its business key."""

    id: bytes
    namespace_id: bytes
    identity: bytes
    meaning: bytes
    instance_id: bytes | None
    waits_for: bytes | None
    workflow: str
    business_key: str | None
    name: str
    signal: str
    payload: bytes
    sent_by: str
    sent_at: Micros
    expires_at: Micros
    taken_at: Micros | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many signals an address has had, and how many of them still wait."""

    stored: int
    waiting: int


_FIND = select(table).where(table.c.identity == bindparam("identity"))
_KEPT = through(
    select(
        table.c.instance_id, table.c.id, table.c.name, table.c.signal, table.c.payload, table.c.sent_at,
        table.c.expires_at,
    ),
    table,
    "weave_signal_by_instance",
).where(ids_in(table.c.instance_id), table.c.taken_at.is_(None)).order_by(
    table.c.instance_id, table.c.sent_at, table.c.id
)  # fmt: skip
_OF_INSTANCE = (
    select(table)
    .where(table.c.instance_id == bindparam("instance_id"))
    .order_by(table.c.instance_id, table.c.sent_at, table.c.id)
)
_OF_KEYS = through(select(table), table, "weave_signal_by_key").where(ids_in(table.c.waits_for))
_COUNT_OF_INSTANCE = select(
    func.count().label("stored"),
    func.count(case((and_(table.c.taken_at.is_(None), table.c.expires_at > bindparam("now")), 1))).label("waiting"),
).where(table.c.instance_id == bindparam("instance_id"))
_FORGETTABLE = select(table.c.id).where(table.c.forget_at <= bindparam("now")).order_by(table.c.forget_at, table.c.id)
_FORGET = delete(table).where(ids_in(table.c.id), table.c.instance_id.is_(None))


def signals_insert(tx: Transaction, new: Sequence[StoredSignal]) -> None:
    """Store signals; a second one of the same identity is a duplicate key, and the transaction runs again."""
    tx.insert(table, [_columns(each) for each in new])


def signal_find(tx: Transaction, identity: bytes) -> StoredSignal | None:
    """Read the signal of an identity."""
    row = tx.row(_FIND, {"identity": identity})
    return None if row is None else _stored(row)


def signals_kept(tx: Transaction, instance_ids: Sequence[bytes]) -> Mapping[bytes, tuple[Signal, ...]]:
    """Read what no wait has taken yet, by instance, the earliest first; `instance_ids` is not empty."""
    found: dict[bytes, list[Signal]] = {identifier: [] for identifier in instance_ids}
    for row in tx.rows(_KEPT, {"ids": list(instance_ids)}):
        payload = json.loads(row.payload)
        found[row.instance_id].append(Signal(row.id, row.name, row.signal, payload, row.sent_at, row.expires_at))
    return {identifier: tuple(signals) for identifier, signals in found.items()}


def signals_list(tx: Transaction, instance_id: bytes) -> list[StoredSignal]:
    """Read all signals of an instance, the earliest first; their number is bounded."""
    return [_stored(row) for row in tx.rows(_OF_INSTANCE, {"instance_id": instance_id})]


def signals_of_keys(tx: Transaction, keys: Sequence[bytes]) -> list[StoredSignal]:
    """Read what waits for an instance with one of these hashed business keys, the earliest first."""
    if not keys:
        return []
    found = (_stored(row) for row in tx.rows(_OF_KEYS, {"ids": list(keys)}))
    return sorted(found, key=lambda signal: (signal.sent_at, signal.id))


def signals_count(tx: Transaction, *, instance_id: bytes, now: Micros) -> Counts:
    """Count the signals of an instance."""
    row = tx.row(_COUNT_OF_INSTANCE, {"instance_id": instance_id, "now": now})
    assert row is not None, "a count has a row"
    return Counts(row.stored, row.waiting)


def signals_adopt(tx: Transaction, adopted: Sequence[tuple[bytes, bytes]]) -> None:
    """Give signals, by id, to the instances that they waited for; every one must still wait."""
    rows = [
        {"id": identifier, "instance_id": instance_id, "waits_for": None, "forget_at": None}
        for identifier, instance_id in adopted
    ]
    tx.update_many(table, rows=rows)


def signals_take(tx: Transaction, taken: Sequence[tuple[bytes, str]], *, now: Micros) -> None:
    """Note which steps have taken signals, by id, of locked instances; nobody may have taken them before."""
    rows = [{"id": identifier, "taken_at": now, "step": step} for identifier, step in taken]
    tx.update_many(table, rows=rows)


def signals_forget(tx: Transaction, *, now: Micros, limit: int) -> None:
    """Delete some expired signals that no instance ever had."""
    found = [row.id for row in tx.rows(_FORGETTABLE.limit(limit), {"now": now})]
    if found:
        tx.execute(_FORGET, {"ids": found})


def _columns(new: StoredSignal) -> dict[str, Any]:
    return {
        "id": new.id,
        "namespace_id": new.namespace_id,
        "identity": new.identity,
        "meaning": new.meaning,
        "instance_id": new.instance_id,
        "waits_for": new.waits_for,
        "workflow": new.workflow,
        "business_key": None if new.business_key is None else new.business_key.encode(),
        "name": new.name,
        "signal": new.signal,
        "payload": new.payload,
        "sent_by": new.sent_by,
        "sent_at": new.sent_at,
        "expires_at": new.expires_at,
        "forget_at": new.expires_at if new.instance_id is None else None,
    }


def _stored(row: Row[Any]) -> StoredSignal:
    return StoredSignal(
        id=row.id,
        namespace_id=row.namespace_id,
        identity=row.identity,
        meaning=row.meaning,
        instance_id=row.instance_id,
        waits_for=row.waits_for,
        workflow=row.workflow,
        business_key=None if row.business_key is None else row.business_key.decode(),
        name=row.name,
        signal=row.signal,
        payload=row.payload,
        sent_by=row.sent_by,
        sent_at=row.sent_at,
        expires_at=row.expires_at,
        taken_at=row.taken_at,
        step=row.step,
    )
