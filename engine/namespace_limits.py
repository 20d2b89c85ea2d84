"""A namespace's own limits: of its running instances, which starts enforce, and of bounds, which publishing enforces.

The surprising rule: what was started while there was no limit of running instances is not counted; what was started
under one counts until it ends, also if the limit is lifted and set anew meanwhile. A limit of bounds says what may be
published from then on: what is published already starts and runs as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from definitions.bound_limits import BoundLimits, limits_of
from definitions.limits import RUNNING_MAX
from engine.store.limits import (
    WHOLE_NAMESPACE,
    NamespaceLimit,
    limit_lock,
    namespace_limit_read,
    namespace_limit_write,
    running_count,
)
from orbit.errors import StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.store.journal import Actor, AuditRecord, audit_insert

if TYPE_CHECKING:
    from orbit.database import Database, Transaction
    from orbit.jsontext import Json


@dataclass(frozen=True, slots=True)
class LimitChange:
    """New limits, on top of the revision that was read; 0 if none was ever set.

    `max_running` None is no limit; of a bound that is not in `bounds` the default holds.
    """

    max_running: int | None
    expected_revision: int
    reason: str
    bounds: Mapping[str, int] = field(default_factory=dict)


class NamespaceLimits:
    """The limits of all namespaces, as a node serves them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def limit_get(self, namespace_id: bytes) -> dict[str, Json]:
        """Read a namespace's limits and how many instances it counts now."""
        return self._database.transaction(lambda tx: _shown(tx, namespace_id, namespace_limit_read(tx, namespace_id)))

    def limit_set(self, command: Command, actor: Actor, change: LimitChange) -> Answer:
        """Set or lift a namespace's limits; what runs goes on. Raises StateConflict at another revision."""

        def make(tx: Transaction) -> Made:
            namespace_id = command.namespace_id
            revision = limit_lock(tx, namespace_id, WHOLE_NAMESPACE).revision
            if revision != change.expected_revision:
                message = f"the namespace's limits are at revision {revision}"
                raise StateConflict(message, details={"current_revision": str(revision)})
            before = namespace_limit_read(tx, namespace_id)
            after = NamespaceLimit(change.max_running, change.bounds, revision + 1)
            namespace_limit_write(tx, namespace_id, after)
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


def bound_limits_read(tx: Transaction, namespace_id: bytes) -> BoundLimits:
    """Read what one instance of a definition that the namespace publishes may use at most."""
    return limits_of(namespace_limit_read(tx, namespace_id).bounds)


def _limit_json(limit: NamespaceLimit) -> dict[str, Json]:
    return {"max_running": limit.max_running, "bounds": dict(limit.bounds), "revision": str(limit.revision)}


def _shown(tx: Transaction, namespace_id: bytes, limit: NamespaceLimit) -> dict[str, Json]:
    bounds = limits_of(limit.bounds)
    return {
        "max_running": limit.max_running,
        "running": running_count(tx, namespace_id, WHOLE_NAMESPACE, at_most=RUNNING_MAX),
        "revision": str(limit.revision),
        "bounds": dict(bounds.values()),
        "bounds_set": [*bounds.own_values()],
    }
