"""Let starts be limited and name breakpoints: what runs under a limit, and before which steps to pause; find labels."""

import json

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0014_weave_starts"
down_revision = "0013_pulse_keys"

# An old node would not give back the place of an instance that ends, and would not pause.
OLD_NODES_MAY_RUN = False

_ROWS_AT_ONCE = 2_000


def upgrade() -> None:
    """Make the tables; what runs already is counted by no limit."""
    op.create_table(
        "weave_limit",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
        sa.Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow; empty for the namespace"),
        sa.Column("max_running", kinds.small_int(), comment="The namespace's limit; null for none, and for a workflow"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="Grows by one with every change of the limit"),
        sa.PrimaryKeyConstraint("namespace_id", "workflow", name="weave_limit_pk"),
        comment="What starts lock to count the running instances of a workflow or a namespace",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "weave_running",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
        sa.Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow; empty for the namespace"),
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="An unfinished instance"),
        sa.PrimaryKeyConstraint("namespace_id", "workflow", "instance_id", name="weave_running_pk"),
        comment="Unfinished instances that were started under a limit: their number is what it limits",
        **TABLE_OPTIONS,
    )
    op.create_table(
        "weave_label",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
        sa.Column("name", kinds.word(64), nullable=False, comment="The label's name"),
        sa.Column("value", kinds.word(256), nullable=False, comment="Its value"),
        sa.Column("started_at", kinds.instant(), nullable=False, comment="When the instance began, the order of lists"),
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Which instance has it"),
        sa.PrimaryKeyConstraint("namespace_id", "name", "value", "started_at", "instance_id", name="weave_label_pk"),
        comment="Labels of instances, to find them by; only of those that have some",
        **TABLE_OPTIONS,
    )
    _fill_labels()
    op.add_column(
        "weave_instance",
        sa.Column(
            "counted",
            kinds.small_int(),
            nullable=False,
            server_default=sa.text("0"),
            comment="Limits that count it: 1 for its workflow's, 2 for its namespace's",
        ),
    )
    op.add_column(
        "weave_instance",
        sa.Column("pause_at", kinds.text(), comment="JSON list: steps before which it pauses; null for none"),
    )


def _fill_labels() -> None:
    """Make the labels of the instances that there are findable, some thousand at a time."""
    columns = ("id", "namespace_id", "started_at", "labels")
    instance = sa.table("weave_instance", *map(sa.column, columns))
    label = sa.table("weave_label", *map(sa.column, ("namespace_id", "name", "value", "started_at", "instance_id")))
    connection = op.get_bind()
    after = b""
    while True:
        query = sa.select(instance).where(instance.c.labels.is_not(None), instance.c.id > after)
        found = connection.execute(query.order_by(instance.c.id).limit(_ROWS_AT_ONCE)).all()
        rows = [
            {
                "namespace_id": row.namespace_id,
                "name": name,
                "value": value,
                "started_at": row.started_at,
                "instance_id": row.id,
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
    """Drop them; nothing is limited any more."""
    op.drop_column("weave_instance", "pause_at")
    op.drop_column("weave_instance", "counted")
    op.drop_table("weave_label")
    op.drop_table("weave_running")
    op.drop_table("weave_limit")
