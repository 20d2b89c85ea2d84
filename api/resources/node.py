"""The node's own resources: is the process up, can it work, what does it count, what does it offer.

They need no credential, so they tell nothing of any namespace: `/metrics` has counts only, no names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from api.calls import Call, Operation, Reply
from api.models.answers import Health
from orbit.errors import OrbitError, Unavailable
from orbit.jsontext import Json, dumps
from orbit.metrics import Metrics


@dataclass(slots=True)
class NodeState:
    """Whether this node takes work; `draining` is set once and stays."""

    draining: bool = False


class NodeResource:
    """`/healthz`, `/readyz`, `/metrics` and `/openapi.json`."""

    def __init__(
        self,
        state: NodeState,
        metrics: Metrics,
        *,
        probe: Callable[[], None],
        collectors: Callable[[], Iterable[Collector]],
    ) -> None:
        self._state = state
        self._metrics = metrics
        self._probe = probe
        self._collectors = collectors
        self._document = b"{}"

    def operations(self) -> list[Operation]:
        """Declare the four."""
        return [
            Operation("GET", "/healthz", "Whether the process is up", self.health, None, Health),
            Operation("GET", "/readyz", "Whether the node can work: database, schema, not draining", self.ready, None,
                      Health),
            Operation("GET", "/metrics", "Metrics in Prometheus' text form", self.metrics, None),
            Operation("GET", "/openapi.json", "This document", self.document, None),
        ]  # fmt: skip

    def publish(self, document: Json) -> None:
        """Set the OpenAPI document, which is made once all operations are known."""
        self._document = dumps(document)

    def health(self, call: Call) -> Reply:
        """Say that the process answers."""
        return call.data({"status": "ok"})

    def ready(self, call: Call) -> Reply:
        """Say that the node can work; raises Unavailable while it drains or its database is away."""
        if self._state.draining:
            raise Unavailable("this node is shutting down")
        self._probe()
        return call.data({"status": "ok"})

    def metrics(self, _call: Call) -> Reply:
        """Write the metrics; what needs the database is left out while that is away."""
        try:
            body = self._metrics.text(self._collectors())
        except OrbitError:
            body = self._metrics.text()
        return Reply(body, content_type=CONTENT_TYPE_LATEST)

    def document(self, _call: Call) -> Reply:
        """Return the OpenAPI document."""
        return Reply(self._document)
