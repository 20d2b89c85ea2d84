"""Create, read, configure, resume and delete subscriptions, each change with its audit record, event and receipt.

Every change holds from `effective_at` on, five seconds later: by then all nodes have heard of it. The event of a change
is written before its row: the list of subscriptions that is looked at for an event never holds what may be rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from orbit.access import queue_not_found
from orbit.clock import SECOND, to_rfc3339
from orbit.database import RunAgain
from orbit.errors import InvalidRequest, NotFound, StateConflict
from orbit.event_types import is_known
from orbit.idempotency import Answer, Command, Made, once
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from orbit.store.subscribers import Subscribers
from orbit.store.subscription import (
    Bounds,
    Subscription,
    subscription_find,
    subscription_insert,
    subscription_is_named,
    subscription_write,
    subscriptions_count,
)
from orbit.subscription import (
    EFFECTIVE_MICROS,
    LEAD_MICROS,
    SUBSCRIPTION_MOVES,
    SUBSCRIPTIONS_MAX,
    Filter,
    Spans,
    SubscriptionState,
)
from pulse.store.queue import queue_ids

if TYPE_CHECKING:
    from orbit.database import Transaction

NO_ID = bytes(16)

_DONE = {
    "subscription.create": "subscription.created",
    "subscription.configure": "subscription.configured",
    "subscription.resume": "subscription.resumed",
    "subscription.delete": "subscription.deleted",
}


class Wish(Struct, frozen=True):
    """What a caller wants of a subscription; of queues the names."""

    event_types: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    workflows: tuple[str, ...] | None
    task_types: tuple[str, ...] | None
    bounds: Bounds


class Change(Struct, frozen=True):
    """A change made for the revision that the caller has seen."""

    subscription_id: bytes
    expected_revision: int
    reason: str


def subscription_create(tx: Transaction, command: Command, actor: Actor, *, name: str, wish: Wish) -> Answer:
    """Make a subscription. Raises StateConflict if the name is taken, or the namespace has as many as it may."""

    def make() -> Made:
        if subscription_is_named(tx, command.namespace_id, name):
            raise StateConflict(f"a subscription named {name} exists")
        if subscriptions_count(tx, command.namespace_id) >= SUBSCRIPTIONS_MAX:
            raise StateConflict(f"the namespace already has {SUBSCRIPTIONS_MAX} subscriptions")
        wanted = _filter(tx, command.namespace_id, wish)
        now = tx.now()
        made = Subscription(
            id=new_id(),
            namespace_id=command.namespace_id,
            name=name,
            state=SubscriptionState.ACTIVE,
            wanted=wanted,
            bounds=wish.bounds,
            spans=Spans(now + LEAD_MICROS),
            read_to=None,
            effective_at=now + EFFECTIVE_MICROS,
            backlog=0,
            poisoned=0,
            measured_at=now,
            revision=1,
            created_at=now,
            changed_at=now,
        )
        _record(tx, command, actor, (None, made))
        subscription_insert(tx, made)
        return Made(made.id, {"subscription": subscription_json(made)})

    return once(tx, command, make)


def subscription_configure(tx: Transaction, command: Command, actor: Actor, change: Change, *, wish: Wish) -> Answer:
    """Replace what a subscription wants and its bounds; deliveries that are there stay. Raises as `_changed` does."""

    def changed(before: Subscription) -> Subscription:
        return replace(before, wanted=_filter(tx, command.namespace_id, wish), bounds=wish.bounds)

    return _changed(tx, command, actor, change, changed)


def subscription_resume(tx: Transaction, command: Command, actor: Actor, change: Change) -> Answer:
    """Let an overflowed subscription read on where it stopped. Raises StateConflict for one in another state."""

    def changed(before: Subscription) -> Subscription:
        state = _moved(before, SubscriptionState.RESUMING)
        assert before.spans.closes_at is not None, "an overflowed subscription stopped somewhere"
        return replace(before, state=state, read_to=(before.spans.closes_at, NO_ID))

    return _changed(tx, command, actor, change, changed)


def subscription_delete(tx: Transaction, command: Command, actor: Actor, change: Change) -> Answer:
    """Delete a subscription with all its deliveries; its name is free again some seconds later."""

    def changed(before: Subscription) -> Subscription:
        return replace(before, state=_moved(before, SubscriptionState.DELETED))

    return _changed(tx, command, actor, change, changed)


def _changed(
    tx: Transaction,
    command: Command,
    actor: Actor,
    change: Change,
    changed: Callable[[Subscription], Subscription],
) -> Answer:
    """Change a subscription once. Raises NotFound, and StateConflict with the current revision if that has moved."""

    def make() -> Made:
        before = subscription_find(tx, command.namespace_id, change.subscription_id, is_locked=True)
        if before is None:
            raise subscription_not_found()
        if before.revision != change.expected_revision:
            message = "the subscription has changed; read it again"
            raise StateConflict(message, details={"current_revision": str(before.revision)})
        now = tx.now()
        after = replace(
            changed(before), revision=before.revision + 1, changed_at=now, effective_at=now + EFFECTIVE_MICROS
        )
        _record(tx, command, actor, (before, after), reason=change.reason)
        subscription_write(tx, after, before=before)
        return Made(after.id, {"subscription": subscription_json(after)})

    return once(tx, command, make)


def _moved(before: Subscription, state: SubscriptionState) -> SubscriptionState:
    if state not in SUBSCRIPTION_MOVES[before.state]:
        details = {"state": before.state, "current_revision": str(before.revision)}
        raise StateConflict(f"the subscription is {before.state}", details=details)
    return state


def _record(
    tx: Transaction,
    command: Command,
    actor: Actor,
    change: tuple[Subscription | None, Subscription],
    reason: str | None = None,
) -> None:
    """Write the audit record and the event of a change, which is made at the new state's `changed_at`."""
    before, after = change
    record = AuditRecord(
        namespace_id=after.namespace_id,
        actor=actor,
        operation=command.operation,
        subject_kind="subscription",
        subject_id=after.id,
        reason=reason,
        before=None if before is None else subscription_json(before),
        after=subscription_json(after),
    )
    audit_insert(tx, record, now=after.changed_at)
    subscription_tell(tx, after, _DONE[command.operation])


