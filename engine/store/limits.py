"""Statements about a namespace's limits, and about running instances.

A limit has a row, which starts lock, and so has each instance that is counted under one. An end deletes rows by primary
key and never asks for a limit's lock, so ends and starts can't wait for each other in a circle. The surprising rule: a
start counts what is committed, so an end that is on its way still takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, func, literal_column, select

from engine.tables import BOUNDS, running
from engine.tables import limit as table
from orbit.database.hot import Hot, Query
from orbit.database.ids import ids_in

if TYPE_CHECKING:
    from orbit.database import Transaction

WHOLE_NAMESPACE = ""  # stands where a workflow's name would


@dataclass(frozen=True, slots=True)
class Limit:
    """A namespace's limit; None is no limit. Revision 0 has never been set."""

    max_running: int | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceLimit:
    """All limits of a namespace: `bounds` are those of what one instance may use at most that it has set, by name."""

    max_running: int | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)
    revision: int = 0


_OF_NAMESPACES = Hot(
    select(table.c.namespace_id, table.c.max_running).where(
        ids_in(table.c.namespace_id), table.c.workflow == WHOLE_NAMESPACE, table.c.max_running.is_not(None)
    )
)
_ONE = select(table.c.max_running, table.c.revision).where(
    table.c.namespace_id == bindparam("namespace_id"), table.c.workflow == bindparam("workflow")
)
_LOCK = _ONE.with_for_update()
_WHOLE = select(table.c.max_running, table.c.revision, *(table.c[name] for name, _ in BOUNDS)).where(
    table.c.namespace_id == bindparam("namespace_id"), table.c.workflow == WHOLE_NAMESPACE
)
_COUNT = select(func.count()).select_from(
    select(literal_column("1").label("one"))
    .select_from(running)
    .where(running.c.namespace_id == bindparam("namespace_id"), running.c.workflow == bindparam("workflow"))
    .limit(bindparam("at_most"))
    .subquery()
)


def limits_query(namespace_ids: Collection[bytes]) -> Query:
    """Ask for limits as `limits_of_namespaces` does, to be read ahead."""
    return _OF_NAMESPACES, {"ids": namespace_ids}


def limits_of_namespaces(tx: Transaction, namespace_ids: Collection[bytes]) -> dict[bytes, int]:
    """Read which namespaces have a limit of their own; `namespace_ids` is not empty."""
    return {row.namespace_id: row.max_running for row in tx.rows(*limits_query(namespace_ids))}


def namespace_limit_read(tx: Transaction, namespace_id: bytes) -> NamespaceLimit:
    """Read a namespace's limits."""
    row = tx.row(_WHOLE, {"namespace_id": namespace_id})
    if row is None:
        return NamespaceLimit()
    own = {name: int(value) for name, _ in BOUNDS if (value := getattr(row, name)) is not None}
    return NamespaceLimit(row.max_running, own, row.revision)


def limit_lock(tx: Transaction, namespace_id: bytes, workflow: str) -> Limit:
    """Lock a limit's row, making it at its first use; a race for that is a duplicate key, and this one runs again."""
    row = tx.row(_LOCK, {"namespace_id": namespace_id, "workflow": workflow})
    if row is not None:
        return Limit(row.max_running, row.revision)
    tx.insert(table, [{"namespace_id": namespace_id, "workflow": workflow, "max_running": None, "revision": 0}])
    return Limit()


def namespace_limit_write(tx: Transaction, namespace_id: bytes, new: NamespaceLimit) -> None:
    """Write a namespace's limits, whose row is locked."""
    row = {
        "namespace_id": namespace_id,
        "workflow": WHOLE_NAMESPACE,
        "max_running": new.max_running,
        "revision": new.revision,
        **{name: new.bounds.get(name) for name, _ in BOUNDS},
    }
    tx.update_many(table, key=("namespace_id", "workflow"), rows=[row])


def running_count(tx: Transaction, namespace_id: bytes, workflow: str, *, at_most: int) -> int:
    """Count what runs under a limit, no further than `at_most`."""
    row = tx.row(_COUNT, {"namespace_id": namespace_id, "workflow": workflow, "at_most": at_most})
    assert row is not None, "a count has a row"
    return int(row[0])


def running_insert(tx: Transaction, counted: Sequence[tuple[bytes, str, bytes]]) -> None:
    """Count instances: each with its namespace and its workflow, or WHOLE_NAMESPACE."""
    tx.insert(running, [_row(*each) for each in counted])


def running_delete(tx: Transaction, ended: Sequence[tuple[bytes, str, bytes]]) -> None:
    """Give back the places of instances that have ended; every one must have its place."""
    tx.delete_many(running, [_row(*each) for each in ended])


def _row(namespace_id: bytes, workflow: str, instance_id: bytes) -> dict[str, object]:
    return {"namespace_id": namespace_id, "workflow": workflow, "instance_id": instance_id}
