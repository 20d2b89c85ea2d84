"""Queues' rows: configuration, usage and backlog are made together and configured together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import BindParameter, bindparam, select, update

from pulse.tables import queue, queue_backlog, queue_usage

if TYPE_CHECKING:
    from collections.abc import Collection

    from orbit.clock import Micros
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue's control parameters, in the ranges of the queue API.

    `rate_per_second` limits Starts, not what a handler sends out; a granted Start proves no outside effect. The allowed
    maxima are no promise of capacity.
    """

    paused: bool
    max_concurrency: int
    rate_per_second: int
    max_unfinished_tasks: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its live backlog."""

    id: bytes
    namespace_id: bytes
    name: str
    settings: QueueSettings
    unfinished_tasks: int
    revision: int

    def as_json(self) -> dict[str, Any]:
        """Write it as the queue API shows it: counters are decimal strings."""
        return {
            "id": self.id.hex(),
            "namespace_id": self.namespace_id.hex(),
            "name": self.name,
            **asdict(self.settings),
            "unfinished_tasks": str(self.unfinished_tasks),
            "revision": str(self.revision),
        }


_SELECT = select(queue, queue_backlog.c.unfinished).join(queue_backlog, queue_backlog.c.queue_id == queue.c.id)
_NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_BY_NAMES = select(queue.c.id, queue.c.name).where(
    queue.c.namespace_id == bindparam("namespace_id"), queue.c.name.in_(_NAMES)
)
_LOCK_CONFIGURATION = (
    select(queue.c.revision)
    .where(queue.c.id == bindparam("id"), queue.c.namespace_id == bindparam("namespace_id"))
    .with_for_update()
)


def _queue(row: Any) -> Queue:
    settings = QueueSettings(bool(row.paused), row.max_concurrency, row.rate_per_second, row.max_unfinished_tasks)
    return Queue(row.id, row.namespace_id, row.name, settings, row.unfinished, row.revision)


def queue_insert(tx: Transaction, made: Queue, *, now: Micros) -> None:
    """Make a queue with its counters at zero."""
    settings = asdict(made.settings)
    backlog_limit = settings["max_unfinished_tasks"]
    row = {"id": made.id, "namespace_id": made.namespace_id, "name": made.name, "revision": 1, "created_at": now}
    tx.insert(queue, [row | settings])
    usage = {key: settings[key] for key in ("paused", "max_concurrency", "rate_per_second")}
    zero = {"active": 0, "leased_unstarted": 0, "window_started_at": 0, "window_used": 0}
    tx.insert(queue_usage, [{"queue_id": made.id} | usage | zero])
    tx.insert(queue_backlog, [{"queue_id": made.id, "max_unfinished_tasks": backlog_limit, "unfinished": 0}])


def queue_find(tx: Transaction, namespace_id: bytes, queue_id: bytes) -> Queue | None:
    """Read a queue of a namespace."""
    row = tx.row(_SELECT.where(queue.c.id == queue_id, queue.c.namespace_id == namespace_id))
    return None if row is None else _queue(row)


def queue_find_named(tx: Transaction, namespace_id: bytes, name: str) -> Queue | None:
    """Read a queue of a namespace by its name."""
    row = tx.row(_SELECT.where(queue.c.name == name, queue.c.namespace_id == namespace_id))
    return None if row is None else _queue(row)


def queues_find(tx: Transaction, namespace_id: bytes, *, limit: int, after_name: str | None) -> list[Queue]:
    """Read a page of a namespace's queues in the order of their names."""
    query = _SELECT.where(queue.c.namespace_id == namespace_id)
    if after_name is not None:
        query = query.where(queue.c.name > after_name)
    return [_queue(row) for row in tx.rows(query.order_by(queue.c.name).limit(limit))]


def queue_ids(tx: Transaction, namespace_id: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Find queues' ids by name. They never change, so each process reads a name once."""
    found = {name: known for name in names if (known := tx.known(("queue", namespace_id, name))) is not None}
    missing = sorted(set(names) - found.keys())
    if missing:
        for row in tx.rows(_BY_NAMES, {"namespace_id": namespace_id, "names": missing}):
            found[row.name] = row.id
            tx.learn({("queue", namespace_id, row.name): row.id})
    return found


def queue_lock(tx: Transaction, namespace_id: bytes, queue_id: bytes) -> int | None:
    """Lock a queue's configuration and return its revision."""
    row = tx.row(_LOCK_CONFIGURATION, {"id": queue_id, "namespace_id": namespace_id})
    return None if row is None else row.revision


def queue_read_locked(tx: Transaction, queue_id: bytes) -> Queue:
    """Lock a queue's configuration and read it, whosever it is."""
    tx.row(select(queue.c.id).where(queue.c.id == queue_id).with_for_update())
    row = tx.row(_SELECT.where(queue.c.id == queue_id))
    assert row is not None, "a queue is never removed"
    return _queue(row)


def queue_write(tx: Transaction, queue_id: bytes, settings: QueueSettings, *, revision: int) -> None:
    """Replace the settings of a locked queue: configuration, usage and backlog rows, in the order of locks."""
    values = asdict(settings)
    tx.expect(update(queue).where(queue.c.id == queue_id).values(**values, revision=revision), count=1)
    limit = {"max_unfinished_tasks": values.pop("max_unfinished_tasks")}
    tx.expect(update(queue_usage).where(queue_usage.c.queue_id == queue_id).values(**values), count=1)
    tx.expect(update(queue_backlog).where(queue_backlog.c.queue_id == queue_id).values(**limit), count=1)