def subscription_tell(tx: Transaction, after: Subscription, event_type: str) -> None:
    """Write the event of a change, which comes before the change itself is written."""
    record = EventRecord(after.namespace_id, event_type, after.id, after.revision)
    events_insert(tx, [record], now=after.changed_at)
    boundary_set(tx)


def boundary_set(tx: Transaction) -> None:
    """Let this process look again once a change is committed.

    One that takes too long to commit is made again: its boundaries would come too soon for others.
    """
    tx.check_if_late(_again)
    tx.after_commit(tx.memory(Subscribers).forget)


def _again(_tx: Transaction) -> None:
    raise RunAgain


def _filter(tx: Transaction, namespace_id: bytes, wish: Wish) -> Filter:
    """Resolve and check what is wanted: what could never match is refused."""
    for place, name in enumerate(wish.event_types or ()):
        if not is_known(name):
            message = f"there are no events of type {name[:80]!r}; claims and starts are read from a task's attempts"
            raise InvalidRequest(message, pointer=f"/event_types/{place}")
    if wish.workflows is not None and (wish.queues is not None or wish.task_types is not None):
        message = "no event has a workflow and a queue or task type; make two subscriptions"
        raise InvalidRequest(message, pointer="/workflows")
    queues: dict[str, bytes] | None = None
    if wish.queues is not None:
        queues = queue_ids(tx, namespace_id, set(wish.queues))
        if len(queues) < len(set(wish.queues)):
            raise queue_not_found()
    return Filter(wish.event_types, queues, wish.workflows, wish.task_types)


def subscription_not_found() -> NotFound:
    """Make the one answer for a subscription that is missing or out of range."""
    return NotFound("no such subscription")


def subscription_json(row: Subscription) -> dict[str, Json]:
    """Write a subscription as the API shows it."""
    wanted, bounds, spans = row.wanted, row.bounds, row.spans
    return {
        "id": row.id.hex(),
        "name": row.name,
        "state": row.state,
        "event_types": None if wanted.event_types is None else list(wanted.event_types),
        "queues": None if wanted.queues is None else sorted(wanted.queues),
        "workflows": None if wanted.workflows is None else list(wanted.workflows),
        "task_types": None if wanted.task_types is None else list(wanted.task_types),
        "visibility_seconds": bounds.visibility_micros / SECOND,
        "max_deliveries": bounds.deliveries_max,
        "max_backlog": bounds.backlog_max,
        "backlog": str(row.backlog),
        "poisoned": str(row.poisoned),
        "measured_at": to_rfc3339(row.measured_at),
        "stopped_at": None if spans.closes_at is None else to_rfc3339(spans.closes_at),
        "read_up_to": None if row.read_to is None else to_rfc3339(row.read_to[0]),
        "effective_at": to_rfc3339(row.effective_at),
        "revision": str(row.revision),
        "created_at": to_rfc3339(row.created_at),
    }
