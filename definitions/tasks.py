"""What a step says about its task, the definition's defaults and the platform's: merged into one `TaskSpec`."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from definitions import limits
from definitions.bounds import Bounds, backoff_seconds_total, executions_total
from definitions.bounds import task as task_bounds
from definitions.graph import RetrySpec, TaskSpec
from definitions.model import RetryModel, TaskModel, TaskOptions
from definitions.template import Template
from definitions.yaml_tree import Scalar

_T = TypeVar("_T")


class Policy(Struct, frozen=True):
    """The numbers in force for one task. Spans in seconds; `timeout` counts from the task's submission."""

    queue: str
    retry: RetrySpec
    attempt_timeout: float
    start_within: float
    timeout: float
    priority: int

    def bounds(self) -> Bounds:
        """Return the bounds of one task with this policy."""
        return task_bounds(
            attempts_max=self.retry.attempts_max,
            start_within_seconds=self.start_within,
            timeout_seconds=self.timeout,
            overrun_seconds=self.attempt_timeout,
        )


def _first(*values: _T | None, default: _T) -> _T:
    for value in values:
        if value is not None:
            return value
    return default


def policy_of(options: TaskOptions, defaults: TaskOptions, *, timeout_max: float | None = None) -> Policy | None:
    """Merge step over defaults over the platform's own; None if no queue is named.

    A time-out that is not written is the time that all attempts can take. `timeout_max` is that of a poll around it.
    """
    queue = options.queue or defaults.queue
    if queue is None:
        return None
    retry = _retry(options.retry, defaults.retry)
    start_within = _first(options.start_within, defaults.start_within, default=limits.START_WITHIN_SECONDS_DEFAULT)
    attempt_timeout = _first(
        options.attempt_timeout, defaults.attempt_timeout, default=limits.ATTEMPT_TIMEOUT_SECONDS_DEFAULT
    )
    gaps = backoff_seconds_total(retry.attempts_max, retry.backoff_seconds, retry.backoff_seconds_max)
    everything = start_within + executions_total(retry.attempts_max) * attempt_timeout + gaps
    timeout = _first(options.timeout, defaults.timeout, default=min(everything, limits.SPAN_SECONDS_MAX))
    if timeout_max is not None:
        timeout = min(timeout, timeout_max)
    return Policy(
        queue=queue,
        retry=retry,
        attempt_timeout=min(attempt_timeout, timeout),
        start_within=min(start_within, timeout),
        timeout=timeout,
        priority=_first(options.priority, defaults.priority, default=limits.PRIORITY_DEFAULT),
    )


def _retry(own: RetryModel, defaults: RetryModel) -> RetrySpec:
    backoff = _first(own.backoff, defaults.backoff, default=limits.BACKOFF_SECONDS_DEFAULT)
    cap = _first(own.max_backoff, defaults.max_backoff, default=limits.BACKOFF_CAP_SECONDS_DEFAULT)
    return RetrySpec(
        attempts_max=_first(own.max_attempts, defaults.max_attempts, default=limits.ATTEMPTS_DEFAULT),
        backoff_seconds=backoff,
        backoff_seconds_max=max(cap, backoff),  # a first gap above the inherited cap raises the cap
    )


def keys_of(options: TaskOptions, defaults: TaskOptions) -> tuple[Scalar, ...]:
    """Return the concurrency keys in force as they are written: a step's own replace those of `defaults`."""
    return _first(options.concurrency_keys, defaults.concurrency_keys, default=())


def spec_of(model: TaskModel, policy: Policy, template: Template, keys: tuple[Template, ...]) -> TaskSpec:
    """Return the task as the engine submits it."""
    assert model.type is not None, "a task without a type has a finding and gets no graph"
    return TaskSpec(
        type=model.type,
        task_version=model.version,
        queue=policy.queue,
        input=template,
        retry=policy.retry,
        attempt_timeout_seconds=policy.attempt_timeout,
        start_within_seconds=policy.start_within,
        timeout_seconds=policy.timeout,
        priority=policy.priority,
        output_schema=model.output_schema,
        concurrency_keys=keys,
    )
