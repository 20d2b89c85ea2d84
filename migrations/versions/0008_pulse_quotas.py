"""Let applications have quotas: their limits, and on each queue's counters whether its application has any."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0008_pulse_quotas"
down_revision = "0007_weave_recovery"

# An old node would claim, start and accept past the quotas. Until one is set nothing changes.
OLD_NODES_MAY_RUN = False

_MARKED = ("pulse_queue_usage", "pulse_queue_backlog")


def upgrade() -> None:
    """Add the quotas; no application has any yet."""
    for table in _MARKED:
        op.add_column(
            table,
            sa.Column(
                "quota_id", kinds.identifier(), comment="The application whose quotas hold too; null if it has none"
            ),
        )
        op.create_index(f"{table}_by_quota", table, ["quota_id"])
    op.create_table(
        "pulse_quota",
        sa.Column("application_id", kinds.identifier(), primary_key=True, comment="The application"),
        sa.Column(
            "max_concurrency", kinds.small_int(), comment="Limit of LEASED plus RUNNING in all queues; null is none"
        ),
        sa.Column("rate_per_second", kinds.small_int(), comment="Limit of Starts in a one-second window; null is none"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="Of the quotas, from 1"),
        sa.Column("window_started_at", kinds.instant(), nullable=False, comment="Begin of the current rate window"),
        sa.Column("window_used", kinds.counter(), nullable=False, comment="Starts granted in that window"),
        comment="What all queues of an application may hold and start; locked after their usage",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "pulse_quota_backlog",
        sa.Column("application_id", kinds.identifier(), primary_key=True, comment="The application"),
        sa.Column(
            "max_unfinished_tasks", kinds.small_int(), comment="Limit of unfinished tasks in all queues; null is none"
        ),
        comment="What all queues of an application may accept; locked after their backlogs",
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    """Drop them: applications are limited by their queues alone."""
    op.drop_table("pulse_quota_backlog")
    op.drop_table("pulse_quota")
    for table in reversed(_MARKED):
        op.drop_index(f"{table}_by_quota", table)
        op.drop_column(table, "quota_id")
