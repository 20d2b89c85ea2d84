"""Answers that belong to no single resource: errors, events, audit records, the node's own state."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.models.fields import Count, HexId, Instant


class ErrorContent(Struct, kw_only=True, omit_defaults=True):
    """What was refused and why; `details` names the field by JSON pointer, or says more by code."""

    code: str
    message: str
    details: dict[str, Any] = {}


class Event(Struct, kw_only=True):
    """Something that happened; `subject_revision` orders the events of one subject."""

    id: HexId
    type: str
    subject_id: HexId
    subject_revision: Count
    data: Any
    created_at: Instant


class AuditRecord(Struct, kw_only=True):
    """One management operation: who, when, by which request, why, before and after."""

    id: HexId
    actor: str
    operation: str
    subject_kind: str
    subject_id: HexId
    request_id: HexId
    reason: str | None
    before: Any
    after: Any
    created_at: Instant


class Worker(Struct, kw_only=True):
    """A connected worker; one that answers no assignment `is_unresponsive` and gets nothing more until it does."""

    session_id: HexId
    worker: str
    node: str
    handlers: list[str]
    queues: list[str]
    capacity: int
    in_flight: int
    is_unresponsive: bool
    connected_at: Instant


class Health(Struct, kw_only=True):
    """The state of the process that answers."""

    status: Annotated[str, Meta(description="ok, or why it takes no work")]


class OutputReference(Struct, kw_only=True):
    """An output that its worker keeps elsewhere."""

    uri: str
    sha256: str
    bytes: int
