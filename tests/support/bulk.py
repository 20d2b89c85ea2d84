"""Many tasks at once: one waiting task copied by the database itself, in statements of a bounded size.

The statements are made of our own column names, never of input.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import text

from orbit.database import Database, Transaction
from orbit.database.connect import PATIENT
from pulse.tables import task

_CHUNK = 4_096


@contextmanager
def patient(database: Database) -> Iterator[Database]:
    """Give the database without the time-outs of a node, for statements over all that was made."""
    if database.is_sqlite:
        yield database
        return
    with closing(Database.open(database.url.render_as_string(hide_password=False), PATIENT)) as opened:
        yield opened


def tasks_copy(database: Database, task_id: bytes, *, count: int, step_micros: int = 7) -> None:
    """Copy a task that is ready until there are `count` of it, each `step_micros` behind the other; counters follow."""
    made = 1
    with patient(database) as opened:
        while made < count:
            # The first rows are the pattern of all: doubled until they fill a statement, then taken again and again.
            pattern = min(made, _CHUNK)
            more = min(pattern, count - made)
            opened.transaction(lambda tx, at=made, more=more: _copy(tx, task_id, at * step_micros, more, step_micros))  # type: ignore[misc]
            made += more


def _copy(tx: Transaction, task_id: bytes, shift: int, more: int, step: int) -> None:
    columns = [column.name for column in task.columns if column.name not in {"id", "accepted_at", "fair_at"}]
    names = ", ".join(columns)
    # Ids that rise like those of real tasks: a table is not filled at random.
    begin = task_id[:2].hex() + (int.from_bytes(task_id[2:6]) + shift // step).to_bytes(4).hex()
    new_id = f"X'{begin}' || randomblob(10)" if tx.is_sqlite else f"CONCAT(X'{begin}', RANDOM_BYTES(10))"
    new_id = f"CAST({new_id} AS BLOB)" if tx.is_sqlite else new_id
    place = "COALESCE(fair_at, accepted_at - priority * 30000000)"
    origin = tx.row(text("SELECT lane_id, queue_id, accepted_at FROM pulse_task WHERE id = :id"), {"id": task_id})
    assert origin is not None
    first = origin.accepted_at
    within = (
        "FROM pulse_task WHERE queue_id = :queue AND accepted_at >= :first AND accepted_at < :end AND lane_id = :lane"
    )
    key = {"queue": origin.queue_id, "lane": origin.lane_id}
    copied = f"INSERT INTO pulse_task (id, accepted_at, fair_at, {names}) SELECT {new_id}, "
    copied += f"accepted_at + {shift}, fair_at + {shift}, {names} {within}"
    tx.execute(text(copied), key | {"first": first, "end": first + more * step})
    named = "INSERT INTO pulse_label (namespace_id, name, value, accepted_at, task_id) SELECT t.namespace_id, l.name, "
    named += f"l.value, t.accepted_at, t.id FROM (SELECT namespace_id, accepted_at, id {within}) AS t "
    named += "JOIN (SELECT name, value FROM pulse_label WHERE task_id = :id) AS l"
    tx.execute(text(named), key | {"first": first + shift, "end": first + shift + more * step, "id": task_id})
    placed = f"INSERT INTO pulse_ready (lane_id, dispatch_at, task_id) SELECT lane_id, {place}, id {within}"
    tx.execute(text(placed), key | {"first": first + shift, "end": first + shift + more * step})
    counted = "UPDATE pulse_queue_backlog SET unfinished = unfinished + :more WHERE queue_id = :queue"
    tx.execute(text(counted), {"more": more, "queue": origin.queue_id})


_EMPTIED = (
    "pulse_task",
    "pulse_label",
    "pulse_ready",
    "pulse_delayed",
    "pulse_attempt",
    "pulse_key_line",
    "pulse_key_holder",
    "pulse_key_wake",
)
_ZEROED = (
    "UPDATE pulse_queue_usage SET active = 0, leased_unstarted = 0",
    "UPDATE pulse_queue_backlog SET unfinished = 0",
    "UPDATE pulse_key SET active = 0, has_line = 0",
)


@contextmanager
def truncated(database: Database) -> Iterator[None]:
    """Empty the large tables at once afterwards, with what counts them: row by row that would take too long."""
    try:
        yield
    finally:
        if not database.is_sqlite:
            statements = [*(f"TRUNCATE TABLE {name}" for name in _EMPTIED), *_ZEROED]
            for statement in statements:
                database.transaction(lambda tx, statement=statement: tx.execute(text(statement)))  # type: ignore[misc]
