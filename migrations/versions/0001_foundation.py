"""Make the tables of `orbit`."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0001_foundation"
down_revision = None

# It only adds tables.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Make the tables."""
    _orbit_application()
    _orbit_namespace()
    _orbit_credential()
    _orbit_receipt()
    _orbit_audit()
    _orbit_event()


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    op.drop_table("orbit_event")
    op.drop_table("orbit_audit")
    op.drop_table("orbit_receipt")
    op.drop_table("orbit_credential")
    op.drop_table("orbit_namespace")
    op.drop_table("orbit_application")


def _orbit_application() -> None:
    op.create_table(
        "orbit_application",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the application"),
        sa.Column("name", kinds.word(128), nullable=False, comment="Unique name"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.UniqueConstraint("name", name=op.f("orbit_application_name_unique")),
        comment="Who calls: owns environments and, across them, quotas",
        **TABLE_OPTIONS,
    )


def _orbit_namespace() -> None:
    op.create_table(
        "orbit_namespace",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the namespace"),
        sa.Column("application_id", kinds.identifier(), nullable=False, comment="Owner"),
        sa.Column("name", kinds.word(128), nullable=False, comment="The namespace's name"),
        sa.Column("environment", kinds.word(128), nullable=False, comment="The application's environment that it is"),
        sa.Column(
            "disabled_at", kinds.instant(), comment="Since when nothing in it is served; null while it is in use"
        ),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.UniqueConstraint("application_id", "name", "environment", name=op.f("orbit_namespace_name_unique")),
        comment="The boundary of what a credential may see: one environment of one application",
        **TABLE_OPTIONS,
    )


def _orbit_credential() -> None:
    op.create_table(
        "orbit_credential",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7; in hex the public half of the token"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="The one namespace it belongs to"),
        sa.Column("name", kinds.word(128), nullable=False, comment="For people"),
        sa.Column("secret_hash", kinds.digest(), nullable=False, comment="SHA-256 of the secret, which is not stored"),
        sa.Column("scopes", kinds.text(), nullable=False, comment="JSON list of scopes"),
        sa.Column("queues", kinds.text(), comment="JSON list of queue names in range; null means all"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.Column("revoked_at", kinds.instant(), comment="From when on it is refused; null while it is valid"),
        comment="Credentials: several may be valid at once, so that they can be rotated with overlap",
        **TABLE_OPTIONS,
    )
    op.create_index("orbit_credential_by_namespace", "orbit_credential", ["namespace_id", "id"])


def _orbit_receipt() -> None:
    op.create_table(
        "orbit_receipt",
        sa.Column("id", kinds.digest(), primary_key=True, comment="SHA-256 of namespace, operation, resource and key"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose request it was"),
        sa.Column("meaning", kinds.digest(), nullable=False, comment="SHA-256 of the request's canonical JSON"),
        sa.Column("subject_id", kinds.identifier(), nullable=False, comment="What the request made or changed"),
        sa.Column("answer", kinds.payload(), nullable=False, comment="The data of the first answer, JSON"),
        sa.Column(
            "created_at", kinds.instant(), nullable=False, comment="When the request was accepted, microseconds UTC"
        ),
        comment="Idempotency receipts: the same request again gets the same answer",
        **TABLE_OPTIONS,
    )
    op.create_index("orbit_receipt_by_age", "orbit_receipt", ["created_at"])


def _orbit_audit() -> None:
    op.create_table(
        "orbit_audit",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the record"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Where it happened"),
        sa.Column("actor", kinds.word(64), nullable=False, comment="Credential id, or the command that acted"),
        sa.Column("operation", kinds.word(64), nullable=False, comment="Such as queue.configure"),
        sa.Column("subject_kind", kinds.word(32), nullable=False, comment="Such as queue"),
        sa.Column("subject_id", kinds.identifier(), nullable=False, comment="What was managed"),
        sa.Column("request_id", kinds.identifier(), nullable=False, comment="The request's id"),
        sa.Column("reason", kinds.text(), comment="The operator's words; null where the operation takes none"),
        sa.Column("before", kinds.text(), comment="JSON of the state before; null if there was none"),
        sa.Column("after", kinds.text(), comment="JSON of the state after"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        comment="Every management operation: who, when, why, before and after",
        **TABLE_OPTIONS,
    )
    op.create_index("orbit_audit_for_list", "orbit_audit", ["namespace_id", "created_at", "id"])


def _orbit_event() -> None:
    op.create_table(
        "orbit_event",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the event"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Where it happened"),
        sa.Column("type", kinds.word(64), nullable=False, comment="Such as task.succeeded"),
        sa.Column("subject_id", kinds.identifier(), nullable=False, comment="The task, queue or instance it is about"),
        sa.Column("subject_revision", kinds.counter(), nullable=False, comment="Orders the events of a subject"),
        sa.Column("data", kinds.text(), nullable=False, comment="JSON details"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        sa.CheckConstraint("subject_revision >= 0", name=op.f("orbit_event_revision_not_negative")),
        comment="What happened, stored in the transaction that caused it",
        **TABLE_OPTIONS,
    )
    op.create_index("orbit_event_by_subject", "orbit_event", ["subject_id", "subject_revision"])
    op.create_index("orbit_event_for_list", "orbit_event", ["namespace_id", "created_at", "id"])
