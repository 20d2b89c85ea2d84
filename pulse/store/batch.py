"""The rows of batches: what was asked for, and each item with what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import and_, bindparam, func, or_, select, update

from pulse.states import BatchState, ItemState
from pulse.tables import batch, batch_item

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Subject(Struct, frozen=True):
    """A task or instance that was chosen, and its revision then."""

    id: bytes
    revision: int


class BatchRow(Struct, frozen=True):
    """A batch's row; `arguments` and `selection` are JSON text."""

    id: bytes
    namespace_id: bytes
    operation: str
    state: BatchState
    arguments: str
    selection: str
    items_count: int
    interval_micros: Micros
    actor: str
    request_id: bytes
    reason: str
    revision: int
    next_at: Micros | None
    created_at: Micros
    finished_at: Micros | None


class ItemEnd(Struct, frozen=True):
    """How an item ends; `outcome` is JSON text."""

    state: ItemState
    outcome: str


class BatchItemRow(Struct, frozen=True):
    """An item; `outcome` is JSON text."""

    position: int
    subject_id: bytes
    subject_revision: int
    state: ItemState
    outcome: str | None
    done_at: Micros | None


_ITEM = select(
    batch_item.c.position,
    batch_item.c.subject_id,
    batch_item.c.subject_revision,
    batch_item.c.state,
    batch_item.c.outcome,
    batch_item.c.done_at,
)
_DUE = (
    select(batch)
    .where(batch.c.next_at <= bindparam("now"))
    .order_by(batch.c.next_at)
    .limit(1)
    .with_for_update(skip_locked=True)
)
_NEXT = select(func.min(batch.c.next_at)).where(batch.c.next_at.is_not(None))
_PENDING = (
    _ITEM.where(batch_item.c.batch_id == bindparam("id"), batch_item.c.state == ItemState.PENDING)
    .order_by(batch_item.c.position)
    .limit(bindparam("limit"))
)
_COUNTS = (
    select(batch_item.c.state, func.count())
    .where(batch_item.c.batch_id == bindparam("id"))
    .group_by(batch_item.c.state)
)


def batch_insert(tx: Transaction, row: BatchRow, subjects: Sequence[Subject]) -> None:
    """Store a batch with its items, all of them pending."""
    tx.insert(batch, [{name: getattr(row, name) for name in row.__struct_fields__}])
    tx.insert(
        batch_item,
        [
            {
                "batch_id": row.id,
                "position": position,
                "subject_id": subject.id,
                "subject_revision": subject.revision,
                "state": ItemState.PENDING,
            }
            for position, subject in enumerate(subjects)
        ],
    )


def batch_read(tx: Transaction, namespace_id: bytes, batch_id: bytes, *, is_locked: bool = False) -> BatchRow | None:
    """Read a batch of a namespace, with `is_locked` under its lock."""
    query = select(batch).where(batch.c.id == batch_id, batch.c.namespace_id == namespace_id)
    row = tx.row(query.with_for_update() if is_locked else query)
    return None if row is None else _batch(row)


def batches_find(
    tx: Transaction, namespace_id: bytes, *, limit: int, before: tuple[Micros, bytes] | None = None
) -> list[BatchRow]:
    """Read a page of a namespace's batches, newest first."""
    query = select(batch).where(batch.c.namespace_id == namespace_id)
    if before is not None:
        at, identifier = before
        query = query.where(or_(batch.c.created_at < at, and_(batch.c.created_at == at, batch.c.id < identifier)))
    query = query.order_by(batch.c.created_at.desc(), batch.c.id.desc()).limit(limit)
    return [_batch(row) for row in tx.rows(query)]


def batch_due_lock(tx: Transaction, *, now: Micros) -> BatchRow | None:
    """Lock the batch whose turn has come and that nobody else holds."""
    rows = tx.rows(_DUE, {"now": now})
    return _batch(rows[0]) if rows else None


def batch_next_at(tx: Transaction) -> Micros | None:
    """Read when the next batch's turn comes; None while none runs."""
    row = tx.row(_NEXT)
    return None if row is None or row[0] is None else int(row[0])


def batch_next_write(tx: Transaction, batch_id: bytes, *, next_at: Micros) -> None:
    """Say when a running batch's next items may be done; of one that has ended nothing changes."""
    query = update(batch).where(batch.c.id == batch_id, batch.c.state == BatchState.RUNNING)
    tx.execute(query.values(next_at=next_at))


def batch_end(tx: Transaction, batch_id: bytes, state: BatchState, *, now: Micros) -> None:
    """End a running batch, whose lock is held; what is pending is stopped."""
    ending = update(batch).where(batch.c.id == batch_id, batch.c.state == BatchState.RUNNING)
    tx.expect(ending.values(state=state, next_at=None, finished_at=now, revision=batch.c.revision + 1), count=1)
    pending = update(batch_item).where(batch_item.c.batch_id == batch_id, batch_item.c.state == ItemState.PENDING)
    tx.execute(pending.values(state=ItemState.STOPPED, done_at=now))


def items_pending(tx: Transaction, batch_id: bytes, *, limit: int) -> list[BatchItemRow]:
    """Read the next items that nothing was done to, without locks."""
    return [_item(row) for row in tx.rows(_PENDING, {"id": batch_id, "limit": limit})]


def item_lock(tx: Transaction, batch_id: bytes, position: int) -> ItemState:
    """Lock an item and return its state."""
    query = select(batch_item.c.state).where(batch_item.c.batch_id == batch_id, batch_item.c.position == position)
    row = tx.row(query.with_for_update())
    assert row is not None, "an item is never removed before its batch"
    return ItemState(row.state)


def item_write(tx: Transaction, batch_id: bytes, *, position: int, end: ItemEnd, now: Micros) -> None:
    """Write what came of a locked, pending item."""
    query = update(batch_item).where(
        batch_item.c.batch_id == batch_id, batch_item.c.position == position, batch_item.c.state == ItemState.PENDING
    )
    tx.expect(query.values(state=end.state, outcome=end.outcome, done_at=now), count=1)


def items_find(
    tx: Transaction, batch_id: bytes, *, limit: int, after: int = -1, state: ItemState | None = None
) -> list[BatchItemRow]:
    """Read a page of a batch's items, in order."""
    query = _ITEM.where(batch_item.c.batch_id == batch_id, batch_item.c.position > after)
    if state is not None:
        query = query.where(batch_item.c.state == state)
    return [_item(row) for row in tx.rows(query.order_by(batch_item.c.position).limit(limit))]


def items_count(tx: Transaction, batch_id: bytes) -> dict[ItemState, int]:
    """Count a batch's items by state."""
    rows: list[Any] = list(tx.rows(_COUNTS, {"id": batch_id}))
    return {ItemState(row[0]): int(row[1]) for row in rows}


def _batch(row: Any) -> BatchRow:
    values = row._asdict()
    return BatchRow(**(values | {"state": BatchState(values["state"])}))


def _item(row: Any) -> BatchItemRow:
    values = row._asdict()
    return BatchItemRow(**(values | {"state": ItemState(values["state"])}))
