"""What a subscription is: which events it gets, from when to when, and what becomes of a delivery. Pure.

Whether an event is delivered in its own transaction depends on nothing but its instant and the subscription's spans. So
all nodes judge alike: a boundary lies far enough ahead that each has heard of it by then. What lies between two spans
is read from the log later, and the spans leave neither gap nor overlap.

The surprising rule: a transaction that commits late, with an instant from before a boundary that has passed, is rolled
back and run again (`Spans.misses`); else those who read on from the boundary would not see what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from orbit.clock import SECOND, Micros
from orbit.database.transaction import LATE_SECONDS
from orbit.event_types import ALL_OF

VISIBILITY_SECONDS_MAX = 43_200
VISIBILITY_SECONDS_DEFAULT = 30
DELIVERIES_MAX = 1_000
DELIVERIES_DEFAULT = 10
BACKLOG_MAX = 100_000
BACKLOG_DEFAULT = 10_000
SUBSCRIPTIONS_MAX = 100
FILTER_ITEMS_MAX = 100
PULL_MAX = 100

# A node's list of subscriptions is at most so old when it judges an event.
STALE_SECONDS = 1.0
# So long may a COMMIT take that has been sent.
COMMIT_SECONDS = 0.5
# All transactions with an instant before this span ago have ended, or will be run again.
SETTLED_MICROS: Micros = round((LATE_SECONDS + COMMIT_SECONDS) * SECOND)
# A boundary lies so far ahead: its change is there, and everybody has looked since.
LEAD_MICROS: Micros = round((LATE_SECONDS + COMMIT_SECONDS + STALE_SECONDS) * SECOND)
# What callers are told: whatever commits from then on is delivered.
EFFECTIVE_MICROS: Micros = LEAD_MICROS + SETTLED_MICROS
assert EFFECTIVE_MICROS == 5 * SECOND, "the contract promises five seconds"
# A deleted one is kept so long, since nodes may still write deliveries for it.
FORGET_MICROS: Micros = 2 * EFFECTIVE_MICROS


class SubscriptionState(StrEnum):
    """Where a subscription stands."""

    ACTIVE = "ACTIVE"  # events are delivered as they happen; leaves when its backlog passes the bound
    OVERFLOWED = "OVERFLOWED"  # nothing more is delivered; what is there can be pulled; leaves by `:resume`
    RESUMING = "RESUMING"  # what it missed is read from the log, as far as its backlog has room; ends when it is level
    DELETED = "DELETED"  # nobody sees it any more; its deliveries are removed, then itself


SUBSCRIPTION_MOVES: Mapping[SubscriptionState, frozenset[SubscriptionState]] = {
    SubscriptionState.ACTIVE: frozenset({SubscriptionState.OVERFLOWED, SubscriptionState.DELETED}),
    SubscriptionState.OVERFLOWED: frozenset({SubscriptionState.RESUMING, SubscriptionState.DELETED}),
    SubscriptionState.RESUMING: frozenset({SubscriptionState.ACTIVE, SubscriptionState.DELETED}),
    SubscriptionState.DELETED: frozenset(),
}


class DeliveryState(StrEnum):
    """Where a delivery stands. One that is acknowledged is removed, from whichever state."""

    PENDING = "PENDING"  # may be pulled once it is visible
    LAST = "LAST"  # was handed out for the last time; is parked when that time is over
    POISONED = "POISONED"  # was never acknowledged; stays until it is replayed or acknowledged


DELIVERY_MOVES: Mapping[DeliveryState, frozenset[DeliveryState]] = {
    DeliveryState.PENDING: frozenset({DeliveryState.LAST}),
    DeliveryState.LAST: frozenset({DeliveryState.POISONED}),
    DeliveryState.POISONED: frozenset({DeliveryState.PENDING}),
}


class TokenOutcome(StrEnum):
    """What became of a token that was sent back."""

    ACKED = "ACKED"  # the delivery is done and removed
    EXTENDED = "EXTENDED"  # it stays hidden from others as long as asked
    GONE = "GONE"  # no such delivery is open: it was acknowledged before
    STALE = "STALE"  # it was handed out again since, or parked: another token counts


class Filter(Struct, frozen=True):
    """Which events are meant. None of a kind means all; several kinds must all fit."""

    event_types: tuple[str, ...] | None = None
    queues: dict[str, bytes] | None = None
    workflows: tuple[str, ...] | None = None
    task_types: tuple[str, ...] | None = None


class Facts(Struct, frozen=True):
    """What filters look at in an event; what it has not is None. A task type is written `type@version`."""

    type: str
    queue_id: bytes | None = None
    workflow: str | None = None
    task_type: str | None = None


class Matcher:
    """A filter, ready to judge many events."""

    __slots__ = ("_by_type", "_exact", "_prefixes", "_queue_ids", "_task_types", "_workflows", "asks_task_type")

    def __init__(self, wanted: Filter) -> None:
        types = wanted.event_types
        self._exact = None if types is None else frozenset(types)
        self._prefixes = tuple(name.removesuffix("*") for name in types or () if name.endswith(ALL_OF))
        self._queue_ids = None if wanted.queues is None else frozenset(wanted.queues.values())
        self._workflows = None if wanted.workflows is None else frozenset(wanted.workflows)
        self._task_types = None if wanted.task_types is None else frozenset(wanted.task_types)
        self._by_type: dict[str, bool] = {}
        self.asks_task_type = self._task_types is not None

    def matches_type(self, name: str) -> bool:
        """Say whether events of a type are meant at all."""
        found = self._by_type.get(name)
        if found is None:
            found = self._exact is None or name in self._exact or name.startswith(self._prefixes or (" ",))
            self._by_type[name] = found
        return found

    def matches(self, facts: Facts) -> bool:
        """Say whether an event is meant."""
        return (
            self.matches_type(facts.type)
            and (self._queue_ids is None or facts.queue_id in self._queue_ids)
            and (self._workflows is None or facts.workflow in self._workflows)
            and (self._task_types is None or _is_type_in(facts.task_type, self._task_types))
        )


def _is_type_in(task_type: str | None, wanted: frozenset[str]) -> bool:
    return task_type is not None and (task_type in wanted or task_type.partition("@")[0] in wanted)


class Spans(Struct, frozen=True):
    """From when to when events are delivered in their own transactions: from `opens_at` until before `closes_at`.

    From `reopens_at` on they are again; what is between the two is read from the log.
    """

    opens_at: Micros
    closes_at: Micros | None = None
    reopens_at: Micros | None = None

    def holds(self, at: Micros) -> bool:
        """Say whether an event of this instant is delivered in its transaction."""
        if at < self.opens_at:
            return False
        if self.closes_at is None or at < self.closes_at:
            return True
        return self.reopens_at is not None and at >= self.reopens_at

    def misses(self, at: Micros, state: SubscriptionState) -> bool:
        """Say whether an event that commits only now is lost to the subscription: neither delivered, nor read later."""
        return state in _READERS and not self.holds(at)


_READERS = frozenset({SubscriptionState.ACTIVE, SubscriptionState.RESUMING})


def overflowed(spans: Spans, *, now: Micros) -> Spans:
    """Close the open span, as soon as everybody can have heard of it."""
    return Spans(spans.opens_at, now + LEAD_MICROS)


def reopened(spans: Spans, *, now: Micros) -> Spans:
    """Let events be delivered again, as soon as everybody can have heard of it."""
    return Spans(spans.opens_at, spans.closes_at, now + LEAD_MICROS)


def readable_until(spans: Spans, *, effective_at: Micros, now: Micros) -> Micros | None:
    """Return the instant before which the log can be read for good; None while that can't be said.

    Until `effective_at` there may be transactions that have not heard that somebody reads.
    """
    if now < effective_at:
        return None
    settled = now - SETTLED_MICROS
    return settled if spans.reopens_at is None else min(settled, spans.reopens_at)


def state_when_handed_out(deliveries_count: int, deliveries_max: int) -> DeliveryState:
    """Return the state of a delivery that is handed out for the `deliveries_count`th time."""
    return DeliveryState.LAST if deliveries_count >= deliveries_max else DeliveryState.PENDING


def is_over(count: int, backlog_max: int) -> bool:
    """Say whether a backlog has passed its bound; the bound itself is still good."""
    return count > backlog_max


def token_text(event_id: bytes, secret: bytes) -> str:
    """Write a token: which delivery, and which handing out of it."""
    return event_id.hex() + secret.hex()


def token_read(text: str) -> tuple[bytes, bytes]:
    """Read a token that has its form: 64 hexadecimal digits."""
    return bytes.fromhex(text[:32]), bytes.fromhex(text[32:])
