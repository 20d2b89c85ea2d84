"""Make the tables of `engine`."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0004_weave_engine"
down_revision = "0003_weave_definitions"

# It only adds tables.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Make the tables."""
    _weave_instance()
    _weave_step()
    _weave_value()
    _weave_stimulus()
    _weave_history()


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    op.drop_table("weave_history")
    op.drop_table("weave_stimulus")
    op.drop_table("weave_value")
    op.drop_table("weave_step")
    op.drop_table("weave_instance")


def _weave_instance() -> None:
    op.create_table(
        "weave_instance",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the instance"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
        sa.Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
        sa.Column("version", kinds.small_int(), nullable=False, comment="Its published version, for life"),
        sa.Column("state", kinds.word(16), nullable=False, comment="InstanceState"),
        sa.Column("ending_as", kinds.word(16), comment="What it becomes at its end; null until that is decided"),
        sa.Column(
            "revision", kinds.counter(), nullable=False, comment="Grows by one with every advance that changed it"
        ),
        sa.Column("business_key", kinds.exact_key(512), comment="The caller's own look-up text, UTF-8"),
        sa.Column("labels", kinds.text(), comment="JSON object of labels; null for none"),
        sa.Column(
            "queues", kinds.text(), comment="JSON list: queue range of the credential that started it; null is all"
        ),
        sa.Column(
            "started_by", kinds.word(64), nullable=False, comment="Credential id in hex, or the command that acted"
        ),
        sa.Column("traceparent", kinds.word(64), comment="Trace context of the start, handed on to its tasks"),
        sa.Column("error", kinds.text(), comment="JSON: why it is held, failed or was cancelled"),
        sa.Column("started_at", kinds.instant(), nullable=False, comment="When it began, microseconds UTC"),
        sa.Column("deadline_at", kinds.instant(), nullable=False, comment="End of its budget of active time"),
        sa.Column(
            "clock_stopped_at", kinds.instant(), comment="Since when the budget stands still; null while it runs"
        ),
        sa.Column("due_at", kinds.instant(), comment="When to look at it at the latest: never after its next timer"),
        sa.Column("finished_at", kinds.instant(), comment="When it became terminal; null exactly until then"),
        sa.CheckConstraint(
            "(finished_at IS NULL) = (state NOT IN ('CANCELLED', 'FAILED', 'SUCCEEDED'))",
            name=op.f("weave_instance_finished_if_terminal"),
        ),
        sa.CheckConstraint(
            "due_at IS NULL OR state NOT IN ('CANCELLED', 'FAILED', 'SUCCEEDED')",
            name=op.f("weave_instance_not_due_if_terminal"),
        ),
        sa.CheckConstraint("state <> 'ENDING' OR ending_as IS NOT NULL", name=op.f("weave_instance_ending_has_an_end")),
        sa.CheckConstraint("revision >= 0", name=op.f("weave_instance_revision_not_negative")),
        comment="One run of a published workflow version",
        **TABLE_OPTIONS,
    )
    op.create_index("weave_instance_for_due", "weave_instance", ["due_at", "id"])
    op.create_index("weave_instance_for_list", "weave_instance", ["namespace_id", "started_at", "id"])
    op.create_index(
        "weave_instance_for_list_by_business_key",
        "weave_instance",
        ["namespace_id", "business_key", "started_at", "id"],
    )
    op.create_index("weave_instance_for_list_by_state", "weave_instance", ["namespace_id", "state", "started_at", "id"])
    op.create_index(
        "weave_instance_for_list_by_workflow", "weave_instance", ["namespace_id", "workflow", "started_at", "id"]
    )


