"""Limits of concurrency keys as they were set: for one key, or by `*` at the end for all that begin so.

The limit in force stands as a copy in each key's own row. Who sets a limit and who makes a key both lock the row `*` of
the namespace first, so that no key is made between a limit and its copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, select, update

from pulse import limits
from pulse.tables import key, key_limit

if TYPE_CHECKING:
    from orbit.database import Transaction

ALL = b"*"


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """What was set for a key or a pattern; `max_concurrency` is None where it was taken back."""

    pattern: bytes
    max_concurrency: int | None
    revision: int


def limits_lock(tx: Transaction, namespace_id: bytes) -> dict[bytes, KeyLimit]:
    """Lock a namespace's limits against each other and against keys that are made, and read them all."""
    own = and_(key_limit.c.namespace_id == namespace_id, key_limit.c.pattern == ALL)
    if tx.row(select(key_limit.c.revision).where(own).with_for_update()) is None:
        row = {"namespace_id": namespace_id, "pattern": ALL, "max_concurrency": None, "revision": 0}
        tx.insert(key_limit, [row])
    return limits_read(tx, namespace_id)


def limits_read(tx: Transaction, namespace_id: bytes) -> dict[bytes, KeyLimit]:
    """Read all limits of a namespace: pattern → limit."""
    query = select(key_limit.c.pattern, key_limit.c.max_concurrency, key_limit.c.revision)
    rows = tx.rows(query.where(key_limit.c.namespace_id == namespace_id))
    return {row.pattern: KeyLimit(row.pattern, row.max_concurrency, row.revision) for row in rows}


def limit_write(tx: Transaction, namespace_id: bytes, limit: KeyLimit, *, is_new: bool) -> None:
    """Write one limit; all of the namespace's are locked."""
    values = {"max_concurrency": limit.max_concurrency, "revision": limit.revision}
    if is_new:
        tx.insert(key_limit, [{"namespace_id": namespace_id, "pattern": limit.pattern, **values}])
        return
    statement = update(key_limit).where(key_limit.c.namespace_id == namespace_id, key_limit.c.pattern == limit.pattern)
    tx.expect(statement.values(**values), count=1)


def limit_of(name: bytes, known: Mapping[bytes, KeyLimit]) -> int:
    """Say which limit holds for a key: its own, else that of the longest begin that has one, else the default."""
    own = known.get(name)
    if own is not None and own.max_concurrency is not None:
        return own.max_concurrency
    for length in range(len(name), -1, -1):
        found = known.get(name[:length] + ALL)
        if found is not None and found.max_concurrency is not None:
            return found.max_concurrency
    return limits.KEY_CONCURRENCY_DEFAULT


def copies_write(tx: Transaction, moved: Mapping[bytes, int]) -> None:
    """Write the limits in force onto keys: key id → limit."""
    rows = [{"id": key_id, "max_concurrency": moved[key_id]} for key_id in sorted(moved)]
    tx.update_many(key, rows=rows)
