"""Statements about effects of steps that were put away: written with an item, deleted as they are undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select

from engine.effects import Effect
from engine.tables import effect as table

if TYPE_CHECKING:
    from orbit.database import Transaction

_LATEST = (
    select(table.c.step, table.c.finished_at, table.c.place)
    .where(table.c.instance_id == bindparam("instance_id"))
    .order_by(table.c.instance_id.desc(), table.c.finished_at.desc(), table.c.place.desc())
)


def effects_insert(tx: Transaction, effects: Sequence[tuple[bytes, Effect]]) -> None:
    """Store effects, each with its instance's id."""
    tx.insert(
        table,
        [
            {"instance_id": instance_id, "step": each.step, "finished_at": each.finished_at, "place": each.place}
            for instance_id, each in effects
        ],
    )


def effects_delete(tx: Transaction, steps: Sequence[tuple[bytes, str]]) -> None:
    """Delete effects that are there no more, each with its instance's id; one may have been deleted before."""
    rows = [{"instance_id": instance_id, "step": step} for instance_id, step in steps]
    tx.delete_many(table, rows, may_miss=True)


def effects_latest(tx: Transaction, instance_id: bytes, limit: int) -> list[Effect]:
    """Read the effects of an instance that are undone next, the latest first."""
    rows = tx.rows(_LATEST.limit(limit), {"instance_id": instance_id})
    return [Effect(row.step, row.finished_at, row.place) for row in rows]
