"""A namespace's own limit of running instances: read it, and set it as its operator. Starts enforce it.

The surprising rule: what was started while there was no limit is not counted; what was started under one counts until
it ends, also if the limit is lifted and set anew meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from definitions.limits import RUNNING_MAX
from engine.store.limits import WHOLE_NAMESPACE, Limit, limit_lock, limit_read, limit_write, running_count
from orbit.errors import StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.store.journal import Actor, AuditRecord, audit_insert

if TYPE_CHECKING:
    from orbit.database import Database, Transaction
    from orbit.jsontext import Json


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A new limit, None for none, on top of the revision that was read; 0 if none was ever set."""

    max_running: int | None
    expected_revision: int
    reason: str


class NamespaceLimits:
    """The limits of all namespaces, as a node serves them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def limit_get(self, namespace_id: bytes) -> dict[str, Json]:
        """Read a namespace's limit and how many instances it counts now."""
        return self._database.transaction(lambda tx: _shown(tx, namespace_id, limit_read(tx, namespace_id)))

    def limit_set(self, command: Command, actor: Actor, change: LimitChange) -> Answer:
        """Set or lift a namespace's limit; what runs goes on. Raises StateConflict at another revision."""

        def make(tx: Transaction) -> Made:
            namespace_id = command.namespace_id
            before = limit_lock(tx, namespace_id, WHOLE_NAMESPACE)
            if before.revision != change.expected_revision:
                message = f"the namespace's limit is at revision {before.revision}"
                raise StateConflict(message, details={"current_revision": str(before.revision)})
            after = Limit(change.max_running, before.revision + 1)
            limit_write(tx, namespace_id, after)
            record = AuditRecord(
                namespace_id=namespace_id,
                actor=actor,
                operation="namespace.configure",
                subject_kind="namespace",
                subject_id=namespace_id,
                reason=change.reason,
                before=_limit_json(before),
                after=_limit_json(after),
            )
            audit_insert(tx, record, now=tx.now())
            return Made(namespace_id, {"namespace": _shown(tx, namespace_id, after)})

        return self._database.transaction(lambda tx: once(tx, command, lambda: make(tx)))


def _limit_json(limit: Limit) -> dict[str, Json]:
    return {"max_running": limit.max_running, "revision": str(limit.revision)}


def _shown(tx: Transaction, namespace_id: bytes, limit: Limit) -> dict[str, Json]:
    counted = running_count(tx, namespace_id, WHOLE_NAMESPACE, at_most=RUNNING_MAX)
    return {**_limit_json(limit), "running": counted}
