"""Requests and answers of schedules: when something is made, what, and what becomes of instants that were missed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.fields import (
    AttemptTimeoutSeconds,
    BusinessKey,
    ConcurrencyKey,
    Count,
    FairnessKey,
    HexId,
    Instant,
    Labels,
    Name,
    Priority,
    Reason,
    Request,
    Revision,
    TaskVersion,
    raw_schema,
)
from api.models.tasks import Retry
from orbit.clock import SECOND
from pulse import limits
from pulse.schedules.cron import EXPRESSION_LENGTH_MAX
from pulse.schedules.rules import EVERY_MICROS_MAX, EVERY_MICROS_MIN

_DAYS_MAX = limits.DEADLINE_MICROS_MAX // SECOND
Cron = Annotated[
    str,
    Meta(
        max_length=EXPRESSION_LENGTH_MAX,
        description="Five fields: minute, hour, day of month, month, day of week",
    ),
]
Timezone = Annotated[str, Meta(max_length=64, description="An IANA time zone, such as Europe/Berlin or UTC")]
EverySeconds = Annotated[
    float,
    Meta(
        ge=EVERY_MICROS_MIN // SECOND,
        le=EVERY_MICROS_MAX // SECOND,
        description="Time between two instants, counted from the anchor",
    ),
]
Span = Annotated[float, Meta(ge=0.1, le=_DAYS_MAX, description="In seconds, counted from the firing")]


class MisfireRule(Request, frozen=True, kw_only=True):
    """What becomes of instants that were missed. CATCH_UP needs its three bounds, the others take none."""

    policy: Literal["SKIP", "COALESCE", "CATCH_UP"]
    max_count: (
        Annotated[
            int, Meta(ge=1, le=limits.CATCH_UP_COUNT_MAX, description="Most missed instants, the latest ones, to fire")
        ]
        | None
    ) = None
    max_age_seconds: Annotated[float, Meta(ge=1, le=_DAYS_MAX, description="None that are older")] | None = None
    rate_per_second: (
        Annotated[
            float,
            Meta(ge=limits.CATCH_UP_RATE_MIN, le=limits.CATCH_UP_RATE_MAX, description="Most of them in a second"),
        ]
        | None
    ) = None


class OverlapRule(Request, frozen=True, kw_only=True):
    """What becomes of a firing while what the one before has made is unfinished. QUEUE needs its bound."""

    policy: Literal["ALLOW", "QUEUE", "SKIP"]
    max_backlog: (
        Annotated[int, Meta(ge=1, le=limits.FIRING_BACKLOG_MAX, description="Most firings that wait")] | None
    ) = None


class ScheduledTask(Request, frozen=True, kw_only=True):
    """The task that each firing makes; spans count from the firing."""

    queue: Name
    type: Name
    version: TaskVersion
    params: Annotated[Raw, raw_schema("Any JSON of up to 64 KiB, kept as it was sent; default null")] | UnsetType = (
        UNSET
    )
    params_version: Annotated[str, Meta(min_length=1, max_length=64, description='Default "1"')] | None = None
    priority: Priority | None = None
    retry: Retry | None = None
    attempt_timeout_seconds: AttemptTimeoutSeconds | None = None
    start_within_seconds: Span | None = None
    deadline_seconds: Span | None = None
    business_key: BusinessKey | None = None
    concurrency_keys: Annotated[list[ConcurrencyKey], Meta(max_length=limits.CONCURRENCY_KEYS_MAX)] | None = None
    fairness_key: FairnessKey | None = None
    labels: Labels | None = None


class ScheduledWorkflow(Request, frozen=True, kw_only=True):
    """The workflow that each firing starts; without `version` the default one at that time."""

    workflow: Annotated[str, Meta(min_length=1, max_length=128, description="The workflow's name")]
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    input: Annotated[Raw, raw_schema("What the definition's input schema asks for; default {}")] | UnsetType = UNSET
    business_key: BusinessKey | None = None
    labels: Labels | None = None


class TimeFields(Request, frozen=True, kw_only=True):
    """When: either `cron` in a `timezone`, or `every_seconds` from an anchor (default: where it begins)."""

    cron: Cron | None = None
    timezone: Timezone | None = None
    every_seconds: EverySeconds | None = None
    anchor_at: Instant | None = None
    starts_at: Annotated[Instant, Meta(description="No instant before this one")] | None = None
    ends_at: Annotated[Instant, Meta(description="All instants before this one")] | None = None


class Configuration(TimeFields, frozen=True, kw_only=True):
    """All that a schedule is told: when, what, and both policies, which have no default."""

    name: Name
    misfire: MisfireRule
    overlap: OverlapRule
    misfire_grace_seconds: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=_DAYS_MAX,
                description=f"An instant later than this is missed; default "
                f"{limits.MISFIRE_GRACE_MICROS_DEFAULT // SECOND}, and never less than "
                f"{limits.FIRING_SLACK_MICROS // SECOND}, which a busy node may need",
            ),
        ]
        | None
    ) = None
    task: ScheduledTask | None = None
    workflow: ScheduledWorkflow | None = None


class CreateSchedule(Configuration, frozen=True, kw_only=True):
    """Make a schedule; either `task` or `workflow` says what each firing makes."""

    paused: bool | None = None


class ConfigureSchedule(Configuration, frozen=True, kw_only=True):
    """Give a schedule a new revision that replaces all it was told, for instants from `effective_at` on (default now).

    It acts with the rights of who sends this.
    """

    expected_revision: Revision
    reason: Reason
    effective_at: Instant | None = None


class PauseSchedule(Request, frozen=True, kw_only=True):
    """Let a schedule fire nothing more; what it has made goes on."""

    reason: Reason
    expected_revision: Revision | None = None


class ResumeSchedule(Request, frozen=True, kw_only=True):
    """Let a schedule fire again; what has passed meanwhile is one skipped range."""

    reason: Reason
    expected_revision: Revision | None = None


class PreviewSchedule(TimeFields, frozen=True, kw_only=True):
    """Say when a schedule would fire: a rule, an existing schedule, or one with a rule from a boundary on."""

    schedule_id: HexId | None = None
    effective_at: Instant | None = None
    after: Annotated[Instant, Meta(description="Default now")] | None = None
    count: Annotated[int, Meta(ge=1, le=limits.PREVIEW_MAX, description="Default 10")] | None = None


class StopReason(Struct, kw_only=True):
    """Which right a stopped schedule has lost."""

    code: str
    message: str


class Made(Struct, kw_only=True):
    """What a firing made: a TASK or an INSTANCE."""

    kind: str
    id: HexId


class Schedule(Struct, kw_only=True):
    """A schedule as it is now; `configuration` is that of its newest revision, and may be changed and sent again.

    `next_at` is its next undecided instant, null while it is not ACTIVE; `backlog` counts firings that wait for the
    one before.
    """

    id: HexId
    state: str
    stop_reason: StopReason | None
    revision: Count
    schedule_revision: Count
    next_at: Instant | None
    backlog: int
    latest: Made | None
    created_at: Instant
    configuration: dict[str, Any]


class ScheduleReceipt(Struct, kw_only=True):
    """The receipt of a creation or change: the schedule as it was at that moment."""

    deduplicated: bool
    schedule: Schedule


class FiringError(Struct, kw_only=True):
    """Why a firing was refused."""

    code: str
    message: str
    details: Any = None


class Firing(Struct, kw_only=True):
    """A firing, or instants that were skipped or merged: from `scheduled_at` to `last_at`, `count` of them."""

    id: HexId
    scheduled_at: Instant
    last_at: Instant
    count: int
    schedule_revision: Count
    state: str
    reason: str | None
    error: FiringError | None
    task_id: HexId | None
    instance_id: HexId | None
    recorded_at: Instant
    fired_at: Instant | None


class Point(Struct, kw_only=True):
    """An instant; `local` is what clocks in its zone show, `schedule_revision` null for a rule that is not stored."""

    scheduled_at: Instant
    local: str | None
    schedule_revision: Count | None


class Preview(Struct, kw_only=True):
    """The next instants, in order; fewer than asked for if no more will come."""

    points: list[Point]
