"""What the client can do with concurrency keys, and what it gets about them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.transport import Exchange
from orbit.sdk.wire import Request


class ConfigureKeyRequest(Request, frozen=True, kw_only=True):
    """The limit of a concurrency key, on top of the revision that was read (0: never set); None takes it back."""

    expected_revision: int
    reason: str
    limit: int | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class ConcurrencyKey(Struct, frozen=True, kw_only=True):
    """A concurrency key or pattern: the limit in force, the limit of its own (None: none), who holds it, who waits."""

    key: str = ""
    limit: int = 0
    own_limit: int | None = None
    active: int = 0
    waiting: int = 0
    held_by: list[str] = []
    revision: int = 0


class KeyCalls(Calls):
    """The part of `orbit.Client` that is about concurrency keys."""

    def get_concurrency_key(self, key: str) -> ConcurrencyKey:
        """Read a concurrency key: its limit, which tasks hold it and how many wait."""
        answer = self._read(f"/v1/concurrency-keys/{segment(key)}", "get_concurrency_key")
        return models.read(answer.data, ConcurrencyKey)

    def configure_concurrency_key(self, key: str, request: ConfigureKeyRequest) -> ConcurrencyKey:
        """Set how many tasks may hold a key at once, or with `*` at its end each of the keys that begin so.

        It takes no idempotency key: sent again at the same revision, the same change finds itself done. Raises APIError
        STATE_CONFLICT if `expected_revision` is stale.
        """
        path = f"/v1/concurrency-keys/{segment(key)}"
        exchange = Exchange("PUT", path, "configure_concurrency_key", body=request.body())
        return models.read(self._transport.send(exchange).data, ConcurrencyKey)
