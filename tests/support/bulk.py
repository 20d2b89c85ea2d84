"""Many tasks at once: one waiting task copied by the database itself, again and again doubled.

The statements are made of our own column names, never of input.
"""

from sqlalchemy import text

from orbit.database import Database, Transaction
from pulse.tables import task


def tasks_copy(database: Database, task_id: bytes, *, count: int, step_micros: int = 7) -> None:
    """Copy a task that is ready until there are `count` of it, each `step_micros` behind the other; counters follow."""
    random_id = "randomblob(16)" if database.is_sqlite else "RANDOM_BYTES(16)"
    columns = [column.name for column in task.columns if column.name not in {"id", "accepted_at", "fair_at"}]
    names = ", ".join(columns)
    place = "COALESCE(fair_at, accepted_at - priority * 30000000)"
    made = 1
    while made < count:
        more = min(made, count - made)

        def work(tx: Transaction, made: int = made, more: int = more) -> None:
            shift = made * step_micros
            key = {"id": task_id}
            origin = tx.row(text("SELECT lane_id, queue_id, accepted_at FROM pulse_task WHERE id = :id"), key)
            assert origin is not None
            copied = f"INSERT INTO pulse_task (id, accepted_at, fair_at, {names}) SELECT {random_id}, "
            copied += f"accepted_at + {shift}, fair_at + {shift}, {names} FROM pulse_task "
            copied += "WHERE lane_id = :lane AND accepted_at >= :first ORDER BY accepted_at LIMIT :more"
            tx.execute(text(copied), {"lane": origin.lane_id, "first": origin.accepted_at, "more": more})
            placed = f"INSERT INTO pulse_ready (lane_id, dispatch_at, task_id) SELECT lane_id, {place}, id "
            placed += "FROM pulse_task WHERE lane_id = :lane AND accepted_at >= :from"
            tx.execute(text(placed), {"lane": origin.lane_id, "from": origin.accepted_at + shift})
            tx.execute(
                text("UPDATE pulse_queue_backlog SET unfinished = unfinished + :more WHERE queue_id = :queue"),
                {"more": more, "queue": origin.queue_id},
            )

        database.transaction(work)
        made += more
