"""Concurrency keys: permits, holders, lines of blocked tasks, and the wake-ups that empty the lines.

A key's id is a hash of its namespace and name, so a task's row alone tells which rows to lock. A line is written under
its key's lock; it is left under the locks of its entries alone, so `has_line` may say too much, never too little.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Select, bindparam, select, union_all, update

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.ids import new_id
from pulse.states import TaskState, WaitReason
from pulse.tables import key, key_holder, key_line, key_wake, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.store.rows import LockedTask


_NAMES = msgspec.json.Decoder(list[str])
NO_KEYS: tuple[bytes, ...] = ()


class KeyRow(Struct, frozen=True):
    """A key's permits; `has_line` says that a task may wait for it."""

    id: bytes
    namespace_id: bytes
    name: bytes
    max_concurrency: int
    active: int
    has_line: bool

    @property
    def room(self) -> int:
        """Say how many more tasks may hold it; less than 0 after its limit was lowered."""
        return self.max_concurrency - self.active


class LineKey(NamedTuple):
    """An entry of a line: its whole primary key."""

    key_id: bytes
    lane_id: bytes
    dispatch_at: Micros
    task_id: bytes


def key_id(namespace_id: bytes, name: bytes) -> bytes:
    """Name a key by a hash of 128 bits: within a namespace nobody gains by two keys that meet."""
    return hashlib.sha256(namespace_id + name).digest()[:16]


def key_names(task: LockedTask) -> list[str]:
    """Return the names of a task's keys."""
    return [] if task.concurrency_keys is None else _NAMES.decode(task.concurrency_keys)


def key_ids(task: LockedTask) -> tuple[bytes, ...]:
    """Return the ids of a task's keys, in the order in which they were given."""
    return NO_KEYS if task.concurrency_keys is None else _ids(task.namespace_id, task.concurrency_keys)


# A task's keys are named when it takes them and again when it gives them back, and many tasks have the same ones.
@lru_cache(maxsize=8_192)
def _ids(namespace_id: bytes, names: str) -> tuple[bytes, ...]:
    return tuple(key_id(namespace_id, name.encode()) for name in _NAMES.decode(names))


