"""Let task types be registered and unknown outcomes verified: types with their revisions, what tasks froze of them."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0016_pulse_task_types"
down_revision = "0015_weave_forks"

# An old node would accept tasks without their type's safety, policy and schema.
OLD_NODES_MAY_RUN = False


def upgrade() -> None:
    """Make the tables and columns; no type is registered, so what is under way goes on as it was accepted."""
    _pulse_mark()
    _pulse_task_type()
    _pulse_type_revision()
    _pulse_verification()
    op.add_column(
        "pulse_task",
        sa.Column(
            "recovery",
            kinds.word(16),
            comment="RecoverySafety of its registered type, frozen; null if it has none",
        ),
    )
    op.add_column(
        "pulse_task",
        sa.Column(
            "type_revision_id", kinds.identifier(), comment="Revision of its registered type; null if it has none"
        ),
    )
    op.add_column(
        "pulse_task",
        sa.Column("redact", kinds.text(), comment="JSON list of paths that are masked beside its type's; null is none"),
    )
    op.add_column(
        "pulse_result",
        sa.Column("output_ref", kinds.text(), comment="JSON {uri, sha256, bytes} of an output kept elsewhere"),
    )
    _comment("RecoverySafety: the task's, else its handler's", was="RecoverySafety that the worker's handler declares")


def downgrade() -> None:
    """Drop them with all that is in them. Settle what is being verified first: nobody would be asked any more."""
    _comment("RecoverySafety that the worker's handler declares", was="RecoverySafety: the task's, else its handler's")
    op.drop_column("pulse_result", "output_ref")
    op.drop_column("pulse_task", "redact")
    op.drop_column("pulse_task", "type_revision_id")
    op.drop_column("pulse_task", "recovery")
    op.drop_table("pulse_verification")
    op.drop_table("pulse_type_revision")
    op.drop_table("pulse_task_type")
    op.drop_table("pulse_mark")


def _comment(comment: str, *, was: str) -> None:
    """Change the comment of an attempt's safety; SQLite has none."""
    if op.get_context().dialect.name != "sqlite":
        op.alter_column(
            "pulse_attempt",
            "recovery",
            existing_type=kinds.word(16),
            existing_nullable=False,
            existing_comment=was,
            comment=comment,
        )


def _pulse_mark() -> None:
    op.create_table(
        "pulse_mark",
        sa.Column("name", kinds.word(32), primary_key=True, comment="What it marks: task_types or fencing_epoch"),
        sa.Column("value", kinds.counter(), nullable=False, comment="Only ever raised"),
        comment="Marks by which nodes see that something rarely changed has changed",
        **TABLE_OPTIONS,
    )


def _pulse_task_type() -> None:
    op.create_table(
        "pulse_task_type",
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose type it is"),
        sa.Column("type", kinds.word(128), nullable=False, comment="Task type"),
        sa.Column("version", kinds.small_int(), nullable=False, comment="Version of the task type"),
        sa.Column("revision_id", kinds.identifier(), nullable=False, comment="What it is now"),
        sa.Column("sequence", kinds.counter(), nullable=False, comment="The mark task_types when it last changed"),
        sa.Column("verify_type", kinds.word(128), comment="The type that verifies it; null is none"),
        sa.Column("verify_version", kinds.small_int(), comment="The version of the type that verifies it"),
        sa.PrimaryKeyConstraint("namespace_id", "type", "version", name=op.f("pulse_task_type_pk")),
        comment="Registered task types",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_task_type_by_sequence", "pulse_task_type", ["sequence"])
    op.create_index("pulse_task_type_by_verifier", "pulse_task_type", ["namespace_id", "verify_type", "verify_version"])


def _pulse_type_revision() -> None:
    op.create_table(
        "pulse_type_revision",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the revision"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose type it is"),
        sa.Column("type", kinds.word(128), nullable=False, comment="Task type"),
        sa.Column("version", kinds.small_int(), nullable=False, comment="Version of the task type"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="From 1"),
        sa.Column("content", kinds.text(), nullable=False, comment="JSON: safety, verifier, schemas, policy, masks"),
        sa.Column("redact", kinds.text(), comment="JSON list of its masked paths, for reads; null is none"),
        sa.Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex"),
        sa.Column("reason", kinds.text(), nullable=False, comment="Why, in the operator's words"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        sa.UniqueConstraint("namespace_id", "type", "version", "revision", name=op.f("pulse_type_revision_unique")),
        comment="Every revision of every task type; tasks refer to the one they were accepted under",
        **TABLE_OPTIONS,
    )


def _pulse_verification() -> None:
    op.create_table(
        "pulse_verification",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7; also the id of the verification task"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose task it is about"),
        sa.Column("subject_id", kinds.identifier(), nullable=False, comment="The task under review"),
        sa.Column("attempt_id", kinds.identifier(), nullable=False, comment="The attempt whose outcome is unknown"),
        sa.Column("state", kinds.word(16), nullable=False, comment="VerificationState"),
        sa.Column("outcome", kinds.word(16), comment="VerificationOutcome once it is settled"),
        sa.Column("due_at", kinds.instant(), comment="When a node has to act; null while a verifier or nobody has to"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When its review began, microseconds UTC"),
        sa.Column("settled_at", kinds.instant(), comment="When its answer was applied or set aside; null until then"),
        sa.CheckConstraint("(settled_at IS NULL) = (state <> 'SETTLED')", name=op.f("pulse_verification_settled")),
        sa.CheckConstraint("(outcome IS NULL) = (settled_at IS NULL)", name=op.f("pulse_verification_outcome")),
        comment="Automatic verifications of unknown outcomes: wanted, asked, answered, settled",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_verification_by_due", "pulse_verification", ["due_at"])
    op.create_index("pulse_verification_by_subject", "pulse_verification", ["subject_id", "id"])
