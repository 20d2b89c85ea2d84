"""Quotas of an application: limits that its queues share across its namespaces, in force beside the queues' own.

A queue's counters carry the id of the quotas that hold for them, so a queue without quotas costs nothing more. What an
application uses is the sum of its queues' counters, read under the quotas' lock: no counter of its own can drift.
Configuring replaces all limits; it revokes nothing and forgets nothing, and keeps the window that stands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orbit.database import RunAgain
from orbit.errors import NotFound, StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from pulse.store.counters import Usage, backlog_lock, usage_lock
from pulse.store.quota import (
    ApplicationRow,
    Quota,
    QuotaSettings,
    application_lock,
    application_of,
    application_permits_lock,
    application_permits_read,
    application_queues,
    application_read,
    queues_applications,
    quota_insert,
    quota_mark_backlog,
    quota_mark_usage,
    quota_write,
    quotas_in_force,
    quotas_lock,
    unfinished_room,
    window_write,
)
from pulse.window import stands

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

__all__ = ["Quota", "QuotaSettings", "application_configure", "application_get", "application_of"]

_NO_LIMIT = 2**62


@dataclass(slots=True)
class SharedRoom:
    """What an application may still take; counted down while a batch is decided, its queues share one."""

    left: int


@dataclass(frozen=True, slots=True)
class Permits:
    """The quotas that hold for some queues, and what their applications use, as read under the quotas' locks."""

    of_queue: Mapping[bytes, bytes]
    quotas: Mapping[bytes, Quota]
    used: Mapping[bytes, tuple[int, int]]

    def claim_rooms(self, *, now: Micros) -> dict[bytes, SharedRoom]:
        """Say for each queue with quotas how many tasks may be leased: permits, and Starts not reserved by leases."""
        rooms: dict[bytes, SharedRoom] = {}
        for application_id, quota in self.quotas.items():
            active, unstarted = self.used.get(application_id, (0, 0))
            permits = _NO_LIMIT if quota.max_concurrency is None else quota.max_concurrency - active
            rooms[application_id] = SharedRoom(min(permits, start_room(quota, now=now) - unstarted))
        return {queue_id: rooms[application_id] for queue_id, application_id in self.of_queue.items()}

    def start_rooms(self, *, now: Micros) -> dict[bytes, SharedRoom]:
        """Say for each queue with quotas how many Starts its application's window still has."""
        rooms = {
            application_id: SharedRoom(start_room(quota, now=now)) for application_id, quota in self.quotas.items()
        }
        return {queue_id: rooms[application_id] for queue_id, application_id in self.of_queue.items()}

    def windows(self) -> list[Micros]:
        """Return when the rate windows of these applications began."""
        return [quota.window_started_at for quota in self.quotas.values() if quota.rate_per_second is not None]

    def window_of(self, queue_id: bytes) -> Micros:
        """Return when the window of a queue's application began; the queue has quotas."""
        return self.quotas[self.of_queue[queue_id]].window_started_at


def permits_lock(tx: Transaction, usages: Collection[Usage]) -> Permits:
    """Lock the quotas that hold for queues whose usage is locked; where there are none this costs nothing."""
    return _permits(tx, usages, is_locked=True)


def permits_read(tx: Transaction, usages: Collection[Usage]) -> Permits:
    """Read the same without locks, for people."""
    return _permits(tx, usages, is_locked=False)


def _permits(tx: Transaction, usages: Collection[Usage], *, is_locked: bool) -> Permits:
    of_queue = {usage.queue_id: usage.quota_id for usage in usages if usage.quota_id is not None}
    if not of_queue:
        return Permits({}, {}, {})
    ids = set(of_queue.values())
    return Permits(of_queue, *(application_permits_lock(tx, ids) if is_locked else application_permits_read(tx, ids)))


def start_room(quota: Quota, *, now: Micros) -> int:
    """Say how many Starts an application's window, or the one that would open now, still has."""
    if quota.rate_per_second is None:
        return _NO_LIMIT
    return quota.rate_per_second - (quota.window_used if stands(quota.window_started_at, now=now) else 0)


def starts_count(tx: Transaction, permits: Permits, granted: Mapping[bytes, int], *, now: Micros) -> None:
    """Count granted Starts, by queue, in the windows of the queues' applications."""
    by_application: dict[bytes, int] = {}
    for queue_id, count in granted.items():
        application_id = permits.of_queue.get(queue_id)
        if application_id is not None and count:
            by_application[application_id] = by_application.get(application_id, 0) + count
    for application_id in sorted(by_application):
        quota = permits.quotas[application_id]
        if quota.rate_per_second is not None:
            is_standing = stands(quota.window_started_at, now=now)
            used = (quota.window_used if is_standing else 0) + by_application[application_id]
            started_at = quota.window_started_at if is_standing else now
            window_write(tx, application_id, started_at=started_at, used=used)


