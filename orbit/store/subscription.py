"""The rows of subscriptions. Each is changed under its own lock; the revision rises with every change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from sqlalchemy import bindparam, delete, func, select, update

from orbit.clock import Micros
from orbit.database.hot import Hot
from orbit.database.ids import ids_in
from orbit.subscription import Filter, Spans, SubscriptionState
from orbit.tables import subscription

if TYPE_CHECKING:
    from orbit.database import Transaction


class Bounds(Struct, frozen=True):
    """How deliveries are handed out: how long hidden, how often, and how many may wait."""

    visibility_micros: Micros
    deliveries_max: int
    backlog_max: int


class Subscription(Struct, frozen=True):
    """A subscription's row. `read_to` is how far the log was read while it resumes."""

    id: bytes
    namespace_id: bytes
    name: str
    state: SubscriptionState
    wanted: Filter
    bounds: Bounds
    spans: Spans
    read_to: tuple[Micros, bytes] | None
    effective_at: Micros
    backlog: int
    poisoned: int
    measured_at: Micros
    revision: int
    created_at: Micros
    changed_at: Micros


class Measured(Struct, frozen=True):
    """How a subscription stood when its deliveries were last counted."""

    state: SubscriptionState
    backlog: int
    poisoned: int


# Every node runs it once a second, whether or not there is a row.
_REVISIONS = Hot(select(subscription.c.id, subscription.c.revision))
_BY_IDS = select(subscription).where(ids_in(subscription.c.id))
_BY_ID = select(subscription).where(
    subscription.c.id == bindparam("id"),
    subscription.c.namespace_id == bindparam("namespace_id"),
    subscription.c.state != SubscriptionState.DELETED,
)
_BY_NAME = select(subscription.c.id).where(
    subscription.c.namespace_id == bindparam("namespace_id"), subscription.c.name == bindparam("name")
)
_COUNT = select(func.count()).select_from(subscription).where(subscription.c.namespace_id == bindparam("namespace_id"))
_PAGE = select(subscription).where(
    subscription.c.namespace_id == bindparam("namespace_id"),
    subscription.c.name > bindparam("after"),
    subscription.c.state != SubscriptionState.DELETED,
)
_DUE = select(subscription.c.id).where(subscription.c.measured_at <= bindparam("before"))
_LOCK_FREE = select(subscription).where(subscription.c.id == bindparam("id")).with_for_update(skip_locked=True)
_SHOWN = select(subscription.c.state, subscription.c.backlog, subscription.c.poisoned).where(
    subscription.c.state != SubscriptionState.DELETED
)


def revisions_read(tx: Transaction) -> dict[bytes, int]:
    """Read the revision of every subscription of every namespace."""
    return {row.id: row.revision for row in tx.rows(_REVISIONS, {})}


def subscriptions_read(tx: Transaction, ids: Collection[bytes]) -> list[Subscription]:
    """Read subscriptions, also deleted ones."""
    return [_read(row) for row in tx.rows(_BY_IDS, {"ids": ids})] if ids else []


def subscription_find(
    tx: Transaction, namespace_id: bytes, identifier: bytes, *, is_locked: bool = False
) -> Subscription | None:
    """Read a namespace's subscription, with its lock if asked for; None if there is none, or it is deleted."""
    query = _BY_ID.with_for_update() if is_locked else _BY_ID
    row = tx.row(query, {"namespace_id": namespace_id, "id": identifier})
    return None if row is None else _read(row)


def subscription_is_named(tx: Transaction, namespace_id: bytes, name: str) -> bool:
    """Say whether a name is taken, also by one whose deletion is under way."""
    return bool(tx.rows(_BY_NAME, {"namespace_id": namespace_id, "name": name}))


def subscriptions_count(tx: Transaction, namespace_id: bytes) -> int:
    """Count a namespace's subscriptions."""
    return int(tx.rows(_COUNT, {"namespace_id": namespace_id})[0][0])


def subscriptions_list(tx: Transaction, namespace_id: bytes, *, after_name: str, limit: int) -> list[Subscription]:
    """Read a page of a namespace's subscriptions, by name."""
    query = _PAGE.order_by(subscription.c.name).limit(limit)
    return [_read(row) for row in tx.rows(query, {"namespace_id": namespace_id, "after": after_name})]


def subscription_insert(tx: Transaction, made: Subscription) -> None:
    """Store a new subscription."""
    tx.insert(subscription, [_row(made)])


def subscription_write(tx: Transaction, changed: Subscription, *, before: Subscription) -> None:
    """Write a subscription that is locked at the revision `before`."""
    query = update(subscription).where(
        subscription.c.id == changed.id,
        subscription.c.revision == before.revision,
        subscription.c.state == before.state,
    )
    values = {name: value for name, value in _row(changed).items() if name != "id"}
    tx.expect(query.values(**values), count=1)


def subscription_forget(tx: Transaction, identifier: bytes) -> None:
    """Remove the row of a deleted subscription."""
    query = delete(subscription).where(
        subscription.c.id == identifier, subscription.c.state == SubscriptionState.DELETED
    )
    tx.expect(query, count=1)


def subscriptions_due(tx: Transaction, *, before: Micros, limit: int) -> list[bytes]:
    """Read which subscriptions were not looked after since an instant, the longest waiting first."""
    query = _DUE.order_by(subscription.c.measured_at, subscription.c.id).limit(limit)
    return [row.id for row in tx.rows(query, {"before": before})]


def subscription_lock_free(tx: Transaction, identifier: bytes) -> Subscription | None:
    """Lock a subscription unless somebody has it; None then."""
    row = tx.row(_LOCK_FREE, {"id": identifier})
    return None if row is None else _read(row)


def subscriptions_measured(tx: Transaction) -> Sequence[Measured]:
    """Read how all subscriptions of all namespaces stand, for the metrics."""
    return [Measured(SubscriptionState(row.state), row.backlog, row.poisoned) for row in tx.rows(_SHOWN)]


def _read(row: Any) -> Subscription:
    return Subscription(
        id=row.id,
        namespace_id=row.namespace_id,
        name=row.name,
        state=SubscriptionState(row.state),
        wanted=msgspec.json.decode(row.filter, type=Filter),
        bounds=Bounds(row.visibility_micros, row.deliveries_max, row.backlog_max),
        spans=Spans(row.opens_at, row.closes_at, row.reopens_at),
        read_to=None if row.read_at is None else (row.read_at, row.read_id),
        effective_at=row.effective_at,
        backlog=row.backlog,
        poisoned=row.poisoned,
        measured_at=row.measured_at,
        revision=row.revision,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def _row(made: Subscription) -> dict[str, Any]:
    read_at, read_id = made.read_to or (None, None)
    return {
        "id": made.id,
        "namespace_id": made.namespace_id,
        "name": made.name,
        "state": made.state,
        "filter": msgspec.json.encode(made.wanted).decode(),
        "visibility_micros": made.bounds.visibility_micros,
        "deliveries_max": made.bounds.deliveries_max,
        "backlog_max": made.bounds.backlog_max,
        "opens_at": made.spans.opens_at,
        "closes_at": made.spans.closes_at,
        "reopens_at": made.spans.reopens_at,
        "read_at": read_at,
        "read_id": read_id,
        "effective_at": made.effective_at,
        "backlog": made.backlog,
        "poisoned": made.poisoned,
        "measured_at": made.measured_at,
        "revision": made.revision,
        "created_at": made.created_at,
        "changed_at": made.changed_at,
    }
