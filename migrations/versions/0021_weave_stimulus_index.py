"""Find the stimuli that wait for an instance by an index: whoever follows a result at once asks whether some do."""

from alembic import op

revision = "0021_weave_stimulus_index"
down_revision = "0020_pulse_labels"

# An old node neither needs nor minds it.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Add the index."""
    op.create_index("weave_stimulus_by_instance", "weave_stimulus", ["instance_id", "held"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("weave_stimulus_by_instance", "weave_stimulus")
