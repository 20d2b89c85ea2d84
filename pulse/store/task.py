"""Reads of tasks, attempts and results for people and programs. Every list walks an index within a bound of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, Select, and_, bindparam, func, or_, select

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from pulse.states import SourceKind, TaskState
from pulse.tables import attempt, lane, queue, ready, result, session, task, task_type, type_revision, verdict

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_FROZEN = type_revision.alias("frozen")
_NOW = type_revision.alias("now")
# What is masked: by the revision under which a task was accepted, and by what its type is now.
_VIEW = (
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
_CHOSEN = (
    select(task.c.id, task.c.revision, task.c.state, queue.c.name.label("queue"), lane.c.type, lane.c.version)
    .join(queue, queue.c.id == task.c.queue_id)
    .join(lane, lane.c.id == task.c.lane_id)
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
_VOUCHED = through(select(verdict.c.task_id, verdict.c.output), verdict, "pulse_verdict_by_task").where(
    ids_in(verdict.c.task_id), verdict.c.kind == "SUCCEEDED"
)
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
_LATE = select(result.c.attempt_id, result.c.outcome, result.c.output, result.c.error, result.c.recorded_at).where(
    result.c.task_id == bindparam("task_id"), result.c.receipt == "LATE"
)


# All columns of a task, with `queue` (its name), `type`, `version`, and what its type masks: JSON lists or null.
TaskRow = Row[Any]


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks to list: an index is chosen by `business_key`, `source_id`, else `queue_id` within a time bound."""

    namespace_id: bytes
    limit: int
    queue_id: bytes | None = None
    business_key: str | None = None
    source_id: bytes | None = None
    state: TaskState | None = None
    type: str | None = None
    accepted_after: Micros | None = None
    accepted_before: Micros | None = None
    before: tuple[Micros, bytes] | None = None


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
    return tx.row(_VIEW.where(task.c.id == task_id, task.c.namespace_id == namespace_id))


def tasks_find(tx: Transaction, wanted: TaskFilter) -> list[TaskRow]:
    """Read a page of tasks, newest first."""
    newest = (task.c.accepted_at.desc(), task.c.id.desc())
    query = _narrowed(tx, wanted)
    index = _index_of(wanted)
    if index is not None:
        query = through(query, task, index)
    if wanted.before is not None:
        at, identifier = wanted.before
        query = query.where(or_(task.c.accepted_at < at, and_(task.c.accepted_at == at, task.c.id < identifier)))
    page = query.order_by(*newest).limit(wanted.limit).subquery()
    return list(tx.rows(_VIEW.join(page, page.c.id == task.c.id).order_by(*newest)))


def _index_of(wanted: TaskFilter) -> str | None:
    """Name the index that serves a filter; MariaDB may prefer to walk over the whole table and sort."""
    if wanted.business_key is not None:
        return "pulse_task_by_business_key"
    if wanted.source_id is not None:
        return "pulse_task_by_source"
    return None if wanted.queue_id is None else "pulse_task_by_queue"


def _narrowed(tx: Transaction, wanted: TaskFilter) -> Select[Any]:
    """Choose a filter's tasks, their ids only and without a join.

    The page is cut out of one index before anything is joined to it: an optimizer that begins with a small table of the
    join has to read and sort all that the filter would give.
    """
    query = select(task.c.id).where(task.c.namespace_id == wanted.namespace_id)
    if wanted.business_key is not None:
        query = query.where(task.c.business_key == wanted.business_key.encode())
    if wanted.source_id is not None:
        query = query.where(task.c.source_id == wanted.source_id)
    if wanted.queue_id is not None:
        query = query.where(task.c.queue_id == wanted.queue_id)
    if wanted.state is not None:
        query = query.where(task.c.state == wanted.state)
    if wanted.type is not None:
        query = query.where(task.c.lane_id.in_(_lanes(tx, wanted, wanted.type)))
    if wanted.accepted_after is not None:
        query = query.where(task.c.accepted_at >= wanted.accepted_after)
    if wanted.accepted_before is not None:
        query = query.where(task.c.accepted_at < wanted.accepted_before)
    return query


def _lanes(tx: Transaction, wanted: TaskFilter, type_: str) -> list[bytes]:
    """Read the lanes in which a filter's tasks of a type can be."""
    query = select(lane.c.id).join(queue, queue.c.id == lane.c.queue_id)
    query = query.where(queue.c.namespace_id == wanted.namespace_id, lane.c.type == type_)
    if wanted.queue_id is not None:
        query = query.where(lane.c.queue_id == wanted.queue_id)
    return [row.id for row in tx.rows(query)]


@dataclass(frozen=True, slots=True)
class ChosenTask:
    """A task as a batch chooses it: narrow, because there may be thousands."""

    id: bytes
    revision: int
    state: TaskState
    queue: str
    type: str
    version: int


def tasks_choose(tx: Transaction, wanted: TaskFilter, states: Collection[TaskState]) -> list[ChosenTask]:
    """Read, oldest first and without their payloads, tasks in one of the states that no workflow owns."""
    oldest = (task.c.accepted_at, task.c.id)
    query = _narrowed(tx, wanted).where(task.c.state.in_(sorted(states)), task.c.source_kind != SourceKind.WORKFLOW)
    page = query.order_by(*oldest).limit(wanted.limit).subquery()
    rows = tx.rows(_CHOSEN.join(page, page.c.id == task.c.id).order_by(*oldest))
    return [_chosen(row) for row in rows]


def tasks_named(tx: Transaction, namespace_id: bytes, task_ids: Collection[bytes]) -> list[ChosenTask]:
    """Read those of the named tasks that the namespace has, whatever their state and owner, in the order of ids."""
    query = through(_CHOSEN, task).where(ids_in(task.c.id), task.c.namespace_id == namespace_id).order_by(task.c.id)
    return [_chosen(row) for row in tx.rows(query, {"ids": task_ids})]


def _chosen(row: Any) -> ChosenTask:
    values = row._asdict()
    return ChosenTask(**(values | {"state": TaskState(values["state"])}))


def outputs_read(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Read the outputs of tasks that succeeded, as the JSON text that was sent; a person's verdict stands above all."""
    if not task_ids:
        return {}
    reported = {row.task_id: row.output or b"null" for row in tx.rows(_OUTPUTS, {"ids": task_ids})}
    silent = [task_id for task_id in task_ids if task_id not in reported]
    if silent:
        reported |= {row.task_id: row.output or b"null" for row in tx.rows(_VOUCHED, {"ids": silent})}
    return reported


def references_read(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, str]:
    """Read the references to outputs that lie elsewhere, as JSON text, of tasks that succeeded."""
    if not task_ids:
        return {}
    return {row.task_id: row.output_ref for row in tx.rows(_REFERENCES, {"ids": task_ids})}


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
