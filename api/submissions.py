"""From a validated body to a request of the task layer: spans, instants, policy and the size of params.

What needs the database's clock is checked by the task layer, under the transaction that accepts the task.
"""

from __future__ import annotations

from msgspec import UNSET

from api.models.tasks import Retry, SubmitTask
from orbit.clock import Micros, from_rfc3339, seconds
from orbit.errors import InvalidRequest, PayloadTooLarge
from orbit.ids import from_hex
from orbit.jsontext import dumps
from pulse import limits
from pulse.requests import RetryWish, TaskRequest

_NULL = b"null"


def task_request(body: SubmitTask, *, namespace_id: bytes, at: str = "") -> TaskRequest:
    """Make the request for one task; `at` is the pointer of its fields within the body.

    Raises InvalidRequest for fields that exclude each other, PayloadTooLarge for params over 64 KiB.
    """
    params = _NULL if body.params is UNSET else bytes(body.params)
    if len(params) > limits.PARAMS_BYTES_MAX:
        message = f"params may have {limits.PARAMS_BYTES_MAX} bytes: keep more elsewhere and pass a reference"
        raise PayloadTooLarge(message, pointer=f"{at}/params")
    if body.available_at is not None and body.delay_seconds is not None:
        message = "available_at and delay_seconds exclude each other"
        raise InvalidRequest(message, pointer=f"{at}/delay_seconds")
    return TaskRequest(
        namespace_id=namespace_id,
        queue=body.queue,
        type=body.type,
        version=body.version,
        params=params,
        params_version="1" if body.params_version is None else body.params_version,
        available_at=_instant(body.available_at, f"{at}/available_at"),
        delay_micros=None if body.delay_seconds is None else seconds(body.delay_seconds),
        start_deadline_at=_instant(body.start_deadline_at, f"{at}/start_deadline_at"),
        deadline_at=_instant(body.deadline_at, f"{at}/deadline_at"),
        attempt_timeout_micros=_span(body.attempt_timeout_seconds),
        priority=limits.PRIORITY_DEFAULT if body.priority is None else body.priority,
        retry=retry_wish(body.retry),
        business_key=body.business_key,
        concurrency_keys=() if body.concurrency_keys is None else tuple(body.concurrency_keys),
        fairness_key=body.fairness_key,
        labels=None if not body.labels else dumps(body.labels).decode(),
        derived_from=None if body.derived_from is None else from_hex(body.derived_from),
        traceparent=body.traceparent,
    )


def _instant(text: str | None, pointer: str) -> Micros | None:
    return None if text is None else from_rfc3339(text, pointer=pointer)


def retry_wish(given: Retry | None) -> RetryWish | None:
    """Read what is said of a retry policy."""
    if given is None:
        return None
    return RetryWish(given.max_attempts, _span(given.backoff_seconds), _span(given.backoff_seconds_max))


def _span(value: float | None) -> Micros | None:
    return None if value is None else seconds(value)
