"""Read one instance with what it was started with and what it has come to: one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, or_, select

from engine.instance import INPUT, OUTPUT
from engine.store.instances import FIND, Stored, stored_of
from engine.tables import value
from orbit.database.hot import Hot
from orbit.database.ids import through

if TYPE_CHECKING:
    from orbit.database import Transaction

_ENDS = Hot(
    through(select(value.c.slot, value.c.content), value).where(
        value.c.instance_id == bindparam("id"), or_(value.c.slot == INPUT, value.c.slot == OUTPUT)
    )
)


def instance_look(tx: Transaction, namespace_id: bytes, identifier: bytes) -> tuple[Stored, dict[str, bytes]] | None:
    """Read one instance of a namespace, with the JSON text of its input and output by slot; either may be absent."""
    found, values = tx.rows_each(
        [(FIND, {"id": identifier, "namespace_id": namespace_id}), (_ENDS, {"id": identifier})]
    )
    return (stored_of(found[0]), {row.slot: row.content for row in values}) if found else None
