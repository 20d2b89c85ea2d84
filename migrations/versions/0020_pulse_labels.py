"""Let tasks be found by label, and verdicts rest on what a worker reported late."""

import json

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0020_pulse_labels"
down_revision = "0019_weave_failures"

# An old node would accept tasks that no search by label finds.
OLD_NODES_MAY_RUN = False

_ROWS_AT_ONCE = 2_000


def upgrade() -> None:
    """Make the table, with the labels of the tasks that there are, and the columns; no verdict names a report yet."""
    op.create_table(
        "pulse_label",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose task it is"),
        sa.Column("name", kinds.word(64), nullable=False, comment="The label's name"),
        sa.Column("value", kinds.word(256), nullable=False, comment="Its value"),
        sa.Column(
            "accepted_at", kinds.instant(), nullable=False, comment="When the task was accepted, the order of lists"
        ),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="Which task has it"),
        sa.PrimaryKeyConstraint("namespace_id", "name", "value", "accepted_at", "task_id", name="pulse_label_pk"),
        comment="Labels of tasks, to find them by; only of those that have some",
        **TABLE_OPTIONS,
    )
    _fill_labels()
    op.add_column(
        "pulse_verdict",
        sa.Column("output_ref", kinds.text(), comment="JSON {uri, sha256, bytes} of a result kept elsewhere"),
    )
    op.add_column(
        "pulse_verdict",
        sa.Column(
            "late_attempt_id", kinds.identifier(), comment="The attempt whose late report settles it; null is none"
        ),
    )
    op.add_column(
        "pulse_verdict",
        sa.Column("late_message_id", kinds.identifier(), comment="The message of that report"),
    )


def _fill_labels() -> None:
    """Make the labels of the tasks that there are findable, some thousand at a time."""
    task = sa.table("pulse_task", *map(sa.column, ("id", "namespace_id", "accepted_at", "labels")))
    label = sa.table("pulse_label", *map(sa.column, ("namespace_id", "name", "value", "accepted_at", "task_id")))
    connection = op.get_bind()
    after = b""
    while True:
        query = sa.select(task).where(task.c.id > after, task.c.labels.is_not(None))
        found = connection.execute(query.order_by(task.c.id).limit(_ROWS_AT_ONCE)).all()
        rows = [
            {
                "namespace_id": row.namespace_id,
                "name": name,
                "value": value,
                "accepted_at": row.accepted_at,
                "task_id": row.id,
            }
            for row in found
            for name, value in json.loads(row.labels).items()
        ]
        if rows:
            connection.execute(sa.insert(label), rows)
        if len(found) < _ROWS_AT_ONCE:
            return
        after = found[-1].id


def downgrade() -> None:
    """Drop them; tasks keep their labels, and verdicts their outputs but those kept elsewhere."""
    op.drop_column("pulse_verdict", "late_message_id")
    op.drop_column("pulse_verdict", "late_attempt_id")
    op.drop_column("pulse_verdict", "output_ref")
    op.drop_table("pulse_label")
