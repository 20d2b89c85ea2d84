"""What the client sends and gets of schedules."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from orbit.sdk.type_models import Retry
from orbit.sdk.wire import Request


class MisfireRule(Request, frozen=True, kw_only=True):
    """What becomes of missed instants: SKIP, COALESCE, or CATCH_UP with its three bounds."""

    policy: str
    max_count: int | None = None
    max_age_seconds: float | None = None
    rate_per_second: float | None = None


class OverlapRule(Request, frozen=True, kw_only=True):
    """What becomes of a firing while the one before is not over: ALLOW, SKIP, or QUEUE with `max_backlog`."""

    policy: str
    max_backlog: int | None = None


class ScheduledTask(Request, frozen=True, kw_only=True):
    """The task that each firing makes; spans count from the firing."""

    queue: str
    type: str
    version: int
    params: Any = UNSET
    params_version: str | None = None
    priority: int | None = None
    retry: Retry | None = None
    attempt_timeout_seconds: float | None = None
    start_within_seconds: float | None = None
    deadline_seconds: float | None = None
    business_key: str | None = None
    concurrency_keys: list[str] | None = None
    fairness_key: str | None = None
    labels: dict[str, str] | None = None


class ScheduledWorkflow(Request, frozen=True, kw_only=True):
    """The workflow that each firing starts; without `version` its default one at that time."""

    workflow: str
    version: int | None = None
    input: Any = UNSET
    business_key: str | None = None
    labels: dict[str, str] | None = None


class ScheduleConfiguration(Request, frozen=True, kw_only=True):
    """All that a schedule is told: `cron` with `timezone` or `every_seconds`, both policies, `task` or `workflow`."""

    name: str
    misfire: MisfireRule
    overlap: OverlapRule
    task: ScheduledTask | None = None
    workflow: ScheduledWorkflow | None = None
    cron: str | None = None
    timezone: str | None = None
    every_seconds: float | None = None
    anchor_at: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    misfire_grace_seconds: float | None = None


class CreateSchedule(Request, frozen=True, kw_only=True):
    """A new schedule; `configuration` may also be one that was read, as it is or changed."""

    configuration: ScheduleConfiguration | dict[str, Any]
    paused: bool | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields, those of the configuration among them."""
        return _beside(super().content())


class ConfigureSchedule(Request, frozen=True, kw_only=True):
    """A new revision of a schedule, the whole of it, for instants from `effective_at` on (default now)."""

    configuration: ScheduleConfiguration | dict[str, Any]
    expected_revision: int
    reason: str
    effective_at: str | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields, those of the configuration among them; the revision travels as a decimal string."""
        return _beside(super().content()) | {"expected_revision": str(self.expected_revision)}


def _beside(content: dict[str, Any]) -> dict[str, Any]:
    configuration: dict[str, Any] = content.pop("configuration")
    return configuration | content


class PreviewSchedule(Request, frozen=True, kw_only=True):
    """When something would fire: a rule, an existing schedule, or that one with a rule from `effective_at` on."""

    schedule_id: str | None = None
    cron: str | None = None
    timezone: str | None = None
    every_seconds: float | None = None
    anchor_at: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    effective_at: str | None = None
    after: str | None = None
    count: int | None = None


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule; `configuration` is that of its newest revision, as it may be changed and sent again."""

    id: str = ""
    state: str = ""
    stop_reason: dict[str, Any] | None = None
    revision: int = 0
    schedule_revision: int = 0
    next_at: str | None = None
    backlog: int = 0
    latest: dict[str, Any] | None = None
    created_at: str = ""
    configuration: dict[str, Any] = {}


class ScheduleResult(Struct, frozen=True, kw_only=True):
    """The receipt of a creation or change: the schedule as it was at that moment."""

    deduplicated: bool = False
    schedule: Schedule = Schedule()


class Firing(Struct, frozen=True, kw_only=True):
    """A firing, or a range of `count` instants that were skipped or merged."""

    id: str = ""
    scheduled_at: str = ""
    last_at: str = ""
    count: int = 0
    schedule_revision: int = 0
    state: str = ""
    reason: str | None = None
    error: dict[str, Any] | None = None
    task_id: str | None = None
    instance_id: str | None = None
    recorded_at: str = ""
    fired_at: str | None = None


class Point(Struct, frozen=True, kw_only=True):
    """An instant of a preview; `local` is what clocks in its zone show, None for a fixed rate."""

    scheduled_at: str = ""
    local: str | None = None
    schedule_revision: int | None = None


class Preview(Struct, frozen=True, kw_only=True):
    """The next instants, in order."""

    points: list[Point] = []
