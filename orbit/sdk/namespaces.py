"""What the client can do with its own namespace: read and set its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls
from orbit.sdk.wire import Request


class ConfigureNamespaceRequest(Request, frozen=True, kw_only=True):
    """All limits of the namespace, on top of the revision that was read: of what is left out none, or the default.

    `bounds` limits what one instance may use at most by its definition's proof: `max_tasks`, `max_attempts`,
    `max_rounds`, `max_concurrent_tasks`, `max_stored_bytes`, `max_active_seconds`. What is published stays as it is.
    """

    expected_revision: int
    reason: str
    max_running: int | None = None
    bounds: Mapping[str, int] | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class Namespace(Struct, frozen=True, kw_only=True):
    """The limit (None: there is none), and how many unfinished instances it counts; revision 0 was never set.

    `bounds` are the limits that hold at publish, `bounds_set` names those that the namespace has set itself.
    """

    max_running: int | None = None
    running: int = 0
    revision: int = 0
    bounds: dict[str, int] = field(default_factory=dict)
    bounds_set: list[str] = field(default_factory=list)

    @property
    def own_bounds(self) -> dict[str, int]:
        """The limits of bounds that the namespace has set itself, as a request wants them."""
        return {name: value for name, value in self.bounds.items() if name in self.bounds_set}


class NamespaceResult(Struct, frozen=True, kw_only=True):
    """The receipt of a configuration."""

    deduplicated: bool = False
    namespace: Namespace = Namespace()


class NamespaceCalls(Calls):
    """The part of `orbit.Client` that is about the namespace."""

    def get_namespace(self) -> Namespace:
        """Read the limits of the credential's namespace."""
        return models.read(self._read("/v1/namespace", "get_namespace").data, Namespace)

    def configure_namespace(self, key: str, request: ConfigureNamespaceRequest) -> NamespaceResult:
        """Set the namespace's limits. Raises APIError STATE_CONFLICT at another revision."""
        content = jsontext.dumps(request.content())
        return models.read(self._write("/v1/namespace:configure", "configure_namespace", key, content), NamespaceResult)
