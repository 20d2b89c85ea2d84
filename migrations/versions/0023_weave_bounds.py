"""Let a namespace have limits of its own for what one instance may use at most, which publishing enforces."""

import sqlalchemy as sa
from alembic import op

from orbit.database import columns as kinds

revision = "0023_weave_bounds"
down_revision = "0022_weave_effects"

# An old node publishes by the defaults, as it did, and leaves the limits as they are.
OLD_NODES_MAY_RUN = True

_COLUMNS = (
    ("max_tasks", "most tasks of one instance"),
    ("max_attempts", "most attempts of one instance"),
    ("max_rounds", "most rounds of polls of one instance"),
    ("max_concurrent_tasks", "most tasks of one instance at once"),
    ("max_stored_bytes", "most bytes that one instance stores"),
    ("max_active_seconds", "longest active time of one instance's flow, in seconds"),
)


def upgrade() -> None:
    """Add the columns; null is the default, which held for everyone so far."""
    for name, what in _COLUMNS:
        comment = f"The namespace's {what}; null for the default"
        op.add_column("weave_limit", sa.Column(name, kinds.counter(), comment=comment))


def downgrade() -> None:
    """Drop them: the defaults hold again, for what is published from then on."""
    for name, _ in reversed(_COLUMNS):
        op.drop_column("weave_limit", name)
