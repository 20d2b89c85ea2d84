"""Batches: one decision of an operator about many tasks or instances, carried out item by item at a bounded rate.

What is done to an item is a `BatchOperation`, registered by name in `BatchRunner.operations`; this module knows none of
them. Weave registers its own beside those of `pulse.task_batches`. Who creates a batch chooses its subjects under one
transaction, with the revision of each: what has changed since is refused when its turn comes, never decided blindly.

Each item is one transaction, the operation's writes and the item's outcome together, so that it happens once whichever
node dies when. A refusal is the item's outcome and touches no other; a limit that is reached (`retryable`) holds the
batch up instead. The surprising rule: a node takes a chunk by moving the batch's `next_at` ahead, a lease; two nodes
with one chunk only waste reads, because an item's own lock decides. Locks: batch, item, then the operation's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from orbit.clock import SECOND, to_rfc3339
from orbit.database import Pool
from orbit.errors import InvalidRequest, NotFound, OrbitError, StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from pulse import limits
from pulse.states import BatchState, ItemState
from pulse.store.batch import (
    BatchItemRow,
    BatchRow,
    ItemEnd,
    Subject,
    batch_due_lock,
    batch_end,
    batch_insert,
    batch_next_at,
    batch_next_write,
    batch_read,
    batches_find,
    item_lock,
    item_write,
    items_count,
    items_find,
    items_pending,
)

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Database, Transaction

__all__ = [
    "BatchItemRow",
    "BatchOperation",
    "BatchOrder",
    "BatchRow",
    "BatchRunner",
    "Order",
    "Subject",
    "batch_create",
    "batch_json",
    "batch_read",
    "batch_stop",
    "batches_find",
    "items_count",
    "items_find",
]


class Order(Struct, frozen=True):
    """What an operation is told beside its subject; audit records of items name `actor`, who asked for the batch."""

    batch_id: bytes
    namespace_id: bytes
    actor: Actor
    reason: str
    arguments: Json


class BatchOperation(Protocol):
    """One thing that can be done to many subjects."""

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Do it to one subject in the given transaction and return what came of it, as JSON.

        Raises the OrbitError that a request for this one subject would get; StateConflict for another revision.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """A batch as asked for. `choose` reads its subjects in the transaction that creates it, in the order of turns.

    `selection` is what is shown of how they were chosen; `arguments` are stored and handed to the operation, not shown.
    """

    operation: str
    arguments: Json
    selection: Json
    choose: Callable[[Transaction], Sequence[Subject]]
    rate_per_second: float
    reason: str


def batch_create(tx: Transaction, command: Command, actor: Actor, order: BatchOrder) -> Answer:
    """Create a batch with its items, audit record, event and receipt, or replay the receipt.

    Raises InvalidRequest if nothing, or more than BATCH_SUBJECTS_MAX, was chosen.
    """

    def make() -> Made:
        subjects = order.choose(tx)
        if not subjects:
            raise InvalidRequest("nothing is selected")
        if len(subjects) > limits.BATCH_SUBJECTS_MAX:
            raise InvalidRequest(f"a batch may have {limits.BATCH_SUBJECTS_MAX} items: select fewer")
        now = tx.now()
        row = BatchRow(
            id=new_id(),
            namespace_id=command.namespace_id,
            operation=order.operation,
            state=BatchState.RUNNING,
            arguments=dumps(order.arguments).decode(),
            selection=dumps(order.selection).decode(),
            items_count=len(subjects),
            interval_micros=round(SECOND / order.rate_per_second),
            actor=actor.name,
            request_id=actor.request_id,
            reason=order.reason,
            revision=1,
            next_at=now,
            created_at=now,
            finished_at=None,
        )
        batch_insert(tx, row, subjects)
        shown = batch_json(row, {ItemState.PENDING: len(subjects)})
        _record(tx, command, actor, order.reason, (None, shown))
        events_insert(tx, [EventRecord(row.namespace_id, "batch.created", row.id, 1)], now=now)
        return Made(row.id, {"batch": shown})

    return once(tx, command, make)


def batch_stop(tx: Transaction, command: Command, actor: Actor, *, batch_id: bytes, reason: str) -> Answer:
    """Stop a batch: once this is committed nothing more of it is done. What was done stays done.

    Raises NotFound, StateConflict if it has ended.
    """

    def make() -> Made:
        row = batch_read(tx, command.namespace_id, batch_id, is_locked=True)
        if row is None:
            raise NotFound("no such batch")
        if row.state is not BatchState.RUNNING:
            raise StateConflict(f"the batch is {row.state}", details={"state": row.state})
        before = batch_json(row, items_count(tx, row.id))
        _end(tx, row, BatchState.STOPPED)
        ended = batch_read(tx, command.namespace_id, batch_id)
        assert ended is not None
        after = batch_json(ended, items_count(tx, row.id))
        _record(tx, command, actor, reason, (before, after))
        return Made(row.id, {"batch": after})

    return once(tx, command, make)


def batch_json(row: BatchRow, counts: dict[ItemState, int]) -> dict[str, Json]:
    """Write a batch as it is shown, with the number of items in each state."""
    return {
        "id": row.id.hex(),
        "operation": row.operation,
        "state": row.state,
        "selection": json.loads(row.selection),
        "rate_per_second": round(SECOND / row.interval_micros, 6),
        "reason": row.reason,
        "actor": row.actor,
        "created_at": to_rfc3339(row.created_at),
        "finished_at": None if row.finished_at is None else to_rfc3339(row.finished_at),
        "revision": str(row.revision),
        "items": {"all": row.items_count} | {state.value.lower(): counts.get(state, 0) for state in ItemState},
    }


class BatchRunner:
    """Carries batches out, on any number of nodes. `operations` by name are filled in before it is run."""

    def __init__(self, database: Database) -> None:
        self.operations: dict[str, BatchOperation] = {}
        self._database = database

    def run_once(self) -> float:
        """Do one chunk of the batch whose turn has come; return in how many seconds there may be more to do."""
        taken = self._database.transaction(self._take, pool=Pool.DISPATCH)
        if taken is None:
            return self._database.transaction(_idle_seconds, pool=Pool.DISPATCH)
        row, items, now = taken
        operation = self.operations.get(row.operation)
        if operation is None:
            return limits.PROBE_SECONDS  # a newer node knows it; the lease that was taken keeps others waiting
        done = 0
        for item in items:
            if not self._one(row, operation, item):
                break
            done += 1
        pause = row.interval_micros * done if done == len(items) else limits.BATCH_PAUSE_MICROS
        self._database.transaction(partial(_go_on, row=row, at=now + pause), pool=Pool.DISPATCH)
        return 0.0

    def _take(self, tx: Transaction) -> tuple[BatchRow, list[BatchItemRow], Micros] | None:
        row = batch_due_lock(tx, now=tx.now())
        if row is None:
            return None
        now = tx.now()
        chunk = limits.BATCH_CHUNK_MICROS // row.interval_micros
        items = items_pending(tx, row.id, limit=max(1, min(chunk, limits.BATCH_CHUNK_MAX)))
        batch_next_write(tx, row.id, next_at=now + limits.BATCH_LEASE_MICROS)
        return row, items, now

    def _one(self, row: BatchRow, operation: BatchOperation, item: BatchItemRow) -> bool:
        """Carry out one item; say whether it was decided, by whomever. False: a limit holds it up."""
        subject = Subject(item.subject_id, item.subject_revision)
        order = Order(row.id, row.namespace_id, Actor(row.actor, row.request_id), row.reason, json.loads(row.arguments))

        def work(tx: Transaction) -> None:
            if item_lock(tx, row.id, item.position) is ItemState.PENDING:
                outcome = dumps(operation.apply(tx, order, subject)).decode()
                item_write(tx, row.id, position=item.position, end=ItemEnd(ItemState.DONE, outcome), now=tx.now())

        try:
            self._database.transaction(work)
        except OrbitError as error:
            if error.retryable:
                return False
            more = {} if error.details is None else {"details": error.details}
            refused = dumps({"code": error.code, "message": error.message, **more}).decode()
            self._database.transaction(partial(_refuse, row=row, item=item, outcome=refused))
        return True


def _idle_seconds(tx: Transaction) -> float:
    following = batch_next_at(tx)
    if following is None:
        return limits.PROBE_SECONDS
    return min(limits.PROBE_SECONDS, max(0.001, (following - tx.now()) / SECOND))


def _refuse(tx: Transaction, *, row: BatchRow, item: BatchItemRow, outcome: str) -> None:
    if item_lock(tx, row.id, item.position) is ItemState.PENDING:
        item_write(tx, row.id, position=item.position, end=ItemEnd(ItemState.REFUSED, outcome), now=tx.now())


def _go_on(tx: Transaction, *, row: BatchRow, at: Micros) -> None:
    """Give the batch free for its next chunk, or end it after its last item."""
    locked = batch_read(tx, row.namespace_id, row.id, is_locked=True)
    if locked is None or locked.state is not BatchState.RUNNING:
        return
    if items_pending(tx, row.id, limit=1):
        batch_next_write(tx, row.id, next_at=at)
    else:
        _end(tx, locked, BatchState.DONE)


def _end(tx: Transaction, row: BatchRow, state: BatchState) -> None:
    now = tx.now()
    batch_end(tx, row.id, state, now=now)
    name = "batch.done" if state is BatchState.DONE else "batch.stopped"
    events_insert(tx, [EventRecord(row.namespace_id, name, row.id, row.revision + 1)], now=now)


def _record(tx: Transaction, command: Command, actor: Actor, reason: str, change: tuple[Json, Json]) -> None:
    before, after = change
    record = AuditRecord(
        namespace_id=command.namespace_id,
        actor=actor,
        operation=command.operation,
        subject_kind="batch",
        subject_id=bytes.fromhex(after["id"]),
        reason=reason,
        before=before,
        after=after,
    )
    audit_insert(tx, record, now=tx.now())
