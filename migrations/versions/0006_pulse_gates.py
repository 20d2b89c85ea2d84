"""Let gates hold tasks: the gates, and on `pulse_task` the gate that it stands behind and since when it is held."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0006_pulse_gates"
down_revision = "0005_pulse_recovery"

# An old node would start what a gate holds, and would not count what ends behind it.
OLD_NODES_MAY_RUN = False

_OLD_COMMENT = "READY, DELAYED or BACKOFF while WAITING, else null"
_NEW_COMMENT = "The stored WaitReason while WAITING, else null"


def upgrade() -> None:
    """Add the gates; no task stands behind one yet."""
    op.add_column(
        "pulse_task", sa.Column("gate_id", kinds.identifier(), comment="The gate that it stands behind; null is none")
    )
    op.add_column(
        "pulse_task",
        sa.Column("held_since", kinds.instant(), comment="Since when its gate is closed for it; null if it is not"),
    )
    _comment(_NEW_COMMENT, was=_OLD_COMMENT)
    op.create_table(
        "pulse_gate",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="Also the source_id of the tasks behind it"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose gate it is"),
        sa.Column(
            "is_open", kinds.flag(), nullable=False, comment="While false no task behind it is claimed or started"
        ),
        sa.Column("in_flight", kinds.counter(), nullable=False, comment="While closed: tasks behind it that still run"),
        sa.CheckConstraint("in_flight >= 0", name=op.f("pulse_gate_in_flight_not_negative")),
        comment="Gates before the tasks of one source, with what still runs behind a closed one",
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    """Drop them. Open every gate first: a held task would wait for ever."""
    op.drop_table("pulse_gate")
    _comment(_OLD_COMMENT, was=_NEW_COMMENT)
    op.drop_column("pulse_task", "held_since")
    op.drop_column("pulse_task", "gate_id")


def _comment(comment: str, *, was: str) -> None:
    """Change the comment of `wait_reason`; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        op.alter_column(
            "pulse_task", "wait_reason", existing_type=kinds.word(16), existing_comment=was, comment=comment
        )
