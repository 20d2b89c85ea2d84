"""The tables of schedules: how far each is decided, what it was configured to do, and what became of its instants."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, PrimaryKeyConstraint, Table

from orbit.database import TABLE_OPTIONS, metadata
from orbit.database import columns as kinds

schedule = Table(
    "pulse_schedule",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7; also the source_id of its tasks"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose schedule it is"),
    Column("name", kinds.word(128), nullable=False, comment="For people, of its newest revision"),
    Column("state", kinds.word(16), nullable=False, comment="ScheduleState"),
    Column("stop_reason", kinds.text(), comment="JSON {code, message}: why it was stopped; null unless it is"),
    Column("revision", kinds.counter(), nullable=False, comment="From 1; rises with each change of it"),
    Column("newest_revision", kinds.counter(), nullable=False, comment="Number of its newest configuration"),
    Column("base_revision", kinds.counter(), nullable=False, comment="Number of the first one that still matters"),
    Column("cursor_at", kinds.instant(), nullable=False, comment="All its instants before this are decided"),
    Column(
        "next_at", kinds.instant(), comment="Its next undecided instant; null if there is none, or it is not ACTIVE"
    ),
    Column("look_at", kinds.instant(), comment="When a node has to look at it; null while none has to"),
    Column("run_reason", kinds.word(16), comment="RangeReason of the range that is being counted; null is none"),
    Column("run_first_at", kinds.instant(), comment="First instant of that range"),
    Column("run_last_at", kinds.instant(), comment="Last instant of that range"),
    Column("run_count", kinds.counter(), comment="How many instants that range has"),
    Column("skip_until", kinds.instant(), comment="Instants before this are skipped, for they passed while it stood"),
    Column("skip_reason", kinds.word(16), comment="RangeReason of those: PAUSED or STOPPED"),
    Column("backlog", kinds.small_int(), nullable=False, comment="Firings that are QUEUED"),
    Column("latest_kind", kinds.word(16), comment="SubjectKind of what it made last; null before the first"),
    Column("latest_id", kinds.identifier(), comment="The task or instance that it made last, or its newest retry"),
    Column("queue", kinds.word(128), comment="Queue of its newest revision's task; null if it makes instances"),
    Column("credential_id", kinds.identifier(), nullable=False, comment="Who made its newest revision"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    CheckConstraint("(stop_reason IS NULL) = (state <> 'STOPPED')", name="stop_reason"),
    CheckConstraint("state IN ('ACTIVE', 'ENDED') OR look_at IS NULL", name="look_while_active"),
    CheckConstraint("(run_reason IS NULL) = (run_count IS NULL)", name="run"),
    CheckConstraint("(skip_until IS NULL) = (skip_reason IS NULL)", name="skip"),
    CheckConstraint("backlog >= 0", name="backlog_not_negative"),
    Index("pulse_schedule_by_look", "look_at", "id"),
    Index("pulse_schedule_for_list", "namespace_id", "created_at", "id"),
    comment="Schedules: how far each has been decided; locked before everything that it makes",
    **TABLE_OPTIONS,
)

schedule_revision = Table(
    "pulse_schedule_revision",
    metadata,
    Column("schedule_id", kinds.identifier(), nullable=False, comment="The schedule"),
    Column("revision", kinds.counter(), nullable=False, comment="The schedule's revision when it was made"),
    Column("effective_at", kinds.instant(), nullable=False, comment="Instants from here on follow it"),
    Column("content", kinds.text(), nullable=False, comment="JSON: rule, policies, what is made; without the payload"),
    Column("payload", kinds.payload(), nullable=False, comment="Params of the task or input of the instance, JSON"),
    Column("credential_id", kinds.identifier(), nullable=False, comment="With whose rights its firings act"),
    Column("queues", kinds.text(), comment="JSON list of that credential's range when it was made; null means all"),
    Column("reason", kinds.text(), comment="Why, in the operator's words; null for the first"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    PrimaryKeyConstraint("schedule_id", "revision", name="pulse_schedule_revision_pk"),
    comment="Every configuration of every schedule, with the instant from which it holds",
    **TABLE_OPTIONS,
)

firing = Table(
    "pulse_firing",
    metadata,
    Column("schedule_id", kinds.identifier(), nullable=False, comment="The schedule"),
    Column("scheduled_at", kinds.instant(), nullable=False, comment="Its instant, the first one of a range"),
    Column("id", kinds.identifier(), nullable=False, comment="UUIDv7 of the firing"),
    Column("last_at", kinds.instant(), nullable=False, comment="The last instant that it covers"),
    Column("points_count", kinds.counter(), nullable=False, comment="How many instants it covers"),
    Column("schedule_revision", kinds.counter(), nullable=False, comment="Revision that the instant follows"),
    Column("state", kinds.word(16), nullable=False, comment="FiringState"),
    Column("reason", kinds.word(16), comment="RangeReason of a skip or a merge; else null"),
    Column("error", kinds.text(), comment="JSON {code, message, details} of a refusal; else null"),
    Column("subject_kind", kinds.word(16), comment="SubjectKind of what it made; null if nothing"),
    Column("subject_id", kinds.identifier(), comment="The task or instance that it made; null if none"),
    Column("recorded_at", kinds.instant(), nullable=False, comment="When it was decided, microseconds UTC"),
    Column("fired_at", kinds.instant(), comment="When it made its task or instance; null if it did not"),
    CheckConstraint("(subject_id IS NULL) = (state <> 'FIRED')", name="subject"),
    CheckConstraint("(fired_at IS NULL) = (state <> 'FIRED')", name="fired"),
    CheckConstraint("points_count >= 1", name="points_positive"),
    PrimaryKeyConstraint("schedule_id", "scheduled_at", name="pulse_firing_pk"),
    Index("pulse_firing_by_state", "schedule_id", "state", "scheduled_at"),
    comment="What became of each instant of each schedule: one row for a firing, or for a skipped range",
    **TABLE_OPTIONS,
)
