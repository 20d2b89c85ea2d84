"""The caller's namespace: read and set its own limits. How they are kept is the engine's."""

from __future__ import annotations

from msgspec.structs import asdict

from api.calls import Call, Operation, Reply
from api.models.fields import revision_number
from api.models.namespaces import ConfigureNamespace, Namespace, NamespaceResult, NewBoundLimits
from engine.namespace_limits import LimitChange, NamespaceLimits
from orbit.access import Scope


class Namespaces:
    """The namespace resource; a caller has one namespace, so that it has no id here."""

    def __init__(self, limits: NamespaceLimits) -> None:
        self._limits = limits

    def operations(self) -> list[Operation]:
        """Declare what can be done with the caller's namespace."""
        return [
            Operation("GET", "/v1/namespace", "Read the namespace's limits", self.get,
                      Scope.INSTANCES_READ, Namespace),
            Operation(
                "POST", "/v1/namespace:configure", "Replace the namespace's limits",
                self.configure, Scope.QUOTAS_MANAGE, NamespaceResult, ConfigureNamespace, keyed=True,
            ),
        ]  # fmt: skip

    def get(self, call: Call) -> Reply:
        """Read the limits; that tells of all workflows, so the range must be all queues."""
        call.caller.require_all_queues()
        return call.data(self._limits.limit_get(call.namespace_id))

    def configure(self, call: Call) -> Reply:
        """Replace the limits at the revision that the caller has read."""
        call.caller.require_all_queues()
        body = call.model(ConfigureNamespace)
        change = LimitChange(
            max_running=body.max_running,
            expected_revision=revision_number(body.expected_revision, pointer="/expected_revision"),
            reason=body.reason,
            bounds={} if body.bounds is None else _given(body.bounds),
        )
        answer = self._limits.limit_set(call.command("namespace.configure"), call.actor, change)
        return call.receipt(answer, creates=False)


def _given(bounds: NewBoundLimits) -> dict[str, int]:
    return {name: value for name, value in asdict(bounds).items() if value is not None}
