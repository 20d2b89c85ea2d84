"""The same request again gets the same answer: the frame around every operation that is not a hot batch.

The receipt is found first, so a replay wins over every later refusal; rights are checked anew by the caller before.
What the operation makes and its receipt are one transaction, so a refused request leaves nothing behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.errors import IdempotencyConflict
from orbit.jsontext import Json, dumps
from orbit.store.receipts import Receipt, receipt_id, receipts_find, receipts_insert

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Command(Struct, frozen=True):
    """One request's identity: where, what, on which resource, under which key, and the digest of what it means."""

    namespace_id: bytes
    operation: str
    resource: str
    key: str
    meaning: bytes

    def receipt_id(self) -> bytes:
        """Name this command's receipt."""
        return receipt_id(self.namespace_id, self.operation, self.resource, self.key)


class Made(Struct, frozen=True):
    """What an operation made: the subject of its receipt and the data of its answer."""

    subject_id: bytes
    answer: Json


class Answer(Struct, frozen=True):
    """The data to answer with; `deduplicated` tells a replay from the first time."""

    subject_id: bytes
    data: Json
    deduplicated: bool


def once(tx: Transaction, command: Command, make: Callable[[], Made]) -> Answer:
    """Run `make` and store its receipt, or return the stored answer of the same command.

    Raises IdempotencyConflict if the key was used for another meaning. A race between two first requests ends in a
    duplicate key, and the loser's transaction runs again and finds the winner's receipt.
    """
    identifier = command.receipt_id()
    found = receipts_find(tx, [identifier]).get(identifier)
    if found is not None:
        return Answer(found.subject_id, replayed(found, command.meaning), deduplicated=True)
    made = make()
    now: Micros = tx.now()
    receipt = Receipt(identifier, command.namespace_id, command.meaning, made.subject_id, dumps(made.answer), now)
    receipts_insert(tx, [receipt])
    return Answer(made.subject_id, made.answer, deduplicated=False)


def replayed(receipt: Receipt, meaning: bytes) -> Json:
    """Return the data of a receipt's answer; raise IdempotencyConflict if the request means something else."""
    if receipt.meaning != meaning:
        raise IdempotencyConflict
    return json.loads(receipt.answer)
