"""The caller's namespace: read and set its own limit of running instances. How it is kept is the engine's."""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.fields import revision_number
from api.models.namespaces import ConfigureNamespace, Namespace, NamespaceResult
from engine.namespace_limits import LimitChange, NamespaceLimits
from orbit.access import Scope


class Namespaces:
    """The namespace resource; a caller has one namespace, so that it has no id here."""

    def __init__(self, limits: NamespaceLimits) -> None:
        self._limits = limits

    def operations(self) -> list[Operation]:
        """Declare what can be done with the caller's namespace."""
        return [
            Operation("GET", "/v1/namespace", "Read the namespace's limit of running instances", self.get,
                      Scope.INSTANCES_READ, Namespace),
            Operation(
                "POST", "/v1/namespace:configure", "Replace the namespace's limit of running instances",
                self.configure, Scope.QUOTAS_MANAGE, NamespaceResult, ConfigureNamespace, keyed=True,
            ),
        ]  # fmt: skip

    def get(self, call: Call) -> Reply:
        """Read the limit; it tells of all workflows, so the range must be all queues."""
        call.caller.require_all_queues()
        return call.data(self._limits.limit_get(call.namespace_id))

    def configure(self, call: Call) -> Reply:
        """Replace the limit at the revision that the caller has read."""
        call.caller.require_all_queues()
        body = call.model(ConfigureNamespace)
        change = LimitChange(
            max_running=body.max_running,
            expected_revision=revision_number(body.expected_revision, pointer="/expected_revision"),
            reason=body.reason,
        )
        answer = self._limits.limit_set(call.command("namespace.configure"), call.actor, change)
        return call.receipt(answer, creates=False)
