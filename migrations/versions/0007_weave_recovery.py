"""Let people recover instances: their decisions, and on `weave_step` where a retry began and what it continues."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0007_weave_recovery"
down_revision = "0006_pulse_gates"

# An old node would count a recovered poll's rounds from its first, and would not find an output that a person gave.
OLD_NODES_MAY_RUN = False


def upgrade() -> None:
    """Add the decisions; no step has been recovered yet."""
    op.add_column(
        "weave_step",
        sa.Column(
            "rounds_before",
            kinds.small_int(),
            nullable=False,
            server_default=sa.text("0"),
            comment="Rounds before a person's retry: from here its bounds count anew",
        ),
    )
    op.add_column(
        "weave_step",
        sa.Column("retry_of", kinds.identifier(), comment="The ended task whose line the current round's continues"),
    )
    op.create_table(
        "weave_recovery",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the decision"),
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Which instance it is about"),
        sa.Column(
            "revision", kinds.counter(), nullable=False, comment="Revision of the instance that the decision made"
        ),
        sa.Column("action", kinds.word(16), nullable=False, comment="Action"),
        sa.Column("step", kinds.word(128), comment="Id of the step; null for the instance itself"),
        sa.Column("round", kinds.small_int(), nullable=False, comment="Number of the step's task then; 0 for none"),
        sa.Column("task_id", kinds.identifier(), comment="The step's task then: what it reports later is kept with it"),
        sa.Column(
            "safety_statement", kinds.text(), comment="Why a retry can't repeat an effect; null where none was needed"
        ),
        sa.Column(
            "evidence", kinds.text(), nullable=False, comment="JSON as it was given, or a reference with its hash"
        ),
        sa.Column(
            "evidence_digest", kinds.digest(), nullable=False, comment="SHA-256 of the evidence as canonical JSON"
        ),
        sa.Column("reason", kinds.text(), nullable=False, comment="The operator's words"),
        sa.Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        comment="What people decided about instances and their steps, with their evidence",
        **TABLE_OPTIONS,
    )
    op.create_index("weave_recovery_by_instance", "weave_recovery", ["instance_id", "id"])


def downgrade() -> None:
    """Drop them; what people decided is lost."""
    op.drop_table("weave_recovery")
    op.drop_column("weave_step", "retry_of")
    op.drop_column("weave_step", "rounds_before")
