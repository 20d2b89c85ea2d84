"""What the sweepers read: plain reads through an index, bounded, and how far each deadline sweep has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import bindparam, or_, select, update

from orbit.database.hot import Hot
from pulse.tables import cursor, task

if TYPE_CHECKING:
    from sqlalchemy import BindParameter

    from orbit.clock import Micros
    from orbit.database import Transaction

DeadlineColumn = Literal["deadline_at", "start_deadline_at"]


def _passed(column: DeadlineColumn) -> Hot:
    at = task.c[column]
    instant: BindParameter[Micros] = bindparam("instant")
    return Hot(
        select(task.c.id, at, task.c.state)
        .where(at >= instant, at <= bindparam("until"), or_(at > instant, task.c.id > bindparam("task_id")))
        .order_by(at, task.c.id)
        .limit(bindparam("limit"))
    )


_PASSED: dict[DeadlineColumn, Hot] = {
    "deadline_at": _passed("deadline_at"),
    "start_deadline_at": _passed("start_deadline_at"),
}
_CURSOR = Hot(select(cursor.c.reached_at).where(cursor.c.name == bindparam("name")), tells_time=True)


def deadlines_passed(
    tx: Transaction, column: DeadlineColumn, *, after: tuple[Micros, bytes], until: Micros, limit: int
) -> list[tuple[bytes, Micros, str]]:
    """Read tasks of any state whose deadline lies after (instant, id) and not after `until`: id, instant and state.

    The state is not part of the index, which would change with every move of a task; the caller drops what no longer
    waits.
    """
    instant, task_id = after
    rows: list[Any] = list(
        tx.rows(_PASSED[column], {"instant": instant, "task_id": task_id, "until": until, "limit": limit})
    )
    return [(row[0], row[1], row[2]) for row in rows]


def cursor_read(tx: Transaction, name: str) -> Micros:
    """Read how far a sweep has come; it starts at the epoch."""
    row = tx.row(_CURSOR, {"name": name})
    if row is None:
        tx.insert(cursor, [{"name": name, "reached_at": 0}])
        return 0
    return int(row.reached_at)


def cursor_advance(tx: Transaction, name: str, *, to: Micros) -> None:
    """Remember how far a sweep has come; never backwards, whichever node is ahead."""
    tx.execute(update(cursor).where(cursor.c.name == name, cursor.c.reached_at < to).values(reached_at=to))
