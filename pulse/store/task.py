"""Reads of tasks, attempts and results for people and programs; which tasks a list shows is found in `search`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, and_, bindparam, func, or_, select

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from pulse.states import TaskState
from pulse.tables import attempt, lane, queue, ready, result, session, task, task_type, type_revision, verdict

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_FROZEN = type_revision.alias("frozen")
_NOW = type_revision.alias("now")
# What is masked: by the revision under which a task was accepted, and by what its type is now.
VIEW = (
    select(
        task,
        queue.c.name.label("queue"),
        lane.c.type,
        lane.c.version,
        _FROZEN.c.redact.label("redact_frozen"),
        _NOW.c.redact.label("redact_now"),
    )
    .join(queue, queue.c.id == task.c.queue_id)
    .join(lane, lane.c.id == task.c.lane_id)
    .join(_FROZEN, _FROZEN.c.id == task.c.type_revision_id, isouter=True)
    .join(
        task_type,
        and_(
            task_type.c.namespace_id == task.c.namespace_id,
            task_type.c.type == lane.c.type,
            task_type.c.version == lane.c.version,
        ),
        isouter=True,
    )
    .join(_NOW, _NOW.c.id == task_type.c.revision_id, isouter=True)
)
_STANDING = Hot(
    select(queue.c.name, task.c.state, task.c.revision)
    .join(queue, queue.c.id == task.c.queue_id)
    .where(task.c.id == bindparam("task_id"), task.c.namespace_id == bindparam("namespace_id"))
)
_OUTPUTS = through(select(result.c.task_id, result.c.output), result, "pulse_result_by_task").where(
    ids_in(result.c.task_id),
    result.c.receipt == "ACCEPTED",
    result.c.outcome == "SUCCEEDED",
    result.c.output.is_not(None),
)
_REFERENCES = through(select(result.c.task_id, result.c.output_ref), result, "pulse_result_by_task").where(
    ids_in(result.c.task_id),
    result.c.receipt == "ACCEPTED",
    result.c.outcome == "SUCCEEDED",
    result.c.output_ref.is_not(None),
)
_VOUCHED = through(
    select(verdict.c.task_id, verdict.c.output, verdict.c.output_ref), verdict, "pulse_verdict_by_task"
).where(ids_in(verdict.c.task_id), verdict.c.kind == "SUCCEEDED")
_STATES = through(select(task.c.id, task.c.state), task).where(
    ids_in(task.c.id), task.c.namespace_id == bindparam("namespace_id")
)
_ATTEMPTS = (
    select(
        attempt.c.id,
        attempt.c.number,
        attempt.c.state,
        attempt.c.leased_at,
        attempt.c.started_at,
        attempt.c.finished_at,
        attempt.c.error,
        attempt.c.progress,
        attempt.c.session_id,
        session.c.worker,
        session.c.node,
    )
    .join(session, session.c.id == attempt.c.session_id, isouter=True)
    .where(attempt.c.task_id == bindparam("task_id"))
    .order_by(attempt.c.number)
)
_LATE = (
    through(
        select(
            result.c.attempt_id,
            result.c.message_id,
            result.c.outcome,
            result.c.output,
            result.c.output_ref,
            result.c.error,
            result.c.recorded_at,
        ),
        result,
        "pulse_result_by_task",
    )
    .where(result.c.task_id == bindparam("task_id"), result.c.receipt == "LATE")
    .order_by(result.c.recorded_at, result.c.message_id)
)


# All columns of a task, with `queue` (its name), `type`, `version`, and what its type masks: JSON lists or null.
TaskRow = Row[Any]


@dataclass(frozen=True, slots=True)
class AttemptView:
    """An attempt as shown; errors and progress are JSON text, `late` the reports that came after its end."""

    id: bytes
    number: int
    state: str
    leased_at: Micros
    started_at: Micros | None
    finished_at: Micros | None
    error: str | None
    progress: str | None
    session_id: bytes
    worker: str | None
    node: str | None
    late: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """The little that somebody who waits for a task has to read again and again."""

    queue: str
    state: TaskState
    revision: int


def task_standing(tx: Transaction, namespace_id: bytes, task_id: bytes) -> Standing | None:
    """Read where a task stands."""
    row = tx.row(_STANDING, {"namespace_id": namespace_id, "task_id": task_id})
    return None if row is None else Standing(row.name, TaskState(row.state), row.revision)


def task_view(tx: Transaction, namespace_id: bytes, task_id: bytes) -> TaskRow | None:
    """Read a task with its queue's name, type and version."""
    return tx.row(VIEW.where(task.c.id == task_id, task.c.namespace_id == namespace_id))


def outputs_read(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Read the outputs of tasks that succeeded, as the JSON text that was sent; a person's verdict stands above all."""
    if not task_ids:
        return {}
    reported = {row.task_id: row.output or b"null" for row in tx.rows(_OUTPUTS, {"ids": task_ids})}
    silent = [task_id for task_id in task_ids if task_id not in reported]
    if silent:
        vouched: list[Any] = list(tx.rows(_VOUCHED, {"ids": silent}))
        reported |= {row.task_id: row.output or b"null" for row in vouched if row.output_ref is None}
    return reported


def references_read(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, str]:
    """Read the references to outputs that lie elsewhere, as JSON text, of tasks that succeeded."""
    if not task_ids:
        return {}
    found = {row.task_id: row.output_ref for row in tx.rows(_REFERENCES, {"ids": task_ids})}
    silent = [task_id for task_id in task_ids if task_id not in found]
    if silent:
        vouched: list[Any] = list(tx.rows(_VOUCHED, {"ids": silent}))
        found |= {row.task_id: row.output_ref for row in vouched if row.output_ref is not None}
    return found


def task_states(tx: Transaction, namespace_id: bytes, task_ids: Collection[bytes]) -> dict[bytes, str]:
    """Read the states of a namespace's tasks."""
    if not task_ids:
        return {}
    rows = tx.rows(_STATES, {"ids": task_ids, "namespace_id": namespace_id})
    return {row.id: row.state for row in rows}


def attempts_view(tx: Transaction, task_id: bytes) -> list[AttemptView]:
    """Read a task's attempts in order, each with the evidence that came late."""
    late: dict[bytes, list[Mapping[str, Any]]] = {}
    for row in tx.rows(_LATE, {"task_id": task_id}):
        late.setdefault(row.attempt_id, []).append(row._asdict())
    rows = tx.rows(_ATTEMPTS, {"task_id": task_id})
    return [AttemptView(*(*tuple(row), tuple(late.get(row.id, ())))) for row in rows]


def ready_ahead(tx: Transaction, *, lane_id: bytes, dispatch_at: Micros, task_id: bytes, limit: int) -> int:
    """Count, up to `limit`, the entries of a lane that stand before a task's."""
    before = or_(ready.c.dispatch_at < dispatch_at, and_(ready.c.dispatch_at == dispatch_at, ready.c.task_id < task_id))
    ahead = select(ready.c.task_id).where(ready.c.lane_id == lane_id, before).limit(limit).subquery()
    row = tx.row(select(func.count()).select_from(ahead))
    return 0 if row is None else int(row[0])
