"""The foundation's tables: who may do what, what was promised, what happened."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint

from orbit.database import TABLE_OPTIONS, metadata
from orbit.database import columns as kinds

application = Table(
    "orbit_application",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the application"),
    Column("name", kinds.word(128), nullable=False, comment="Unique name"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    UniqueConstraint("name"),
    comment="Who calls: owns environments and, across them, quotas",
    **TABLE_OPTIONS,
)

namespace = Table(
    "orbit_namespace",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the namespace"),
    Column("application_id", kinds.identifier(), nullable=False, comment="Owner"),
    Column("name", kinds.word(128), nullable=False, comment="The namespace's name"),
    Column("environment", kinds.word(128), nullable=False, comment="The application's environment that it is"),
    Column("disabled_at", kinds.instant(), comment="Since when nothing in it is served; null while it is in use"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    UniqueConstraint("application_id", "name", "environment", name="orbit_namespace_name_unique"),
    comment="The boundary of what a credential may see: one environment of one application",
    **TABLE_OPTIONS,
)

credential = Table(
    "orbit_credential",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7; in hex the public half of the token"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="The one namespace it belongs to"),
    Column("name", kinds.word(128), nullable=False, comment="For people"),
    Column("secret_hash", kinds.digest(), nullable=False, comment="SHA-256 of the secret, which is not stored"),
    Column("scopes", kinds.text(), nullable=False, comment="JSON list of scopes"),
    Column("queues", kinds.text(), comment="JSON list of queue names in range; null means all"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    Column("revoked_at", kinds.instant(), comment="From when on it is refused; null while it is valid"),
    Index("orbit_credential_by_namespace", "namespace_id", "id"),
    comment="Credentials: several may be valid at once, so that they can be rotated with overlap",
    **TABLE_OPTIONS,
)

stored_format = Table(
    "orbit_format",
    metadata,
    Column("name", kinds.word(32), primary_key=True, comment="StoredFormat: what is stored in numbered forms"),
    Column("number", kinds.small_int(), nullable=False, comment="The newest form that may be written"),
    Column("finalized_at", kinds.instant(), nullable=False, comment="When an operator allowed it, microseconds UTC"),
    CheckConstraint("number >= 1", name="number_positive"),
    comment="Stored forms that every node may write; one without a row is at its first",
    **TABLE_OPTIONS,
)

receipt = Table(
    "orbit_receipt",
    metadata,
    Column("id", kinds.digest(), primary_key=True, comment="SHA-256 of namespace, operation, resource and key"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose request it was"),
    Column("meaning", kinds.digest(), nullable=False, comment="SHA-256 of the request's canonical JSON"),
    Column("subject_id", kinds.identifier(), nullable=False, comment="What the request made or changed"),
    Column("answer", kinds.payload(), nullable=False, comment="The data of the first answer, JSON"),
    Column("created_at", kinds.instant(), nullable=False, comment="When the request was accepted, microseconds UTC"),
    Index("orbit_receipt_by_age", "created_at"),
    comment="Idempotency receipts: the same request again gets the same answer",
    **TABLE_OPTIONS,
)

audit = Table(
    "orbit_audit",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the record"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Where it happened"),
    Column("actor", kinds.word(64), nullable=False, comment="Credential id, or the command that acted"),
    Column("operation", kinds.word(64), nullable=False, comment="Such as queue.configure"),
    Column("subject_kind", kinds.word(32), nullable=False, comment="Such as queue"),
    Column("subject_id", kinds.identifier(), nullable=False, comment="What was managed"),
    Column("request_id", kinds.identifier(), nullable=False, comment="The request's id"),
    Column("reason", kinds.text(), comment="The operator's words; null where the operation takes none"),
    Column("before", kinds.text(), comment="JSON of the state before; null if there was none"),
    Column("after", kinds.text(), comment="JSON of the state after"),
    Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    Index("orbit_audit_for_list", "namespace_id", "created_at", "id"),
    comment="Every management operation: who, when, why, before and after",
    **TABLE_OPTIONS,
)

event = Table(
    "orbit_event",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the event"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Where it happened"),
    Column("type", kinds.word(64), nullable=False, comment="Such as task.succeeded"),
    Column("subject_id", kinds.identifier(), nullable=False, comment="The task, queue or instance it is about"),
    Column("subject_revision", kinds.counter(), nullable=False, comment="Orders the events of a subject"),
    Column("data", kinds.text(), nullable=False, comment="JSON details"),
    Column("created_at", kinds.instant(), nullable=False, comment="When, microseconds UTC"),
    CheckConstraint("subject_revision >= 0", name="revision_not_negative"),
    Index("orbit_event_by_subject", "subject_id", "subject_revision"),
    Index("orbit_event_for_list", "namespace_id", "created_at", "id"),
    comment="What happened, stored in the transaction that caused it",
    **TABLE_OPTIONS,
)

subscription = Table(
    "orbit_subscription",
    metadata,
    Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the subscription"),
    Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose events it gets"),
    Column("name", kinds.word(128), nullable=False, comment="Unique in its namespace, exact"),
    Column("state", kinds.word(16), nullable=False, comment="SubscriptionState"),
    Column("filter", kinds.text(), nullable=False, comment="JSON of which events are meant"),
    Column("visibility_micros", kinds.counter(), nullable=False, comment="How long a pulled delivery is hidden"),
    Column("deliveries_max", kinds.small_int(), nullable=False, comment="How often one is handed out before it parks"),
    Column("backlog_max", kinds.counter(), nullable=False, comment="More deliveries than these overflow it"),
    Column("opens_at", kinds.instant(), nullable=False, comment="Events from here on get deliveries"),
    Column("closes_at", kinds.instant(), comment="Events from here on get none; null while it has not overflowed"),
    Column("reopens_at", kinds.instant(), comment="Events from here on get deliveries again; null until it is near"),
    Column("read_at", kinds.instant(), comment="How far the log is read while it resumes: instant"),
    Column("read_id", kinds.identifier(), comment="How far the log is read while it resumes: event of that instant"),
    Column("effective_at", kinds.instant(), nullable=False, comment="From when the last change holds for all commits"),
    Column("backlog", kinds.counter(), nullable=False, comment="Deliveries at the last measurement"),
    Column("poisoned", kinds.counter(), nullable=False, comment="Parked ones among them"),
    Column("measured_at", kinds.instant(), nullable=False, comment="When these were counted, microseconds UTC"),
    Column("revision", kinds.counter(), nullable=False, comment="Rises with every change of state or settings"),
    Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
    Column("changed_at", kinds.instant(), nullable=False, comment="When it last changed, microseconds UTC"),
    UniqueConstraint("namespace_id", "name", name="orbit_subscription_name_unique"),
    CheckConstraint("revision >= 1", name="subscription_revision_positive"),
    Index("orbit_subscription_by_measurement", "measured_at", "id"),
    comment="Who wants which events, and how far they have got them",
    **TABLE_OPTIONS,
)

delivery = Table(
    "orbit_delivery",
    metadata,
    Column("subscription_id", kinds.identifier(), nullable=False, comment="Whose delivery it is"),
    Column("event_id", kinds.identifier(), nullable=False, comment="What is delivered"),
    Column("state", kinds.word(16), nullable=False, comment="DeliveryState"),
    Column("visible_at", kinds.instant(), nullable=False, comment="From when it may be pulled, or parks"),
    Column("deliveries_count", kinds.small_int(), nullable=False, comment="How often it was handed out"),
    Column("token", kinds.identifier(), comment="Random; names the last handing out, null before the first"),
    PrimaryKeyConstraint("subscription_id", "event_id", name="orbit_delivery_pk"),
    CheckConstraint("deliveries_count >= 0", name="deliveries_not_negative"),
    Index("orbit_delivery_for_pull", "subscription_id", "state", "visible_at", "event_id"),
    comment="Events that a subscription has still to acknowledge; removed when it does",
    **TABLE_OPTIONS,
)
