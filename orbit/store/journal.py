"""Audit records and events: pure inserts, in the transaction of what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Select, and_, or_, select

from orbit.clock import Micros
from orbit.database.ids import through
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.store.subscribers import Subscribers, Told, events_tell, late_check
from orbit.tables import audit, event

if TYPE_CHECKING:
    from orbit.database import Transaction


class Actor(Struct, frozen=True):
    """Who acts and by which request; `name` is a credential's id in hex or the command that acted."""

    name: str
    request_id: bytes


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One management operation. `before` is None for a creation, `reason` where the operation takes none."""

    namespace_id: bytes
    actor: Actor
    operation: str
    subject_kind: str
    subject_id: bytes
    reason: str | None
    before: Json
    after: Json


class EventRecord(Struct, frozen=True):
    """One fact: its type, whom it is about and at which revision; `data` is JSON text.

    By the others subscriptions choose, and they are not stored: the queue, the task's lane, the instance's workflow.
    """

    namespace_id: bytes
    type: str
    subject_id: bytes
    subject_revision: int
    data: str = "{}"
    queue_id: bytes | None = None
    lane_id: bytes | None = None
    workflow: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list in the order of time: what comes before `before_at`, `before_id`, at most `limit` rows."""

    limit: int
    before_at: Micros | None = None
    before_id: bytes | None = None


def audit_insert(tx: Transaction, record: AuditRecord, *, now: Micros) -> None:
    """Write one audit record."""
    tx.insert(
        audit,
        [
            {
                "id": new_id(),
                "namespace_id": record.namespace_id,
                "actor": record.actor.name,
                "operation": record.operation,
                "subject_kind": record.subject_kind,
                "subject_id": record.subject_id,
                "request_id": record.actor.request_id,
                "reason": record.reason,
                "before": None if record.before is None else dumps(record.before).decode(),
                "after": None if record.after is None else dumps(record.after).decode(),
                "created_at": now,
            }
        ],
    )


def events_insert(tx: Transaction, records: Sequence[EventRecord], *, now: Micros) -> None:
    """Write events, with the deliveries of those that somebody has subscribed to."""
    if not records:
        return
    rows: list[dict[str, Any]] = [
        {
            "id": new_id(),
            "namespace_id": record.namespace_id,
            "type": record.type,
            "subject_id": record.subject_id,
            "subject_revision": record.subject_revision,
            "data": record.data,
            "created_at": now,
        }
        for record in records
    ]
    tx.insert(event, rows)
    subscribers = tx.memory(Subscribers)
    subscribers.freshen(tx)
    if subscribers.by_namespace:
        told = [
            Told(row["id"], each.namespace_id, each.type, each.queue_id, each.lane_id, each.workflow)
            for row, each in zip(rows, records, strict=True)
            if each.namespace_id in subscribers.by_namespace
        ]
        events_tell(tx, told, subscribers, now=now)
    for namespace_id in {record.namespace_id for record in records}:
        tx.check_if_late(partial(late_check, namespace_id=namespace_id, now=now))


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An audit record as it was stored; `before` and `after` are JSON text."""

    id: bytes
    actor: str
    operation: str
    subject_kind: str
    subject_id: bytes
    request_id: bytes
    reason: str | None
    before: str | None
    after: str | None
    created_at: Micros


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as it was stored; `data` is JSON text."""

    id: bytes
    type: str
    subject_id: bytes
    subject_revision: int
    data: str
    created_at: Micros


def audit_list(tx: Transaction, namespace_id: bytes, page: Page, *, request_id: bytes | None = None) -> list[AuditRow]:
    """List a namespace's audit records, newest first."""
    query = select(audit).where(audit.c.namespace_id == namespace_id)
    if page.before_at is not None:
        older = and_(audit.c.created_at == page.before_at, audit.c.id < page.before_id)
        query = query.where(or_(audit.c.created_at < page.before_at, older))
    if request_id is not None:
        query = query.where(audit.c.request_id == request_id)
    rows = tx.rows(query.order_by(audit.c.created_at.desc(), audit.c.id.desc()).limit(page.limit))
    return [
        AuditRow(
            row.id, row.actor, row.operation, row.subject_kind, row.subject_id,
            row.request_id, row.reason, row.before, row.after, row.created_at,
        )
        for row in rows
    ]  # fmt: skip


class EventChoice(Struct, frozen=True):
    """Which events a list is about. A type that ends in `.*` means all types of that subject."""

    type: str | None = None
    subject_id: bytes | None = None
    created_after: Micros | None = None
    created_before: Micros | None = None


class EventPage(Struct, frozen=True):
    """Some events, newest first, and where to go on: None at the end of the list, of which a page may be short."""

    rows: list[EventRow]
    following: tuple[Micros, bytes] | None


# So many events one page looks through for those of a type: no index is kept for that, and none is walked to its end.
LOOKED_AT_MAX = 10_000


_ANY = EventChoice()


def events_list(tx: Transaction, namespace_id: bytes, page: Page, choice: EventChoice = _ANY) -> EventPage:
    """List a namespace's events, newest first: all in a span of time, or those about one subject.

    A list by type alone may give a short page, or an empty one, and yet say where to go on.
    """
    query = select(event).where(event.c.namespace_id == namespace_id, *_within(page, choice))
    lowest: tuple[Micros, bytes] | None = None
    if choice.subject_id is not None:
        query = through(query.where(event.c.subject_id == choice.subject_id), event, "orbit_event_by_subject")
    else:
        query = through(query, event, "orbit_event_for_list")
        lowest = None if choice.type is None else _lowest(tx, query)
    if lowest is not None:
        at, identifier = lowest
        later = and_(event.c.created_at == at, event.c.id >= identifier)
        query = query.where(event.c.created_at >= at, or_(event.c.created_at > at, later))
    if choice.type is not None:
        pattern = choice.type.removesuffix("*")
        is_exact = pattern == choice.type
        query = query.where(event.c.type == pattern if is_exact else event.c.type.startswith(pattern, autoescape=True))
    rows = tx.rows(_newest_first(query).limit(page.limit))
    found = [EventRow(row.id, row.type, row.subject_id, row.subject_revision, row.data, row.created_at) for row in rows]
    return EventPage(found, (found[-1].created_at, found[-1].id) if len(found) == page.limit else lowest)


def _within(page: Page, choice: EventChoice) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if page.before_at is not None:
        older = and_(event.c.created_at == page.before_at, event.c.id < page.before_id)
        conditions += [event.c.created_at <= page.before_at, or_(event.c.created_at < page.before_at, older)]
    if choice.created_after is not None:
        conditions.append(event.c.created_at >= choice.created_after)
    if choice.created_before is not None:
        conditions.append(event.c.created_at < choice.created_before)
    return conditions


def _lowest(tx: Transaction, query: Select[Any]) -> tuple[Micros, bytes] | None:
    """Find the last event that one page looks at; None if there are not so many."""
    keys = _newest_first(query).with_only_columns(event.c.created_at, event.c.id)
    row = tx.row(keys.offset(LOOKED_AT_MAX - 1).limit(1))
    return None if row is None else (row.created_at, row.id)


def _newest_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(event.c.created_at.desc(), event.c.id.desc())
