"""Weave's tables by role: an instance's narrow row, its steps, their values apart, what is to be applied, the history.

All rows of an instance are written under the lock of its `weave_instance` row, except stimuli, which are pure inserts,
and signals that have no instance yet.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint, text

from engine.states import INSTANCE_TERMINAL, STEP_TERMINAL, STEP_WITH_TASK, InstanceState
from orbit.database import TABLE_OPTIONS, metadata
from orbit.database import columns as kinds

STEP_ID_CHARACTERS = 128


def _listed(states: frozenset[InstanceState] | frozenset[object]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(map(str, states)))


instance = Table(
    "weave_instance",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the instance"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
    Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
    Column("version", kinds.small_int(), nullable=False, comment="Its published version, for life"),
    Column("state", kinds.word(16), nullable=False, comment="InstanceState"),
    Column(
        "format",
        kinds.small_int(),
        nullable=False,
        server_default=text("1"),
        comment="Form in which its state is stored, for life; a node leaves what is newer than itself alone",
    ),
    Column("parent_id", kinds.identifier(), comment="The instance whose child it is; null for none"),
    Column("parent_step", kinds.word(STEP_ID_CHARACTERS), comment="The parent's step that has started it"),
    Column("parent_round", kinds.small_int(), comment="That step's round then, so that a late end is recognised"),
    Column("root_id", kinds.identifier(), comment="The first of its line of parents; null for one without a parent"),
    Column("ending_as", kinds.word(16), comment="What it becomes at its end; null until that is decided"),
    Column("revision", kinds.counter(), nullable=False, comment="Grows by one with every advance that changed it"),
    Column(
        "control",
        kinds.word(16),
        nullable=False,
        server_default=text("'ACTIVE'"),
        comment="Control: whether an operator has paused it",
    ),
    Column("compensation", kinds.word(16), comment="Compensation: whether it undoes what it did; null if not wanted"),
    Column("pause", kinds.text(), comment="JSON: who has paused it, why and when; null while it is ACTIVE"),
    Column("forked_from", kinds.identifier(), comment="The instance whose results it has copied; null for none"),
    Column("business_key", kinds.exact_key(512), comment="The caller's own look-up text, UTF-8"),
    Column("labels", kinds.text(), comment="JSON object of labels; null for none"),
    Column(
        "counted",
        kinds.small_int(),
        nullable=False,
        server_default=text("0"),
        comment="Limits that count it: 1 for its workflow's, 2 for its namespace's",
    ),
    Column("pause_at", kinds.text(), comment="JSON list: steps before which it pauses; null for none"),
    Column("queues", kinds.text(), comment="JSON list: queue range of the credential that started it; null is all"),
    Column("started_by", kinds.word(64), nullable=False, comment="Credential id in hex, or the command that acted"),
    Column("traceparent", kinds.word(64), comment="Trace context of the start, handed on to its tasks"),
    Column("error", kinds.text(), comment="JSON: why it is held, failed or was cancelled"),
    Column("started_at", kinds.instant(), nullable=False, comment="When it began, microseconds UTC"),
    Column("deadline_at", kinds.instant(), nullable=False, comment="End of its budget of active time"),
    Column("clock_stopped_at", kinds.instant(), comment="Since when the budget stands still; null while it runs"),
    Column("due_at", kinds.instant(), comment="When to look at it at the latest: never after its next timer"),
    Column("finished_at", kinds.instant(), comment="When it became terminal; null exactly until then"),
    CheckConstraint(
        f"(finished_at IS NULL) = (state NOT IN ({_listed(INSTANCE_TERMINAL)}))", name="finished_if_terminal"
    ),
    CheckConstraint(f"due_at IS NULL OR state NOT IN ({_listed(INSTANCE_TERMINAL)})", name="not_due_if_terminal"),
    CheckConstraint("state <> 'ENDING' OR ending_as IS NOT NULL", name="ending_has_an_end"),
    CheckConstraint("revision >= 0", name="revision_not_negative"),
    Index("weave_instance_for_due", "due_at", "id"),
    Index("weave_instance_for_list_by_parent", "namespace_id", "parent_id", "started_at", "id"),
    Index("weave_instance_for_list", "namespace_id", "started_at", "id"),
    Index("weave_instance_for_list_by_workflow", "namespace_id", "workflow", "started_at", "id"),
    Index("weave_instance_for_list_by_state", "namespace_id", "state", "started_at", "id"),
    Index("weave_instance_for_list_by_business_key", "namespace_id", "business_key", "started_at", "id"),
    comment="One run of a published workflow version",
    **TABLE_OPTIONS,
)

step = Table(
    "weave_step",
    metadata,
    Column("instance_id", kinds.identifier(), nullable=False, comment="Whose step it is"),
    Column(
        "step",
        kinds.word(STEP_ID_CHARACTERS),
        nullable=False,
        comment="Id of the step in the definition; with its index for a step of an item",
    ),
    Column("state", kinds.word(16), nullable=False, comment="StepState; a PENDING step has no row"),
    Column("reason", kinds.word(24), comment="StepReason: why it waits, was skipped or is asked to stop"),
    Column("chosen", kinds.word(128), comment="The case that a branch has chosen"),
    Column("round", kinds.small_int(), nullable=False, comment="Number of its current task, from 1; 0 for none"),
    Column("task_id", kinds.identifier(), comment="Its current or last Pulse task, or child instance"),
    Column("due_at", kinds.instant(), comment="When a WAITING step goes on"),
    Column("timeout_at", kinds.instant(), comment="End of the step's bound"),
    Column("start_by_at", kinds.instant(), comment="Until when a full queue is tried"),
    Column("refused_count", kinds.small_int(), nullable=False, comment="Refusals of the current round in a row"),
    Column("review_at", kinds.instant(), comment="Since when it waits for a review"),
    Column("entered_at", kinds.instant(), nullable=False, comment="When it was entered"),
    Column("finished_at", kinds.instant(), comment="When it was decided; null exactly until then"),
    Column("error", kinds.text(), comment="JSON: why it failed or is under review"),
    Column("log", kinds.text(), comment="JSON: a poll's first and last rounds and counts"),
    Column(
        "rounds_before",
        kinds.small_int(),
        nullable=False,
        server_default=text("0"),
        comment="Rounds before a person's retry: from here its bounds count anew",
    ),
    Column("retry_of", kinds.identifier(), comment="The ended task whose line the current round's continues"),
    Column("items", kinds.text(), comment="JSON: how far a foreach is; null for any other step"),
    Column("retries", kinds.text(), comment="JSON list: how often each of its error handlers has retried it"),
    Column(
        "doubts",
        kinds.small_int(),
        nullable=False,
        server_default=text("0"),
        comment="Its tasks that ended although their effect is possible",
    ),
    PrimaryKeyConstraint("instance_id", "step", name="weave_step_pk"),
    CheckConstraint(f"(finished_at IS NULL) = (state NOT IN ({_listed(STEP_TERMINAL)}))", name="finished_if_terminal"),
    CheckConstraint(f"state NOT IN ({_listed(STEP_WITH_TASK)}) OR task_id IS NOT NULL", name="running_has_a_task"),
    CheckConstraint("state <> 'WAITING' OR due_at IS NOT NULL OR items IS NOT NULL", name="waiting_is_due"),
    comment="State of the entered steps of an instance, but for those of items that are done with",
    **TABLE_OPTIONS,
)

item = Table(
    "weave_item",
    metadata,
    Column("instance_id", kinds.identifier(), nullable=False, comment="Whose item it is"),
    Column("foreach", kinds.word(STEP_ID_CHARACTERS), nullable=False, comment="Id of the foreach"),
    Column("place", kinds.small_int(), nullable=False, comment="Index in the list, from 0"),
    Column("steps", kinds.payload(), nullable=False, comment="JSON list: its steps as they ended"),
    PrimaryKeyConstraint("instance_id", "foreach", "place", name="weave_item_pk"),
    comment="Items of foreach steps that are done with: kept for people, read by no advance",
    **TABLE_OPTIONS,
)

effect = Table(
    "weave_effect",
    metadata,
    Column("instance_id", kinds.identifier(), nullable=False, comment="Whose effect it is"),
    Column("step", kinds.word(STEP_ID_CHARACTERS), nullable=False, comment="The step of an item that had it"),
    Column("finished_at", kinds.instant(), nullable=False, comment="When the step was decided"),
    Column("place", kinds.counter(), nullable=False, comment="Place in the flow's order"),
    PrimaryKeyConstraint("instance_id", "step", name="weave_effect_pk"),
    Index("weave_effect_latest", "instance_id", "finished_at", "place"),
    comment="What is to be undone of items that are done with, if their instance undoes what it did",
    **TABLE_OPTIONS,
)

value = Table(
    "weave_value",
    metadata,
    Column("instance_id", kinds.identifier(), nullable=False, comment="Whose value it is"),
    Column(
        "slot",
        kinds.word(STEP_ID_CHARACTERS),
        nullable=False,
        comment="A step id, @input, @output, @items:FOREACH or, for the result of an item, FOREACH[index]",
    ),
    Column("content", kinds.payload(), nullable=False, comment="The value as JSON"),
    PrimaryKeyConstraint("instance_id", "slot", name="weave_value_pk"),
    comment="Input, output, and outputs of steps that no task holds; read only where an expression needs them",
    **TABLE_OPTIONS,
)

stimulus = Table(
    "weave_stimulus",
    metadata,
    # The key begins with `held`, so that what is set aside never lies in the way of the probe.
    Column("held", kinds.flag(), nullable=False, comment="Set aside with an instance held by an engine error"),
    Column("id", kinds.identifier(), nullable=False, comment="UUIDv7 of the stimulus"),
    Column("instance_id", kinds.identifier(), nullable=False, comment="Whom it concerns"),
    Column("kind", kinds.word(24), nullable=False, comment="What has happened: see `engine.store.stimuli`"),
    Column("step", kinds.word(STEP_ID_CHARACTERS), nullable=False, comment="Id of the step; a signal's name"),
    Column("round", kinds.small_int(), nullable=False, comment="Number of the step's task"),
    Column("outcome", kinds.word(16), comment="How the task ended; null if it did not"),
    Column("error", kinds.text(), comment="JSON: the task's error, or what else is said"),
    PrimaryKeyConstraint("held", "id", name="weave_stimulus_pk"),
    Index("weave_stimulus_by_instance", "instance_id", "held"),
    comment="What is to be applied to an instance; that the row exists is the wake-up",
    **TABLE_OPTIONS,
)

signal = Table(
    "weave_signal",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the row"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
    Column("identity", kinds.digest(), nullable=False, comment="SHA-256 of its address and what its sender called it"),
    Column("meaning", kinds.digest(), nullable=False, comment="SHA-256 of its name and payload"),
    Column("instance_id", kinds.identifier(), comment="For whom; null while no instance has its business key"),
    Column("waits_for", kinds.digest(), comment="Hash of workflow and business key; null once it has an instance"),
    Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
    Column("business_key", kinds.exact_key(512), comment="The business key it was addressed to; null for an instance"),
    Column("name", kinds.word(64), nullable=False, comment="Name of the signal"),
    Column("signal", kinds.word(128), nullable=False, comment="What its sender called it"),
    Column("payload", kinds.payload(), nullable=False, comment="JSON"),
    Column("sent_by", kinds.word(64), nullable=False, comment="Credential id in hex"),
    Column("sent_at", kinds.instant(), nullable=False, comment="When it was stored, microseconds UTC"),
    Column("expires_at", kinds.instant(), nullable=False, comment="From when on nobody takes it"),
    Column("forget_at", kinds.instant(), comment="When its row may go: its expiry, while it has no instance"),
    Column("taken_at", kinds.instant(), comment="When a wait took it; null until then"),
    Column("step", kinds.word(STEP_ID_CHARACTERS), comment="The step that took it"),
    CheckConstraint("(taken_at IS NULL) = (step IS NULL)", name="taken_by_a_step"),
    CheckConstraint("(instance_id IS NULL) = (waits_for IS NOT NULL)", name="has_one_address"),
    UniqueConstraint("identity", name="weave_signal_identity_unique"),
    Index("weave_signal_by_instance", "instance_id", "sent_at", "id"),
    Index("weave_signal_by_key", "waits_for", "sent_at", "id"),
    Index("weave_signal_for_forgetting", "forget_at", "id"),
    comment="Signals: stored first, taken later by a wait, once",
    **TABLE_OPTIONS,
)

business_key = Table(
    "weave_business_key",
    metadata,
    Column("address", kinds.digest(), primary_key=True, comment="SHA-256 of namespace, workflow and business key"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
    Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow"),
    Column("business_key", kinds.exact_key(512), nullable=False, comment="The caller's own text, UTF-8"),
    Column("instance_id", kinds.identifier(), comment="The last instance that was started with it; null for none"),
    comment="What starts and signals by business key lock, where a workflow cares for the key",
    **TABLE_OPTIONS,
)

label = Table(
    "weave_label",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
    Column("name", kinds.word(64), nullable=False, comment="The label's name"),
    Column("value", kinds.word(256), nullable=False, comment="Its value"),
    Column("started_at", kinds.instant(), nullable=False, comment="When the instance began, the order of lists"),
    Column("instance_id", kinds.identifier(), nullable=False, comment="Which instance has it"),
    PrimaryKeyConstraint("namespace_id", "name", "value", "started_at", "instance_id", name="weave_label_pk"),
    comment="Labels of instances, to find them by; only of those that have some",
    **TABLE_OPTIONS,
)

# What publishing holds a definition's proven bounds against.
BOUNDS = (
    ("max_tasks", "most tasks of one instance"),
    ("max_attempts", "most attempts of one instance"),
    ("max_rounds", "most rounds of polls of one instance"),
    ("max_concurrent_tasks", "most tasks of one instance at once"),
    ("max_stored_bytes", "most bytes that one instance stores"),
    ("max_active_seconds", "longest active time of one instance's flow, in seconds"),
)

limit = Table(
    "weave_limit",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
    Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow; empty for the namespace"),
    Column("max_running", kinds.small_int(), comment="The namespace's limit; null for none, and for a workflow"),
    Column("revision", kinds.counter(), nullable=False, comment="Grows by one with every change of the limit"),
    *(Column(name, kinds.counter(), comment=f"The namespace's {what}; null for the default") for name, what in BOUNDS),
    PrimaryKeyConstraint("namespace_id", "workflow", name="weave_limit_pk"),
    comment="What starts lock to count the running instances of a workflow or a namespace",
    **TABLE_OPTIONS,
)

running = Table(
    "weave_running",
    metadata,
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose it is"),
    Column("workflow", kinds.word(128), nullable=False, comment="Name of the workflow; empty for the namespace"),
    Column("instance_id", kinds.identifier(), nullable=False, comment="An unfinished instance"),
    PrimaryKeyConstraint("namespace_id", "workflow", "instance_id", name="weave_running_pk"),
    comment="Unfinished instances that were started under a limit: their number is what it limits",
    **TABLE_OPTIONS,
)

recovery = Table(
    "weave_recovery",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the decision"),
    Column("instance_id", kinds.identifier(), nullable=False, comment="Which instance it is about"),
    Column("revision", kinds.counter(), nullable=False, comment="Revision of the instance that the decision made"),
    Column("action", kinds.word(16), nullable=False, comment="Action"),
    Column("step", kinds.word(STEP_ID_CHARACTERS), comment="Id of the step; null for the instance itself"),
    Column("round", kinds.small_int(), nullable=False, comment="Number of the step's task then; 0 for none"),
    Column("task_id", kinds.identifier(), comment="The step's task then: what it reports later is kept with it"),
    Column("safety_statement", kinds.text(), comment="Why a retry can't repeat an effect; null where none was needed"),
    Column("evidence", kinds.text(), nullable=False, comment="JSON as it was given, or a reference with its hash"),
    Column("evidence_digest", kinds.digest(), nullable=False, comment="SHA-256 of the evidence as canonical JSON"),
    Column("reason", kinds.text(), nullable=False, comment="The operator's words"),
    Column("actor", kinds.word(64), nullable=False, comment="Credential id in hex"),
    Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    Index("weave_recovery_by_instance", "instance_id", "id"),
    comment="What people decided about instances and their steps, with their evidence",
    **TABLE_OPTIONS,
)

history = Table(
    "weave_history",
    metadata,
    Column("instance_id", kinds.identifier(), nullable=False, comment="Whose history it is"),
    Column("revision", kinds.counter(), nullable=False, comment="Revision of the instance that the advance made"),
    Column("recorded_at", kinds.instant(), nullable=False, comment="The instant of the advance, microseconds UTC"),
    Column("entries", kinds.payload(), nullable=False, comment="JSON list of what happened, in order"),
    PrimaryKeyConstraint("instance_id", "revision", name="weave_history_pk"),
    comment="One row for each advance, for people: nothing is replayed from it",
    **TABLE_OPTIONS,
)
