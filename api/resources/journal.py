"""Events and audit records: what happened, and who managed what."""

from __future__ import annotations

import json

from api.calls import Call, Operation, Reply
from api.models.answers import AuditRecord, Event
from api.parameters import CREATED_AFTER, CREATED_BEFORE, CURSOR, LIMIT, REQUEST_ID, SUBJECT_ID, text_parameter
from api.queries import Cursor
from orbit.access import Scope
from orbit.clock import to_rfc3339
from orbit.database import Database
from orbit.jsontext import Json
from orbit.store.journal import AuditRow, EventChoice, EventPage, EventRow, Page, audit_list, events_list

_TYPE = text_parameter(
    "type",
    "Of this type, such as queue.configured; `task.*` means all of tasks. A page may be short, even empty",
    length_max=64,
)


class Journal:
    """The resources `/v1/events` and `/v1/audit`. Both need the range of all queues: they tell of every one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def operations(self) -> list[Operation]:
        """Declare the two lists."""
        return [
            Operation(
                "GET", "/v1/events", "List events, newest first", self.events, Scope.EVENTS_READ, Event,
                query=(_TYPE, SUBJECT_ID, CREATED_AFTER, CREATED_BEFORE, LIMIT, CURSOR), is_page=True,
            ),
            Operation(
                "GET", "/v1/audit", "List audit records, newest first", self.audit, Scope.AUDIT_READ, AuditRecord,
                query=(REQUEST_ID, LIMIT, CURSOR), is_page=True,
            ),
        ]  # fmt: skip

    def events(self, call: Call) -> Reply:
        """List events."""
        call.caller.require_all_queues()
        page = page_of(call)
        choice = EventChoice(
            type=call.query.text("type", length_max=64),
            subject_id=call.query.identifier("subject_id"),
            created_after=call.query.instant("created_after"),
            created_before=call.query.instant("created_before"),
        )
        return events_page(
            call, self._database.transaction(lambda tx: events_list(tx, call.namespace_id, page, choice))
        )

    def audit(self, call: Call) -> Reply:
        """List audit records."""
        call.caller.require_all_queues()
        page = page_of(call)
        request_id = call.query.identifier("request_id")
        rows = self._database.transaction(lambda tx: audit_list(tx, call.namespace_id, page, request_id=request_id))
        next_cursor = Cursor(rows[-1].created_at, rows[-1].id).text() if len(rows) == page.limit else None
        return call.page([_audit_json(row) for row in rows], next_cursor)


def page_of(call: Call) -> Page:
    """Read limit and cursor of a list that is ordered by time, newest first."""
    cursor = call.query.cursor()
    if cursor is None:
        return Page(call.query.limit())
    return Page(call.query.limit(), cursor.at, cursor.id)


def events_page(call: Call, found: EventPage) -> Reply:
    """Answer with a page of events."""
    next_cursor = None if found.following is None else Cursor(*found.following).text()
    return call.page([_event_json(row) for row in found.rows], next_cursor)


def _event_json(row: EventRow) -> Json:
    """Write an event as the API shows it."""
    return {
        "id": row.id.hex(),
        "type": row.type,
        "subject_id": row.subject_id.hex(),
        "subject_revision": str(row.subject_revision),
        "data": json.loads(row.data),
        "created_at": to_rfc3339(row.created_at),
    }


def _audit_json(row: AuditRow) -> Json:
    return {
        "id": row.id.hex(),
        "actor": row.actor,
        "operation": row.operation,
        "subject_kind": row.subject_kind,
        "subject_id": row.subject_id.hex(),
        "request_id": row.request_id.hex(),
        "reason": row.reason,
        "before": None if row.before is None else json.loads(row.before),
        "after": None if row.after is None else json.loads(row.after),
        "created_at": to_rfc3339(row.created_at),
    }
