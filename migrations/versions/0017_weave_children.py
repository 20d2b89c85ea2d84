"""Let instances have children: whose child an instance is, and more kinds of stimuli between the two."""

import sqlalchemy as sa
from alembic import op

from orbit.database import columns as kinds

revision = "0017_weave_children"
down_revision = "0016_pulse_task_types"

# An old node knows neither the step kind nor the stimuli.
OLD_NODES_MAY_RUN = False

_COMMENTS = (
    ("weave_step", "task_id", kinds.identifier(), ("Its current or last Pulse task", True),
     "Its current or last Pulse task, or child instance"),
    ("weave_stimulus", "kind", kinds.word(24), ("TASK_ENDED, REVIEW_OPENED, REVIEW_CLOSED, GATE_QUIET, SIGNAL", False),
     "What has happened: see `engine.store.stimuli`"),
    ("weave_stimulus", "error", kinds.text(), ("JSON: the task's error", True),
     "JSON: the task's error, or what else is said"),
)  # fmt: skip


def upgrade() -> None:
    """Add the columns; no instance has a parent yet."""
    for column in (
        sa.Column("parent_id", kinds.identifier(), comment="The instance whose child it is; null for none"),
        sa.Column("parent_step", kinds.word(128), comment="The parent's step that has started it"),
        sa.Column(
            "parent_round", kinds.small_int(), comment="That step's round then, so that a late end is recognised"
        ),
        sa.Column(
            "root_id", kinds.identifier(), comment="The first of its line of parents; null for one without a parent"
        ),
    ):
        op.add_column("weave_instance", column)
    op.create_index(
        "weave_instance_for_list_by_parent", "weave_instance", ["namespace_id", "parent_id", "started_at", "id"]
    )
    for table, name, kind, (old, is_nullable), new in _COMMENTS:
        _comment(sa.Column(name, kind, nullable=is_nullable, comment=new), table, was=old)


def downgrade() -> None:
    """Drop them. End every instance with children first: what is told between them would not be understood."""
    for table, name, kind, (old, is_nullable), new in _COMMENTS:
        _comment(sa.Column(name, kind, nullable=is_nullable, comment=old), table, was=new)
    op.drop_index("weave_instance_for_list_by_parent", "weave_instance")
    for name in ("root_id", "parent_round", "parent_step", "parent_id"):
        op.drop_column("weave_instance", name)


def _comment(column: "sa.Column[object]", table: str, *, was: str) -> None:
    """Change a column's comment; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        op.alter_column(
            table,
            column.name,
            existing_type=column.type,
            existing_nullable=column.nullable,
            existing_comment=was,
            comment=column.comment,
        )
