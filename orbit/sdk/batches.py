"""What the client can do with batches: one decision about many tasks or instances, carried out item by item.

A batch goes on whether or not anybody waits for it; `batch_result` only looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.batch_models import (
    Batch,
    BatchEntry,
    BatchPreview,
    BatchReceipt,
    CreateBatch,
    InstanceSelection,
    TaskSelection,
)
from orbit.sdk.calls import Calls, segment
from orbit.sdk.errors import APIError, ConnectionFailed
from orbit.sdk.transport import Exchange

LOOK_SECONDS = 0.5


class BatchCalls(Calls):
    """The part of `orbit.Client` that is about batches."""

    def preview_batch(self, operation: str, selection: TaskSelection | InstanceSelection) -> BatchPreview:
        """Say what a batch would be about; nothing is changed."""
        about = "tasks" if isinstance(selection, TaskSelection) else "instances"
        body = jsontext.dumps({"operation": operation, about: selection.content()})
        exchange = Exchange("POST", "/v1/batches:preview", "preview_batch", body=body)
        return models.read(self._transport.send(exchange).data, BatchPreview)

    def create_batch(self, key: str, request: CreateBatch) -> BatchReceipt:
        """Decide about many tasks or instances; each is decided on its own, no faster than the rate."""
        return models.read(self._write("/v1/batches", "create_batch", key, request.body()), BatchReceipt)

    def get_batch(self, batch_id: str) -> Batch:
        """Read a batch and how far it is."""
        return models.read(self._read(f"/v1/batches/{segment(batch_id)}", "get_batch").data, Batch)

    def list_batches(self) -> Iterator[Batch]:
        """List batches, newest first."""
        return self._pages("/v1/batches", "list_batches", {}, Batch)

    def batch_items(self, batch_id: str, **query: str) -> Iterator[BatchEntry]:
        """List a batch's items in order, with what came of each; `state` narrows them."""
        return self._pages(f"/v1/batches/{segment(batch_id)}/items", "batch_items", query, BatchEntry)

    def batch_result(
        self,
        batch_id: str,
        on_progress: Callable[[Batch], None] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Batch:
        """Wait until a batch has ended and return it; tell how far it is each time that this changes.

        A server that is away for a moment is asked again. Raises TimeoutError when the batch has not ended in time;
        None waits for ever.
        """
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        pause = threading.Event()
        seen: Batch | None = None
        while True:
            try:
                batch = self.get_batch(batch_id)
            except (ConnectionFailed, APIError) as error:
                is_passing = not isinstance(error, APIError) or error.code == "UNAVAILABLE"
                if not is_passing or _is_over(until):
                    raise
            else:
                if on_progress is not None and (seen is None or seen.items != batch.items or batch.is_finished):
                    on_progress(batch)
                seen = batch
                if batch.is_finished:
                    return batch
            if _is_over(until):
                state = "not reached" if seen is None else seen.state
                raise TimeoutError(f"batch {batch_id} is {state}, not ended within {timeout_seconds:g} s")
            pause.wait(LOOK_SECONDS)

    def stop_batch(self, batch_id: str, key: str, *, reason: str) -> BatchReceipt:
        """Stop a batch before its next item. Raises APIError STATE_CONFLICT if it has ended."""
        path = f"/v1/batches/{segment(batch_id)}:stop"
        return models.read(self._write(path, "stop_batch", key, jsontext.dumps({"reason": reason})), BatchReceipt)


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until
