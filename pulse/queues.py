"""Create, read and configure queues: the queue API's meaning, without its HTTP.

Configuring replaces all control parameters. It touches neither the name nor the identity, no accepted task and no
counter: lowering a limit revokes nothing and forgets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbit.access import queue_not_found
from orbit.errors import StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.ids import new_id
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from pulse.quotas import quota_adopt
from pulse.store.queue import (
    Queue,
    QueueSettings,
    queue_find,
    queue_find_named,
    queue_insert,
    queue_lock,
    queue_write,
    queues_find,
)

if TYPE_CHECKING:
    from orbit.database import Transaction

__all__ = ["Queue", "QueueChange", "QueueSettings", "queue_configure", "queue_create", "queue_get", "queues_list"]


@dataclass(frozen=True, slots=True)
class QueueChange:
    """A full replacement of a queue's control parameters, made for the revision that the caller has seen."""

    queue_id: bytes
    expected_revision: int
    reason: str
    settings: QueueSettings


def queue_create(tx: Transaction, command: Command, actor: Actor, *, name: str, settings: QueueSettings) -> Answer:
    """Make a queue, its audit record, its event and its receipt, or replay the receipt.

    Raises StateConflict if the name is taken, IdempotencyConflict if the key is.
    """

    def make() -> Made:
        if queue_find_named(tx, command.namespace_id, name) is not None:
            message = f"a queue named {name} exists"
            raise StateConflict(message)
        made = Queue(new_id(), command.namespace_id, name, settings, unfinished_tasks=0, revision=1)
        now = tx.now()
        queue_insert(tx, made, now=now)
        quota_adopt(tx, command.namespace_id, made.id)
        audit_insert(tx, _audit("queue.create", made, actor, None, before=None), now=now)
        events_insert(tx, [_event("queue.created", made)], now=now)
        return Made(made.id, {"queue": made.as_json()})

    return once(tx, command, make)


def queue_configure(tx: Transaction, command: Command, actor: Actor, change: QueueChange) -> Answer:
    """Replace a queue's control parameters, with audit, event and receipt, or replay the receipt.

    Raises NotFound, StateConflict with the current revision in its details, IdempotencyConflict.
    """

    def make() -> Made:
        revision = queue_lock(tx, command.namespace_id, change.queue_id)
        before = queue_find(tx, command.namespace_id, change.queue_id)
        if revision is None or before is None:
            raise queue_not_found()
        if revision != change.expected_revision:
            message = "the queue's configuration has changed; read it again"
            raise StateConflict(message, details={"current_revision": str(revision)})
        queue_write(tx, change.queue_id, change.settings, revision=revision + 1)
        after = queue_get(tx, command.namespace_id, change.queue_id)
        now = tx.now()
        audit_insert(tx, _audit("queue.configure", after, actor, change.reason, before=before), now=now)
        events_insert(tx, [_event("queue.configured", after)], now=now)
        return Made(after.id, {"queue": after.as_json()})

    return once(tx, command, make)


def queue_get(tx: Transaction, namespace_id: bytes, queue_id: bytes) -> Queue:
    """Read a queue; raises NotFound."""
    found = queue_find(tx, namespace_id, queue_id)
    if found is None:
        raise queue_not_found()
    return found


def queues_list(tx: Transaction, namespace_id: bytes, *, limit: int, after_name: str | None = None) -> list[Queue]:
    """Read a page of a namespace's queues in the order of their names."""
    return queues_find(tx, namespace_id, limit=limit, after_name=after_name)


def _event(name: str, queue: Queue) -> EventRecord:
    return EventRecord(queue.namespace_id, name, queue.id, queue.revision, queue_id=queue.id)


def _audit(operation: str, queue: Queue, actor: Actor, reason: str | None, *, before: Queue | None) -> AuditRecord:
    return AuditRecord(
        namespace_id=queue.namespace_id,
        actor=actor,
        operation=operation,
        subject_kind="queue",
        subject_id=queue.id,
        reason=reason,
        before=None if before is None else before.as_json(),
        after=queue.as_json(),
    )
