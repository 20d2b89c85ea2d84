"""Set and read the limits of concurrency keys, live: nothing is revoked, nothing forgotten.

A limit is set for one key, or by a pattern with `*` at its end for all keys that begin so; of several patterns the
longest counts. A raised limit wakes those that wait; after a lowered one nothing more is claimed until there is room.
Locks: the namespace's limits, then its keys that the limit may concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orbit.errors import InvalidRequest, StateConflict
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from pulse import limits
from pulse.store.key import holders_find, key_id, keys_lock, keys_named, keys_read, line_count, wakes_insert
from pulse.store.key_limit import ALL, KeyLimit, copies_write, limit_of, limit_write, limits_lock, limits_read

if TYPE_CHECKING:
    from orbit.database import Transaction
    from pulse.settle import Surroundings

_WAITING_MAX = 10_000
_HOLDERS_MAX = 100


class KeyChange(Struct, frozen=True):
    """A limit for a key or pattern, made for the revision that the caller has seen (0: never set).

    `max_concurrency` None takes the limit back: shorter patterns and the default count again.
    """

    pattern: str
    expected_revision: int
    reason: str
    max_concurrency: int | None


@dataclass(frozen=True, slots=True)
class KeyView:
    """A key or pattern as shown; a pattern holds nothing itself."""

    pattern: str
    limit: int
    own_limit: int | None
    revision: int
    active: int
    waiting: int
    holders: Sequence[bytes]

    def as_json(self) -> dict[str, Any]:
        """Write it as the API shows it."""
        return {
            "key": self.pattern,
            "limit": self.limit,
            "own_limit": self.own_limit,
            "active": str(self.active),
            "waiting": str(self.waiting),
            "held_by": [task_id.hex() for task_id in self.holders],
            "revision": str(self.revision),
        }


def key_view(tx: Transaction, namespace_id: bytes, pattern: str) -> KeyView:
    """Read a key or pattern: the limit in force, what holds it and how many wait; counts are exact up to a bound.

    A key that was never used has the limit that it would have.
    """
    name = pattern.encode()
    known = limits_read(tx, namespace_id)
    own = known.get(name)
    identifier = key_id(namespace_id, name)
    row = keys_read(tx, [identifier]).get(identifier)
    return KeyView(
        pattern=pattern,
        limit=limit_of(name, known) if row is None else row.max_concurrency,
        own_limit=None if own is None else own.max_concurrency,
        revision=0 if own is None else own.revision,
        active=0 if row is None else row.active,
        waiting=line_count(tx, identifier, limit=_WAITING_MAX),
        holders=holders_find(tx, identifier, limit=_HOLDERS_MAX),
    )


def key_configure(
    tx: Transaction, namespace_id: bytes, actor: Actor, change: KeyChange, around: Surroundings
) -> KeyView:
    """Set the limit of a key or pattern, with audit and event, and return it as it is then.

    The same change sent again at the same revision finds itself done. Raises StateConflict with the current revision,
    InvalidRequest for more limits than a namespace may have.
    """
    name = change.pattern.encode()
    known = limits_lock(tx, namespace_id)
    before = known.get(name, KeyLimit(name, None, 0))
    after = KeyLimit(name, change.max_concurrency, change.expected_revision + 1)
    if before == after:
        return key_view(tx, namespace_id, change.pattern)
    if before.revision != change.expected_revision:
        message = "the key's limit has changed; read it again"
        raise StateConflict(message, details={"current_revision": str(before.revision)})
    if name not in known and len(known) > limits.KEY_LIMITS_MAX:
        raise InvalidRequest(f"a namespace may have {limits.KEY_LIMITS_MAX} limits of keys; set one for a prefix")
    limit_write(tx, namespace_id, after, is_new=name not in known)
    _apply(tx, namespace_id, known | {name: after}, name, around)
    _record(tx, namespace_id, actor, change.reason, (before, after))
    return key_view(tx, namespace_id, change.pattern)


def _apply(
    tx: Transaction, namespace_id: bytes, known: dict[bytes, KeyLimit], name: bytes, around: Surroundings
) -> None:
    """Move the copies of the limit in the keys that it concerns, and wake what may go on."""
    if name.endswith(ALL):
        rows = keys_lock(tx, keys_named(tx, namespace_id, prefix=name[: -len(ALL)]))
    else:
        rows = keys_lock(tx, [key_id(namespace_id, name)])
    moved = {row.id: limit_of(row.name, known) for row in rows.values()}
    copies_write(tx, {identifier: to for identifier, to in moved.items() if to != rows[identifier].max_concurrency})
    free = [row.id for row in rows.values() if row.has_line and row.active < moved[row.id]]
    if free:
        wakes_insert(tx, free)
        tx.after_commit(around.on_keys_free)


def _shown(limit: KeyLimit) -> dict[str, Any]:
    return {"key": limit.pattern.decode(), "limit": limit.max_concurrency, "revision": str(limit.revision)}


def _record(tx: Transaction, namespace_id: bytes, actor: Actor, reason: str, change: tuple[KeyLimit, KeyLimit]) -> None:
    before, after = change
    subject = key_id(namespace_id, after.pattern)
    now = tx.now()
    record = AuditRecord(
        namespace_id=namespace_id,
        actor=actor,
        operation="concurrency_key.configure",
        subject_kind="concurrency_key",
        subject_id=subject,
        reason=reason,
        before=_shown(before),
        after=_shown(after),
    )
    audit_insert(tx, record, now=now)
    events_insert(tx, [EventRecord(namespace_id, "concurrency_key.configured", subject, after.revision)], now=now)
