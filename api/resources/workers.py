"""Workers that are connected now, whichever node holds their socket. They connect by `/v1/workers/connect`."""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.answers import Worker
from api.parameters import LIMIT
from orbit.access import Scope
from orbit.clock import to_rfc3339
from orbit.database import Database
from orbit.jsontext import Json
from pulse.store.session import SessionRow, sessions_live


class Workers:
    """The worker resource."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def operations(self) -> list[Operation]:
        """Declare the list."""
        return [
            Operation(
                "GET", "/v1/workers", "List connected workers", self.list_page, Scope.WORKERS_CONNECT, Worker,
                query=(LIMIT,), is_page=True,
            )
        ]  # fmt: skip

    def list_page(self, call: Call) -> Reply:
        """List the workers that serve a queue in range."""
        limit = call.query.limit()
        rows = self._database.transaction(lambda tx: sessions_live(tx, call.namespace_id, limit=limit))
        seen = [row for row in rows if any(call.caller.covers(queue) for queue in row.queues)]
        return call.page([_worker_json(row, call) for row in seen], None)


def _worker_json(row: SessionRow, call: Call) -> Json:
    return {
        "session_id": row.id.hex(),
        "worker": row.worker,
        "node": row.node,
        "handlers": list(row.handlers),
        "queues": [queue for queue in row.queues if call.caller.covers(queue)],
        "capacity": row.capacity,
        "in_flight": row.in_flight,
        "is_unresponsive": row.is_unresponsive,
        "connected_at": to_rfc3339(row.connected_at),
    }
