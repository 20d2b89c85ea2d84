"""What one revision of a schedule says: when, what is made, and by which policies. Stored whole, never changed.

The payload (params of a task, input of an instance) stands beside it, as the bytes that were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from orbit.clock import SECOND, Micros, to_rfc3339
from pulse import limits
from pulse.requests import RetryWish, TaskRequest
from pulse.schedules.policy import Misfire, MisfirePolicy, Overlap
from pulse.schedules.rules import TimeRule, points
from pulse.schedules.zones import HORIZON

if TYPE_CHECKING:
    from orbit.jsontext import Json


class TaskTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task that each firing makes; spans in microseconds, counted from the firing. `labels` is JSON text."""

    queue: str
    type: str
    version: int
    params_version: str = "1"
    priority: int = limits.PRIORITY_DEFAULT
    retry: RetryWish | None = None
    attempt_timeout_micros: Micros | None = None
    start_within_micros: Micros | None = None
    deadline_micros: Micros | None = None
    business_key: str | None = None
    labels: str | None = None
    concurrency_keys: tuple[str, ...] = ()
    fairness_key: str | None = None


class InstanceTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The workflow that each firing starts an instance of; `version` None is the default one at that time."""

    workflow: str
    version: int | None = None
    business_key: str | None = None
    labels: dict[str, str] = {}


class Content(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One configuration. Either `task` or `instance` is set."""

    name: str
    rule: TimeRule
    misfire: Misfire
    overlap: Overlap
    task: TaskTarget | None = None
    instance: InstanceTarget | None = None

    def text(self) -> str:
        """Write it as it is stored."""
        return msgspec.json.encode(self).decode()


_decoder = msgspec.json.Decoder(Content)


def content_read(text: str) -> Content:
    """Read what `Content.text` has written."""
    return _decoder.decode(text)


class Revision(Struct, frozen=True, kw_only=True):
    """A configuration with its number, the instant from which it holds, and with whose rights it acts."""

    number: int
    effective_at: Micros
    content: Content
    payload: bytes
    credential_id: bytes
    queues: frozenset[str] | None


class Era(Struct, frozen=True):
    """A stretch of time in which one revision holds: from an instant on, before another."""

    revision: Revision
    begin: Micros
    end: Micros


def eras_of(revisions: Sequence[Revision]) -> list[Era]:
    """Lay revisions out in time, in order: each holds from its boundary on, until one made later takes over."""
    eras: list[Era] = []
    end = HORIZON
    for revision in sorted(revisions, key=lambda each: each.number, reverse=True):
        if revision.effective_at < end:
            eras.append(Era(revision, revision.effective_at, end))
            end = revision.effective_at
    eras.reverse()
    return eras


def era_points(eras: Sequence[Era], start: Micros) -> Iterator[tuple[Micros, Revision]]:
    """Enumerate instants from `start` on, each with the revision that it follows."""
    return merge(*(_of_era(era, start) for era in eras), key=lambda each: each[0])


def _of_era(era: Era, start: Micros) -> Iterator[tuple[Micros, Revision]]:
    for at in points(era.revision.content.rule, max(start, era.begin), era.end):
        yield at, era.revision


def task_request(revision: Revision, scheduled_at: Micros, *, namespace_id: bytes, schedule_id: bytes) -> TaskRequest:
    """Make the request of one firing's task."""
    target = revision.content.task
    assert target is not None, "the revision makes tasks"
    return TaskRequest(
        namespace_id=namespace_id,
        queue=target.queue,
        type=target.type,
        version=target.version,
        params=revision.payload,
        params_version=target.params_version,
        priority=target.priority,
        retry=target.retry,
        attempt_timeout_micros=target.attempt_timeout_micros,
        start_within_micros=target.start_within_micros,
        deadline_micros=target.deadline_micros,
        business_key=target.business_key,
        labels=target.labels,
        concurrency_keys=target.concurrency_keys,
        fairness_key=target.fairness_key,
        schedule_id=schedule_id,
        scheduled_at=scheduled_at,
    )


def content_json(content: Content, payload: Json) -> dict[str, Json]:
    """Write a configuration as the API shows it, and as it may be sent again; `payload` is what may be shown of it."""
    rule, misfire, overlap = content.rule, content.misfire, content.overlap
    policy: dict[str, Json] = {"policy": misfire.policy}
    if misfire.policy is MisfirePolicy.CATCH_UP:
        assert misfire.max_age_micros is not None
        policy |= {
            "max_count": misfire.max_count,
            "max_age_seconds": misfire.max_age_micros / SECOND,
            "rate_per_second": misfire.rate_per_second,
        }
    return {
        "name": content.name,
        "cron": rule.cron,
        "timezone": rule.timezone,
        "every_seconds": _seconds(rule.every_micros),
        "anchor_at": _instant(rule.anchor_at),
        "starts_at": _instant(rule.starts_at),
        "ends_at": _instant(rule.ends_at),
        "misfire": policy,
        "misfire_grace_seconds": misfire.grace_micros / SECOND,
        "overlap": {"policy": overlap.policy}
        | ({} if overlap.max_backlog is None else {"max_backlog": overlap.max_backlog}),
        "task": None if content.task is None else _task_json(content.task, payload),
        "workflow": None if content.instance is None else _instance_json(content.instance, payload),
    }


def _task_json(target: TaskTarget, params: Json) -> dict[str, Json]:
    retry = target.retry
    return {
        "queue": target.queue,
        "type": target.type,
        "version": target.version,
        "params": params,
        "params_version": target.params_version,
        "priority": target.priority,
        "retry": None
        if retry is None
        else {
            "max_attempts": retry.attempts_max,
            "backoff_seconds": _seconds(retry.backoff_micros),
            "backoff_seconds_max": _seconds(retry.backoff_micros_max),
        },
        "attempt_timeout_seconds": _seconds(target.attempt_timeout_micros),
        "start_within_seconds": _seconds(target.start_within_micros),
        "deadline_seconds": _seconds(target.deadline_micros),
        "business_key": target.business_key,
        "labels": {} if target.labels is None else json.loads(target.labels),
        "concurrency_keys": list(target.concurrency_keys),
        "fairness_key": target.fairness_key,
    }


def _instance_json(target: InstanceTarget, value: Json) -> dict[str, Json]:
    return {
        "workflow": target.workflow,
        "version": target.version,
        "input": value,
        "business_key": target.business_key,
        "labels": dict(target.labels),
    }


def _seconds(span: Micros | None) -> float | None:
    return None if span is None else span / SECOND


def _instant(at: Micros | None) -> str | None:
    return None if at is None else to_rfc3339(at)
