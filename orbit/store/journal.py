"""Audit records and events: pure inserts, in the transaction of what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct
from sqlalchemy import and_, or_, select

from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.tables import audit, event

if TYPE_CHECKING:
    from orbit.clock import Micros
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
    """One fact: its type, whom it is about and at which revision; `data` is JSON text."""

    namespace_id: bytes
    type: str
    subject_id: bytes
    subject_revision: int
    data: str = "{}"


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
    """Write events."""
    tx.insert(
        event,
        [
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
        ],
    )


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


def events_list(
    tx: Transaction, namespace_id: bytes, page: Page, *, type_: str | None = None, subject_id: bytes | None = None
) -> list[EventRow]:
    """List a namespace's events, newest first; of one type, or about one subject, if asked for."""
    query = select(event).where(event.c.namespace_id == namespace_id)
    if subject_id is not None:
        query = query.where(event.c.subject_id == subject_id)
    if type_ is not None:
        query = query.where(event.c.type == type_)
    if page.before_at is not None:
        older = and_(event.c.created_at == page.before_at, event.c.id < page.before_id)
        query = query.where(or_(event.c.created_at < page.before_at, older))
    rows = tx.rows(query.order_by(event.c.created_at.desc(), event.c.id.desc()).limit(page.limit))
    return [EventRow(row.id, row.type, row.subject_id, row.subject_revision, row.data, row.created_at) for row in rows]
