"""The tables of published workflow versions. A version's row never changes, but for its state."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, PrimaryKeyConstraint, Table, UniqueConstraint, text

from orbit.database import TABLE_OPTIONS, metadata
from orbit.database import columns as kinds

workflow = Table(
    "weave_workflow",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose workflow it is"),
    Column("name", kinds.word(128), nullable=False, comment="Unique in its namespace, never changes"),
    Column("default_version", kinds.small_int(), nullable=False, comment="What a start without a version runs"),
    Column(
        "default_pinned",
        kinds.flag(),
        nullable=False,
        server_default=text("0"),
        comment="Whether a person has chosen the default; else it is the highest version that is not retired",
    ),
    Column(
        "revision",
        kinds.counter(),
        nullable=False,
        server_default=text("1"),
        comment="Grows with every publication and every change of the default or of a version's state",
    ),
    Column("created_at", kinds.instant(), nullable=False, comment="When its first version was published"),
    PrimaryKeyConstraint("namespace_id", "name"),
    CheckConstraint("default_version >= 1", name="default_version_positive"),
    comment="Workflows by name; the row is locked while its versions change",
    **TABLE_OPTIONS,
)

version = Table(
    "weave_version",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the version, for audit and events"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose workflow it is"),
    Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
    Column("version", kinds.small_int(), nullable=False, comment="The author's number"),
    Column("title", kinds.text(), comment="For people, from the definition"),
    Column("state", kinds.word(16), nullable=False, comment="VersionState"),
    Column("state_reason", kinds.text(), comment="The operator's words for the state; null while nobody changed it"),
    Column("state_changed_at", kinds.instant(), comment="When a person changed the state; null while nobody did"),
    Column(
        "digest", kinds.digest(), nullable=False, comment="SHA-256 of the source: the same content is no new version"
    ),
    Column("source", kinds.payload(), nullable=False, comment="The YAML as it was sent, UTF-8"),
    Column("graph_format", kinds.small_int(), nullable=False, comment="Form of `graph`; a node skips what is newer"),
    Column("graph", kinds.payload(), nullable=False, comment="The step graph as JSON, with its proven bounds"),
    Column("published_by", kinds.word(64), nullable=False, comment="Credential id in hex, or the command that acted"),
    Column("published_at", kinds.instant(), nullable=False, comment="When it was published, microseconds UTC"),
    UniqueConstraint("namespace_id", "workflow", "version", name="weave_version_number_unique"),
    CheckConstraint("version >= 1", name="version_positive"),
    CheckConstraint("state IN ('ACTIVE', 'DEPRECATED', 'RETIRED')", name="state_known"),
    comment="Published versions with their source and compiled graph",
    **TABLE_OPTIONS,
)
