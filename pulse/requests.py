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


class RetryWish(Struct, frozen=True):
    """What of a retry policy was said; None was not."""

    attempts_max: int | None = None
    backoff_micros: Micros | None = None
    backoff_micros_max: Micros | None = None


class PolicyWish(Struct, frozen=True):
    """What of a policy was said, by a task or by its type; None was not. A whole RetryPolicy is taken as it is."""

    retry: RetryPolicy | RetryWish | None = None
    attempt_timeout_micros: Micros | None = None
    deadline_micros: Micros | None = None


class Policy(Struct, frozen=True):
    """What holds for a task, frozen when it is accepted."""

    retry: RetryPolicy = RetryPolicy()
    attempt_timeout_micros: Micros = limits.ATTEMPT_TIMEOUT_MICROS_DEFAULT
    deadline_micros: Micros = limits.DEADLINE_MICROS_DEFAULT


_DEFAULT = Policy()


def policy_of(said: PolicyWish, by_type: PolicyWish | None = None) -> Policy:
    """Settle a policy: what the task says, else what its type says, else the defaults.

    Raises InvalidRequest for a longest back-off below the first one.
    """
    kind = by_type or PolicyWish()
    timeout, deadline = said.attempt_timeout_micros, said.deadline_micros
    if timeout is None:
        timeout = kind.attempt_timeout_micros or _DEFAULT.attempt_timeout_micros
    if deadline is None:
        deadline = kind.deadline_micros or _DEFAULT.deadline_micros
    return Policy(_retry_of(said.retry, kind.retry), timeout, deadline)


def _retry_of(said: RetryPolicy | RetryWish | None, by_type: RetryPolicy | RetryWish | None) -> RetryPolicy:
    for whole in (said, None if said is not None else by_type):
        if isinstance(whole, RetryPolicy):
            return whole
    wishes = [wish for wish in (said, by_type) if isinstance(wish, RetryWish)]
    attempts = next((wish.attempts_max for wish in wishes if wish.attempts_max is not None), None)
    backoff = next((wish.backoff_micros for wish in wishes if wish.backoff_micros is not None), None)
    longest = next((wish.backoff_micros_max for wish in wishes if wish.backoff_micros_max is not None), None)
    default = _DEFAULT.retry
    first = default.backoff_micros if backoff is None else backoff
    if longest is None:
        longest = max(default.backoff_micros_max, first)
    elif backoff is None:
        first = min(first, longest)
    if longest < first:
        raise InvalidRequest("backoff_seconds_max is below backoff_seconds", pointer="/retry/backoff_seconds_max")
    return RetryPolicy(default.attempts_max if attempts is None else attempts, first, longest)


class TaskRequest(Struct, frozen=True, kw_only=True):
    """One task as asked for. Instants and spans in microseconds; `params` is JSON text as it was sent.

    `queue` is the queue's name. `available_at` and `delay_micros` exclude each other. `owner` is set for a workflow's
    tasks only. `task_id` is given by callers that must know it before (the engine); else one is minted.
    `retry_of`, `operation_id` and `fencing_base` continue the line of an ended task. `gate_id` is its owner's instance.
    What of the policy is None is the registered type's to say. With `type_revision_id` that revision of the type is
    frozen and the params, accepted under it before, are not checked again. `verifies` is the task under review that it
    is to find out about: it is exempt from limits of unfinished tasks. `redact` is a JSON list of masked paths.
    `schedule_id` is the schedule that makes it, for its instant `scheduled_at`.
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
    deadline_micros: Micros | None = None
    attempt_timeout_micros: Micros | None = None
    priority: int = limits.PRIORITY_DEFAULT
    retry: RetryPolicy | RetryWish | None = None
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
    type_revision_id: bytes | None = None
    verifies: bytes | None = None
    redact: str | None = None
    schedule_id: bytes | None = None
    scheduled_at: Micros | None = None

    @property
    def is_silent(self) -> bool:
        """Say whether it leaves its whole policy to its type and the defaults."""
        return self.retry is None and self.attempt_timeout_micros is None and self.deadline_micros is None

    def policy_wish(self) -> PolicyWish:
        """Return what it says of its policy."""
        return PolicyWish(self.retry, self.attempt_timeout_micros, self.deadline_micros)


class Times(Struct, frozen=True):
    """A request's instants once the clock is known."""

    available_at: Micros
    start_deadline_at: Micros | None
    deadline_at: Micros


def times_of(request: TaskRequest, *, deadline_micros: Micros, now: Micros) -> Times:
    """Resolve a request's times; `deadline_micros` is the span to a deadline that it does not name itself.

    Raises InvalidRequest naming the field that has already passed.
    """
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
    deadline_at = request.deadline_at if request.deadline_at is not None else max(now, available_at) + deadline_micros
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