_LINES_A_STATEMENT = 64
_KEYS = through(
    select(key.c.id, key.c.namespace_id, key.c.name, key.c.max_concurrency, key.c.active, key.c.has_line)
    .where(ids_in(key.c.id))
    .order_by(key.c.id),
    key,
)
_READ = Hot(_KEYS)
_LOCK = Hot(_KEYS.with_for_update())
_LANES = (
    select(key_line.c.key_id, key_line.c.lane_id)
    .where(ids_in(key_line.c.key_id))
    .group_by(key_line.c.key_id, key_line.c.lane_id)
)
_WAKES = (
    select(key_wake.c.id, key_wake.c.key_id)
    .order_by(key_wake.c.id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_BLOCK = (
    through(update(task), task)
    .where(ids_in(task.c.id), task.c.state == TaskState.WAITING)
    .values(wait_reason=WaitReason.KEY_BLOCKED, revision=task.c.revision + 1)
)
_MOVE = through(update(key), key).where(ids_in(key.c.id)).values(active=key.c.active + bindparam("by"))
_GIVE = Hot(_MOVE)
_TAKE = Hot(_MOVE.values(used_at=bindparam("used_at")))
_LINE = Hot(through(update(key), key).where(ids_in(key.c.id)).values(has_line=True))
_QUIET = through(update(key), key).where(ids_in(key.c.id)).values(has_line=False)
_LINED = select(key.c.id).where(key.c.has_line, key.c.id > bindparam("after"), key.c.active < key.c.max_concurrency)
_PAGE = (
    select(key.c.id, key.c.used_at, key.c.active, key.c.has_line)
    .where(key.c.id > bindparam("after"))
    .order_by(key.c.id)
    .limit(bindparam("limit"))
)


def keys_read(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, KeyRow]:
    """Read keys without locks; those that were never used are left out."""
    return {row.id: KeyRow(*tuple(row)) for row in tx.rows(_READ, {"ids": ids})} if ids else {}


def keys_lock(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, KeyRow]:
    """Lock keys in the order of their ids; those that were never used are left out."""
    return {row.id: KeyRow(*tuple(row)) for row in tx.rows(_LOCK, {"ids": ids})} if ids else {}


def keys_insert(tx: Transaction, rows: Sequence[KeyRow], *, now: Micros) -> None:
    """Make keys; of two transactions that do, one runs again."""
    made = sorted(rows, key=lambda row: row.id)
    tx.insert(
        key,
        [
            {
                "id": row.id,
                "namespace_id": row.namespace_id,
                "name": row.name,
                "max_concurrency": row.max_concurrency,
                "active": row.active,
                "has_line": row.has_line,
                "used_at": now,
            }
            for row in made
        ],
    )


def keys_take(tx: Transaction, taken: Mapping[bytes, int], *, now: Micros) -> None:
    """Take permits of locked keys, so many of each."""
    for by, ids in _alike(taken):
        tx.expect(_TAKE, {"ids": ids, "by": by, "used_at": now}, count=len(ids))


def keys_give(tx: Transaction, given: Mapping[bytes, int]) -> None:
    """Give permits of locked keys back, so many of each."""
    for by, ids in _alike(given):
        tx.expect(_GIVE, {"ids": ids, "by": -by}, count=len(ids))


def _alike(moves: Mapping[bytes, int]) -> Iterable[tuple[int, list[bytes]]]:
    """Put together the keys that move alike: nearly all move by one, and a plain list costs less than a join."""
    by_count: dict[int, list[bytes]] = defaultdict(list)
    for identifier, count in moves.items():
        by_count[count].append(identifier)
    return by_count.items()


def keys_line(tx: Transaction, ids: Collection[bytes]) -> None:
    """Note that tasks may wait for locked keys."""
    if ids:
        tx.expect(_LINE, {"ids": ids}, count=len(ids))


def holders_insert(tx: Transaction, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Write down who holds what: (key, task)."""
    tx.insert(key_holder, [{"key_id": key_id, "task_id": task_id} for key_id, task_id in pairs])


def holders_delete(tx: Transaction, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Strike out who held what: (key, task)."""
    tx.delete_many(key_holder, [{"key_id": key_id, "task_id": task_id} for key_id, task_id in sorted(pairs)])


def holders_find(tx: Transaction, key_id: bytes, *, limit: int) -> list[bytes]:
    """Read which tasks hold a key, some of them."""
    query = select(key_holder.c.task_id).where(key_holder.c.key_id == key_id).order_by(key_holder.c.task_id)
    return [row.task_id for row in tx.rows(query.limit(limit))]


def tasks_block(tx: Transaction, entries: Sequence[LineKey]) -> None:
    """Put locked tasks, whose entries in `ready` are gone, into the lines of keys whose locks are held."""
    if entries:
        tx.expect(_BLOCK, {"ids": [entry.task_id for entry in entries]}, count=len(entries))
        tx.insert(key_line, [entry._asdict() for entry in entries])


def line_insert(tx: Transaction, entries: Sequence[LineKey]) -> None:
    """Put entries into lines whose keys are locked."""
    tx.insert(key_line, [entry._asdict() for entry in entries])


def line_delete(tx: Transaction, entries: Sequence[LineKey], *, otherwise: Exception | None = None) -> None:
    """Take entries out by primary key: those that are there, or all, if something is to be raised `otherwise`."""
    rows = [entry._asdict() for entry in sorted(entries)]
    tx.delete_many(key_line, rows, may_miss=otherwise is None, otherwise=otherwise)


def line_lanes(tx: Transaction, key_ids: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """Read which lanes have a line before which key: (key, lane)."""
    return [(row.key_id, row.lane_id) for row in tx.rows(_LANES, {"ids": key_ids})] if key_ids else []


def line_heads(tx: Transaction, wanted: Mapping[tuple[bytes, bytes], int]) -> list[LineKey]:
    """Read the first entries of lines, without locks: (key, lane) → how many."""
    heads: list[LineKey] = []
    ordered = sorted(wanted)
    for first in range(0, len(ordered), _LINES_A_STATEMENT):
        lines = ordered[first : first + _LINES_A_STATEMENT]
        statement = union_all(*(select(_head(*line, limit=wanted[line]).subquery()) for line in lines))
        heads += [LineKey(*tuple(row)) for row in tx.rows(statement)]
    return heads


def _head(key_id: bytes, lane_id: bytes, *, limit: int) -> Select[Any]:
    return (
        select(key_line.c.key_id, key_line.c.lane_id, key_line.c.dispatch_at, key_line.c.task_id)
        .where(key_line.c.key_id == key_id, key_line.c.lane_id == lane_id)
        .order_by(key_line.c.key_id, key_line.c.lane_id, key_line.c.dispatch_at, key_line.c.task_id)
        .limit(limit)
    )


def line_count(tx: Transaction, key_id: bytes, *, limit: int) -> int:
    """Count, up to `limit`, the tasks that wait for a key."""
    query = select(key_line.c.task_id).where(key_line.c.key_id == key_id).limit(limit)
    return len(tx.rows(query))


def lines_quiet(tx: Transaction, key_ids: Collection[bytes]) -> None:
    """Note that keys have no line any more, where that is still so under their locks."""
    locked = keys_lock(tx, key_ids)
    if locked:
        lined = {key_id for key_id, _ in line_lanes(tx, locked.keys())}
        quiet = [key_id for key_id, row in locked.items() if row.has_line and key_id not in lined]
        if quiet:
            tx.expect(_QUIET, {"ids": quiet}, count=len(quiet))


def wakes_insert(tx: Transaction, key_ids: Collection[bytes]) -> None:
    """Let somebody look whether a task that waits for these keys may go on: pure inserts."""
    tx.insert(key_wake, [{"id": new_id(), "key_id": key_id} for key_id in sorted(key_ids)])


def wakes_lock(tx: Transaction, *, limit: int) -> dict[bytes, bytes]:
    """Lock the oldest free wake-ups: id → key."""
    return {row.id: row.key_id for row in tx.rows(_WAKES, {"limit": limit})}


def wakes_delete(tx: Transaction, ids: Collection[bytes]) -> None:
    """Strike out wake-ups that were followed."""
    tx.delete_many(key_wake, [{"id": identifier} for identifier in sorted(ids)])


def keys_lined(tx: Transaction, *, after: bytes, limit: int) -> list[bytes]:
    """Read a page of the keys with room for which a task may wait, in the order of their ids."""
    return [row.id for row in tx.rows(_LINED.order_by(key.c.id).limit(limit), {"after": after})]


def keys_prune(tx: Transaction, *, after: bytes, before: Micros, limit: int) -> bytes | None:
    """Forget those of a page of keys that nobody has used for long; return where the next page begins, if there is one.

    A key is made anew when it is used again.
    """
    page: list[Any] = list(tx.rows(_PAGE, {"after": after, "limit": limit}))
    idle = [row.id for row in page if row.used_at < before and row.active == 0 and not row.has_line]
    still = [row for row in keys_lock(tx, idle).values() if row.active == 0 and not row.has_line]
    tx.delete_many(key, [{"id": row.id} for row in still])
    return page[-1].id if len(page) == limit else None


def keys_named(tx: Transaction, namespace_id: bytes, *, prefix: bytes) -> list[bytes]:
    """Read the ids of a namespace's keys in use that begin with a prefix."""
    query = select(key.c.id).where(key.c.namespace_id == namespace_id, key.c.name >= prefix)
    end = _after(prefix)
    return [row.id for row in tx.rows(query if end is None else query.where(key.c.name < end))]


def _after(prefix: bytes) -> bytes | None:
    """Return the first text that is behind all that begin with `prefix`; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
