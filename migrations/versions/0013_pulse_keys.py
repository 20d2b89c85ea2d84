"""Let tasks have concurrency keys and a fairness key: permits, holders, lines and wake-ups of keys, shares of lanes."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0013_pulse_keys"
down_revision = "0012_weave_signals"

# An old node would claim past the keys, and give none back.
OLD_NODES_MAY_RUN = False

_COLUMNS = ("concurrency_keys", "fairness_key", "fair_at")


def upgrade() -> None:
    """Add them; no task has a key yet."""
    columns: list[sa.Column[Any]] = [
        sa.Column(
            "concurrency_keys", kinds.text(), comment="JSON list of the keys that it holds in flight; null is none"
        ),
        sa.Column("fairness_key", kinds.exact_key(512), comment="Who shares its lane fairly, UTF-8; null is nobody"),
        sa.Column(
            "fair_at", kinds.instant(), comment="Its fair place in the lane; 0 until placed, null without fairness key"
        ),
    ]
    for column in columns:
        op.add_column("pulse_task", column)
    op.create_table(
        "pulse_fair_share",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="Hash of the lane and the fairness key"),
        sa.Column("lane_id", kinds.identifier(), nullable=False, comment="The lane"),
        sa.Column(
            "next_at", kinds.instant(), nullable=False, comment="One quantum after the place of the key's last task"
        ),
        comment="How far each fairness key has come in its lane",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "pulse_key_limit",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose keys it limits"),
        sa.Column(
            "pattern", kinds.exact_key(512), nullable=False, comment="A key, or with * at its end the begin of keys"
        ),
        sa.Column("max_concurrency", kinds.small_int(), comment="Most tasks in flight a key; null leaves it to others"),
        sa.Column(
            "revision", kinds.counter(), nullable=False, comment="Of the limit, from 1; 0 for the lock of them all"
        ),
        sa.PrimaryKeyConstraint("namespace_id", "pattern", name="pulse_key_limit_pk"),
        comment="Limits of concurrency keys as they were set; the row * also orders who sets them and who makes keys",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "pulse_key",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="Hash of the namespace and the key"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose key it is"),
        sa.Column("name", kinds.exact_key(512), nullable=False, comment="The key, UTF-8"),
        sa.Column(
            "max_concurrency", kinds.small_int(), nullable=False, comment="The limit in force, moved with the limits"
        ),
        sa.Column("active", kinds.counter(), nullable=False, comment="Tasks LEASED or RUNNING that hold it"),
        sa.Column("has_line", kinds.flag(), nullable=False, comment="Whether a task may wait for it"),
        sa.Column("used_at", kinds.instant(), nullable=False, comment="When it was last taken, microseconds UTC"),
        sa.CheckConstraint("active >= 0", name="active_not_negative"),
        comment="Permits of each concurrency key in use; locked before the queues' usage",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_key_by_name", "pulse_key", ["namespace_id", "name"])
    op.create_index("pulse_key_by_line", "pulse_key", ["has_line", "id"])
    _create_lines()


def _create_lines() -> None:
    op.create_table(
        "pulse_key_holder",
        sa.Column("key_id", kinds.identifier(), nullable=False, comment="The key"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="The task, LEASED or RUNNING"),
        sa.PrimaryKeyConstraint("key_id", "task_id", name="pulse_key_holder_pk"),
        comment="Which task holds which concurrency key",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "pulse_key_line",
        sa.Column("key_id", kinds.identifier(), nullable=False, comment="The key that was full"),
        sa.Column("lane_id", kinds.identifier(), nullable=False, comment="The task's lane: each has a line of its own"),
        sa.Column("dispatch_at", kinds.instant(), nullable=False, comment="Its place in `ready` and in the line"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="The task, WAITING with reason KEY_BLOCKED"),
        sa.PrimaryKeyConstraint("key_id", "lane_id", "dispatch_at", "task_id", name="pulse_key_line_pk"),
        comment="What a claim found blocked by a full key, in claim order",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "pulse_key_wake",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the wake-up"),
        sa.Column(
            "key_id", kinds.identifier(), nullable=False, comment="The key that may have room for one that waits"
        ),
        comment="Wake-ups on their way: one waiter a line is made ready for each",
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    """Drop them; tasks that wait for a key wait for a claim again."""
    op.execute(
        "INSERT INTO pulse_ready (lane_id, dispatch_at, task_id) "
        "SELECT lane_id, dispatch_at, task_id FROM pulse_key_line"
    )
    op.execute("UPDATE pulse_task SET wait_reason = 'READY' WHERE wait_reason = 'KEY_BLOCKED'")
    for table in ("wake", "line", "holder"):
        op.drop_table(f"pulse_key_{table}")
    op.drop_table("pulse_key")
    op.drop_table("pulse_key_limit")
    op.drop_table("pulse_fair_share")
    for column in reversed(_COLUMNS):
        op.drop_column("pulse_task", column)
