"""Hand deliveries out, and take back what became of them: the consumer's side of a subscription.

A delivery that is handed out is hidden for a while and comes again unless it is acknowledged. Each handing out has a
token of its own, and only the last one counts: who was too slow can't speak for who has it now. A token is judged by
the row, not by the clock: an acknowledgement that comes late is good as long as nobody else has got the delivery.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.clock import to_rfc3339
from orbit.store.delivery import (
    DeliveredEvent,
    Delivery,
    Handing,
    deliveries_delete,
    deliveries_lock,
    deliveries_lock_due,
    deliveries_write,
    events_read,
)
from orbit.subscription import DeliveryState, TokenOutcome, state_when_handed_out, token_read, token_text

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from orbit.jsontext import Json
    from orbit.store.subscription import Subscription

TOKEN_BYTES = 16
REPLAY_MAX = 1_000


class Pulled(Struct, frozen=True):
    """A delivery in a consumer's hands."""

    handing: Handing
    event: DeliveredEvent

    def as_json(self) -> dict[str, Json]:
        """Write it as the API shows it."""
        assert self.handing.token is not None
        return {
            "token": token_text(self.event.id, self.handing.token),
            "delivery_count": self.handing.deliveries_count,
            "is_last": self.handing.state is DeliveryState.LAST,
            "visible_at": to_rfc3339(self.handing.visible_at),
            "event": event_content(self.event),
        }


class TokenResult(Struct, frozen=True):
    """What became of a token."""

    token: str
    outcome: TokenOutcome
    visible_at: Micros | None = None


def deliveries_pull(tx: Transaction, found: Subscription, *, limit: int) -> list[Pulled]:
    """Hand out what is visible, the earliest first; each is hidden from others as long as the subscription says."""
    now = tx.now()
    due = deliveries_lock_due(tx, found.id, DeliveryState.PENDING, now=now, limit=limit)
    if not due:
        return []
    events = events_read(tx, {each.event_id for each in due})
    # An event that is not kept any more can't be delivered.
    deliveries_delete(tx, found.id, {each.event_id for each in due} - events.keys())
    handings = [
        Handing(
            each.event_id,
            state_when_handed_out(each.deliveries_count + 1, found.bounds.deliveries_max),
            now + found.bounds.visibility_micros,
            each.deliveries_count + 1,
            os.urandom(TOKEN_BYTES),
        )
        for each in due
        if each.event_id in events
    ]
    deliveries_write(tx, found.id, handings)
    return [Pulled(each, events[each.event_id]) for each in handings]


def deliveries_ack(tx: Transaction, found: Subscription, tokens: Sequence[str]) -> list[TokenResult]:
    """Remove deliveries that are done, by their tokens; one result for each, in order."""
    named, rows = _named(tx, found, tokens)
    results: list[TokenResult] = []
    done: set[bytes] = set()
    for text, event_id, secret in named:
        row = rows.get(event_id)
        if row is None or event_id in done:
            results.append(TokenResult(text, TokenOutcome.GONE))
        elif row.token != secret:
            results.append(TokenResult(text, TokenOutcome.STALE))
        else:
            done.add(event_id)
            results.append(TokenResult(text, TokenOutcome.ACKED))
    deliveries_delete(tx, found.id, done)
    return results


def deliveries_extend(
    tx: Transaction, found: Subscription, tokens: Sequence[str], *, visibility_micros: Micros
) -> list[TokenResult]:
    """Hide deliveries for so long from now, 0 to give them back at once; one result for each token, in order."""
    named, rows = _named(tx, found, tokens)
    visible_at = tx.now() + visibility_micros
    results: list[TokenResult] = []
    kept: dict[bytes, Handing] = {}
    for text, event_id, secret in named:
        row = rows.get(event_id)
        if row is None:
            results.append(TokenResult(text, TokenOutcome.GONE))
        elif row.token != secret or row.state is DeliveryState.POISONED:
            results.append(TokenResult(text, TokenOutcome.STALE))
        else:
            kept[event_id] = Handing(event_id, row.state, visible_at, row.deliveries_count, row.token)
            results.append(TokenResult(text, TokenOutcome.EXTENDED, visible_at))
    deliveries_write(tx, found.id, list(kept.values()))
    return results


def deliveries_replay(tx: Transaction, found: Subscription, event_ids: Sequence[bytes] | None) -> int:
    """Let parked deliveries come again from the start, those of these events or as many as one call may."""
    now = tx.now()
    if event_ids is None:
        parked = deliveries_lock_due(tx, found.id, DeliveryState.POISONED, now=now, limit=REPLAY_MAX)
    else:
        rows = deliveries_lock(tx, found.id, set(event_ids))
        parked = [each for each in rows.values() if each.state is DeliveryState.POISONED]
    fresh = [Handing(each.event_id, DeliveryState.PENDING, now, 0, None) for each in parked]
    deliveries_write(tx, found.id, fresh)
    return len(fresh)


def deliveries_park(tx: Transaction, subscription_id: bytes, *, now: Micros, limit: int) -> int:
    """Park what was handed out for the last time and not acknowledged; return how many."""
    due = deliveries_lock_due(tx, subscription_id, DeliveryState.LAST, now=now, limit=limit)
    parked = [Handing(each.event_id, DeliveryState.POISONED, now, each.deliveries_count, each.token) for each in due]
    deliveries_write(tx, subscription_id, parked)
    return len(parked)


def _named(
    tx: Transaction, found: Subscription, tokens: Sequence[str]
) -> tuple[list[tuple[str, bytes, bytes]], dict[bytes, Delivery]]:
    named = [(text, *token_read(text)) for text in tokens]
    return named, deliveries_lock(tx, found.id, {event_id for _, event_id, _ in named})


def event_content(event: DeliveredEvent) -> dict[str, Json]:
    """Write an event as the API shows it."""
    return {
        "id": event.id.hex(),
        "type": event.type,
        "subject_id": event.subject_id.hex(),
        "subject_revision": str(event.subject_revision),
        "data": json.loads(event.data),
        "created_at": to_rfc3339(event.created_at),
    }
