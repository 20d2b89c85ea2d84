"""Rows of fairness: how far each key has come in its lane, and the places of tasks that have a fairness key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from pulse.tables import fair_share, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_LOCK = Hot(
    through(
        select(fair_share.c.id, fair_share.c.next_at)
        .where(ids_in(fair_share.c.id))
        .order_by(fair_share.c.id)
        .with_for_update(),
        fair_share,
    )
)
_KEYS = through(select(task.c.id, task.c.fairness_key), task).where(ids_in(task.c.id))
_PAGE = (
    select(fair_share.c.id, fair_share.c.next_at)
    .where(fair_share.c.id > bindparam("after"))
    .order_by(fair_share.c.id)
    .limit(bindparam("limit"))
)


def shares_lock(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, Micros]:
    """Lock shares in the order of their ids and read how far they have come; new ones are left out."""
    return {row.id: row.next_at for row in tx.rows(_LOCK, {"ids": ids})}


def shares_move(tx: Transaction, moved: Mapping[bytes, Micros]) -> None:
    """Write how far locked shares have come."""
    rows = [{"id": share_id, "next_at": moved[share_id]} for share_id in sorted(moved)]
    tx.update_many(fair_share, rows=rows)


def shares_insert(tx: Transaction, rows: Sequence[tuple[bytes, bytes, Micros]]) -> None:
    """Make shares (id, lane, how far); of two transactions that do, one runs again."""
    tx.insert(fair_share, [{"id": share_id, "lane_id": lane_id, "next_at": at} for share_id, lane_id, at in rows])


def shares_prune(tx: Transaction, *, after: bytes, before: Micros, limit: int) -> bytes | None:
    """Forget those of a page of shares whose places are long past; return where the next page begins, if there is one.

    A key without a share begins at its lane's head, which is not before such a place.
    """
    page: list[Any] = list(tx.rows(_PAGE, {"after": after, "limit": limit}))
    past = [row.id for row in page if row.next_at < before]
    if past:
        still = [share_id for share_id, at in shares_lock(tx, past).items() if at < before]
        tx.delete_many(fair_share, [{"id": share_id} for share_id in still], may_miss=True)
    return page[-1].id if len(page) == limit else None


def fair_keys_read(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Read the fairness keys of tasks that have one."""
    return {row.id: row.fairness_key for row in tx.rows(_KEYS, {"ids": task_ids})}


def places_write(tx: Transaction, places: Mapping[bytes, Micros]) -> None:
    """Write the fair places of locked tasks."""
    rows = [{"id": task_id, "fair_at": places[task_id]} for task_id in sorted(places)]
    tx.update_many(task, rows=rows)
