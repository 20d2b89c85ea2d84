"""Let instances get signals: tables of them and of business keys, and on `weave_stimulus` what wakes an instance."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0012_weave_signals"
down_revision = "0011_workflow_versions"

# An old node would take a signal's stimulus for a closed review.
OLD_NODES_MAY_RUN = False

_OLD_KIND = "TASK_ENDED, REVIEW_OPENED, REVIEW_CLOSED or GATE_QUIET"
_NEW_KIND = "TASK_ENDED, REVIEW_OPENED, REVIEW_CLOSED, GATE_QUIET, SIGNAL"
_OLD_STEP = "Id of the step"
_NEW_STEP = "Id of the step; a signal's name"


def upgrade() -> None:
    """Make the tables; there is no signal yet."""
    op.create_table(
        "weave_signal",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the row"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
        sa.Column(
            "identity", kinds.digest(), nullable=False, comment="SHA-256 of its address and what its sender called it"
        ),
        sa.Column("meaning", kinds.digest(), nullable=False, comment="SHA-256 of its name and payload"),
        sa.Column("instance_id", kinds.identifier(), comment="For whom; null while no instance has its business key"),
        sa.Column(
            "waits_for", kinds.digest(), comment="Hash of workflow and business key; null once it has an instance"
        ),
        sa.Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
        sa.Column(
            "business_key",
            kinds.exact_key(512),
            comment="The business key it was addressed to; null for an instance",
        ),
        sa.Column("name", kinds.word(64), nullable=False, comment="Name of the signal"),
        sa.Column("signal", kinds.word(128), nullable=False, comment="What its sender called it"),
        sa.Column("payload", kinds.payload(), nullable=False, comment="JSON"),
        sa.Column("sent_by", kinds.word(64), nullable=False, comment="Credential id in hex"),
        sa.Column("sent_at", kinds.instant(), nullable=False, comment="When it was stored, microseconds UTC"),
        sa.Column("expires_at", kinds.instant(), nullable=False, comment="From when on nobody takes it"),
        sa.Column("forget_at", kinds.instant(), comment="When its row may go: its expiry, while it has no instance"),
        sa.Column("taken_at", kinds.instant(), comment="When a wait took it; null until then"),
        sa.Column("step", kinds.word(128), comment="The step that took it"),
        sa.CheckConstraint("(taken_at IS NULL) = (step IS NULL)", name="taken_by_a_step"),
        sa.CheckConstraint("(instance_id IS NULL) = (waits_for IS NOT NULL)", name="has_one_address"),
        sa.UniqueConstraint("identity", name="weave_signal_identity_unique"),
        comment="Signals: stored first, taken later by a wait, once",
        **TABLE_OPTIONS,
    )
    op.create_index("weave_signal_by_instance", "weave_signal", ["instance_id", "sent_at", "id"])
    op.create_index("weave_signal_by_key", "weave_signal", ["waits_for", "sent_at", "id"])
    op.create_index("weave_signal_for_forgetting", "weave_signal", ["forget_at", "id"])
    op.create_table(
        "weave_business_key",
        sa.Column(
            "address", kinds.digest(), primary_key=True, comment="SHA-256 of namespace, workflow and business key"
        ),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
        sa.Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
        sa.Column("business_key", kinds.exact_key(512), nullable=False, comment="The caller's own text, UTF-8"),
        sa.Column(
            "instance_id", kinds.identifier(), comment="The last instance that was started with it; null for none"
        ),
        comment="What starts and signals by business key lock, where a workflow cares for the key",
        **TABLE_OPTIONS,
    )
    _comment("kind", kinds.word(24), was=_OLD_KIND, now=_NEW_KIND)
    _comment("step", kinds.word(128), was=_OLD_STEP, now=_NEW_STEP)


def downgrade() -> None:
    """Drop them. Let the runners apply what has come first: an old node does not know a signal's stimulus."""
    _comment("step", kinds.word(128), was=_NEW_STEP, now=_OLD_STEP)
    _comment("kind", kinds.word(24), was=_NEW_KIND, now=_OLD_KIND)
    op.drop_table("weave_business_key")
    op.drop_table("weave_signal")


def _comment(column: str, kind: sa.types.TypeEngine[str], *, was: str, now: str) -> None:
    """Change a comment of `weave_stimulus`; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        op.alter_column(
            "weave_stimulus", column, existing_type=kind, existing_nullable=False, existing_comment=was, comment=now
        )
