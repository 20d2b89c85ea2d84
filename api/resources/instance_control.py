"""What operators do to instances: cancel. The rules are the engine's."""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.fields import revision_number
from api.models.instance_control import CancelInstance, InstanceControlResult
from engine.control import MISSING, Controls, Order
from orbit.access import Scope


class InstanceControl:
    """The commands to one instance."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def operations(self) -> list[Operation]:
        """Declare the commands."""
        return [
            Operation(
                "POST", "/v1/instances/{instance_id}:cancel", "End an instance as CANCELLED", self.cancel,
                Scope.INSTANCES_CONTROL, InstanceControlResult, CancelInstance, keyed=True,
            ),
        ]  # fmt: skip

    def cancel(self, call: Call) -> Reply:
        """Cancel an instance."""
        body = call.model(CancelInstance)
        order = _order(call, "instance.cancel", reason=body.reason, expected_revision=body.expected_revision)
        return call.receipt(self._controls.instance_cancel(order), creates=False)


def _order(call: Call, operation: str, *, reason: str, expected_revision: str | None) -> Order:
    instance_id = call.path_id("instance_id", message=MISSING)
    revision = None
    if expected_revision is not None:
        revision = revision_number(expected_revision, pointer="/expected_revision")
    return Order(
        command=call.command(operation, resource=instance_id.hex()),
        actor=call.actor,
        instance_id=instance_id,
        reason=reason,
        expected_revision=revision,
        queues=call.caller.queues,
    )
