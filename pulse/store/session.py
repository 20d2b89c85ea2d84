"""Workers' connections as rows: for people, for attempts' history and to say that no worker is there."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, select, update

from orbit.database.ids import ids_in
from pulse.limits import SESSION_STALE_MICROS
from pulse.tables import attempt, session

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_SEEN = update(session).where(ids_in(session.c.id)).values(seen_at=bindparam("now"))
_SILENT = update(session).where(ids_in(session.c.id)).values(unresponsive_since=bindparam("now"))
_ANSWERING = update(session).where(ids_in(session.c.id)).values(unresponsive_since=None)
_ENDED = update(session).where(ids_in(session.c.id), session.c.disconnected_at.is_(None))
_IN_FLIGHT = (
    select(attempt.c.session_id, func.count())
    .where(attempt.c.lease_expires_at.is_not(None), ids_in(attempt.c.session_id))
    .group_by(attempt.c.session_id)
)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A connected worker as shown; `handlers` are written type@version."""

    id: bytes
    worker: str
    node: str
    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    capacity: int
    connected_at: Micros
    is_unresponsive: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class NewSession:
    """A worker's connection to be recorded."""

    id: bytes
    namespace_id: bytes
    credential_id: bytes
    worker: str
    node: str
    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    capacity: int


def session_insert(tx: Transaction, made: NewSession) -> None:
    """Record a connection."""
    now = tx.now()
    row = {
        "id": made.id,
        "namespace_id": made.namespace_id,
        "credential_id": made.credential_id,
        "worker": made.worker,
        "node": made.node,
        "handlers": json.dumps(made.handlers),
        "queues": json.dumps(made.queues),
        "capacity": made.capacity,
        "connected_at": now,
        "seen_at": now,
    }
    tx.insert(session, [row])


def sessions_seen(tx: Transaction, ids: Collection[bytes]) -> None:
    """Vouch for connections that still live."""
    if ids:
        tx.execute(_SEEN, {"ids": ids, "now": tx.now()})


def sessions_unresponsive(tx: Transaction, *, silent: Collection[bytes], answering: Collection[bytes]) -> None:
    """Record which connections answer no assignment, and which do so again."""
    if silent:
        tx.execute(_SILENT, {"ids": silent, "now": tx.now()})
    if answering:
        tx.execute(_ANSWERING, {"ids": answering})


def session_end(tx: Transaction, session_id: bytes) -> None:
    """Record that a connection has ended; it is no verdict on its tasks."""
    tx.execute(_ENDED.values(disconnected_at=tx.now()), {"ids": [session_id]})


def sessions_live(tx: Transaction, namespace_id: bytes, *, limit: int) -> list[SessionRow]:
    """Read a namespace's live connections; one whose node has not vouched for it lately is not live."""
    now = tx.now()
    query = select(session).where(
        session.c.namespace_id == namespace_id,
        session.c.disconnected_at.is_(None),
        session.c.seen_at > now - SESSION_STALE_MICROS,
    )
    rows = tx.rows(query.order_by(session.c.id).limit(limit))
    if not rows:
        return []
    in_flight: list[Any] = list(tx.rows(_IN_FLIGHT, {"ids": [row.id for row in rows]}))
    counts = {row[0]: int(row[1]) for row in in_flight}
    return [
        SessionRow(
            id=row.id,
            worker=row.worker,
            node=row.node,
            handlers=tuple(json.loads(row.handlers)),
            queues=tuple(json.loads(row.queues)),
            capacity=row.capacity,
            connected_at=row.connected_at,
            is_unresponsive=row.unresponsive_since is not None,
            in_flight=counts.get(row.id, 0),
        )
        for row in rows
    ]
