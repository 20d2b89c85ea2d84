"""Keep what is to be undone of items that are done with: a table of their effects."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0022_weave_effects"
down_revision = "0021_weave_stimulus_index"

# An old node would put items away without keeping what is to be undone of them.
OLD_NODES_MAY_RUN = False


def upgrade() -> None:
    """Add the table; no definition has asked for it yet."""
    op.create_table(
        "weave_effect",
        sa.Column("instance_id", kinds.identifier(), nullable=False, comment="Whose effect it is"),
        sa.Column("step", kinds.word(128), nullable=False, comment="The step of an item that had it"),
        sa.Column("finished_at", kinds.instant(), nullable=False, comment="When the step was decided"),
        sa.Column("place", kinds.counter(), nullable=False, comment="Place in the flow's order"),
        sa.PrimaryKeyConstraint("instance_id", "step", name=op.f("weave_effect_pk")),
        comment="What is to be undone of items that are done with, if their instance undoes what it did",
        **TABLE_OPTIONS,
    )
    op.create_index("weave_effect_latest", "weave_effect", ["instance_id", "finished_at", "place"])


def downgrade() -> None:
    """Drop it. Instances of definitions that undo the steps of items must have ended."""
    op.drop_table("weave_effect")
