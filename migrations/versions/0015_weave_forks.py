"""Let instances be forked and change their version: where a fork comes from."""

import sqlalchemy as sa
from alembic import op

from orbit.database import columns as kinds

revision = "0015_weave_forks"
down_revision = "0014_weave_starts"

# An old node runs forks as any instance, and goes on with a migrated one by its version.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Add the column; nothing has been forked yet."""
    op.add_column(
        "weave_instance",
        sa.Column("forked_from", kinds.identifier(), comment="The instance whose results it has copied; null for none"),
    )


def downgrade() -> None:
    """Drop it: a fork stays an instance, without its origin."""
    op.drop_column("weave_instance", "forked_from")
