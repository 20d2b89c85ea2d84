"""The rows of deliveries: pulled through one index in the order of their instants, else found by their primary key.

Two who pull at once never get the same: rows that somebody has locked are skipped, and the row of one that was handed
out is no longer visible when its lock goes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import and_, bindparam, func, or_, select

from orbit.clock import Micros
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.subscription import DeliveryState
from orbit.tables import delivery, event

if TYPE_CHECKING:
    from orbit.database import Transaction

_PULL_INDEX = "orbit_delivery_for_pull"


class Delivery(Struct, frozen=True):
    """A delivery's row."""

    event_id: bytes
    state: DeliveryState
    visible_at: Micros
    deliveries_count: int
    token: bytes | None


class Handing(Struct, frozen=True):
    """How a delivery is changed when it is handed out, kept longer, parked or replayed."""

    event_id: bytes
    state: DeliveryState
    visible_at: Micros
    deliveries_count: int
    token: bytes | None


class DeliveredEvent(Struct, frozen=True):
    """What is delivered; `data` is JSON text."""

    id: bytes
    type: str
    subject_id: bytes
    subject_revision: int
    data: str
    created_at: Micros


_COLUMNS = (
    delivery.c.event_id, delivery.c.state, delivery.c.visible_at, delivery.c.deliveries_count, delivery.c.token,
)  # fmt: skip
# The order names no column that is fixed: for a text that is compared MariaDB would sort, and so lock, all that is due.
_DUE = Hot(
    through(
        select(*_COLUMNS)
        .where(
            delivery.c.subscription_id == bindparam("subscription_id"),
            delivery.c.state == bindparam("state"),
            delivery.c.visible_at <= bindparam("now"),
        )
        .order_by(delivery.c.visible_at, delivery.c.event_id)
        .limit(bindparam("limit"))
        .with_for_update(skip_locked=True),
        delivery,
        _PULL_INDEX,
    )
)
_NAMED = Hot(
    through(
        select(*_COLUMNS)
        .where(delivery.c.subscription_id == bindparam("subscription_id"), ids_in(delivery.c.event_id))
        .order_by(delivery.c.event_id)
        .with_for_update(),
        delivery,
    )
)
_EVENTS = Hot(
    through(
        select(
            event.c.id, event.c.type, event.c.subject_id, event.c.subject_revision, event.c.data, event.c.created_at
        ).where(ids_in(event.c.id)),
        event,
    )
)
_ANY = (
    select(delivery.c.event_id)
    .where(delivery.c.subscription_id == bindparam("subscription_id"))
    .order_by(delivery.c.event_id)
    .limit(bindparam("limit"))
)


def deliveries_lock_due(
    tx: Transaction, subscription_id: bytes, state: DeliveryState, *, now: Micros, limit: int
) -> list[Delivery]:
    """Lock deliveries of a state whose instant has come, the earliest first, without those that somebody holds."""
    parameters = {"subscription_id": subscription_id, "state": state, "now": now, "limit": limit}
    return [_read(row) for row in tx.rows(_DUE, parameters)]


def deliveries_lock(tx: Transaction, subscription_id: bytes, event_ids: Collection[bytes]) -> dict[bytes, Delivery]:
    """Lock deliveries by the ids of their events; one that was acknowledged is absent."""
    if not event_ids:
        return {}
    rows = tx.rows(_NAMED, {"subscription_id": subscription_id, "ids": event_ids})
    return {row.event_id: _read(row) for row in rows}


def deliveries_write(tx: Transaction, subscription_id: bytes, handings: Sequence[Handing]) -> None:
    """Write deliveries that are locked."""
    rows = [
        {
            "subscription_id": subscription_id,
            "event_id": each.event_id,
            "state": each.state,
            "visible_at": each.visible_at,
            "deliveries_count": each.deliveries_count,
            "token": each.token,
        }
        for each in handings
    ]
    tx.update_many(delivery, key=("subscription_id", "event_id"), rows=rows)


def deliveries_insert(tx: Transaction, rows: Sequence[dict[str, Any]]) -> None:
    """Store deliveries that the log has brought."""
    tx.insert(delivery, rows)


def deliveries_delete(tx: Transaction, subscription_id: bytes, event_ids: Collection[bytes]) -> None:
    """Remove deliveries that are locked."""
    keys = [{"subscription_id": subscription_id, "event_id": each} for each in sorted(event_ids)]
    tx.delete_many(delivery, keys)


def deliveries_drop(tx: Transaction, subscription_id: bytes, *, limit: int) -> int:
    """Remove some of a deleted subscription's deliveries; return how many."""
    found = [row.event_id for row in tx.rows(_ANY, {"subscription_id": subscription_id, "limit": limit})]
    tx.delete_many(delivery, [{"subscription_id": subscription_id, "event_id": each} for each in found], may_miss=True)
    return len(found)


def deliveries_count(tx: Transaction, subscription_id: bytes, *, limit: int, state: DeliveryState | None = None) -> int:
    """Count a subscription's deliveries up to a limit, of one state if asked for."""
    query = select(delivery.c.event_id).where(delivery.c.subscription_id == subscription_id)
    if state is not None:
        query = query.where(delivery.c.state == state)
    counted = through(query, delivery, _PULL_INDEX).limit(limit).subquery()
    return int(tx.rows(select(func.count()).select_from(counted))[0][0])


def deliveries_list(
    tx: Transaction,
    subscription_id: bytes,
    state: DeliveryState,
    *,
    limit: int,
    after: tuple[Micros, bytes] | None = None,
) -> list[Delivery]:
    """Read a page of a subscription's deliveries of one state, the earliest instant first."""
    query = select(*_COLUMNS).where(delivery.c.subscription_id == subscription_id, delivery.c.state == state)
    if after is not None:
        at, identifier = after
        later = and_(delivery.c.visible_at == at, delivery.c.event_id > identifier)
        query = query.where(delivery.c.visible_at >= at, or_(delivery.c.visible_at > at, later))
    ordered = query.order_by(delivery.c.visible_at, delivery.c.event_id)
    return [_read(row) for row in tx.rows(through(ordered, delivery, _PULL_INDEX).limit(limit))]


def events_read(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, DeliveredEvent]:
    """Read events by their ids."""
    if not ids:
        return {}
    return {row.id: DeliveredEvent(*tuple(row)) for row in tx.rows(_EVENTS, {"ids": ids})}


def _read(row: Any) -> Delivery:
    return Delivery(row.event_id, DeliveryState(row.state), row.visible_at, row.deliveries_count, row.token)
