"""The hot counter rows: locked last, moved only in the transaction of the state change that they count."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import BindParameter, bindparam, case, select, update

from orbit.database import RunAgain
from orbit.database.hot import Hot
from orbit.database.ids import ids_in
from pulse.limits import RATE_WINDOW_MICROS
from pulse.tables import queue_backlog, queue_usage

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Usage(Struct, frozen=True):
    """A queue's permits, rate window and limits, under lock."""

    queue_id: bytes
    paused: bool
    max_concurrency: int
    rate_per_second: int
    active: int
    leased_unstarted: int
    window_started_at: Micros
    window_used: int
    quota_id: bytes | None = None


class Backlog(Struct, frozen=True):
    """A queue's unfinished tasks and their limit, under lock."""

    queue_id: bytes
    max_unfinished_tasks: int
    unfinished: int
    quota_id: bytes | None = None


@dataclass(slots=True)
class UsageMove:
    """What a batch takes from or gives back to a queue's usage; negative numbers give back."""

    active: int = 0
    leased_unstarted: int = 0


_USAGE = select(queue_usage).where(ids_in(queue_usage.c.queue_id)).order_by(queue_usage.c.queue_id)
_READ_USAGE = Hot(_USAGE)
LOCK_USAGE = Hot(_USAGE.with_for_update(), tells_time=True)
_LOCK_BACKLOG = Hot(
    select(queue_backlog).where(ids_in(queue_backlog.c.queue_id)).order_by(queue_backlog.c.queue_id).with_for_update()
)
_MOVE_USAGE = Hot(
    update(queue_usage)
    .where(queue_usage.c.queue_id == bindparam("id"))
    .values(
        active=queue_usage.c.active + bindparam("by_active"),
        leased_unstarted=queue_usage.c.leased_unstarted + bindparam("by_unstarted"),
    )
)
# Leases without a lock taken before: the row itself says whether there is room for all of them.
_NOW: BindParameter[Any] = bindparam("now")
_WINDOW_STANDS = queue_usage.c.window_started_at.between(_NOW - RATE_WINDOW_MICROS + 1, _NOW + RATE_WINDOW_MICROS)
_LEFT: BindParameter[Any] = bindparam("left")
_LEASE_USAGE = Hot(
    update(queue_usage)
    .where(
        queue_usage.c.queue_id == bindparam("id"),
        queue_usage.c.paused.is_(False),
        queue_usage.c.quota_id.is_(None),
        queue_usage.c.active + bindparam("by_active") + _LEFT <= queue_usage.c.max_concurrency,
        queue_usage.c.leased_unstarted
        + bindparam("by_unstarted")
        + _LEFT
        + case((_WINDOW_STANDS, queue_usage.c.window_used), else_=0)
        <= queue_usage.c.rate_per_second,
    )
    .values(
        active=queue_usage.c.active + bindparam("by_active"),
        leased_unstarted=queue_usage.c.leased_unstarted + bindparam("by_unstarted"),
    )
)
_GRANT_STARTS = Hot(
    update(queue_usage)
    .where(queue_usage.c.queue_id == bindparam("id"))
    .values(
        leased_unstarted=queue_usage.c.leased_unstarted - bindparam("granted"),
        window_started_at=bindparam("window"),
        window_used=bindparam("used"),
    )
)
_MOVE = (
    update(queue_backlog)
    .where(queue_backlog.c.queue_id == bindparam("id"))
    .values(unfinished=queue_backlog.c.unfinished + bindparam("by"))
)
_MOVE_BACKLOG = Hot(_MOVE)
_TAKE_BACKLOG = Hot(
    _MOVE.where(
        queue_backlog.c.unfinished + bindparam("by") <= queue_backlog.c.max_unfinished_tasks,
        queue_backlog.c.quota_id.is_(None),
    )
)


def usage_lock(tx: Transaction, queue_ids: Collection[bytes]) -> dict[bytes, Usage]:
    """Lock the usage rows of queues, in the order of their ids."""
    return {row.queue_id: Usage(*tuple(row)) for row in tx.rows(LOCK_USAGE, {"ids": queue_ids})}


def usage_read(tx: Transaction, queue_ids: Collection[bytes]) -> dict[bytes, Usage]:
    """Read usage rows without a lock: for people, and to skip queues that have no room."""
    return {row.queue_id: Usage(*tuple(row)) for row in tx.rows(_READ_USAGE, {"ids": queue_ids})}


def usage_move(tx: Transaction, moves: Mapping[bytes, UsageMove]) -> None:
    """Take or give back permits, queue by queue in the order of their ids."""
    for queue_id in sorted(moves):
        move = moves[queue_id]
        if move.active or move.leased_unstarted:
            parameters = {"id": queue_id, "by_active": move.active, "by_unstarted": move.leased_unstarted}
            tx.expect(_MOVE_USAGE, parameters, count=1)


def usage_lease(tx: Transaction, queue_id: bytes, move: UsageMove, *, left: int, now: Micros) -> None:
    """Take permits if the queue has room for all of them, leaves so many to others and is under no quota.

    Otherwise the transaction is run again.
    """
    moves = {"by_active": move.active, "by_unstarted": move.leased_unstarted, "left": left}
    tx.expect(_LEASE_USAGE, moves | {"id": queue_id, "now": now}, count=1, otherwise=RunAgain("no permits"))


def starts_grant(tx: Transaction, queue_id: bytes, *, granted: int, window: Micros, used: int) -> None:
    """Turn leases into Starts: they leave the reservation and are counted in the window."""
    parameters = {"id": queue_id, "granted": granted, "window": window, "used": used}
    tx.expect(_GRANT_STARTS, parameters, count=1)


def backlog_lock(tx: Transaction, queue_ids: Collection[bytes]) -> dict[bytes, Backlog]:
    """Lock the backlog rows of queues, in the order of their ids."""
    return {row.queue_id: Backlog(*tuple(row)) for row in tx.rows(_LOCK_BACKLOG, {"ids": queue_ids})}


def backlog_take(tx: Transaction, queue_id: bytes, places: int, *, otherwise: Exception) -> None:
    """Take places if the queue's limit allows all of them and no quota holds beside it, else raise `otherwise`."""
    tx.expect(_TAKE_BACKLOG, {"id": queue_id, "by": places}, count=1, otherwise=otherwise)


def backlog_move(tx: Transaction, moves: Mapping[bytes, int]) -> None:
    """Take or give back places without looking at the limit, queue by queue in the order of their ids."""
    for queue_id in sorted(moves):
        if moves[queue_id]:
            tx.expect(_MOVE_BACKLOG, {"id": queue_id, "by": moves[queue_id]}, count=1)
