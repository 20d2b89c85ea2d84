"""What the client sends and gets of events and subscriptions; how it is read is `orbit.sdk.models`' rule."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orbit.sdk.wire import Request


class CreateSubscription(Request, frozen=True, kw_only=True):
    """A subscription. A filter that is left out means all; several must all fit.

    `event_types` are types or all of a subject (`task.*`), `task_types` with or without a version (`a.b@1`).
    """

    name: str
    event_types: list[str] | None = None
    queues: list[str] | None = None
    workflows: list[str] | None = None
    task_types: list[str] | None = None
    visibility_seconds: float | None = None
    max_deliveries: int | None = None
    max_backlog: int | None = None


class ConfigureSubscription(Request, frozen=True, kw_only=True):
    """All filters and bounds of a subscription, on top of the revision that was read."""

    expected_revision: int
    reason: str
    visibility_seconds: float
    max_deliveries: int
    max_backlog: int
    event_types: list[str] | None = None
    queues: list[str] | None = None
    workflows: list[str] | None = None
    task_types: list[str] | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened; `subject_revision` orders the events of one subject."""

    id: str = ""
    type: str = ""
    subject_id: str = ""
    subject_revision: int = 0
    data: Any = None
    created_at: str = ""


class Delivery(Struct, frozen=True, kw_only=True):
    """An event in your hands until `visible_at`: acknowledge it by its token, or it comes again.

    With `is_last` it does not come again by itself. One that is only listed has a `state` and no token.
    """

    event: Event = Event()
    token: str = ""
    state: str = ""
    delivery_count: int = 0
    is_last: bool = False
    visible_at: str = ""


class TokenResult(Struct, frozen=True, kw_only=True):
    """What became of a token: ACKED or EXTENDED; GONE was acknowledged before, STALE is no longer yours."""

    token: str = ""
    outcome: str = ""
    visible_at: str | None = None


class Subscription(Struct, frozen=True, kw_only=True):
    """A subscription; `state` is ACTIVE, OVERFLOWED or RESUMING. What was changed holds from `effective_at` on."""

    id: str = ""
    name: str = ""
    state: str = ""
    event_types: list[str] | None = None
    queues: list[str] | None = None
    workflows: list[str] | None = None
    task_types: list[str] | None = None
    visibility_seconds: float = 0.0
    max_deliveries: int = 0
    max_backlog: int = 0
    backlog: int = 0
    poisoned: int = 0
    measured_at: str = ""
    stopped_at: str | None = None
    read_up_to: str | None = None
    effective_at: str = ""
    revision: int = 0
    created_at: str = ""


class SubscriptionResult(Struct, frozen=True, kw_only=True):
    """The receipt of a change."""

    deduplicated: bool = False
    subscription: Subscription = Subscription()


class PullResult(Struct, frozen=True, kw_only=True):
    """What was pulled."""

    deliveries: list[Delivery] = []


class TokenResults(Struct, frozen=True, kw_only=True):
    """One result for each token, in order."""

    items: list[TokenResult] = []


class ReplayResult(Struct, frozen=True, kw_only=True):
    """How many deliveries come again; `has_more` says that the same call would find others."""

    replayed: int = 0
    has_more: bool = False
