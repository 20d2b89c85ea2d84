"""What the client can do with signals."""

from __future__ import annotations

from collections.abc import Iterator

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.signal_models import SendSignal, Signal, SignalResult


class SignalCalls(Calls):
    """The part of `orbit.Client` that is about signals."""

    def signal_instance(self, instance_id: str, key: str, request: SendSignal) -> SignalResult:
        """Send a signal to an instance: a wait takes it now, or when it is reached.

        Raises APIError STATE_CONFLICT for one that has ended, INVALID_REQUEST for what none of its waits could take.
        """
        path = f"/v1/instances/{segment(instance_id)}:signal"
        return models.read(self._write(path, "signal_instance", key, request.body()), SignalResult)

    def send_signal(self, workflow: str, business_key: str, key: str, request: SendSignal) -> SignalResult:
        """Send a signal to the instance of a workflow that has a business key, or to the next one that will.

        Raises APIError STATE_CONFLICT if several unfinished instances have the key.
        """
        body = jsontext.dumps({**request.content(), "workflow": workflow, "business_key": business_key})
        return models.read(self._write("/v1/signals", "send_signal", key, body), SignalResult)

    def instance_signals(self, instance_id: str) -> Iterator[Signal]:
        """List an instance's signals, the earliest first: kept, taken, expired or left over."""
        return self._pages(f"/v1/instances/{segment(instance_id)}/signals", "instance_signals", {}, Signal)

    def kept_signals(self, workflow: str, business_key: str) -> Iterator[Signal]:
        """List the signals that wait for an instance with a business key."""
        query: dict[str, str | int] = {"workflow": workflow, "business_key": business_key}
        return self._pages("/v1/signals", "kept_signals", query, Signal)
