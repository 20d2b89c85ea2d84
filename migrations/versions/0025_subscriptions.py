"""Make subscriptions to events, and their deliveries."""

import sqlalchemy as sa
from alembic import op

from orbit.database import TABLE_OPTIONS
from orbit.database import columns as kinds

revision = "0025_subscriptions"
down_revision = "0024_pulse_schedules"

# An old node would write events without the deliveries that somebody has subscribed to.
OLD_NODES_MAY_RUN = False


def upgrade() -> None:
    """Add the tables; nobody has subscribed yet."""
    _orbit_subscription()
    _orbit_delivery()


def downgrade() -> None:
    """Drop them. What was not acknowledged stays in the log of events."""
    op.drop_table("orbit_delivery")
    op.drop_table("orbit_subscription")


def _orbit_subscription() -> None:
    op.create_table(
        "orbit_subscription",
        sa.Column("id", kinds.identifier(), primary_key=True, comment="UUIDv7 of the subscription"),
        sa.Column("namespace_id", kinds.identifier(), nullable=False, comment="Whose events it gets"),
        sa.Column("name", kinds.word(128), nullable=False, comment="Unique in its namespace, exact"),
        sa.Column("state", kinds.word(16), nullable=False, comment="SubscriptionState"),
        sa.Column("filter", kinds.text(), nullable=False, comment="JSON of which events are meant"),
        sa.Column("visibility_micros", kinds.counter(), nullable=False, comment="How long a pulled delivery is hidden"),
        sa.Column(
            "deliveries_max", kinds.small_int(), nullable=False, comment="How often one is handed out before it parks"
        ),
        sa.Column("backlog_max", kinds.counter(), nullable=False, comment="More deliveries than these overflow it"),
        sa.Column("opens_at", kinds.instant(), nullable=False, comment="Events from here on get deliveries"),
        sa.Column(
            "closes_at", kinds.instant(), comment="Events from here on get none; null while it has not overflowed"
        ),
        sa.Column(
            "reopens_at", kinds.instant(), comment="Events from here on get deliveries again; null until it is near"
        ),
        sa.Column("read_at", kinds.instant(), comment="How far the log is read while it resumes: instant"),
        sa.Column(
            "read_id", kinds.identifier(), comment="How far the log is read while it resumes: event of that instant"
        ),
        sa.Column(
            "effective_at", kinds.instant(), nullable=False, comment="From when the last change holds for all commits"
        ),
        sa.Column("backlog", kinds.counter(), nullable=False, comment="Deliveries at the last measurement"),
        sa.Column("poisoned", kinds.counter(), nullable=False, comment="Parked ones among them"),
        sa.Column("measured_at", kinds.instant(), nullable=False, comment="When these were counted, microseconds UTC"),
        sa.Column("revision", kinds.counter(), nullable=False, comment="Rises with every change of state or settings"),
        sa.Column("created_at", kinds.instant(), nullable=False, comment="When it was made, microseconds UTC"),
        sa.Column("changed_at", kinds.instant(), nullable=False, comment="When it last changed, microseconds UTC"),
        sa.UniqueConstraint("namespace_id", "name", name=op.f("orbit_subscription_name_unique")),
        sa.CheckConstraint("revision >= 1", name=op.f("orbit_subscription_subscription_revision_positive")),
        comment="Who wants which events, and how far they have got them",
        **TABLE_OPTIONS,
    )
    op.create_index("orbit_subscription_by_measurement", "orbit_subscription", ["measured_at", "id"])


def _orbit_delivery() -> None:
    op.create_table(
        "orbit_delivery",
        sa.Column("subscription_id", kinds.identifier(), nullable=False, comment="Whose delivery it is"),
        sa.Column("event_id", kinds.identifier(), nullable=False, comment="What is delivered"),
        sa.Column("state", kinds.word(16), nullable=False, comment="DeliveryState"),
        sa.Column("visible_at", kinds.instant(), nullable=False, comment="From when it may be pulled, or parks"),
        sa.Column("deliveries_count", kinds.small_int(), nullable=False, comment="How often it was handed out"),
        sa.Column("token", kinds.identifier(), comment="Random; names the last handing out, null before the first"),
        sa.PrimaryKeyConstraint("subscription_id", "event_id", name=op.f("orbit_delivery_pk")),
        sa.CheckConstraint("deliveries_count >= 0", name=op.f("orbit_delivery_deliveries_not_negative")),
        comment="Events that a subscription has still to acknowledge; removed when it does",
        **TABLE_OPTIONS,
    )
    op.create_index("orbit_delivery_for_pull", "orbit_delivery", ["subscription_id", "state", "visible_at", "event_id"])
