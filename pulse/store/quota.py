"""Rows of applications' quotas. What an application uses is the sum over its queues' counters, never counted twice.

Only claims and submissions make the sums larger, and both hold the quota's lock while they do; what others give back
meanwhile makes a sum at most too large. Order of locks: queues' usage, quotas, queues' backlogs, backlog quotas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, select, update

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.tables import application, namespace
from pulse.tables import queue, queue_backlog, queue_usage, quota, quota_backlog

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class Quota:
    """An application's limits of permits and Starts, with its rate window, under lock; None is no limit."""

    application_id: bytes
    max_concurrency: int | None
    rate_per_second: int | None
    window_started_at: Micros
    window_used: int


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """An application's quotas; None is no limit."""

    max_concurrency: int | None = None
    rate_per_second: int | None = None
    max_unfinished_tasks: int | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether nothing is limited."""
        return self == QuotaSettings()


@dataclass(frozen=True, slots=True)
class ApplicationRow:
    """An application with its quotas, what its queues use in all, and the revision of its quotas (0: never set)."""

    id: bytes
    name: str
    settings: QuotaSettings
    active: int
    unfinished: int
    revision: int


_QUOTA = select(
    quota.c.application_id,
    quota.c.max_concurrency,
    quota.c.rate_per_second,
    quota.c.window_started_at,
    quota.c.window_used,
).where(ids_in(quota.c.application_id))
_READ = Hot(_QUOTA)
_LOCK = Hot(through(_QUOTA.order_by(quota.c.application_id).with_for_update(), quota))
_SUM_PERMITS = Hot(
    select(queue_usage.c.quota_id, func.sum(queue_usage.c.active), func.sum(queue_usage.c.leased_unstarted))
    .where(ids_in(queue_usage.c.quota_id))
    .group_by(queue_usage.c.quota_id),
    tells_time=True,
)
_WRITE_WINDOW = Hot(
    update(quota)
    .where(quota.c.application_id == bindparam("id"))
    .values(window_started_at=bindparam("started_at"), window_used=bindparam("used"))
)
_LOCK_BACKLOG = Hot(
    through(
        select(quota_backlog.c.application_id, quota_backlog.c.max_unfinished_tasks)
        .where(ids_in(quota_backlog.c.application_id))
        .order_by(quota_backlog.c.application_id)
        .with_for_update(),
        quota_backlog,
    )
)
_UNFINISHED = Hot(
    select(queue_backlog.c.quota_id, func.sum(queue_backlog.c.unfinished))
    .where(ids_in(queue_backlog.c.quota_id))
    .group_by(queue_backlog.c.quota_id)
)
_APPLICATION_OF = (
    select(application.c.id, application.c.name)
    .join(namespace, namespace.c.application_id == application.c.id)
    .order_by(application.c.id)
)


def quotas_lock(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, Quota]:
    """Lock the quotas of applications, in the order of their ids."""
    return {row.application_id: Quota(*tuple(row)) for row in tx.rows(_LOCK, {"ids": ids})}


# What an application holds in all its queues: permits, and those of them that have not started.
Used = tuple[int, int]


def application_permits_lock(tx: Transaction, ids: Collection[bytes]) -> tuple[dict[bytes, Quota], dict[bytes, Used]]:
    """Lock the quotas of applications, then read what these hold, in one round trip."""
    return _permits(tx.rows_each([(_LOCK, {"ids": ids}), (_SUM_PERMITS, {"ids": ids})]))


def application_permits_read(tx: Transaction, ids: Collection[bytes]) -> tuple[dict[bytes, Quota], dict[bytes, Used]]:
    """Read the same without a lock, for people."""
    return _permits(tx.rows_each([(_READ, {"ids": ids}), (_SUM_PERMITS, {"ids": ids})]))


def _permits(answers: Sequence[Any]) -> tuple[dict[bytes, Quota], dict[bytes, Used]]:
    quotas, sums = answers
    used = {owner: (int(active), int(unstarted)) for owner, active, unstarted in map(tuple, sums)}
    return {row.application_id: Quota(*tuple(row)) for row in quotas}, used


def window_write(tx: Transaction, application_id: bytes, *, started_at: Micros, used: int) -> None:
    """Write a locked quota's rate window."""
    tx.expect(_WRITE_WINDOW, {"id": application_id, "started_at": started_at, "used": used}, count=1)


def unfinished_room(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, int]:
    """Lock backlog quotas in the order of their ids and say how many tasks each application may still submit."""
    if not ids:
        return {}
    locked, unfinished = tx.rows_each([(_LOCK_BACKLOG, {"ids": ids}), (_UNFINISHED, {"ids": ids})])
    sums = {owner: int(sum_) for owner, sum_ in map(tuple, unfinished)}
    limited = {owner: limit for owner, limit in map(tuple, locked) if limit is not None}
    return {application_id: limit - sums.get(application_id, 0) for application_id, limit in limited.items()}


