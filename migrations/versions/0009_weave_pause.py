"""Let operators pause instances: on `weave_instance` whether one is paused, by whom and why."""

import sqlalchemy as sa
from alembic import op

from orbit.database import columns as kinds

revision = "0009_weave_pause"
down_revision = "0008_pulse_quotas"

# An old node would go on with a paused instance.
OLD_NODES_MAY_RUN = False

_OLD_COMMENT = "TASK_ENDED, REVIEW_OPENED or REVIEW_CLOSED"
_NEW_COMMENT = "TASK_ENDED, REVIEW_OPENED, REVIEW_CLOSED or GATE_QUIET"


def upgrade() -> None:
    """Add the columns; no instance is paused yet."""
    op.add_column(
        "weave_instance",
        sa.Column(
            "control",
            kinds.word(16),
            nullable=False,
            server_default=sa.text("'ACTIVE'"),
            comment="Control: whether an operator has paused it",
        ),
    )
    op.add_column(
        "weave_instance",
        sa.Column("pause", kinds.text(), comment="JSON: who has paused it, why and when; null while it is ACTIVE"),
    )
    _comment(_NEW_COMMENT, was=_OLD_COMMENT)


def downgrade() -> None:
    """Drop them. Resume every instance first: a paused one would not go on."""
    _comment(_OLD_COMMENT, was=_NEW_COMMENT)
    op.drop_column("weave_instance", "pause")
    op.drop_column("weave_instance", "control")


def _comment(comment: str, *, was: str) -> None:
    """Change the comment of a stimulus's kind; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        op.alter_column(
            "weave_stimulus",
            "kind",
            existing_type=kinds.word(24),
            existing_nullable=False,
            existing_comment=was,
            comment=comment,
        )
