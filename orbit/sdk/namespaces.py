"""What the client can do with its own namespace: read and set the limit of running instances."""

from __future__ import annotations

from msgspec import Struct

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls


class Namespace(Struct, frozen=True, kw_only=True):
    """The limit (None: there is none), and how many unfinished instances it counts; revision 0 was never set."""

    max_running: int | None = None
    running: int = 0
    revision: int = 0


class NamespaceResult(Struct, frozen=True, kw_only=True):
    """The receipt of a configuration."""

    deduplicated: bool = False
    namespace: Namespace = Namespace()


class NamespaceCalls(Calls):
    """The part of `orbit.Client` that is about the namespace."""

    def get_namespace(self) -> Namespace:
        """Read the limit of the credential's namespace."""
        return models.read(self._read("/v1/namespace", "get_namespace").data, Namespace)

    def configure_namespace(
        self, key: str, *, max_running: int | None, expected_revision: int, reason: str
    ) -> NamespaceResult:
        """Set the limit of running instances, None for none. Raises APIError STATE_CONFLICT at another revision."""
        body = {"expected_revision": str(expected_revision), "reason": reason}
        content = jsontext.dumps(body if max_running is None else body | {"max_running": max_running})
        return models.read(self._write("/v1/namespace:configure", "configure_namespace", key, content), NamespaceResult)
