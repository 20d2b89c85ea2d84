"""Let steps run for each item of a list: on `weave_step` how far a foreach is, and a table of items done with."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0018_weave_items"
down_revision = "0017_weave_children"

# An old node does not know a foreach.
OLD_NODES_MAY_RUN = False

_OLD_WAITS = "state <> 'WAITING' OR due_at IS NOT NULL"
_NEW_WAITS = "state <> 'WAITING' OR due_at IS NOT NULL OR items IS NOT NULL"
_STEP_ID = (
    "Id of the step in the definition",
    "Id of the step in the definition; with its index for a step of an item",
)
_SLOT = (
    "A step id, @input or @output",
    "A step id, @input, @output, @items:FOREACH or, for the result of an item, FOREACH[index]",
)
_STEP_TABLE = (
    "State of the entered steps of an instance",
    "State of the entered steps of an instance, but for those of items that are done with",
)


def upgrade() -> None:
    """Add the column and the table; there is no foreach yet."""
    op.create_table(
        "weave_item",
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Whose item it is"),
        sa.Column("foreach", kinds.word(128), nullable=False, comment="Id of the foreach"),
        sa.Column("place", kinds.small_int(), nullable=False, comment="Index in the list, from 0"),
        sa.Column("steps", kinds.payload(), nullable=False, comment="JSON list: its steps as they ended"),
        sa.PrimaryKeyConstraint("instance_id", "foreach", "place", name=op.f("weave_item_pk")),
        comment="Items of foreach steps that are done with: kept for people, read by no advance",
        **TABLE_OPTIONS,
    )
    with op.batch_alter_table("weave_step") as table:
        table.add_column(
            sa.Column("items", kinds.text(), comment="JSON: how far a foreach is; null for any other step")
        )
        table.drop_constraint(op.f("weave_step_waiting_is_due"), type_="check")
        table.create_check_constraint(op.f("weave_step_waiting_is_due"), _NEW_WAITS)
    _comment("weave_step", "step", _STEP_ID)
    _comment("weave_value", "slot", _SLOT)
    _comment_table(*_STEP_TABLE)


def downgrade() -> None:
    """Drop both. An unfinished instance with a foreach would be broken: let them end first."""
    _comment_table(*reversed(_STEP_TABLE))
    _comment("weave_value", "slot", _SLOT[::-1])
    _comment("weave_step", "step", _STEP_ID[::-1])
    with op.batch_alter_table("weave_step") as table:
        table.drop_constraint(op.f("weave_step_waiting_is_due"), type_="check")
        table.drop_column("items")
        table.create_check_constraint(op.f("weave_step_waiting_is_due"), _OLD_WAITS)
    op.drop_table("weave_item")


def _comment(table: str, column: str, change: tuple[str, ...]) -> None:
    """Change the comment of a column from the first to the second; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        was, comment = change
        op.alter_column(
            table,
            column,
            existing_type=kinds.word(128),
            existing_nullable=False,
            existing_comment=was,
            comment=comment,
        )


def _comment_table(was: str, comment: str) -> None:
    if op.get_context().dialect.name != "sqlite":
        op.create_table_comment("weave_step", comment, existing_comment=was)
