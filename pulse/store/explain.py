"""What only people ask for: who paused a queue, and which workers have gone lately."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from orbit.tables import audit, event
from pulse.limits import SESSION_STALE_MICROS
from pulse.tables import session

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_CHANGES_MAX = 50


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a queue, when and why."""

    actor: str
    at: Micros
    reason: str | None


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A worker that has gone: what it could run, and until when it was there."""

    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    ended_at: Micros


def pause_find(tx: Transaction, namespace_id: bytes, queue_id: bytes) -> Pause | None:
    """Find the audit record of the change that paused a queue, among its latest changes.

    Changes are found by the queue's events, which carry the same instant as their audit records.
    """
    events = select(event.c.created_at).where(event.c.subject_id == queue_id).order_by(event.c.subject_revision.desc())
    instants = [row.created_at for row in tx.rows(events.limit(_CHANGES_MAX))]
    if not instants:
        return None
    records = select(audit.c.actor, audit.c.created_at, audit.c.reason, audit.c.before, audit.c.after).where(
        audit.c.namespace_id == namespace_id, audit.c.created_at.in_(instants), audit.c.subject_id == queue_id
    )
    rows: list[Any] = list(tx.rows(records.order_by(audit.c.created_at.desc(), audit.c.id.desc())))
    paused = (row for row in rows if _paused(row.after) and not _paused(row.before))
    found = next(paused, None)
    return None if found is None else Pause(found.actor, found.created_at, found.reason)


def _paused(state: str | None) -> bool:
    value = None if state is None else json.loads(state)
    return isinstance(value, dict) and bool(value.get("paused"))


def sessions_ended(tx: Transaction, namespace_id: bytes, *, limit: int) -> list[EndedSession]:
    """Read a namespace's workers that have gone, the latest first, and those for which no node vouches any more."""
    of_namespace = select(session.c.handlers, session.c.queues, session.c.disconnected_at, session.c.seen_at).where(
        session.c.namespace_id == namespace_id
    )
    ended = of_namespace.where(session.c.disconnected_at.is_not(None)).order_by(session.c.disconnected_at.desc())
    stale = of_namespace.where(
        session.c.disconnected_at.is_(None), session.c.seen_at <= tx.now() - SESSION_STALE_MICROS
    )
    rows: list[Any] = [*tx.rows(ended.limit(limit)), *tx.rows(stale.limit(limit))]
    return [
        EndedSession(
            handlers=tuple(json.loads(row.handlers)),
            queues=tuple(json.loads(row.queues)),
            ended_at=row.seen_at if row.disconnected_at is None else row.disconnected_at,
        )
        for row in rows
    ]
