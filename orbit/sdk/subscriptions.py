"""What the client can do with events: list them, subscribe to them, pull and acknowledge deliveries.

The consumer's own calls take no idempotency key: a token says which delivery is meant, and the same again is harmless.
A pull whose answer was lost has handed its deliveries out all the same; they come again when their time is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.subscription_models import (
    ConfigureSubscription,
    CreateSubscription,
    Delivery,
    Event,
    PullResult,
    ReplayResult,
    Subscription,
    SubscriptionResult,
    TokenResult,
    TokenResults,
)
from orbit.sdk.transport import Exchange


class SubscriptionCalls(Calls):
    """The part of `orbit.Client` that is about events and subscriptions."""

    def list_events(self, **query: str | int) -> Iterator[Event]:
        """List events, newest first, by `type`, `subject_id`, `created_after`, `created_before`."""
        return self._pages("/v1/events", "list_events", query, Event)

    def create_subscription(self, key: str, request: CreateSubscription) -> SubscriptionResult:
        """Subscribe: every event from the answer's `effective_at` on is delivered."""
        data = self._write("/v1/subscriptions", "create_subscription", key, request.body())
        return models.read(data, SubscriptionResult)

    def get_subscription(self, subscription_id: str) -> Subscription:
        """Read a subscription, with its backlog as it was counted within the last seconds."""
        return models.read(self._read(_path(subscription_id), "get_subscription").data, Subscription)

    def list_subscriptions(self) -> Iterator[Subscription]:
        """List the subscriptions in range, by name."""
        return self._pages("/v1/subscriptions", "list_subscriptions", {}, Subscription)

    def configure_subscription(
        self, subscription_id: str, key: str, request: ConfigureSubscription
    ) -> SubscriptionResult:
        """Replace all filters and bounds. Raises APIError STATE_CONFLICT if `expected_revision` is stale."""
        data = self._write(f"{_path(subscription_id)}:configure", "configure_subscription", key, request.body())
        return models.read(data, SubscriptionResult)

    def resume_subscription(
        self, subscription_id: str, key: str, *, expected_revision: int, reason: str
    ) -> SubscriptionResult:
        """Let an OVERFLOWED subscription read on where it stopped."""
        body = _change(expected_revision, reason)
        data = self._write(f"{_path(subscription_id)}:resume", "resume_subscription", key, body)
        return models.read(data, SubscriptionResult)

    def delete_subscription(
        self, subscription_id: str, key: str, *, expected_revision: int, reason: str
    ) -> SubscriptionResult:
        """Delete a subscription with all its deliveries."""
        body = _change(expected_revision, reason)
        data = self._write(f"{_path(subscription_id)}:delete", "delete_subscription", key, body)
        return models.read(data, SubscriptionResult)

    def pull(self, subscription_id: str, *, limit: int = 10, wait_seconds: float = 0.0) -> list[Delivery]:
        """Get up to `limit` deliveries; with none there wait for some, `wait_seconds` (at most 30)."""
        content = {"max": limit, "wait_seconds": wait_seconds}
        data = self._send(subscription_id, "pull", content, wait_seconds=wait_seconds)
        return models.read(data, PullResult).deliveries

    def ack(self, subscription_id: str, tokens: Sequence[str]) -> list[TokenResult]:
        """Say that deliveries are done; one result for each token, in order."""
        return models.read(self._send(subscription_id, "ack", {"tokens": list(tokens)}), TokenResults).items

    def extend(self, subscription_id: str, tokens: Sequence[str], *, visibility_seconds: float) -> list[TokenResult]:
        """Hide deliveries for so long from now; 0 gives them back at once."""
        content = {"tokens": list(tokens), "visibility_seconds": visibility_seconds}
        return models.read(self._send(subscription_id, "extend", content), TokenResults).items

    def replay(self, subscription_id: str, event_ids: Sequence[str] | None = None) -> ReplayResult:
        """Let POISONED deliveries come again: those of these events, or as many as one call may."""
        content = {} if event_ids is None else {"event_ids": list(event_ids)}
        return models.read(self._send(subscription_id, "replay", content), ReplayResult)

    def list_deliveries(self, subscription_id: str, **query: str | int) -> Iterator[Delivery]:
        """List deliveries that wait: POISONED ones, or those of another `state` (PENDING, LAST)."""
        return self._pages(f"{_path(subscription_id)}/deliveries", "list_deliveries", query, Delivery)

    def _send(self, subscription_id: str, operation: str, content: dict[str, Any], *, wait_seconds: float = 0.0) -> Any:
        body = jsontext.dumps(content)
        path = f"{_path(subscription_id)}:{operation}"
        return self._transport.send(Exchange("POST", path, operation, body=body, wait_seconds=wait_seconds)).data


def _path(subscription_id: str) -> str:
    return f"/v1/subscriptions/{segment(subscription_id)}"


def _change(expected_revision: int, reason: str) -> bytes:
    return jsontext.dumps({"expected_revision": str(expected_revision), "reason": reason})
