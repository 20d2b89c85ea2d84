"""Statements about values and history: written once, read only where somebody needs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from sqlalchemy import bindparam, select, tuple_

from engine.command import Entry
from engine.tables import history, value
from orbit.canonical import compact
from orbit.clock import Micros
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction


class Recorded(Struct, frozen=True):
    """What one advance did, for people: its revision, its instant, and its entries in order."""

    revision: int
    recorded_at: Micros
    entries: tuple[Entry, ...]


# An advance of a batch asks for few slots, each of many instances; a reader of one instance asks for several of that.
SLOTS_APART_MAX = 8
_LOAD_SLOT = Hot(through(select(value), value).where(ids_in(value.c.instance_id), value.c.slot == bindparam("slot")))
_LOAD = through(select(value), value).where(
    tuple_(value.c.instance_id, value.c.slot).in_(bindparam("keys", expanding=True))
)
_HISTORY = (
    select(history)
    .where(history.c.instance_id == bindparam("instance_id"), history.c.revision > bindparam("after"))
    .order_by(history.c.instance_id, history.c.revision)
)


def values_load(tx: Transaction, keys: Sequence[tuple[bytes, str]]) -> dict[tuple[bytes, str], bytes]:
    """Read values as JSON text by instance and slot; a slot without a value is absent."""
    if not keys:
        return {}
    by_slot: dict[str, list[bytes]] = {}
    for instance_id, slot in keys:
        by_slot.setdefault(slot, []).append(instance_id)
    if len(by_slot) > min(SLOTS_APART_MAX, len({instance_id for instance_id, _ in keys})):
        return {(row.instance_id, row.slot): row.content for row in tx.rows(_LOAD, {"keys": list(keys)})}
    found = tx.rows_each([(_LOAD_SLOT, {"slot": slot, "ids": ids}) for slot, ids in by_slot.items()])
    return {(row.instance_id, row.slot): row.content for rows in found for row in rows}


def values_insert(tx: Transaction, kept: Sequence[tuple[bytes, str, Json]]) -> None:
    """Store values, each with its instance's id and slot; a value is never written twice."""
    tx.insert(
        value,
        [
            {"instance_id": instance_id, "slot": slot, "content": compact(content)}
            for instance_id, slot, content in kept
        ],
    )


def values_delete(tx: Transaction, instance_id: bytes, slots: Sequence[str]) -> None:
    """Delete the values of steps that are done once more; not every one has any."""
    tx.delete_many(value, [{"instance_id": instance_id, "slot": slot} for slot in slots], may_miss=True)


def history_insert(tx: Transaction, recorded: Sequence[tuple[bytes, Recorded]]) -> None:
    """Store what advances did, each with its instance's id."""
    tx.insert(
        history,
        [
            {
                "instance_id": instance_id,
                "revision": record.revision,
                "recorded_at": record.recorded_at,
                "entries": msgspec.json.encode([(entry.kind, entry.step, entry.data) for entry in record.entries]),
            }
            for instance_id, record in recorded
        ],
    )


def history_page(tx: Transaction, instance_id: bytes, *, after_revision: int, limit: int) -> list[Recorded]:
    """Read an instance's history in order, after a revision."""
    rows = tx.rows(_HISTORY.limit(limit), {"instance_id": instance_id, "after": after_revision})
    return [
        Recorded(
            row.revision,
            row.recorded_at,
            tuple(Entry(kind, step, data) for kind, step, data in json.loads(row.entries)),
        )
        for row in rows
    ]
