"""Let people settle reviews and retry ended tasks: lineage on `pulse_task`, and what they decided."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0005_pulse_recovery"
down_revision = "0004_weave_engine"

# It adds nullable columns, one with a default, and a table that old nodes do not know.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Add the lineage and the verdicts."""
    op.add_column(
        "pulse_task",
        sa.Column(
            "retry_of", kinds.identifier(), comment="The ended task that this one repeats by a person's decision"
        ),
    )
    op.add_column(
        "pulse_task",
        sa.Column("operation_id", kinds.identifier(), comment="First task of the retry_of line; null is this one"),
    )
    op.add_column(
        "pulse_task",
        sa.Column(
            "fencing_base",
            kinds.small_int(),
            nullable=False,
            server_default=sa.text("0"),
            comment="Starts before it",
        ),
    )
    op.create_index("pulse_task_by_retry_of", "pulse_task", ["retry_of"], unique=True)
    op.create_table(
        "pulse_verdict",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the verdict"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="The task that a person judged"),
        sa.Column(
            "kind",
            kinds.word(16),
            nullable=False,
            comment="SUCCEEDED, FAILED, RETRY of a review; SUCCESSOR of a retry",
        ),
        sa.Column(
            "safety_statement",
            kinds.text(),
            comment="Why another attempt can't repeat an effect; null if none follows",
        ),
        sa.Column(
            "evidence", kinds.text(), nullable=False, comment="JSON as it was given, or a reference with its hash"
        ),
        sa.Column("reason", kinds.text(), nullable=False, comment="The operator's words"),
        sa.Column("output", kinds.payload(), comment="JSON of the result that the person vouches for"),
        sa.Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        comment="What people decided about unknown outcomes and ended tasks, with their evidence",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_verdict_by_task", "pulse_verdict", ["task_id", "id"])


def downgrade() -> None:
    """Drop them; what people decided is lost."""
    op.drop_table("pulse_verdict")
    op.drop_index("pulse_task_by_retry_of", "pulse_task")
    op.drop_column("pulse_task", "fencing_base")
    op.drop_column("pulse_task", "operation_id")
    op.drop_column("pulse_task", "retry_of")
