"""Look after subscriptions once a second: measure backlogs, park what nobody acknowledges, read on for who resumes.

A backlog that has passed its bound overflows: its subscription gets nothing more, and tasks go on as if it were not
there. Each subscription is looked after under its lock by one node at a time; whoever finds it taken goes on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from orbit.clock import SECOND
from orbit.database import Pool
from orbit.logs import get_logger
from orbit.store.delivery import deliveries_count, deliveries_drop, deliveries_insert
from orbit.store.subscribers import Subscribers, delivery_row
from orbit.store.subscription import (
    Subscription,
    subscription_forget,
    subscription_lock_free,
    subscription_write,
    subscriptions_due,
)
from orbit.subscription import (
    BACKLOG_MAX,
    FORGET_MICROS,
    DeliveryState,
    Matcher,
    Spans,
    SubscriptionState,
    is_over,
    overflowed,
    readable_until,
    reopened,
)
from pulse.deliveries import deliveries_park
from pulse.store.event_log import log_read
from pulse.subscriptions import NO_ID, boundary_set, subscription_tell

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Database, Transaction

SWEEP_SECONDS = 0.5
_MEASURE_MICROS = SECOND
_SUBSCRIPTIONS_MAX = 1_000
_PARK_MAX = 1_000
_DROP_MAX = 1_000
_LOG_PAGE = 500
_PAGES_MAX = 20

_log = get_logger(__name__)


def subscriptions_sweep(database: Database) -> int:
    """Look after every subscription whose second is over; return how many were."""

    def due(tx: Transaction) -> list[bytes]:
        # It also keeps this process's list fresh, so that no transaction of a task has to wait for that.
        tx.memory(Subscribers).refresh(tx)
        return subscriptions_due(tx, before=tx.now() - _MEASURE_MICROS, limit=_SUBSCRIPTIONS_MAX)

    found = database.transaction(due, pool=Pool.DISPATCH)
    for identifier in found:
        for _ in range(_PAGES_MAX):
            if not database.transaction(partial(_look_after, identifier=identifier), pool=Pool.DISPATCH):
                break
    return len(found)


def _look_after(tx: Transaction, identifier: bytes) -> bool:
    """Do what one subscription needs; say whether there is more of it to do at once."""
    row = subscription_lock_free(tx, identifier)
    if row is None:
        return False
    now = tx.now()
    if row.state is SubscriptionState.DELETED:
        return _clear(tx, row, now=now)
    parked = deliveries_park(tx, row.id, now=now, limit=_PARK_MAX)
    measured = replace(
        row,
        backlog=deliveries_count(tx, row.id, limit=2 * BACKLOG_MAX),
        poisoned=deliveries_count(tx, row.id, limit=2 * BACKLOG_MAX, state=DeliveryState.POISONED),
        measured_at=now,
    )
    has_more = parked == _PARK_MAX
    if parked:
        extra = {"subscription": row.name, "subscription_id": row.id.hex(), "parked": parked}
        tx.after_commit(lambda: _log.warning("subscription.poisoned", extra=extra))
    if row.state is SubscriptionState.ACTIVE and is_over(measured.backlog, row.bounds.backlog_max):
        measured = _overflow(tx, measured, now=now)
    elif row.state is SubscriptionState.RESUMING:
        measured, is_behind = _read_on(tx, measured, now=now)
        has_more = has_more or is_behind
    subscription_write(tx, measured, before=row)
    return has_more


def _clear(tx: Transaction, row: Subscription, *, now: Micros) -> bool:
    """Remove a deleted subscription's deliveries, and itself when no node can write one any more."""
    if deliveries_drop(tx, row.id, limit=_DROP_MAX):
        return True
    if now >= row.changed_at + FORGET_MICROS:
        subscription_forget(tx, row.id)
    else:
        subscription_write(tx, replace(row, measured_at=now), before=row)
    return False


def _overflow(tx: Transaction, row: Subscription, *, now: Micros) -> Subscription:
    after = replace(
        row,
        state=SubscriptionState.OVERFLOWED,
        spans=overflowed(row.spans, now=now),
        revision=row.revision + 1,
        changed_at=now,
    )
    subscription_tell(tx, after, "subscription.overflowed")
    extra = {
        "subscription": row.name,
        "subscription_id": row.id.hex(),
        "backlog": row.backlog,
        "max_backlog": row.bounds.backlog_max,
    }
    tx.after_commit(lambda: _log.error("subscription.overflowed", extra=extra))
    return after


def _read_on(tx: Transaction, row: Subscription, *, now: Micros) -> tuple[Subscription, bool]:
    """Read a page of the log for a subscription that resumes; say whether more of it can be read at once.

    As far as its backlog has room, until it is nearly level; the last few seconds are read to their end.
    """
    assert row.read_to is not None, "who resumes knows how far it has read"
    until = readable_until(row.spans, effective_at=row.effective_at, now=now)
    is_near = row.spans.reopens_at is not None
    room = _LOG_PAGE if is_near else max(0, row.bounds.backlog_max - row.backlog)
    if until is None or until <= row.read_to[0] or room == 0:
        return row, False
    page = log_read(tx, row.namespace_id, after=row.read_to, until=until, limit=_LOG_PAGE)
    matcher, read_to = Matcher(row.wanted), row.read_to
    rows: list[dict[str, Any]] = []
    for event in page:
        if matcher.matches(event.facts):
            if len(rows) == room:
                break
            rows.append(delivery_row(row.id, event.id, visible_at=event.created_at))
        read_to = (event.created_at, event.id)
    deliveries_insert(tx, rows)
    is_whole = not page or read_to[1] == page[-1].id
    is_level = is_whole and len(page) < _LOG_PAGE
    if is_level:
        read_to = (until, NO_ID)
    after = replace(row, read_to=read_to, backlog=row.backlog + len(rows))
    return _nearer(tx, after, is_level=is_level, now=now), is_whole and not is_level


def _nearer(tx: Transaction, row: Subscription, *, is_level: bool, now: Micros) -> Subscription:
    """Let events be delivered in their transactions again when the log is read up to nearly now."""
    assert row.read_to is not None
    reopens_at = row.spans.reopens_at
    if reopens_at is None and is_level:
        changed = replace(row, spans=reopened(row.spans, now=now), revision=row.revision + 1, changed_at=now)
    elif reopens_at is not None and row.read_to[0] >= reopens_at:
        changed = replace(
            row,
            state=SubscriptionState.ACTIVE,
            spans=Spans(reopens_at),
            read_to=None,
            revision=row.revision + 1,
            changed_at=now,
        )
        _log.info("subscription.active", extra={"subscription": row.name, "subscription_id": row.id.hex()})
    else:
        return row
    boundary_set(tx)
    return changed
