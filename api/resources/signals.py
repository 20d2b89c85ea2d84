"""Signals: to an instance, or to whatever instance of a workflow has a business key. The rules are the engine's."""

from __future__ import annotations

from msgspec import UNSET

from api.calls import Call, Operation, Reply
from api.models.signals import FirstSignal, SendSignal, Signal, SignalInstance, SignalResult
from api.parameters import BUSINESS_KEY, text_parameter
from engine.control import MISSING
from engine.signalling import LIVES_MICROS_DEFAULT, Message, Sending, Signals
from engine.store.business_keys import BusinessKey
from orbit.access import Scope
from orbit.clock import seconds
from orbit.errors import InvalidRequest
from orbit.jsontext import parse


class SignalResource:
    """The signal resource."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def operations(self) -> list[Operation]:
        """Declare what can be done with signals."""
        return [
            Operation(
                "POST", "/v1/instances/{instance_id}:signal", "Send a signal to an instance", self.to_instance,
                Scope.INSTANCES_SIGNAL, SignalResult, SignalInstance, keyed=True, creates=True,
            ),
            Operation(
                "GET", "/v1/instances/{instance_id}/signals", "List its signals, the earliest first",
                self.of_instance, Scope.INSTANCES_READ, Signal, is_page=True,
            ),
            Operation(
                "POST", "/v1/signals", "Send a signal by workflow and business key", self.to_key,
                Scope.INSTANCES_SIGNAL, SignalResult, SendSignal, keyed=True, creates=True,
            ),
            Operation(
                "GET", "/v1/signals", "List what is kept for a business key that no instance has yet", self.of_key,
                Scope.INSTANCES_READ, Signal, is_page=True,
                query=(text_parameter("workflow", "To this workflow"), BUSINESS_KEY),
            ),
        ]  # fmt: skip

    def to_instance(self, call: Call) -> Reply:
        """Send a signal to an instance."""
        instance_id = call.path_id("instance_id", message=MISSING)
        sending = Sending(
            command=call.command("instance.signal", resource=instance_id.hex()),
            actor=call.actor,
            message=message_read(call.model(SignalInstance), key=call.key),
            instance_id=instance_id,
            queues=call.caller.queues,
        )
        return call.receipt(self._signals.signal_send(sending), creates=True)

    def to_key(self, call: Call) -> Reply:
        """Send a signal by workflow and business key."""
        body = call.model(SendSignal)
        sending = Sending(
            command=call.command("signal.send"),
            actor=call.actor,
            message=message_read(body, key=call.key),
            workflow=body.workflow,
            business_key=body.business_key,
            queues=call.caller.queues,
        )
        return call.receipt(self._signals.signal_send(sending), creates=True)

    def of_instance(self, call: Call) -> Reply:
        """List an instance's signals; their number is bounded, so that they are one page."""
        instance_id = call.path_id("instance_id", message=MISSING)
        return call.page(self._signals.signals_of_instance(call.namespace_id, instance_id), None)

    def of_key(self, call: Call) -> Reply:
        """List what waits for an instance with a business key."""
        workflow = call.query.text("workflow", length_max=128)
        business_key = call.query.text("business_key", length_max=128)
        if workflow is None or business_key is None:
            raise InvalidRequest("this list needs `workflow` and `business_key`")
        key = BusinessKey(call.namespace_id, workflow, business_key)
        return call.page(self._signals.signals_of_key(key), None)


def message_read(body: FirstSignal, *, key: str | None) -> Message:
    """Read what a signal says; who does not name it names it by the command's key."""
    assert key is not None, "the operation is keyed"
    return Message(
        name=body.name,
        payload=None if body.payload is UNSET else parse(bytes(body.payload)),
        signal=body.signal_id or key,
        lives_micros=LIVES_MICROS_DEFAULT if body.ttl_seconds is None else seconds(body.ttl_seconds),
    )
