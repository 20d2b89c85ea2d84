"""Let error handlers retry steps, and instances undo what they did: what was retried, is in doubt, is undone."""

import sqlalchemy as sa
from alembic import op

from orbit.database import columns as kinds

revision = "0019_weave_failures"
down_revision = "0018_weave_items"

# An old node would lose counts of retries, and end an instance that has still to undo what it did.
OLD_NODES_MAY_RUN = False


def upgrade() -> None:
    """Add the columns; nothing is retried or undone yet, and no effect is known to be in doubt."""
    op.add_column(
        "weave_instance",
        sa.Column(
            "compensation", kinds.word(16), comment="Compensation: whether it undoes what it did; null if not wanted"
        ),
    )
    op.add_column(
        "weave_step",
        sa.Column(
            "doubts",
            kinds.small_int(),
            nullable=False,
            server_default=sa.text("0"),
            comment="Its tasks that ended although their effect is possible",
        ),
    )
    op.add_column(
        "weave_step",
        sa.Column("retries", kinds.text(), comment="JSON list: how often each of its error handlers has retried it"),
    )


def downgrade() -> None:
    """Drop them. Instances of definitions with error handlers or compensations must have ended."""
    op.drop_column("weave_step", "retries")
    op.drop_column("weave_step", "doubts")
    op.drop_column("weave_instance", "compensation")
