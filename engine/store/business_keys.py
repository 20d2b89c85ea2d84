"""Statements about business keys: one row for each that a workflow cares for, locked by starts and signals.

The surprising rule: these locks come before those of instances; nothing that holds an instance asks for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from engine.tables import business_key as table
from orbit.database.ids import ids_in, through

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class BusinessKey:
    """A business key of a workflow in a namespace."""

    namespace_id: bytes
    workflow: str
    key: str

    @property
    def address(self) -> bytes:
        """Name the key's row: a hash, so that its lock is one primary key."""
        parts = (self.namespace_id, self.workflow.encode(), self.key.encode())
        return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


_LOCK = (
    through(select(table.c.address, table.c.instance_id), table)
    .where(ids_in(table.c.address))
    .order_by(table.c.address)
    .with_for_update()
)


def business_keys_lock(tx: Transaction, wanted: Sequence[BusinessKey]) -> Mapping[bytes, bytes | None]:
    """Lock keys in the order of their addresses, new ones too; give the instance that each was last used for.

    `wanted` is not empty. A race between two first uses is a duplicate key, and the loser's transaction runs again.
    """
    by_address = {key.address: key for key in wanted}
    found = {row.address: row.instance_id for row in tx.rows(_LOCK, {"ids": list(by_address)})}
    missing = [by_address[address] for address in sorted(by_address.keys() - found.keys())]
    tx.insert(
        table,
        [
            {
                "address": key.address,
                "namespace_id": key.namespace_id,
                "workflow": key.workflow,
                "business_key": key.key.encode(),
                "instance_id": None,
            }
            for key in missing
        ],
    )
    return {**found, **{key.address: None for key in missing}}


def business_keys_use(tx: Transaction, used: Mapping[bytes, bytes]) -> None:
    """Note for locked keys, by address, the instance that is started now."""
    rows = [{"address": address, "instance_id": instance_id} for address, instance_id in sorted(used.items())]
    tx.update_many(table, key="address", rows=rows)
