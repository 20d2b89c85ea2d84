"""Pulse's tables by role: what was asked for, what can run, what runs, what is counted.

`ready` is narrow and clustered in claim order, so that claims and completions never meet in a secondary index. The
secondary indexes of `task` hold only what never changes. Counters stand in rows of their own, locked last.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint, text

from orbit.database import TABLE_OPTIONS, metadata
from orbit.database import columns as kinds

queue = Table(
    "pulse_queue",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the queue"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose queue it is"),
    Column("name", kinds.word(128), nullable=False, comment="Unique in its namespace, never changes"),
    Column("paused", kinds.flag(), nullable=False, comment="No claim and no Start while true"),
    Column("max_concurrency", kinds.small_int(), nullable=False, comment="Limit of LEASED plus RUNNING"),
    Column("rate_per_second", kinds.small_int(), nullable=False, comment="Limit of Starts in a one-second window"),
    Column("max_unfinished_tasks", kinds.small_int(), nullable=False, comment="Limit of unfinished tasks"),
    Column("revision", kinds.counter(), nullable=False, comment="Of the configuration, from 1"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    UniqueConstraint("namespace_id", "name", name="pulse_queue_name_unique"),
    CheckConstraint("max_concurrency BETWEEN 1 AND 100000", name="max_concurrency_range"),
    CheckConstraint("rate_per_second BETWEEN 1 AND 1000000", name="rate_per_second_range"),
    CheckConstraint("max_unfinished_tasks BETWEEN 1 AND 1000000", name="max_unfinished_tasks_range"),
    comment="Queues: route, limits and range of consumers",
    **TABLE_OPTIONS,
)

queue_usage = Table(
    "pulse_queue_usage",
    metadata,
    Column("queue_id", kinds.identifier(), primary_key=True, comment="The queue"),
    Column("paused", kinds.flag(), nullable=False, comment="Copy of the queue's, moved with it"),
    Column("max_concurrency", kinds.small_int(), nullable=False, comment="Copy of the queue's, moved with it"),
    Column("rate_per_second", kinds.small_int(), nullable=False, comment="Copy of the queue's, moved with it"),
    Column("active", kinds.counter(), nullable=False, comment="Permits in use: tasks LEASED or RUNNING"),
    Column("leased_unstarted", kinds.counter(), nullable=False, comment="Tasks LEASED, which reserve window room"),
    Column("window_started_at", kinds.instant(), nullable=False, comment="Begin of the current rate window"),
    Column("window_used", kinds.counter(), nullable=False, comment="Starts granted in that window"),
    Column("quota_id", kinds.identifier(), comment="The application whose quotas hold too; null if it has none"),
    Index("pulse_queue_usage_by_quota", "quota_id"),
    CheckConstraint("active >= leased_unstarted AND leased_unstarted >= 0", name="counters_consistent"),
    comment="Permits and rate window of each queue; locked last by claims, starts and results",
    **TABLE_OPTIONS,
)

queue_backlog = Table(
    "pulse_queue_backlog",
    metadata,
    Column("queue_id", kinds.identifier(), primary_key=True, comment="The queue"),
    Column("max_unfinished_tasks", kinds.small_int(), nullable=False, comment="Copy of the queue's, moved with it"),
    Column("unfinished", kinds.counter(), nullable=False, comment="Tasks that are not terminal"),
    Column("quota_id", kinds.identifier(), comment="The application whose quotas hold too; null if it has none"),
    Index("pulse_queue_backlog_by_quota", "quota_id"),
    CheckConstraint("unfinished >= 0", name="unfinished_not_negative"),
    comment="Unfinished tasks of each queue, apart from its permits so that submits don't queue behind Starts",
    **TABLE_OPTIONS,
)

quota = Table(
    "pulse_quota",
    metadata,
    Column("application_id", kinds.identifier(), primary_key=True, comment="The application"),
    Column("max_concurrency", kinds.small_int(), comment="Limit of LEASED plus RUNNING in all queues; null is none"),
    Column("rate_per_second", kinds.small_int(), comment="Limit of Starts in a one-second window; null is none"),
    Column("revision", kinds.counter(), nullable=False, comment="Of the quotas, from 1"),
    Column("window_started_at", kinds.instant(), nullable=False, comment="Begin of the current rate window"),
    Column("window_used", kinds.counter(), nullable=False, comment="Starts granted in that window"),
    comment="What all queues of an application may hold and start; locked after their usage",
    **TABLE_OPTIONS,
)

quota_backlog = Table(
    "pulse_quota_backlog",
    metadata,
    Column("application_id", kinds.identifier(), primary_key=True, comment="The application"),
    Column("max_unfinished_tasks", kinds.small_int(), comment="Limit of unfinished tasks in all queues; null is none"),
    comment="What all queues of an application may accept; locked after their backlogs",
    **TABLE_OPTIONS,
)

lane = Table(
    "pulse_lane",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the lane"),
    Column("queue_id", kinds.identifier(), nullable=False, comment="The queue"),
    Column("type", kinds.word(128), nullable=False, comment="Task type"),
    Column("version", kinds.small_int(), nullable=False, comment="Version of the task type"),
    Column("created_at", kinds.instant(), nullable=False, comment="When its first task came, microseconds UTC"),
    UniqueConstraint("queue_id", "type", "version", name="pulse_lane_unique"),
    comment="One order of claims: the tasks of one type and version in one queue",
    **TABLE_OPTIONS,
)

task = Table(
    "pulse_task",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the task; never changes"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose task it is"),
    Column("queue_id", kinds.identifier(), nullable=False, comment="Its queue"),
    Column("lane_id", kinds.identifier(), nullable=False, comment="Its lane, which tells type and version"),
    Column("state", kinds.word(16), nullable=False, comment="TaskState"),
    Column("wait_reason", kinds.word(16), comment="The stored WaitReason while WAITING, else null"),
    Column("priority", kinds.small_int(), nullable=False, comment="0 to 9"),
    Column("attempts_max", kinds.small_int(), nullable=False, comment="Limit of attempts, frozen"),
    Column("backoff_micros", kinds.counter(), nullable=False, comment="First back-off, frozen"),
    Column("backoff_micros_max", kinds.counter(), nullable=False, comment="Longest back-off, frozen"),
    Column("attempt_timeout_micros", kinds.counter(), nullable=False, comment="Limit of one execution, frozen"),
    Column("accepted_at", kinds.instant(), nullable=False, comment="When it was accepted, microseconds UTC"),
    Column("available_at", kinds.instant(), nullable=False, comment="Not claimed before, microseconds UTC"),
    Column("start_deadline_at", kinds.instant(), comment="Last instant of the first Start; null is none"),
    Column("deadline_at", kinds.instant(), nullable=False, comment="End of everything, microseconds UTC"),
    Column("leases_count", kinds.small_int(), nullable=False, server_default=text("0"), comment="Attempts made"),
    Column("starts_count", kinds.small_int(), nullable=False, server_default=text("0"), comment="Granted Starts"),
    Column("failed_count", kinds.small_int(), nullable=False, server_default=text("0"), comment="Attempts spent"),
    Column("lost_count", kinds.small_int(), nullable=False, server_default=text("0"), comment="Attempts lost"),
    Column("deferred_count", kinds.small_int(), nullable=False, server_default=text("0"), comment="Put-offs"),
    Column("released_count", kinds.small_int(), nullable=False, server_default=text("0"), comment="Undone in a row"),
    Column("cancel_requested_at", kinds.instant(), comment="When a cancel was asked for; null if none"),
    Column("cancel_reason", kinds.text(), comment="The reason of the cancel"),
    Column("revision", kinds.counter(), nullable=False, server_default=text("1"), comment="Rises with each change"),
    Column("finished_at", kinds.instant(), comment="When it became terminal; null exactly until then"),
    Column("error", kinds.text(), comment="JSON {class, code, message, details} of its last failure"),
    Column("business_key", kinds.exact_key(512), comment="The caller's look-up text, UTF-8"),
    Column("source_kind", kinds.word(16), nullable=False, comment="SourceKind"),
    Column("source_id", kinds.identifier(), comment="What made it: the instance of a workflow"),
    Column("source_step", kinds.word(128), comment="The workflow's step"),
    Column("source_round", kinds.small_int(), comment="The round of a poll, from 1"),
    Column("retry_of", kinds.identifier(), comment="The ended task that this one repeats by a person's decision"),
    Column("operation_id", kinds.identifier(), comment="First task of the retry_of line; null is this one"),
    Column("fencing_base", kinds.small_int(), nullable=False, server_default=text("0"), comment="Starts before it"),
    Column("derived_from", kinds.identifier(), comment="The task that this one continues with other params"),
    Column("params_version", kinds.word(64), nullable=False, comment="The caller's version of the params"),
    Column("params", kinds.payload(), nullable=False, comment="JSON as it was sent"),
    Column("labels", kinds.text(), comment="JSON object of text; null is none"),
    Column("traceparent", kinds.word(128), comment="W3C trace context of the submitter"),
    Column("gate_id", kinds.identifier(), comment="The gate that it stands behind; null is none"),
    Column("held_since", kinds.instant(), comment="Since when its gate is closed for it; null if it is not"),
    Column("concurrency_keys", kinds.text(), comment="JSON list of the keys that it holds in flight; null is none"),
    Column("fairness_key", kinds.exact_key(512), comment="Who shares its lane fairly, UTF-8; null is nobody"),
    Column("fair_at", kinds.instant(), comment="Its fair place in the lane; 0 until placed, null without fairness key"),
    Column("recovery", kinds.word(16), comment="RecoverySafety of its registered type, frozen; null if it has none"),
    Column("type_revision_id", kinds.identifier(), comment="Revision of its registered type; null if it has none"),
    Column("redact", kinds.text(), comment="JSON list of paths that are masked beside its type's; null is none"),
    CheckConstraint("(finished_at IS NULL) = (state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))", name="finished"),
    CheckConstraint("(wait_reason IS NULL) = (state <> 'WAITING')", name="wait_reason"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="priority_range"),
    Index("pulse_task_by_queue", "queue_id", "accepted_at", "id"),
    Index("pulse_task_by_business_key", "namespace_id", "business_key", "accepted_at", "id"),
    Index("pulse_task_by_source", "source_id", "source_step", "source_round"),
    Index("pulse_task_by_deadline", "deadline_at"),
    Index("pulse_task_by_start_deadline", "start_deadline_at"),
    Index("pulse_task_by_retry_of", "retry_of", unique=True),
    comment="Accepted work: the request, its frozen policy and its state",
    **TABLE_OPTIONS,
)

label = Table(
    "pulse_label",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose task it is"),
    Column("name", kinds.word(64), nullable=False, comment="The label's name"),
    Column("value", kinds.word(256), nullable=False, comment="Its value"),
    Column("accepted_at", kinds.instant(), nullable=False, comment="When the task was accepted, the order of lists"),
    Column("task_id", kinds.identifier(), nullable=False, comment="Which task has it"),
    PrimaryKeyConstraint("namespace_id", "name", "value", "accepted_at", "task_id", name="pulse_label_pk"),
    comment="Labels of tasks, to find them by; only of those that have some",
    **TABLE_OPTIONS,
)

gate = Table(
    "pulse_gate",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="Also the source_id of the tasks behind it"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose gate it is"),
    Column("is_open", kinds.flag(), nullable=False, comment="While false no task behind it is claimed or started"),
    Column("in_flight", kinds.counter(), nullable=False, comment="While closed: tasks behind it that still run"),
    CheckConstraint("in_flight >= 0", name="in_flight_not_negative"),
    comment="Gates before the tasks of one source, with what still runs behind a closed one",
    **TABLE_OPTIONS,
)

ready = Table(
    "pulse_ready",
    metadata,
    Column("lane_id", kinds.identifier(), nullable=False, comment="The lane"),
    Column("dispatch_at", kinds.instant(), nullable=False, comment="Order of claims: time less priority"),
    Column("task_id", kinds.identifier(), nullable=False, comment="The task, WAITING with reason READY"),
    PrimaryKeyConstraint("lane_id", "dispatch_at", "task_id", name="pulse_ready_pk"),
    comment="What can run but for limits, in claim order; removed by primary key",
    **TABLE_OPTIONS,
)

fair_share = Table(
    "pulse_fair_share",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="Hash of the lane and the fairness key"),
    Column("lane_id", kinds.identifier(), nullable=False, comment="The lane"),
    Column("next_at", kinds.instant(), nullable=False, comment="One quantum after the place of the key's last task"),
    comment="How far each fairness key has come in its lane",
    **TABLE_OPTIONS,
)

key_limit = Table(
    "pulse_key_limit",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose keys it limits"),
    Column("pattern", kinds.exact_key(512), nullable=False, comment="A key, or with * at its end the begin of keys"),
    Column("max_concurrency", kinds.small_int(), comment="Most tasks in flight a key; null leaves it to others"),
    Column("revision", kinds.counter(), nullable=False, comment="Of the limit, from 1; 0 for the lock of them all"),
    PrimaryKeyConstraint("namespace_id", "pattern", name="pulse_key_limit_pk"),
    comment="Limits of concurrency keys as they were set; the row * also orders who sets them and who makes keys",
    **TABLE_OPTIONS,
)

key = Table(
    "pulse_key",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="Hash of the namespace and the key"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose key it is"),
    Column("name", kinds.exact_key(512), nullable=False, comment="The key, UTF-8"),
    Column("max_concurrency", kinds.small_int(), nullable=False, comment="The limit in force, moved with the limits"),
    Column("active", kinds.counter(), nullable=False, comment="Tasks LEASED or RUNNING that hold it"),
    Column("has_line", kinds.flag(), nullable=False, comment="Whether a task may wait for it"),
    Column("used_at", kinds.instant(), nullable=False, comment="When it was last taken, microseconds UTC"),
    Index("pulse_key_by_name", "namespace_id", "name"),
    Index("pulse_key_by_line", "has_line", "id"),
    CheckConstraint("active >= 0", name="active_not_negative"),
    comment="Permits of each concurrency key in use; locked before the queues' usage",
    **TABLE_OPTIONS,
)

key_holder = Table(
    "pulse_key_holder",
    metadata,
    Column("key_id", kinds.identifier(), nullable=False, comment="The key"),
    Column("task_id", kinds.identifier(), nullable=False, comment="The task, LEASED or RUNNING"),
    PrimaryKeyConstraint("key_id", "task_id", name="pulse_key_holder_pk"),
    comment="Which task holds which concurrency key",
    **TABLE_OPTIONS,
)

key_line = Table(
    "pulse_key_line",
    metadata,
    Column("key_id", kinds.identifier(), nullable=False, comment="The key that was full"),
    Column("lane_id", kinds.identifier(), nullable=False, comment="The task's lane: each has a line of its own"),
    Column("dispatch_at", kinds.instant(), nullable=False, comment="Its place in `ready` and in the line"),
    Column("task_id", kinds.identifier(), nullable=False, comment="The task, WAITING with reason KEY_BLOCKED"),
    PrimaryKeyConstraint("key_id", "lane_id", "dispatch_at", "task_id", name="pulse_key_line_pk"),
    comment="What a claim found blocked by a full key, in claim order",
    **TABLE_OPTIONS,
)

key_wake = Table(
    "pulse_key_wake",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the wake-up"),
    Column("key_id", kinds.identifier(), nullable=False, comment="The key that may have room for one that waits"),
    comment="Wake-ups on their way: one waiter a line is made ready for each",
    **TABLE_OPTIONS,
)

delayed = Table(
    "pulse_delayed",
    metadata,
    Column("due_at", kinds.instant(), nullable=False, comment="When it becomes ready, microseconds UTC"),
    Column("task_id", kinds.identifier(), nullable=False, comment="The task, WAITING with DELAYED or BACKOFF"),
    PrimaryKeyConstraint("due_at", "task_id", name="pulse_delayed_pk"),
    comment="What waits for its time, in order of time",
    **TABLE_OPTIONS,
)

attempt = Table(
    "pulse_attempt",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the attempt"),
    Column("task_id", kinds.identifier(), nullable=False, comment="Its task"),
    Column("number", kinds.small_int(), nullable=False, comment="The task's how-many-th lease, from 1"),
    Column("state", kinds.word(16), nullable=False, comment="AttemptState"),
    Column("token_hash", kinds.digest(), nullable=False, comment="SHA-256 of the execution credential"),
    Column("recovery", kinds.word(16), nullable=False, comment="RecoverySafety: the task's, else its handler's"),
    Column("session_id", kinds.identifier(), nullable=False, comment="The worker's session that holds it"),
    Column("leased_at", kinds.instant(), nullable=False, comment="When it was handed out, microseconds UTC"),
    Column("lease_expires_at", kinds.instant(), comment="End of the lease; null exactly when it has ended"),
    Column("limit_at", kinds.instant(), comment="No lease goes beyond: time-out or deadline; null before Start"),
    Column("started_at", kinds.instant(), comment="When Start was granted; null if it never was"),
    Column("finished_at", kinds.instant(), comment="When it ended; null exactly until then"),
    Column("start_message_id", kinds.identifier(), comment="The message that was granted Start"),
    Column("error", kinds.text(), comment="JSON {class, code, message, details} of its failure"),
    Column("progress", kinds.text(), comment="JSON of the last progress; its details are the checkpoint"),
    CheckConstraint("(finished_at IS NULL) = (state IN ('LEASED', 'RUNNING'))", name="finished"),
    CheckConstraint("(lease_expires_at IS NULL) = (finished_at IS NOT NULL)", name="lease_while_live"),
    UniqueConstraint("task_id", "number", name="pulse_attempt_number_unique"),
    Index("pulse_attempt_by_lease", "lease_expires_at"),
    comment="Dispatches and executions: one row each, kept as history",
    **TABLE_OPTIONS,
)

result = Table(
    "pulse_result",
    metadata,
    Column("attempt_id", kinds.identifier(), nullable=False, comment="The attempt that reported"),
    Column("message_id", kinds.identifier(), nullable=False, comment="The worker's message"),
    Column("task_id", kinds.identifier(), nullable=False, comment="Its task"),
    Column("receipt", kinds.word(16), nullable=False, comment="ACCEPTED, or LATE: kept as evidence only"),
    Column("meaning", kinds.digest(), nullable=False, comment="SHA-256 of the report"),
    Column("outcome", kinds.word(16), nullable=False, comment="SUCCEEDED, FAILED, CANCELLED, RETURNED or DEFERRED"),
    Column("output", kinds.payload(), comment="JSON as it was sent; null if there is none"),
    Column("output_ref", kinds.text(), comment="JSON {uri, sha256, bytes} of an output kept elsewhere"),
    Column("error", kinds.text(), comment="JSON of the reported error; null if there is none"),
    Column("recorded_at", kinds.instant(), nullable=False, comment="When it was recorded, microseconds UTC"),
    PrimaryKeyConstraint("attempt_id", "message_id", name="pulse_result_pk"),
    Index("pulse_result_by_task", "task_id"),
    comment="What workers reported, late evidence included; outputs are read from here",
    **TABLE_OPTIONS,
)

verdict = Table(
    "pulse_verdict",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the verdict"),
    Column("task_id", kinds.identifier(), nullable=False, comment="The task that a person judged"),
    Column(
        "kind", kinds.word(16), nullable=False, comment="SUCCEEDED, FAILED, RETRY of a review; SUCCESSOR of a retry"
    ),
    Column(
        "safety_statement", kinds.text(), comment="Why another attempt can't repeat an effect; null if none follows"
    ),
    Column("evidence", kinds.text(), nullable=False, comment="JSON as it was given, or a reference with its hash"),
    Column("reason", kinds.text(), nullable=False, comment="The operator's words"),
    Column("output", kinds.payload(), comment="JSON of the result that the person vouches for"),
    Column("output_ref", kinds.text(), comment="JSON {uri, sha256, bytes} of a result kept elsewhere"),
    Column("late_attempt_id", kinds.identifier(), comment="The attempt whose late report settles it; null is none"),
    Column("late_message_id", kinds.identifier(), comment="The message of that report"),
    Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex"),
    Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    Index("pulse_verdict_by_task", "task_id", "id"),
    comment="What people decided about unknown outcomes and ended tasks, with their evidence",
    **TABLE_OPTIONS,
)

session = Table(
    "pulse_session",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="Minted by the server at hello"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose worker it is"),
    Column("credential_id", kinds.identifier(), nullable=False, comment="By which credential it connected"),
    Column("worker", kinds.word(128), nullable=False, comment="The name it gives itself; no authentication"),
    Column("node", kinds.word(128), nullable=False, comment="The node that holds its socket"),
    Column("handlers", kinds.text(), nullable=False, comment="JSON list of type@version"),
    Column("queues", kinds.text(), nullable=False, comment="JSON list of queue names"),
    Column("capacity", kinds.small_int(), nullable=False, comment="Its declared room"),
    Column("connected_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    Column("disconnected_at", kinds.instant(), comment="When its socket ended; null while it lives"),
    Column("seen_at", kinds.instant(), nullable=False, comment="When its node last vouched for it"),
    Column("unresponsive_since", kinds.instant(), comment="Since when it answers no assignment; null while it does"),
    Index("pulse_session_for_list", "namespace_id", "disconnected_at", "id"),
    comment="Workers' connections, for people and for attempts' history",
    **TABLE_OPTIONS,
)

cursor = Table(
    "pulse_cursor",
    metadata,
    Column("name", kinds.word(32), primary_key=True, comment="The sweep"),
    Column("reached_at", kinds.instant(), nullable=False, comment="Everything up to here has been judged"),
    comment="How far each deadline sweep has come, so that it never reads history again",
    **TABLE_OPTIONS,
)

batch = Table(
    "pulse_batch",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the batch"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose batch it is"),
    Column("operation", kinds.word(32), nullable=False, comment="What is done to each item, such as task.cancel"),
    Column("state", kinds.word(16), nullable=False, comment="BatchState"),
    Column("arguments", kinds.text(), nullable=False, comment="JSON of what the operation needs beside the item"),
    Column("selection", kinds.text(), nullable=False, comment="JSON of how the items were chosen, for people"),
    Column("items_count", kinds.small_int(), nullable=False, comment="How many items it has"),
    Column("interval_micros", kinds.counter(), nullable=False, comment="Time between two items: one over the rate"),
    Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex, who asked for it"),
    Column("request_id", kinds.identifier(), nullable=False, comment="The request that asked for it"),
    Column("reason", kinds.text(), nullable=False, comment="Why, in the operator's words"),
    Column("revision", kinds.counter(), nullable=False, comment="From 1; rises when it ends"),
    Column("next_at", kinds.instant(), comment="When its next items may be done; null once it has ended"),
    Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    Column("finished_at", kinds.instant(), comment="When it ended; null until then"),
    CheckConstraint("(finished_at IS NULL) = (state = 'RUNNING')", name="finished"),
    CheckConstraint("(next_at IS NULL) = (finished_at IS NOT NULL)", name="next_while_running"),
    Index("pulse_batch_by_next", "next_at"),
    Index("pulse_batch_for_list", "namespace_id", "created_at", "id"),
    comment="One decision of an operator about many tasks or instances, carried out item by item",
    **TABLE_OPTIONS,
)

batch_item = Table(
    "pulse_batch_item",
    metadata,
    Column("batch_id", kinds.identifier(), nullable=False, comment="The batch"),
    Column("position", kinds.small_int(), nullable=False, comment="Its place in the batch, from 0"),
    Column("subject_id", kinds.identifier(), nullable=False, comment="The task or instance"),
    Column("subject_revision", kinds.counter(), nullable=False, comment="Its revision when it was chosen"),
    Column("state", kinds.word(16), nullable=False, comment="ItemState"),
    Column("outcome", kinds.text(), comment="JSON: what came of it, or {code, message} of the refusal; null before"),
    Column("done_at", kinds.instant(), comment="When it was decided; null before"),
    PrimaryKeyConstraint("batch_id", "position", name="pulse_batch_item_pk"),
    Index("pulse_batch_item_by_state", "batch_id", "state", "position"),
    comment="What a batch is about, one row each, with what came of it",
    **TABLE_OPTIONS,
)

mark = Table(
    "pulse_mark",
    metadata,
    Column("name", kinds.word(32), primary_key=True, comment="What it marks: task_types or fencing_epoch"),
    Column("value", kinds.counter(), nullable=False, comment="Only ever raised"),
    comment="Marks by which nodes see that something rarely changed has changed",
    **TABLE_OPTIONS,
)

task_type = Table(
    "pulse_task_type",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose type it is"),
    Column("type", kinds.word(128), nullable=False, comment="Task type"),
    Column("version", kinds.small_int(), nullable=False, comment="Version of the task type"),
    Column("revision_id", kinds.identifier(), nullable=False, comment="What it is now"),
    Column("sequence", kinds.counter(), nullable=False, comment="The mark task_types when it last changed"),
    Column("verify_type", kinds.word(128), comment="The type that verifies it; null is none"),
    Column("verify_version", kinds.small_int(), comment="The version of the type that verifies it"),
    PrimaryKeyConstraint("namespace_id", "type", "version", name="pulse_task_type_pk"),
    Index("pulse_task_type_by_sequence", "sequence"),
    Index("pulse_task_type_by_verifier", "namespace_id", "verify_type", "verify_version"),
    comment="Registered task types",
    **TABLE_OPTIONS,
)

type_revision = Table(
    "pulse_type_revision",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the revision"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose type it is"),
    Column("type", kinds.word(128), nullable=False, comment="Task type"),
    Column("version", kinds.small_int(), nullable=False, comment="Version of the task type"),
    Column("revision", kinds.counter(), nullable=False, comment="From 1"),
    Column("content", kinds.text(), nullable=False, comment="JSON: safety, verifier, schemas, policy, masks"),
    Column("redact", kinds.text(), comment="JSON list of its masked paths, for reads; null is none"),
    Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex"),
    Column("reason", kinds.text(), nullable=False, comment="Why, in the operator's words"),
    Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    UniqueConstraint("namespace_id", "type", "version", "revision", name="pulse_type_revision_unique"),
    comment="Every revision of every task type; tasks refer to the one they were accepted under",
    **TABLE_OPTIONS,
)

verification = Table(
    "pulse_verification",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7; also the id of the verification task"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose task it is about"),
    Column("subject_id", kinds.identifier(), nullable=False, comment="The task under review"),
    Column("attempt_id", kinds.identifier(), nullable=False, comment="The attempt whose outcome is unknown"),
    Column("state", kinds.word(16), nullable=False, comment="VerificationState"),
    Column("outcome", kinds.word(16), comment="VerificationOutcome once it is settled"),
    Column("due_at", kinds.instant(), comment="When a node has to act; null while a verifier or nobody has to"),
    Column("created_at", kinds.instant(), nullable=False, comment="When its review began, microseconds UTC"),
    Column("settled_at", kinds.instant(), comment="When its answer was applied or set aside; null until then"),
    CheckConstraint("(settled_at IS NULL) = (state <> 'SETTLED')", name="settled"),
    CheckConstraint("(outcome IS NULL) = (settled_at IS NULL)", name="outcome"),
    Index("pulse_verification_by_due", "due_at"),
    Index("pulse_verification_by_subject", "subject_id", "id"),
    comment="Automatic verifications of unknown outcomes: wanted, asked, answered, settled",
    **TABLE_OPTIONS,
)
