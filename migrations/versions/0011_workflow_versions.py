"""Let people manage versions: a pinned default, states with a reason; number the forms of what is stored."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0011_workflow_versions"
down_revision = "0010_pulse_batches"

# An old node goes on; only, it publishes over a pinned default and knows no revision of a workflow.
OLD_NODES_MAY_RUN = False


def upgrade() -> None:
    """Add the columns and the table; no default is pinned yet, and all that is stored has the first form."""
    op.add_column(
        "weave_workflow",
        sa.Column(
            "default_pinned",
            kinds.flag(),
            nullable=False,
            server_default=sa.text("0"),
            comment="Whether a person has chosen the default; else it is the highest version that is not retired",
        ),
    )
    op.add_column(
        "weave_workflow",
        sa.Column(
            "revision",
            kinds.counter(),
            nullable=False,
            server_default=sa.text("1"),
            comment="Grows with every publication and every change of the default or of a version's state",
        ),
    )
    op.add_column(
        "weave_version",
        sa.Column(
            "state_reason", kinds.text(), comment="The operator's words for the state; null while nobody changed it"
        ),
    )
    op.add_column(
        "weave_version",
        sa.Column(
            "state_changed_at", kinds.instant(), comment="When a person changed the state; null while nobody did"
        ),
    )
    op.add_column(
        "weave_instance",
        sa.Column(
            "format",
            kinds.small_int(),
            nullable=False,
            server_default=sa.text("1"),
            comment="Form in which its state is stored, for life; a node leaves what is newer than itself alone",
        ),
    )
    _comment_workflow("Workflows by name; the row is locked while its versions change")
    op.create_table(
        "orbit_format",
        sa.Column("name", kinds.word(32), primary_key=True, comment="StoredFormat: what is stored in numbered forms"),
        sa.Column("number", kinds.small_int(), nullable=False, comment="The newest form that may be written"),
        sa.Column(
            "finalized_at", kinds.instant(), nullable=False, comment="When an operator allowed it, microseconds UTC"
        ),
        sa.CheckConstraint("number >= 1", name=op.f("orbit_format_number_positive")),
        comment="Stored forms that every node may write; one without a row is at its first",
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    """Drop them: every default is the version that it is now, and every version keeps its state."""
    op.drop_table("orbit_format")
    _comment_workflow("Workflows by name; the row is locked while a version is published")
    for table, column in (
        ("weave_instance", "format"),
        ("weave_version", "state_changed_at"),
        ("weave_version", "state_reason"),
        ("weave_workflow", "revision"),
        ("weave_workflow", "default_pinned"),
    ):
        op.drop_column(table, column)


def _comment_workflow(comment: str) -> None:
    """Change the comment of the table of workflows; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        op.create_table_comment("weave_workflow", comment)