def application_of(tx: Transaction, namespace_id: bytes) -> tuple[bytes, str]:
    """Read the id and name of the application that owns a namespace."""
    row = tx.row(_APPLICATION_OF.where(namespace.c.id == namespace_id))
    assert row is not None, "a namespace has an application"
    return row.id, row.name


def application_lock(tx: Transaction, application_id: bytes) -> None:
    """Lock an application against queues that are made and quotas that are set at the same time."""
    tx.row(select(application.c.id).where(application.c.id == application_id).with_for_update())


def application_read(tx: Transaction, namespace_id: bytes) -> ApplicationRow:
    """Read the application that owns a namespace, with its quotas and what all its queues use."""
    application_id, name = application_of(tx, namespace_id)
    limits: Any = tx.row(select(quota).where(quota.c.application_id == application_id))
    backlog: Any = tx.row(select(quota_backlog).where(quota_backlog.c.application_id == application_id))
    used: Any = tx.row(
        select(func.coalesce(func.sum(queue_usage.c.active), 0), func.coalesce(func.sum(queue_backlog.c.unfinished), 0))
        .select_from(queue)
        .join(queue_usage, queue_usage.c.queue_id == queue.c.id)
        .join(queue_backlog, queue_backlog.c.queue_id == queue.c.id)
        .join(namespace, namespace.c.id == queue.c.namespace_id)
        .where(namespace.c.application_id == application_id)
    )
    settings = (
        QuotaSettings()
        if limits is None or backlog is None
        else QuotaSettings(limits.max_concurrency, limits.rate_per_second, backlog.max_unfinished_tasks)
    )
    revision = 0 if limits is None else limits.revision
    return ApplicationRow(application_id, name, settings, int(used[0]), int(used[1]), revision)


def application_queues(tx: Transaction, application_id: bytes) -> list[bytes]:
    """Read the queues of all namespaces of an application, in the order of their ids."""
    query = (
        select(queue.c.id)
        .join(namespace, namespace.c.id == queue.c.namespace_id)
        .where(namespace.c.application_id == application_id)
        .order_by(queue.c.id)
    )
    return [row.id for row in tx.rows(query)]


def queues_applications(tx: Transaction, queue_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Read which applications own queues: queue → application."""
    query = select(queue.c.id, namespace.c.application_id).join(namespace, namespace.c.id == queue.c.namespace_id)
    rows = tx.rows(query.where(ids_in(queue.c.id)), {"ids": queue_ids})
    return {row.id: row.application_id for row in rows}


def quotas_in_force(tx: Transaction, application_id: bytes) -> bool:
    """Say whether an application, which is locked, has any quota."""
    query = select(quota.c.max_concurrency, quota.c.rate_per_second, quota_backlog.c.max_unfinished_tasks)
    query = query.join(quota_backlog, quota_backlog.c.application_id == quota.c.application_id)
    row = tx.row(query.where(quota.c.application_id == application_id))
    return row is not None and any(value is not None for value in row)


def quota_insert(tx: Transaction, application_id: bytes) -> None:
    """Make the rows of an application's quotas, which limit nothing yet."""
    row = {"application_id": application_id, "revision": 0, "window_started_at": 0, "window_used": 0}
    tx.insert(quota, [row])
    tx.insert(quota_backlog, [{"application_id": application_id}])


def quota_write(tx: Transaction, application_id: bytes, settings: QuotaSettings, *, revision: int) -> None:
    """Replace the settings of locked quotas, in the order of locks; the window stands."""
    permits = {"max_concurrency": settings.max_concurrency, "rate_per_second": settings.rate_per_second}
    statement = update(quota).where(quota.c.application_id == application_id)
    tx.expect(statement.values(**permits, revision=revision), count=1)
    backlog = update(quota_backlog).where(quota_backlog.c.application_id == application_id)
    tx.expect(backlog.values(max_unfinished_tasks=settings.max_unfinished_tasks), count=1)


def quota_mark_usage(tx: Transaction, queue_ids: Collection[bytes], *, quota_id: bytes | None) -> None:
    """Write on queues' locked usage whether an application's quotas hold for them."""
    if queue_ids:
        statement = update(queue_usage).where(ids_in(queue_usage.c.queue_id)).values(quota_id=quota_id)
        tx.expect(through(statement, queue_usage), {"ids": queue_ids}, count=len(queue_ids))


def quota_mark_backlog(tx: Transaction, queue_ids: Collection[bytes], *, quota_id: bytes | None) -> None:
    """Write on queues' locked backlogs whether an application's quotas hold for them."""
    if queue_ids:
        statement = update(queue_backlog).where(ids_in(queue_backlog.c.queue_id)).values(quota_id=quota_id)
        tx.expect(through(statement, queue_backlog), {"ids": queue_ids}, count=len(queue_ids))
