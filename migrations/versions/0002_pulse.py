"""Make the tables of `pulse`."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0002_pulse"
down_revision = "0001_foundation"

# It only adds tables.
OLD_NODES_MAY_RUN = True


def upgrade() -> None:
    """Make the tables."""
    _pulse_queue()
    _pulse_queue_usage()
    _pulse_queue_backlog()
    _pulse_lane()
    _pulse_task()
    _pulse_ready()
    _pulse_delayed()
    _pulse_attempt()
    _pulse_result()
    _pulse_session()
    _pulse_cursor()


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    op.drop_table("pulse_cursor")
    op.drop_table("pulse_session")
    op.drop_table("pulse_result")
    op.drop_table("pulse_attempt")
    op.drop_table("pulse_delayed")
    op.drop_table("pulse_ready")
    op.drop_table("pulse_task")
    op.drop_table("pulse_lane")
    op.drop_table("pulse_queue_backlog")
    op.drop_table("pulse_queue_usage")
    op.drop_table("pulse_queue")


def _pulse_queue() -> None:
    op.create_table(
        "pulse_queue",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the queue"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose queue it is"),
        sa.Column("name", kinds.word(128), nullable=False, comment="Unique in its namespace, never changes"),
        sa.Column("paused", kinds.flag(), nullable=False, comment="No claim and no Start while true"),
        sa.Column("max_concurrency", kinds.small_int(), nullable=False, comment="Limit of LEASED plus RUNNING"),
        sa.Column(
            "rate_per_second", kinds.small_int(), nullable=False, comment="Limit of Starts in a one-second window"
        ),
        sa.Column("max_unfinished_tasks", kinds.small_int(), nullable=False, comment="Limit of unfinished tasks"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="Of the configuration, from 1"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.UniqueConstraint("namespace_id", "name", name=op.f("pulse_queue_name_unique")),
        sa.CheckConstraint("max_concurrency BETWEEN 1 AND 100000", name=op.f("pulse_queue_max_concurrency_range")),
        sa.CheckConstraint("rate_per_second BETWEEN 1 AND 1000000", name=op.f("pulse_queue_rate_per_second_range")),
        sa.CheckConstraint(
            "max_unfinished_tasks BETWEEN 1 AND 1000000", name=op.f("pulse_queue_max_unfinished_tasks_range")
        ),
        comment="Queues: route, limits and range of consumers",
        **TABLE_OPTIONS,
    )


def _pulse_queue_usage() -> None:
    op.create_table(
        "pulse_queue_usage",
        sa.Column("queue_id", kinds.identifier(), primary_key=True, comment="The queue"),
        sa.Column("paused", kinds.flag(), nullable=False, comment="Copy of the queue's, moved with it"),
        sa.Column("max_concurrency", kinds.small_int(), nullable=False, comment="Copy of the queue's, moved with it"),
        sa.Column("rate_per_second", kinds.small_int(), nullable=False, comment="Copy of the queue's, moved with it"),
        sa.Column("active", kinds.counter(), nullable=False, comment="Permits in use: tasks LEASED or RUNNING"),
        sa.Column(
            "leased_unstarted", kinds.counter(), nullable=False, comment="Tasks LEASED, which reserve window room"
        ),
        sa.Column("window_started_at", kinds.instant(), nullable=False, comment="Begin of the current rate window"),
        sa.Column("window_used", kinds.counter(), nullable=False, comment="Starts granted in that window"),
        sa.CheckConstraint(
            "active >= leased_unstarted AND leased_unstarted >= 0", name=op.f("pulse_queue_usage_counters_consistent")
        ),
        comment="Permits and rate window of each queue; locked last by claims, starts and results",
        **TABLE_OPTIONS,
    )


def _pulse_queue_backlog() -> None:
    op.create_table(
        "pulse_queue_backlog",
        sa.Column("queue_id", kinds.identifier(), primary_key=True, comment="The queue"),
        sa.Column(
            "max_unfinished_tasks", kinds.small_int(), nullable=False, comment="Copy of the queue's, moved with it"
        ),
        sa.Column("unfinished", kinds.counter(), nullable=False, comment="Tasks that are not terminal"),
        sa.CheckConstraint("unfinished >= 0", name=op.f("pulse_queue_backlog_unfinished_not_negative")),
        comment="Unfinished tasks of each queue, apart from its permits so that submits don't queue behind Starts",
        **TABLE_OPTIONS,
    )


def _pulse_lane() -> None:
    op.create_table(
        "pulse_lane",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the lane"),
        sa.Column("queue_id", kinds.identifier(), nullable=False, comment="The queue"),
        sa.Column("type", kinds.word(128), nullable=False, comment="Task type"),
        sa.Column("version", kinds.small_int(), nullable=False, comment="Version of the task type"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When its first task came, microseconds UTC"),
        sa.UniqueConstraint("queue_id", "type", "version", name=op.f("pulse_lane_unique")),
        comment="One order of claims: the tasks of one type and version in one queue",
        **TABLE_OPTIONS,
    )


def _pulse_task() -> None:
    op.create_table(
        "pulse_task",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the task; never changes"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose task it is"),
        sa.Column("queue_id", kinds.identifier(), nullable=False, comment="Its queue"),
        sa.Column("lane_id", kinds.identifier(), nullable=False, comment="Its lane, which tells type and version"),
        sa.Column("state", kinds.word(16), nullable=False, comment="TaskState"),
        sa.Column("wait_reason", kinds.word(16), comment="READY, DELAYED or BACKOFF while WAITING, else null"),
        sa.Column("priority", kinds.small_int(), nullable=False, comment="0 to 9"),
        sa.Column("attempts_max", kinds.small_int(), nullable=False, comment="Limit of attempts, frozen"),
        sa.Column("backoff_micros", kinds.counter(), nullable=False, comment="First back-off, frozen"),
        sa.Column("backoff_micros_max", kinds.counter(), nullable=False, comment="Longest back-off, frozen"),
        sa.Column("attempt_timeout_micros", kinds.counter(), nullable=False, comment="Limit of one execution, frozen"),
        sa.Column("accepted_at", kinds.instant(), nullable=False, comment="When it was accepted, microseconds UTC"),
        sa.Column("available_at", kinds.instant(), nullable=False, comment="Not claimed before, microseconds UTC"),
        sa.Column("start_deadline_at", kinds.instant(), comment="Last instant of the first Start; null is none"),
        sa.Column("deadline_at", kinds.instant(), nullable=False, comment="End of everything, microseconds UTC"),
        sa.Column(
            "leases_count", kinds.small_int(), nullable=False, server_default=sa.text("0"), comment="Attempts made"
        ),
        sa.Column(
            "starts_count", kinds.small_int(), nullable=False, server_default=sa.text("0"), comment="Granted Starts"
        ),
        sa.Column(
            "failed_count", kinds.small_int(), nullable=False, server_default=sa.text("0"), comment="Attempts spent"
        ),
        sa.Column(
            "lost_count", kinds.small_int(), nullable=False, server_default=sa.text("0"), comment="Attempts lost"
        ),
        sa.Column("deferred_count", kinds.small_int(), nullable=False, server_default=sa.text("0"), comment="Put-offs"),
        sa.Column(
            "released_count", kinds.small_int(), nullable=False, server_default=sa.text("0"), comment="Undone in a row"
        ),
        sa.Column("cancel_requested_at", kinds.instant(), comment="When a cancel was asked for; null if none"),
        sa.Column("cancel_reason", kinds.text(), comment="The reason of the cancel"),
        sa.Column(
            "revision", kinds.counter(), nullable=False, server_default=sa.text("1"), comment="Rises with each change"
        ),
        sa.Column("finished_at", kinds.instant(), comment="When it became terminal; null exactly until then"),
        sa.Column("error", kinds.text(), comment="JSON {class, code, message, details} of its last failure"),
        sa.Column("business_key", kinds.exact_key(512), comment="The caller's look-up text, UTF-8"),
        sa.Column("source_kind", kinds.word(16), nullable=False, comment="SourceKind"),
        sa.Column("source_id", kinds.identifier(), comment="What made it: the instance of a workflow"),
        sa.Column("source_step", kinds.word(128), comment="The workflow's step"),
        sa.Column("source_round", kinds.small_int(), comment="The round of a poll, from 1"),
        sa.Column("derived_from", kinds.identifier(), comment="The task that this one continues with other params"),
        sa.Column("params_version", kinds.word(64), nullable=False, comment="The caller's version of the params"),
        sa.Column("params", kinds.payload(), nullable=False, comment="JSON as it was sent"),
        sa.Column("labels", kinds.text(), comment="JSON object of text; null is none"),
        sa.Column("traceparent", kinds.word(128), comment="W3C trace context of the submitter"),
        sa.CheckConstraint(
            "(finished_at IS NULL) = (state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))",
            name=op.f("pulse_task_finished"),
        ),
        sa.CheckConstraint("(wait_reason IS NULL) = (state <> 'WAITING')", name=op.f("pulse_task_wait_reason")),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("pulse_task_priority_range")),
        comment="Accepted work: the request, its frozen policy and its state",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_task_by_business_key", "pulse_task", ["namespace_id", "business_key", "accepted_at", "id"])
    op.create_index("pulse_task_by_deadline", "pulse_task", ["deadline_at"])
    op.create_index("pulse_task_by_queue", "pulse_task", ["queue_id", "accepted_at", "id"])
    op.create_index("pulse_task_by_source", "pulse_task", ["source_id", "source_step", "source_round"])
    op.create_index("pulse_task_by_start_deadline", "pulse_task", ["start_deadline_at"])


def _pulse_ready() -> None:
    op.create_table(
        "pulse_ready",
        sa.Column("lane_id", kinds.identifier(), nullable=False, comment="The lane"),
        sa.Column("dispatch_at", kinds.instant(), nullable=False, comment="Order of claims: time less priority"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="The task, WAITING with reason READY"),
        sa.PrimaryKeyConstraint("lane_id", "dispatch_at", "task_id", name=op.f("pulse_ready_pk")),
        comment="What can run but for limits, in claim order; removed by primary key",
        **TABLE_OPTIONS,
    )


def _pulse_delayed() -> None:
    op.create_table(
        "pulse_delayed",
        sa.Column("due_at", kinds.instant(), nullable=False, comment="When it becomes ready, microseconds UTC"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="The task, WAITING with DELAYED or BACKOFF"),
        sa.PrimaryKeyConstraint("due_at", "task_id", name=op.f("pulse_delayed_pk")),
        comment="What waits for its time, in order of time",
        **TABLE_OPTIONS,
    )


def _pulse_attempt() -> None:
    op.create_table(
        "pulse_attempt",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the attempt"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="Its task"),
        sa.Column("number", kinds.small_int(), nullable=False, comment="The task's how-many-th lease, from 1"),
        sa.Column("state", kinds.word(16), nullable=False, comment="AttemptState"),
        sa.Column("token_hash", kinds.digest(), nullable=False, comment="SHA-256 of the execution credential"),
        sa.Column(
            "recovery", kinds.word(16), nullable=False, comment="RecoverySafety that the worker's handler declares"
        ),
        sa.Column("session_id", kinds.identifier(), nullable=False, comment="The worker's session that holds it"),
        sa.Column("leased_at", kinds.instant(), nullable=False, comment="When it was handed out, microseconds UTC"),
        sa.Column("lease_expires_at", kinds.instant(), comment="End of the lease; null exactly when it has ended"),
        sa.Column("limit_at", kinds.instant(), comment="No lease goes beyond: time-out or deadline; null before Start"),
        sa.Column("started_at", kinds.instant(), comment="When Start was granted; null if it never was"),
        sa.Column("finished_at", kinds.instant(), comment="When it ended; null exactly until then"),
        sa.Column("start_message_id", kinds.identifier(), comment="The message that was granted Start"),
        sa.Column("error", kinds.text(), comment="JSON {class, code, message, details} of its failure"),
        sa.Column("progress", kinds.text(), comment="JSON of the last progress; its details are the checkpoint"),
        sa.CheckConstraint(
            "(finished_at IS NULL) = (state IN ('LEASED', 'RUNNING'))", name=op.f("pulse_attempt_finished")
        ),
        sa.CheckConstraint(
            "(lease_expires_at IS NULL) = (finished_at IS NOT NULL)", name=op.f("pulse_attempt_lease_while_live")
        ),
        sa.UniqueConstraint("task_id", "number", name=op.f("pulse_attempt_number_unique")),
        comment="Dispatches and executions: one row each, kept as history",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_attempt_by_lease", "pulse_attempt", ["lease_expires_at"])


def _pulse_result() -> None:
    op.create_table(
        "pulse_result",
        sa.Column("attempt_id", kinds.identifier(), nullable=False, comment="The attempt that reported"),
        sa.Column("message_id", kinds.identifier(), nullable=False, comment="The worker's message"),
        sa.Column("task_id", kinds.identifier(), nullable=False, comment="Its task"),
        sa.Column("receipt", kinds.word(16), nullable=False, comment="ACCEPTED, or LATE: kept as evidence only"),
        sa.Column("meaning", kinds.digest(), nullable=False, comment="SHA-256 of the report"),
        sa.Column(
            "outcome", kinds.word(16), nullable=False, comment="SUCCEEDED, FAILED, CANCELLED, RETURNED or DEFERRED"
        ),
        sa.Column("output", kinds.payload(), comment="JSON as it was sent; null if there is none"),
        sa.Column("error", kinds.text(), comment="JSON of the reported error; null if there is none"),
        sa.Column("recorded_at", kinds.instant(), nullable=False, comment="When it was recorded, microseconds UTC"),
        sa.PrimaryKeyConstraint("attempt_id", "message_id", name=op.f("pulse_result_pk")),
        comment="What workers reported, late evidence included; outputs are read from here",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_result_by_task", "pulse_result", ["task_id"])


def _pulse_session() -> None:
    op.create_table(
        "pulse_session",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="Minted by the server at hello"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose worker it is"),
        sa.Column("credential_id", kinds.identifier(), nullable=False, comment="By which credential it connected"),
        sa.Column("worker", kinds.word(128), nullable=False, comment="The name it gives itself; no authentication"),
        sa.Column("node", kinds.word(128), nullable=False, comment="The node that holds its socket"),
        sa.Column("handlers", kinds.text(), nullable=False, comment="JSON list of type@version"),
        sa.Column("queues", kinds.text(), nullable=False, comment="JSON list of queue names"),
        sa.Column("capacity", kinds.small_int(), nullable=False, comment="Its declared room"),
        sa.Column("connected_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
        sa.Column("disconnected_at", kinds.instant(), comment="When its socket ended; null while it lives"),
        sa.Column("seen_at", kinds.instant(), nullable=False, comment="When its node last vouched for it"),
        sa.Column(
            "unresponsive_since", kinds.instant(), comment="Since when it answers no assignment; null while it does"
        ),
        comment="Workers' connections, for people and for attempts' history",
        **TABLE_OPTIONS,
    )
    op.create_index("pulse_session_for_list", "pulse_session", ["namespace_id", "disconnected_at", "id"])


def _pulse_cursor() -> None:
    op.create_table(
        "pulse_cursor",
        sa.Column("name", kinds.word(32), primary_key=True, comment="The sweep"),
        sa.Column("reached_at", kinds.instant(), nullable=False, comment="Everything up to here has been judged"),
        comment="How far each deadline sweep has come, so that it never reads history again",
        **TABLE_OPTIONS,
    )
