"""Which tasks a list shows or a batch is about; and the labels, kept to find tasks by. Payloads are read in `task`.

Every search walks one index in its order, from a bound on. The surprising rule: the index is named in the statement,
since an optimizer that guesses would now and then sort a whole namespace. The narrowest criterion chooses it: a
business key, a source, a label, else the queue. Labels stand in a table of their own, clustered in the order of lists:
a task without labels pays nothing for them, and a label that a million tasks share is still read page by page.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select

from orbit.database.ids import ids_in, through
from pulse.states import SourceKind, TaskState
from pulse.store.task import VIEW, TaskRow
from pulse.tables import label, lane, queue, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_CHOSEN = (
    select(task.c.id, task.c.revision, task.c.state, queue.c.name.label("queue"), lane.c.type, lane.c.version)
    .join(queue, queue.c.id == task.c.queue_id)
    .join(lane, lane.c.id == task.c.lane_id)
)
_BY_LABEL = through(select(task.c.id).select_from(label.join(task, task.c.id == label.c.task_id)), task)
# From the labels to the tasks: they stand in the order of the list, and end it as soon as the page is full.
for _dialect in ("mysql", "mariadb"):
    _BY_LABEL = _BY_LABEL.prefix_with("STRAIGHT_JOIN", dialect=_dialect)


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks to list: an index is chosen by `business_key`, `source`, `label`, else by `queue_id`.

    `label` is a name and its value; `source` a kind and the id of what made it.
    """

    namespace_id: bytes
    limit: int
    queue_id: bytes | None = None
    business_key: str | None = None
    source: tuple[SourceKind, bytes] | None = None
    state: TaskState | None = None
    type: str | None = None
    accepted_after: Micros | None = None
    accepted_before: Micros | None = None
    before: tuple[Micros, bytes] | None = None
    label: tuple[str, str] | None = None

    @property
    def is_by_label(self) -> bool:
        """Whether its labels lead to the tasks: nothing narrower is given."""
        return self.label is not None and self.business_key is None and self.source is None


@dataclass(frozen=True, slots=True)
class ChosenTask:
    """A task as a batch chooses it: narrow, because there may be thousands."""

    id: bytes
    revision: int
    state: TaskState
    queue: str
    type: str
    version: int


def labels_insert(tx: Transaction, rows: Sequence[dict[str, Any]]) -> None:
    """Let new tasks, given as their rows, be found by their labels."""
    entries = [
        {
            "namespace_id": row["namespace_id"],
            "name": name,
            "value": value,
            "accepted_at": row["accepted_at"],
            "task_id": row["id"],
        }
        for row in rows
        if row.get("labels") is not None
        for name, value in json.loads(row["labels"]).items()
    ]
    tx.insert(label, entries)


def tasks_find(tx: Transaction, wanted: TaskFilter) -> list[TaskRow]:
    """Read a page of tasks, newest first."""
    at, identifier = _order(wanted)
    query = _narrowed(tx, wanted)
    if wanted.before is not None:
        instant, last = wanted.before
        query = query.where(or_(at < instant, and_(at == instant, identifier < last)))
    page = query.order_by(at.desc(), identifier.desc()).limit(wanted.limit).subquery()
    newest = (task.c.accepted_at.desc(), task.c.id.desc())
    return list(tx.rows(VIEW.join(page, page.c.id == task.c.id).order_by(*newest)))


def tasks_choose(tx: Transaction, wanted: TaskFilter, states: Collection[TaskState]) -> list[ChosenTask]:
    """Read, oldest first and without their payloads, tasks in one of the states that no workflow owns."""
    query = _narrowed(tx, wanted).where(task.c.state.in_(sorted(states)), task.c.source_kind != SourceKind.WORKFLOW)
    page = query.order_by(*_order(wanted)).limit(wanted.limit).subquery()
    oldest = (task.c.accepted_at, task.c.id)
    return [_chosen(row) for row in tx.rows(_CHOSEN.join(page, page.c.id == task.c.id).order_by(*oldest))]


def tasks_named(tx: Transaction, namespace_id: bytes, task_ids: Collection[bytes]) -> list[ChosenTask]:
    """Read those of the named tasks that the namespace has, whatever their state and owner, in the order of ids."""
    query = through(_CHOSEN, task).where(ids_in(task.c.id), task.c.namespace_id == namespace_id).order_by(task.c.id)
    return [_chosen(row) for row in tx.rows(query, {"ids": task_ids})]


def _chosen(row: Any) -> ChosenTask:
    values = row._asdict()
    return ChosenTask(**(values | {"state": TaskState(values["state"])}))


def _order(wanted: TaskFilter) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Name the columns of the list's order in the table that leads to its tasks."""
    return (label.c.accepted_at, label.c.task_id) if wanted.is_by_label else (task.c.accepted_at, task.c.id)


def _index_of(wanted: TaskFilter) -> str | None:
    """Name the index of tasks that serves a filter; by a label each is read by its primary key."""
    if wanted.business_key is not None:
        return "pulse_task_by_business_key"
    if wanted.source is not None:
        return "pulse_task_by_source"
    return None if wanted.label is not None or wanted.queue_id is None else "pulse_task_by_queue"


def _narrowed(tx: Transaction, wanted: TaskFilter) -> Select[Any]:
    """Choose a filter's tasks by its index, their ids only and without a join but from a label to its tasks.

    The page is cut out of one index before anything is joined to it: an optimizer that begins with a small table of the
    join has to read and sort all that the filter would give.
    """
    index = _index_of(wanted)
    query = _BY_LABEL if wanted.is_by_label else select(task.c.id)
    if index is not None:
        query = through(query, task, index)
    conditions: list[ColumnElement[bool]] = [task.c.namespace_id == wanted.namespace_id]
    if wanted.business_key is not None:
        conditions.append(task.c.business_key == wanted.business_key.encode())
    if wanted.source is not None:
        kind, source_id = wanted.source
        conditions += [task.c.source_id == source_id, task.c.source_kind == kind]
    if wanted.label is not None:
        conditions += _labelled(wanted, wanted.label)
    if wanted.queue_id is not None:
        conditions.append(task.c.queue_id == wanted.queue_id)
    if wanted.state is not None:
        conditions.append(task.c.state == wanted.state)
    if wanted.type is not None:
        conditions.append(task.c.lane_id.in_(_lanes(tx, wanted, wanted.type)))
    at = _order(wanted)[0]
    if wanted.accepted_after is not None:
        conditions.append(at >= wanted.accepted_after)
    if wanted.accepted_before is not None:
        conditions.append(at < wanted.accepted_before)
    return query.where(*conditions)


def _lanes(tx: Transaction, wanted: TaskFilter, type_: str) -> list[bytes]:
    """Read the lanes in which a filter's tasks of a type can be."""
    query = select(lane.c.id).join(queue, queue.c.id == lane.c.queue_id)
    query = query.where(queue.c.namespace_id == wanted.namespace_id, lane.c.type == type_)
    if wanted.queue_id is not None:
        query = query.where(lane.c.queue_id == wanted.queue_id)
    return [row.id for row in tx.rows(query)]


def _labelled(wanted: TaskFilter, named: tuple[str, str]) -> list[ColumnElement[bool]]:
    """Ask for a label: where the list begins, or, where another index leads, by the label's whole primary key."""
    name, value = named
    having = [label.c.namespace_id == wanted.namespace_id, label.c.name == name, label.c.value == value]
    if wanted.is_by_label:
        return having
    return [exists().where(*having, label.c.accepted_at == task.c.accepted_at, label.c.task_id == task.c.id)]
