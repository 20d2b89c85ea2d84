"""Make the tables of published workflow definitions."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0003_weave_definitions"
down_revision = "0002_pulse"

# It only adds tables.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Make the tables."""
    _weave_workflow()
    _weave_version()


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    op.drop_table("weave_version")
    op.drop_table("weave_workflow")


def _weave_workflow() -> None:
    op.create_table(
        "weave_workflow",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose workflow it is"),
        sa.Column("name", kinds.word(128), nullable=False, comment="Unique in its namespace, never changes"),
        sa.Column("default_version", kinds.small_int(), nullable=False, comment="What a start without a version runs"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When its first version was published"),
        sa.PrimaryKeyConstraint("namespace_id", "name", name=op.f("weave_workflow_pk")),
        sa.CheckConstraint("default_version >= 1", name=op.f("weave_workflow_default_version_positive")),
        comment="Workflows by name; the row is locked while a version is published",
        **TABLE_OPTIONS,
    )


def _weave_version() -> None:
    op.create_table(
        "weave_version",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the version, for audit and events"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose workflow it is"),
        sa.Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
        sa.Column("version", kinds.small_int(), nullable=False, comment="The author's number"),
        sa.Column("title", kinds.text(), comment="For people, from the definition"),
        sa.Column("state", kinds.word(16), nullable=False, comment="VersionState"),
        sa.Column(
            "digest",
            kinds.digest(),
            nullable=False,
            comment="SHA-256 of the source: the same content is no new version",
        ),
        sa.Column("source", kinds.payload(), nullable=False, comment="The YAML as it was sent, UTF-8"),
        sa.Column(
            "graph_format", kinds.small_int(), nullable=False, comment="Form of `graph`; a node skips what is newer"
        ),
        sa.Column("graph", kinds.payload(), nullable=False, comment="The step graph as JSON, with its proven bounds"),
        sa.Column(
            "published_by", kinds.word(64), nullable=False, comment="Credential id in hex, or the command that acted"
        ),
        sa.Column("published_at", kinds.instant(), nullable=False, comment="When it was published, microseconds UTC"),
        sa.UniqueConstraint("namespace_id", "workflow", "version", name=op.f("weave_version_number_unique")),
        sa.CheckConstraint("version >= 1", name=op.f("weave_version_version_positive")),
        sa.CheckConstraint("state IN ('ACTIVE', 'DEPRECATED', 'RETIRED')", name=op.f("weave_version_state_known")),
        comment="Published versions with their source and compiled graph",
        **TABLE_OPTIONS,
    )
