"""Idempotency receipts: found by hash, inserted in the transaction that makes what they promise."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from sqlalchemy import delete, select

from orbit.database.hot import Hot, Query
from orbit.database.ids import ids_in, through
from orbit.tables import receipt

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Receipt(Struct, frozen=True):
    """What was answered to the first request of this identity; `answer` is the JSON of its data."""

    id: bytes
    namespace_id: bytes
    meaning: bytes
    subject_id: bytes
    answer: bytes
    created_at: Micros


_FIND = Hot(through(select(receipt), receipt).where(ids_in(receipt.c.id)), tells_time=True)
_DELETE = Hot(delete(receipt).where(ids_in(receipt.c.id)))


def receipt_id(namespace_id: bytes, operation: str, resource: str, key: str) -> bytes:
    """Name the scope of an idempotency key: the same key in another namespace, operation or resource is another one."""
    scope = b"\x00".join((namespace_id, operation.encode(), resource.encode(), key.encode()))
    return hashlib.sha256(scope).digest()


def receipts_query(ids: Collection[bytes]) -> Query:
    """Ask for receipts as `receipts_find` does, to be read ahead; `ids` is not empty."""
    return _FIND, {"ids": ids}


def receipts_find(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, Receipt]:
    """Read the receipts that exist among `ids`."""
    if not ids:
        return {}
    rows = tx.rows(*receipts_query(ids))
    return {row.id: Receipt(*tuple(row)) for row in rows}


def receipts_insert(tx: Transaction, receipts: Sequence[Receipt]) -> None:
    """Insert receipts in the order of their ids: batches that share a key wait for each other, never in a circle."""
    tx.insert(
        receipt,
        [
            {
                "id": item.id,
                "namespace_id": item.namespace_id,
                "meaning": item.meaning,
                "subject_id": item.subject_id,
                "answer": item.answer,
                "created_at": item.created_at,
            }
            for item in sorted(receipts, key=lambda item: item.id)
        ],
    )


def receipts_delete(tx: Transaction, ids: Collection[bytes]) -> None:
    """Take back receipts of requests that were refused after all; only inside the transaction that inserted them."""
    if ids:
        tx.expect(_DELETE, {"ids": ids}, count=len(ids))