def _weave_step() -> None:
    op.create_table(
        "weave_step",
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Whose step it is"),
        sa.Column("step", kinds.word(128), nullable=False, comment="Id of the step in the definition"),
        sa.Column("state", kinds.word(16), nullable=False, comment="StepState; a PENDING step has no row"),
        sa.Column("reason", kinds.word(24), comment="StepReason: why it waits, was skipped or is asked to stop"),
        sa.Column("chosen", kinds.word(128), comment="The case that a branch has chosen"),
        sa.Column("round", kinds.small_int(), nullable=False, comment="Number of its current task, from 1; 0 for none"),
        sa.Column("task_id", kinds.identifier(), comment="Its current or last Pulse task"),
        sa.Column("due_at", kinds.instant(), comment="When a WAITING step goes on"),
        sa.Column("timeout_at", kinds.instant(), comment="End of the step's bound"),
        sa.Column("start_by_at", kinds.instant(), comment="Until when a full queue is tried"),
        sa.Column("refused_count", kinds.small_int(), nullable=False, comment="Refusals of the current round in a row"),
        sa.Column("review_at", kinds.instant(), comment="Since when it waits for a review"),
        sa.Column("entered_at", kinds.instant(), nullable=False, comment="When it was entered"),
        sa.Column("finished_at", kinds.instant(), comment="When it was decided; null exactly until then"),
        sa.Column("error", kinds.text(), comment="JSON: why it failed or is under review"),
        sa.Column("log", kinds.text(), comment="JSON: a poll's first and last rounds and counts"),
        sa.PrimaryKeyConstraint("instance_id", "step", name=op.f("weave_step_pk")),
        sa.CheckConstraint(
            "(finished_at IS NULL) = (state NOT IN ('CANCELLED', 'FAILED', 'SKIPPED', 'SUCCEEDED'))",
            name=op.f("weave_step_finished_if_terminal"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('NEEDS_REVIEW', 'RUNNING') OR task_id IS NOT NULL",
            name=op.f("weave_step_running_has_a_task"),
        ),
        sa.CheckConstraint("state <> 'WAITING' OR due_at IS NOT NULL", name=op.f("weave_step_waiting_is_due")),
        comment="State of the entered steps of an instance",
        **TABLE_OPTIONS,
    )


def _weave_value() -> None:
    op.create_table(
        "weave_value",
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Whose value it is"),
        sa.Column("slot", kinds.word(128), nullable=False, comment="A step id, @input or @output"),
        sa.Column("content", kinds.payload(), nullable=False, comment="The value as JSON"),
        sa.PrimaryKeyConstraint("instance_id", "slot", name=op.f("weave_value_pk")),
        comment="Input, output, and outputs of steps that no task holds; read only where an expression needs them",
        **TABLE_OPTIONS,
    )


def _weave_stimulus() -> None:
    op.create_table(
        "weave_stimulus",
        sa.Column("held", kinds.flag(), nullable=False, comment="Set aside with an instance held by an engine error"),
        sa.Column("id", kinds.identifier(), nullable=False, comment="UUIDv7 of the stimulus"),
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Whom it concerns"),
        sa.Column("kind", kinds.word(24), nullable=False, comment="TASK_ENDED, REVIEW_OPENED or REVIEW_CLOSED"),
        sa.Column("step", kinds.word(128), nullable=False, comment="Id of the step"),
        sa.Column("round", kinds.small_int(), nullable=False, comment="Number of the step's task"),
        sa.Column("outcome", kinds.word(16), comment="How the task ended; null if it did not"),
        sa.Column("error", kinds.text(), comment="JSON: the task's error"),
        sa.PrimaryKeyConstraint("held", "id", name=op.f("weave_stimulus_pk")),
        comment="What is to be applied to an instance; that the row exists is the wake-up",
        **TABLE_OPTIONS,
    )


def _weave_history() -> None:
    op.create_table(
        "weave_history",
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Whose history it is"),
        sa.Column(
            "revision", kinds.counter(), nullable=False, comment="Revision of the instance that the advance made"
        ),
        sa.Column(
            "recorded_at", kinds.instant(), nullable=False, comment="The instant of the advance, microseconds UTC"
        ),
        sa.Column("entries", kinds.payload(), nullable=False, comment="JSON list of what happened, in order"),
        sa.PrimaryKeyConstraint("instance_id", "revision", name=op.f("weave_history_pk")),
        comment="One row for each advance, for people: nothing is replayed from it",
        **TABLE_OPTIONS,
    )
