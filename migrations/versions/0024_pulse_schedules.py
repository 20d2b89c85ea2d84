"""Make the tables of schedules: how far each is decided, its revisions, its firings."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0024_pulse_schedules"
down_revision = "0023_weave_bounds"

# It only adds tables; an old node fires nothing and knows of none.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Make the tables."""
    _pulse_schedule()
    _pulse_schedule_revision()
    _pulse_firing()


def downgrade() -> None:
    """Drop schedules with all that they have recorded; the tasks that they made stay."""
    op.drop_table("pulse_firing")
    op.drop_table("pulse_schedule_revision")
    op.drop_table("pulse_schedule")


def _pulse_schedule() -> None:
    op.create_table(
        "pulse_schedule",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7; also the source_id of its tasks"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose schedule it is"),
        sa.Column("name", kinds.word(128), nullable=False, comment="For people, of its newest revision"),
        sa.Column("state", kinds.word(16), nullable=False, comment="ScheduleState"),
        sa.Column("stop_reason", kinds.text(), comment="JSON {code, message}: why it was stopped; null unless it is"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="From 1; rises with each change of it"),
        sa.Column("newest_revision", kinds.counter(), nullable=False, comment="Number of its newest configuration"),
        sa.Column(
            "base_revision", kinds.counter(), nullable=False, comment="Number of the first one that still matters"
        ),
        sa.Column("cursor_at", kinds.instant(), nullable=False, comment="All its instants before this are decided"),
        sa.Column(
            "next_at", kinds.instant(), comment="Its next undecided instant; null if there is none, or it is not ACTIVE"
        ),
        sa.Column("look_at", kinds.instant(), comment="When a node has to look at it; null while none has to"),
        sa.Column("run_reason", kinds.word(16), comment="RangeReason of the range that is being counted; null is none"),
        sa.Column("run_first_at", kinds.instant(), comment="First instant of that range"),
        sa.Column("run_last_at", kinds.instant(), comment="Last instant of that range"),
        sa.Column("run_count", kinds.counter(), comment="How many instants that range has"),
        sa.Column(
            "skip_until", kinds.counter(), comment="Instants before this are skipped, for they passed while it stood"
        ),
        sa.Column("skip_reason", kinds.word(16), comment="RangeReason of those: PAUSED or STOPPED"),
        sa.Column("backlog", kinds.small_int(), nullable=False, comment="Firings that are QUEUED"),
        sa.Column("latest_kind", kinds.word(16), comment="SubjectKind of what it made last; null before the first"),
        sa.Column(
            "latest_id", kinds.identifier(), comment="The task or instance that it made last, or its newest retry"
        ),
        sa.Column("queue", kinds.word(128), comment="Queue of its newest revision's task; null if it makes instances"),
        sa.Column("credential_id", kinds.identifier(), nullable=False, comment="Who made its newest revision"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.CheckConstraint("(stop_reason IS NULL) = (state <> 'STOPPED')", name=op.f("pulse_schedule_stop_reason")),
        sa.CheckConstraint(
            "state IN ('ACTIVE', 'ENDED') OR look_at IS NULL", name=op.f("pulse_schedule_look_while_active")
        ),
        sa.CheckConstraint("(run_reason IS NULL) = (run_count IS NULL)", name=op.f("pulse_schedule_run")),
        sa.CheckConstraint("(skip_until IS NULL) = (skip_reason IS NULL)", name=op.f("pulse_schedule_skip")),
        sa.CheckConstraint("backlog >= 0", name=op.f("pulse_schedule_backlog_not_negative")),
        comment="Schedules: how far each has been decided; locked before everything that it makes",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_schedule_by_look", "pulse_schedule", ["look_at", "id"])
    op.create_index("pulse_schedule_for_list", "pulse_schedule", ["namespace_id", "created_at", "id"])


def _pulse_schedule_revision() -> None:
    op.create_table(
        "pulse_schedule_revision",
        sa.Column("schedule_id", kinds.identifier(), nullable=False, comment="The schedule"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="The schedule's revision when it was made"),
        sa.Column("effective_at", kinds.instant(), nullable=False, comment="Instants from here on follow it"),
        sa.Column(
            "content", kinds.text(), nullable=False, comment="JSON: rule, policies, what is made; without the payload"
        ),
        sa.Column(
            "payload", kinds.payload(), nullable=False, comment="Params of the task or input of the instance, JSON"
        ),
        sa.Column("credential_id", kinds.identifier(), nullable=False, comment="With whose rights its firings act"),
        sa.Column(
            "queues", kinds.text(), comment="JSON list of that credential's range when it was made; null means all"
        ),
        sa.Column("reason", kinds.text(), comment="Why, in the operator's words; null for the first"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.PrimaryKeyConstraint("schedule_id", "revision", name=op.f("pulse_schedule_revision_pk")),
        comment="Every configuration of every schedule, with the instant from which it holds",
        **TABLE_OPTIONS,
    )


def _pulse_firing() -> None:
    op.create_table(
        "pulse_firing",
        sa.Column("schedule_id", kinds.identifier(), nullable=False, comment="The schedule"),
        sa.Column("scheduled_at", kinds.instant(), nullable=False, comment="Its instant, the first one of a range"),
        sa.Column("id", kinds.identifier(), nullable=False, comment="UUIDv7 of the firing"),
        sa.Column("last_at", kinds.instant(), nullable=False, comment="The last instant that it covers"),
        sa.Column("points_count", kinds.counter(), nullable=False, comment="How many instants it covers"),
        sa.Column("schedule_revision", kinds.counter(), nullable=False, comment="Revision that the instant follows"),
        sa.Column("state", kinds.word(16), nullable=False, comment="FiringState"),
        sa.Column("reason", kinds.word(16), comment="RangeReason of a skip or a merge; else null"),
        sa.Column("error", kinds.text(), comment="JSON {code, message, details} of a refusal; else null"),
        sa.Column("subject_kind", kinds.word(16), comment="SubjectKind of what it made; null if nothing"),
        sa.Column("subject_id", kinds.identifier(), comment="The task or instance that it made; null if none"),
        sa.Column("recorded_at", kinds.instant(), nullable=False, comment="When it was decided, microseconds UTC"),
        sa.Column("fired_at", kinds.instant(), comment="When it made its task or instance; null if it did not"),
        sa.CheckConstraint("(subject_id IS NULL) = (state <> 'FIRED')", name=op.f("pulse_firing_subject")),
        sa.CheckConstraint("(fired_at IS NULL) = (state <> 'FIRED')", name=op.f("pulse_firing_fired")),
        sa.CheckConstraint("points_count >= 1", name=op.f("pulse_firing_points_positive")),
        sa.PrimaryKeyConstraint("schedule_id", "scheduled_at", name=op.f("pulse_firing_pk")),
        comment="What became of each instant of each schedule: one row for a firing, or for a skipped range",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_firing_by_state", "pulse_firing", ["schedule_id", "state", "scheduled_at"])
