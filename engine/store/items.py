"""Statements about items that are done with: written once with the end of an item, read only for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import bindparam, select

from engine.command import SettledItem
from engine.instance import Step
from engine.tables import item as table

if TYPE_CHECKING:
    from orbit.database import Transaction

_PAGE = (
    select(table)
    .where(
        table.c.instance_id == bindparam("instance_id"),
        table.c.foreach == bindparam("foreach"),
        table.c.place > bindparam("after"),
    )
    .order_by(table.c.instance_id, table.c.foreach, table.c.place)
)
_DECODER = msgspec.json.Decoder(tuple[Step, ...])


def items_insert(tx: Transaction, settled: Sequence[tuple[bytes, SettledItem]]) -> None:
    """Store items, each with its instance's id."""
    tx.insert(
        table,
        [
            {
                "instance_id": instance_id,
                "foreach": item.foreach,
                "place": item.index,
                "steps": msgspec.json.encode(item.steps),
            }
            for instance_id, item in settled
        ],
    )


def items_page(tx: Transaction, instance_id: bytes, foreach: str, *, after_index: int, limit: int) -> list[SettledItem]:
    """Read items that are done with, in the order of the list, after an index (-1: from the first)."""
    rows = tx.rows(_PAGE.limit(limit), {"instance_id": instance_id, "foreach": foreach, "after": after_index})
    return [SettledItem(foreach, row.place, _DECODER.decode(row.steps)) for row in rows]
