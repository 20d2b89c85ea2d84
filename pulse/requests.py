"""What a caller may ask of the task layer, with the defaults and checks that need the clock.

The shape and the ranges of single fields are checked where a request comes in; what depends on the database's clock is
checked here, under the transaction that accepts the task.
"""

from __future__ import annotations

from msgspec import Struct

from orbit.clock import Micros
from orbit.errors import InvalidRequest
from pulse import limits
from pulse.listener import TaskOwner


class RetryPolicy(Struct, frozen=True):
    """How often and how fast a task is tried again; spans in microseconds."""

    attempts_max: int = limits.ATTEMPTS_DEFAULT
    backoff_micros: Micros = limits.BACKOFF_MICROS_DEFAULT
    backoff_micros_max: Micros = limits.BACKOFF_MICROS_CAP_DEFAULT


class TaskRequest(Struct, frozen=True, kw_only=True):
    """One task as asked for. Instants and spans in microseconds; `params` is JSON text as it was sent.

    `queue` is the queue's name. `available_at` and `delay_micros` exclude each other. `owner` is set for a workflow's
    tasks only. `task_id` is given by callers that must know it before (the engine); else one is minted.
    `retry_of`, `operation_id` and `fencing_base` continue the line of an ended task. `gate_id` is its owner's instance.
    """

    namespace_id: bytes
    queue: str
    type: str
    version: int
    params: bytes
    params_version: str = "1"
    available_at: Micros | None = None
    delay_micros: Micros | None = None
    start_deadline_at: Micros | None = None
    start_within_micros: Micros | None = None
    deadline_at: Micros | None = None
    deadline_micros: Micros = limits.DEADLINE_MICROS_DEFAULT
    attempt_timeout_micros: Micros = limits.ATTEMPT_TIMEOUT_MICROS_DEFAULT
    priority: int = limits.PRIORITY_DEFAULT
    retry: RetryPolicy = RetryPolicy()
    business_key: str | None = None
    labels: str | None = None
    concurrency_keys: tuple[str, ...] = ()
    fairness_key: str | None = None
    derived_from: bytes | None = None
    traceparent: str | None = None
    owner: TaskOwner | None = None
    gate_id: bytes | None = None
    retry_of: bytes | None = None
    operation_id: bytes | None = None
    fencing_base: int = 0
    task_id: bytes | None = None


class Times(Struct, frozen=True):
    """A request's instants once the clock is known."""

    available_at: Micros
    start_deadline_at: Micros | None
    deadline_at: Micros


def times_of(request: TaskRequest, *, now: Micros) -> Times:
    """Resolve a request's times; raises InvalidRequest naming the field that has already passed."""
    if request.available_at is not None and request.available_at < now - limits.PAST_TOLERANCE_MICROS:
        message = "available_at is more than 60 s in the past"
        raise InvalidRequest(message, pointer="/available_at")
    if request.start_deadline_at is not None and request.start_deadline_at <= now:
        message = "start_deadline_at has passed"
        raise InvalidRequest(message, pointer="/start_deadline_at")
    if request.deadline_at is not None and request.deadline_at <= now:
        message = "deadline_at has passed"
        raise InvalidRequest(message, pointer="/deadline_at")
    available_at = request.available_at if request.available_at is not None else now + (request.delay_micros or 0)
    deadline_at = (
        request.deadline_at if request.deadline_at is not None else max(now, available_at) + request.deadline_micros
    )
    if deadline_at > now + limits.DEADLINE_MICROS_MAX:
        message = "deadline_at is more than 400 days ahead"
        raise InvalidRequest(message, pointer="/deadline_at")
    if available_at >= deadline_at:
        message = "available_at is not before the task's deadline"
        raise InvalidRequest(message, pointer="/available_at")
    start_deadline_at = request.start_deadline_at
    if start_deadline_at is None and request.start_within_micros is not None:
        start_deadline_at = available_at + request.start_within_micros
    return Times(available_at, start_deadline_at, deadline_at)
