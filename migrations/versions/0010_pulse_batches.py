"""Let operators decide about many tasks or instances at once: batches, and their items with what came of each."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0010_pulse_batches"
down_revision = "0009_weave_pause"

# It only adds tables. An old node carries no batch out.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Make the tables."""
    _pulse_batch()
    _pulse_batch_item()


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    op.drop_table("pulse_batch_item")
    op.drop_table("pulse_batch")


def _pulse_batch() -> None:
    op.create_table(
        "pulse_batch",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the batch"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose batch it is"),
        sa.Column(
            "operation", kinds.word(32), nullable=False, comment="What is done to each item, such as task.cancel"
        ),
        sa.Column("state", kinds.word(16), nullable=False, comment="BatchState"),
        sa.Column(
            "arguments", kinds.text(), nullable=False, comment="JSON of what the operation needs beside the item"
        ),
        sa.Column("selection", kinds.text(), nullable=False, comment="JSON of how the items were chosen, for people"),
        sa.Column("items_count", kinds.small_int(), nullable=False, comment="How many items it has"),
        sa.Column(
            "interval_micros", kinds.counter(), nullable=False, comment="Time between two items: one over the rate"
        ),
        sa.Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex, who asked for it"),
        sa.Column("request_id", kinds.identifier(), nullable=False, comment="The request that asked for it"),
        sa.Column("reason", kinds.text(), nullable=False, comment="Why, in the operator's words"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="From 1; rises when it ends"),
        sa.Column("next_at", kinds.instant(), comment="When its next items may be done; null once it has ended"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        sa.Column("finished_at", kinds.instant(), comment="When it ended; null until then"),
        sa.CheckConstraint("(finished_at IS NULL) = (state = 'RUNNING')", name=op.f("pulse_batch_finished")),
        sa.CheckConstraint(
            "(next_at IS NULL) = (finished_at IS NOT NULL)", name=op.f("pulse_batch_next_while_running")
        ),
        comment="One decision of an operator about many tasks or instances, carried out item by item",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_batch_by_next", "pulse_batch", ["next_at"])
    op.create_index("pulse_batch_for_list", "pulse_batch", ["namespace_id", "created_at", "id"])


def _pulse_batch_item() -> None:
    op.create_table(
        "pulse_batch_item",
        sa.Column("batch_id", kinds.identifier(), nullable=False, comment="The batch"),
        sa.Column("position", kinds.small_int(), nullable=False, comment="Its place in the batch, from 0"),
        sa.Column("subject_id", kinds.identifier(), nullable=False, comment="The task or instance"),
        sa.Column("subject_revision", kinds.counter(), nullable=False, comment="Its revision when it was chosen"),
        sa.Column("state", kinds.word(16), nullable=False, comment="ItemState"),
        sa.Column(
            "outcome", kinds.text(), comment="JSON: what came of it, or {code, message} of the refusal; null before"
        ),
        sa.Column("done_at", kinds.instant(), comment="When it was decided; null before"),
        sa.PrimaryKeyConstraint("batch_id", "position", name=op.f("pulse_batch_item_pk")),
        comment="What a batch is about, one row each, with what came of it",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_batch_item_by_state", "pulse_batch_item", ["batch_id", "state", "position"])
