"""Whom a process's events go to: its list of subscriptions, at most a second old, and the deliveries made by it.

Where nobody subscribes, a transaction that writes events pays one look at this list. It is read again once a second, by
the first transaction that needs it or by the sweep, and only what has changed is read in full.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orbit.database import RunAgain
from orbit.store.subscription import Subscription, revisions_read, subscriptions_read
from orbit.subscription import STALE_SECONDS, DeliveryState, Facts, Matcher, SubscriptionState
from orbit.tables import delivery

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_LANES_KEPT = 50_000


class Told(Struct, frozen=True):
    """An event as far as it matters who gets it. `lane_id` stands for a task's type."""

    id: bytes
    namespace_id: bytes
    type: str
    queue_id: bytes | None = None
    lane_id: bytes | None = None
    workflow: str | None = None


class Subscriber(Struct, frozen=True):
    """A subscription and its filter, ready to judge."""

    subscription: Subscription
    matcher: Matcher


class Subscribers:
    """All subscriptions that count, by namespace. One a process and database: `tx.memory(Subscribers)`."""

    def __init__(self) -> None:
        self.by_namespace: dict[bytes, list[Subscriber]] = {}
        self.task_types: dict[bytes, str] = {}
        self._known: dict[bytes, Subscriber] = {}
        self._revisions: dict[bytes, int] = {}
        self.looked_at = float("-inf")

    def freshen(self, tx: Transaction) -> None:
        """Look for changes if the last look is too long ago."""
        if time.monotonic() - self.looked_at > STALE_SECONDS:
            self.refresh(tx)

    def refresh(self, tx: Transaction) -> None:
        """Look for changes now."""
        began = time.monotonic()
        revisions = revisions_read(tx)
        changed = [key for key, revision in revisions.items() if self._revisions.get(key) != revision]
        found = subscriptions_read(tx, changed)
        if began < self.looked_at:
            return  # another look that began later has ended earlier: it knows more
        self.looked_at = began
        if found or revisions.keys() != self._revisions.keys():
            known = {key: each for key, each in self._known.items() if key in revisions}
            self._known = known | {each.id: Subscriber(each, Matcher(each.wanted)) for each in found}
            self._revisions = {key: each.subscription.revision for key, each in self._known.items()}
            self._arrange()

    def forget(self) -> None:
        """Look again at the next question: something was changed here."""
        self.looked_at = float("-inf")

    def asks_task_types(self, namespace_id: bytes) -> bool:
        """Say whether somebody in a namespace chooses by task type."""
        return any(each.matcher.asks_task_type for each in self.by_namespace.get(namespace_id, ()))

    def learn_task_types(self, types: dict[bytes, str]) -> None:
        """Remember the task types of lanes, which never change."""
        if len(self.task_types) > _LANES_KEPT:
            self.task_types = {}
        self.task_types |= types

    def _arrange(self) -> None:
        arranged: dict[bytes, list[Subscriber]] = {}
        for each in self._known.values():
            if each.subscription.state is not SubscriptionState.DELETED:
                arranged.setdefault(each.subscription.namespace_id, []).append(each)
        self.by_namespace = arranged


def events_tell(tx: Transaction, told: Sequence[Told], subscribers: Subscribers, *, now: Micros) -> None:
    """Write the deliveries of events that happen `now`, in their transaction: one statement, or none."""
    rows: list[dict[str, Any]] = []
    for event in told:
        for each in subscribers.by_namespace.get(event.namespace_id, ()):
            if each.matcher.matches_type(event.type) and each.subscription.spans.holds(now):
                task_type = None if event.lane_id is None else subscribers.task_types.get(event.lane_id)
                if each.matcher.matches(Facts(event.type, event.queue_id, event.workflow, task_type)):
                    rows.append(delivery_row(each.subscription.id, event.id, visible_at=now))
    tx.insert(delivery, rows)


def delivery_row(subscription_id: bytes, event_id: bytes, *, visible_at: Micros) -> dict[str, Any]:
    """Make the row of a delivery that nobody has pulled yet."""
    return {
        "subscription_id": subscription_id,
        "event_id": event_id,
        "state": DeliveryState.PENDING,
        "visible_at": visible_at,
        "deliveries_count": 0,
        "token": None,
    }


def late_check(tx: Transaction, namespace_id: bytes, now: Micros) -> None:
    """Run a slow transaction again whose events would be lost to somebody who reads from a later instant on."""
    subscribers = tx.memory(Subscribers)
    subscribers.refresh(tx)
    for each in subscribers.by_namespace.get(namespace_id, ()):
        if each.subscription.spans.misses(now, each.subscription.state):
            raise RunAgain
