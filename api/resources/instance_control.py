"""What operators do to instances: cancel, pause, resume, recover. The rules are the engine's."""

from __future__ import annotations

from msgspec import UNSET

from api.calls import Call, Operation, Reply
from api.models.fields import revision_number
from api.models.instance_control import (
    CancelInstance,
    InstanceControlResult,
    InstanceRecovery,
    PauseInstance,
    RecoverInstance,
    RecoveryResult,
    ResumeInstance,
)
from api.resources.recovery import evidence_read
from engine.control import MISSING, Controls, Order
from engine.recover import Decision, Recoveries
from engine.states import Action
from orbit.access import Scope
from orbit.errors import InvalidRequest, PayloadTooLarge
from orbit.jsontext import parse
from pulse.limits import OUTPUT_BYTES_MAX


class InstanceControl:
    """The commands to one instance."""

    def __init__(self, controls: Controls, recoveries: Recoveries) -> None:
        self._controls = controls
        self._recoveries = recoveries

    def operations(self) -> list[Operation]:
        """Declare the commands."""
        return [
            Operation(
                "POST", "/v1/instances/{instance_id}:cancel", "End an instance as CANCELLED", self.cancel,
                Scope.INSTANCES_CONTROL, InstanceControlResult, CancelInstance, keyed=True,
            ),
            Operation(
                "POST", "/v1/instances/{instance_id}:pause", "Let nothing of an instance begin any more", self.pause,
                Scope.INSTANCES_CONTROL, InstanceControlResult, PauseInstance, keyed=True,
            ),
            Operation(
                "POST", "/v1/instances/{instance_id}:resume", "Let a paused instance go on", self.resume,
                Scope.INSTANCES_CONTROL, InstanceControlResult, ResumeInstance, keyed=True,
            ),
            Operation(
                "POST", "/v1/instances/{instance_id}:recover", "Decide about what waits for a person",
                self.recover, Scope.INSTANCES_RECOVER, RecoveryResult, RecoverInstance, keyed=True,
            ),
            Operation(
                "GET", "/v1/instances/{instance_id}/recoveries", "List what people have decided, in order",
                self.recoveries, Scope.INSTANCES_READ, InstanceRecovery, is_page=True,
            ),
        ]  # fmt: skip

    def cancel(self, call: Call) -> Reply:
        """Cancel an instance."""
        body = call.model(CancelInstance)
        order = order_of(call, "instance.cancel", reason=body.reason, expected_revision=body.expected_revision)
        done = self._controls.instance_cancel(order, compensate=bool(body.compensate))
        return call.receipt(done, creates=False)

    def pause(self, call: Call) -> Reply:
        """Pause an instance."""
        body = call.model(PauseInstance)
        order = order_of(call, "instance.pause", reason=body.reason, expected_revision=body.expected_revision)
        return call.receipt(self._controls.instance_pause(order), creates=False)

    def resume(self, call: Call) -> Reply:
        """Resume an instance."""
        body = call.model(ResumeInstance)
        order = order_of(call, "instance.resume", reason=body.reason, expected_revision=body.expected_revision)
        return call.receipt(self._controls.instance_resume(order), creates=False)

    def recover(self, call: Call) -> Reply:
        """Recover an instance, or say what that would do."""
        body = call.model(RecoverInstance)
        output = None if body.output is UNSET else bytes(body.output)
        if output is not None and body.action != Action.COMPLETE:
            raise InvalidRequest("only COMPLETE has an output", pointer="/output")
        if output is not None and len(output) > OUTPUT_BYTES_MAX:
            message = f"an output may have {OUTPUT_BYTES_MAX} bytes"
            raise PayloadTooLarge(message, pointer="/output")
        decision = Decision(
            order=order_of(call, "instance.recover", reason=body.reason, expected_revision=body.expected_revision),
            action=Action(body.action),
            step=body.step,
            evidence=evidence_read(body.evidence),
            output=None if output is None else parse(output),
            safety_statement=body.safety_statement,
            is_dry_run=bool(body.dry_run),
        )
        return call.receipt(self._recoveries.instance_recover(decision), creates=False)

    def recoveries(self, call: Call) -> Reply:
        """List the decisions about an instance."""
        instance_id = call.path_id("instance_id", message=MISSING)
        return call.page(self._recoveries.recoveries_list(call.namespace_id, instance_id), None)


def order_of(call: Call, operation: str, *, reason: str, expected_revision: str | None) -> Order:
    """Read an operator's command to the instance in the path."""
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