def backlog_rooms(tx: Transaction, of_queue: Mapping[bytes, bytes]) -> dict[bytes, SharedRoom]:
    """Lock the backlog quotas of queues (queue → application) and say how many tasks may still be submitted."""
    rooms = {key: SharedRoom(room) for key, room in unfinished_room(tx, set(of_queue.values())).items()}
    return {queue_id: rooms[owner] for queue_id, owner in of_queue.items() if owner in rooms}


def quota_adopt(tx: Transaction, namespace_id: bytes, queue_id: bytes) -> None:
    """Put a queue that this transaction makes under the quotas of its application."""
    application_id, _ = application_of(tx, namespace_id)
    application_lock(tx, application_id)
    if not application_read(tx, namespace_id).settings.is_empty:
        quota_mark_usage(tx, [queue_id], quota_id=application_id)
        quota_mark_backlog(tx, [queue_id], quota_id=application_id)


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A full replacement of an application's quotas, made for the revision that the caller has seen (0: never set)."""

    application_id: bytes
    expected_revision: int
    reason: str
    settings: QuotaSettings


def application_get(tx: Transaction, namespace_id: bytes, application_id: bytes) -> dict[str, Any]:
    """Read the application that owns a namespace; raises NotFound for any other."""
    found = application_read(tx, namespace_id)
    if found.id != application_id:
        raise _not_found()
    return application_json(found)


def application_configure(tx: Transaction, command: Command, actor: Actor, change: QuotaChange) -> Answer:
    """Replace an application's quotas, with audit, event and receipt, or replay the receipt.

    Raises NotFound for another application than the namespace's, StateConflict with the current revision.
    """

    def make() -> Made:
        before = application_read(tx, command.namespace_id)
        if before.id != change.application_id:
            raise _not_found()
        queues = application_queues(tx, before.id)
        if queues:
            usage_lock(tx, queues)
        application_lock(tx, before.id)
        if before.revision == 0 and not quotas_lock(tx, [before.id]):
            quota_insert(tx, before.id)
        quotas_lock(tx, [before.id])
        if queues:
            backlog_lock(tx, queues)
        now = application_read(tx, command.namespace_id)
        if application_queues(tx, before.id) != queues:
            raise RunAgain
        if now.revision != change.expected_revision:
            message = "the application's quotas have changed; read them again"
            raise StateConflict(message, details={"current_revision": str(now.revision)})
        quota_write(tx, before.id, change.settings, revision=now.revision + 1)
        quota_id = None if change.settings.is_empty else before.id
        quota_mark_usage(tx, queues, quota_id=quota_id)
        quota_mark_backlog(tx, queues, quota_id=quota_id)
        after = application_read(tx, command.namespace_id)
        _record(tx, command, actor, change, (now, after))
        return Made(before.id, {"application": application_json(after)})

    return once(tx, command, make)


def quotas_mark(tx: Transaction, queue_ids: Collection[bytes]) -> None:
    """Write onto the counters of queues again whether their application's quotas hold for them."""
    usage_lock(tx, queue_ids)
    owners = queues_applications(tx, queue_ids)
    for application_id in sorted(set(owners.values())):
        application_lock(tx, application_id)
    found = {application_id: quotas_in_force(tx, application_id) for application_id in set(owners.values())}
    backlog_lock(tx, queue_ids)
    for application_id, is_in_force in sorted(found.items()):
        own = [queue_id for queue_id in queue_ids if owners.get(queue_id) == application_id]
        quota_mark_usage(tx, own, quota_id=application_id if is_in_force else None)
        quota_mark_backlog(tx, own, quota_id=application_id if is_in_force else None)


def application_json(found: ApplicationRow) -> dict[str, Any]:
    """Write an application as it is shown: counters are decimal strings."""
    return {
        "id": found.id.hex(),
        "name": found.name,
        **asdict(found.settings),
        "active_tasks": str(found.active),
        "unfinished_tasks": str(found.unfinished),
        "revision": str(found.revision),
    }


def _record(
    tx: Transaction,
    command: Command,
    actor: Actor,
    change: QuotaChange,
    change_of: tuple[ApplicationRow, ApplicationRow],
) -> None:
    before, after = change_of
    record = AuditRecord(
        namespace_id=command.namespace_id,
        actor=actor,
        operation="application.configure",
        subject_kind="application",
        subject_id=after.id,
        reason=change.reason,
        before=application_json(before),
        after=application_json(after),
    )
    now = tx.now()
    audit_insert(tx, record, now=now)
    event = EventRecord(command.namespace_id, "application.configured", after.id, after.revision)
    events_insert(tx, [event], now=now)


def _not_found() -> NotFound:
    return NotFound("no such application")
