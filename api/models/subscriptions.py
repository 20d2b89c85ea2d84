"""Requests and answers about subscriptions to events."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.models.answers import Event
from api.models.fields import Count, HexId, Instant, Name, Reason, Request, Revision
from orbit import subscription as bounds

EventPattern = Annotated[
    str, Meta(min_length=1, max_length=64, description="An event's type, or all of a subject: `task.*`")
]
WorkflowName = Annotated[str, Meta(min_length=1, max_length=128, description="A workflow's name")]
TaskTypePattern = Annotated[
    str, Meta(min_length=1, max_length=140, description="A task type in one version, `a.b@1`, or in all, `a.b`")
]
_SOME = Meta(min_length=1, max_length=bounds.FILTER_ITEMS_MAX)
EventPatterns = Annotated[list[EventPattern], _SOME]
QueueNames = Annotated[list[Name], _SOME]
WorkflowNames = Annotated[list[WorkflowName], _SOME]
TaskTypePatterns = Annotated[list[TaskTypePattern], _SOME]

_HIDDEN = "How long a pulled delivery is hidden from others"
VisibilitySeconds = Annotated[float, Meta(ge=1, le=bounds.VISIBILITY_SECONDS_MAX, description=_HIDDEN)]
MaxDeliveries = Annotated[
    int,
    Meta(ge=1, le=bounds.DELIVERIES_MAX, description="How often a delivery is handed out before it parks as POISONED"),
]
MaxBacklog = Annotated[
    int,
    Meta(ge=1, le=bounds.BACKLOG_MAX, description="Most deliveries that are not acknowledged; more overflow it"),
]
Token = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="The token of a delivery, as it was pulled")]
Tokens = Annotated[list[Token], Meta(min_length=1, max_length=bounds.PULL_MAX)]


class CreateSubscription(Request, frozen=True, kw_only=True):
    """Subscribe to events. What is left out of the filters means all; several filters must all fit."""

    name: Name
    event_types: EventPatterns | None = None
    queues: QueueNames | None = None
    workflows: WorkflowNames | None = None
    task_types: TaskTypePatterns | None = None
    visibility_seconds: VisibilitySeconds | None = None
    max_deliveries: MaxDeliveries | None = None
    max_backlog: MaxBacklog | None = None


class ConfigureSubscription(Request, frozen=True, kw_only=True):
    """Replace the filters and bounds of a subscription."""

    expected_revision: Revision
    reason: Reason
    event_types: EventPatterns | None = None
    queues: QueueNames | None = None
    workflows: WorkflowNames | None = None
    task_types: TaskTypePatterns | None = None
    visibility_seconds: VisibilitySeconds
    max_deliveries: MaxDeliveries
    max_backlog: MaxBacklog


class ChangeSubscription(Request, frozen=True, kw_only=True):
    """Resume or delete a subscription."""

    expected_revision: Revision
    reason: Reason


class PullDeliveries(Request, frozen=True, kw_only=True):
    """Ask for deliveries."""

    max: Annotated[int, Meta(ge=1, le=bounds.PULL_MAX, description="So many at most; 10 if not given")] | None = None
    wait_seconds: (
        Annotated[float, Meta(ge=0, le=30, description="Answer with none only after so long; 0 if not given")] | None
    ) = None


class AckDeliveries(Request, frozen=True, kw_only=True):
    """Say that deliveries are done."""

    tokens: Tokens


class ExtendDeliveries(Request, frozen=True, kw_only=True):
    """Hide deliveries longer, or give them back."""

    tokens: Tokens
    visibility_seconds: Annotated[
        float, Meta(ge=0, le=bounds.VISIBILITY_SECONDS_MAX, description="From now; 0 gives them back at once")
    ]


class ReplayDeliveries(Request, frozen=True, kw_only=True):
    """Let POISONED deliveries come again, their count anew."""

    event_ids: Annotated[list[HexId], Meta(min_length=1, max_length=bounds.PULL_MAX)] | None = None


class Subscription(Struct, kw_only=True):
    """A subscription; `backlog` and `poisoned` are as they were counted at `measured_at`.

    `stopped_at` says from when on it missed events, `read_up_to` how far these were read from the log since.
    """

    id: HexId
    name: str
    state: bounds.SubscriptionState
    event_types: list[str] | None
    queues: list[str] | None
    workflows: list[str] | None
    task_types: list[str] | None
    visibility_seconds: float
    max_deliveries: int
    max_backlog: int
    backlog: Count
    poisoned: Count
    measured_at: Instant
    stopped_at: Instant | None
    read_up_to: Instant | None
    effective_at: Instant
    revision: Count
    created_at: Instant


class SubscriptionResult(Struct, kw_only=True):
    """The receipt of a change: the subscription as it was at that moment. All of it holds from `effective_at` on."""

    deduplicated: bool
    subscription: Subscription


class PulledDelivery(Struct, kw_only=True):
    """An event in your hands until `visible_at`. With `is_last` it does not come again by itself."""

    token: str
    delivery_count: int
    is_last: bool
    visible_at: Instant
    event: Event


class PullResult(Struct, kw_only=True):
    """What was pulled, the earliest first; it may be nothing."""

    deliveries: list[PulledDelivery]


class TokenResult(Struct, kw_only=True):
    """What became of a token: ACKED or EXTENDED; GONE was acknowledged before, STALE is no longer yours."""

    token: str
    outcome: bounds.TokenOutcome
    visible_at: Instant | None


class TokenResults(Struct, kw_only=True):
    """One result for each token, in order."""

    items: list[TokenResult]


class ReplayResult(Struct, kw_only=True):
    """How many deliveries come again; `has_more` says that the same call would find others."""

    replayed: int
    has_more: bool


class Delivery(Struct, kw_only=True):
    """A delivery that waits, with its event; `visible_at` says from when, or for POISONED since when."""

    state: bounds.DeliveryState
    delivery_count: int
    visible_at: Instant
    event: Any
