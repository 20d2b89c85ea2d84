"""Statements that list instances, the newest start first, each along one index in its order; and the labels for that.

The surprising rule: the index is named in the statement, since an optimizer that guesses would now and then sort a
whole namespace. The narrowest criterion chooses it: a business key, a parent, a label, a workflow, a state, else the
time alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, and_, or_, select

from engine.states import Control, InstanceState
from engine.store.instances import Filter, Place, Stored, stored_of
from engine.tables import instance as table
from engine.tables import label
from orbit.database.ids import through

if TYPE_CHECKING:
    from orbit.database import Transaction


def instances_page(
    tx: Transaction, namespace_id: bytes, wanted: Filter, *, after: Place | None, limit: int
) -> list[Stored]:
    """List a namespace's instances, the newest start first."""
    return [stored_of(row) for row in tx.rows(page_of(namespace_id, wanted, after=after).limit(limit))]


def instances_choose(
    tx: Transaction,
    namespace_id: bytes,
    wanted: Filter,
    states: tuple[Collection[InstanceState], Collection[Control]],
    *,
    limit: int,
) -> list[Stored]:
    """Read the newest instances of a filter that are in one of the states and controls, the longest started first."""
    query = page_of(namespace_id, wanted).where(
        table.c.state.in_(sorted(states[0])), table.c.control.in_(sorted(states[1]))
    )
    return [stored_of(row) for row in tx.rows(query.limit(limit))][::-1]


def page_of(namespace_id: bytes, wanted: Filter, *, after: Place | None = None) -> Select[Any]:
    """Write the statement of a list."""
    if wanted.label is not None and wanted.business_key is None and wanted.parent_id is None:
        return _by_label(namespace_id, wanted, wanted.label, after)
    query = through(select(table), table, _index_for(wanted)).where(
        table.c.namespace_id == namespace_id,
        *_criteria(wanted),
        *_between(table.c.started_at, table.c.id, wanted, after),
    )
    if wanted.label is not None:
        query = query.where(table.c.id.in_(select(label.c.instance_id).where(*_labelled(namespace_id, wanted.label))))
    return query.order_by(table.c.started_at.desc(), table.c.id.desc())


def labels_insert(tx: Transaction, started: Sequence[Stored]) -> None:
    """Store the labels of new instances, each findable by name and value."""
    tx.insert(
        label,
        [
            {
                "namespace_id": each.origin.namespace_id,
                "name": name,
                "value": value,
                "started_at": each.instance.started_at,
                "instance_id": each.instance.id,
            }
            for each in started
            for name, value in (each.origin.labels or {}).items()
        ],
    )


def _by_label(namespace_id: bytes, wanted: Filter, named: tuple[str, str], after: Place | None) -> Select[Any]:
    query = select(table).select_from(label.join(table, table.c.id == label.c.instance_id))
    for dialect in ("mysql", "mariadb"):
        query = query.prefix_with("STRAIGHT_JOIN", dialect=dialect)  # from the labels to the instances
    return (
        through(query, table)
        .where(
            *_labelled(namespace_id, named),
            *_criteria(wanted),
            *_between(label.c.started_at, label.c.instance_id, wanted, after),
        )
        .order_by(label.c.started_at.desc(), label.c.instance_id.desc())
    )


def _labelled(namespace_id: bytes, named: tuple[str, str]) -> list[ColumnElement[bool]]:
    name, value = named
    return [label.c.namespace_id == namespace_id, label.c.name == name, label.c.value == value]


def _index_for(wanted: Filter) -> str:
    if wanted.business_key is not None:
        return "weave_instance_for_list_by_business_key"
    if wanted.parent_id is not None:
        return "weave_instance_for_list_by_parent"
    if wanted.workflow is not None:
        return "weave_instance_for_list_by_workflow"
    if wanted.state is not None:
        return "weave_instance_for_list_by_state"
    return "weave_instance_for_list"


def _criteria(wanted: Filter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.workflow is not None:
        found.append(table.c.workflow == wanted.workflow)
    if wanted.version is not None:
        found.append(table.c.version == wanted.version)
    if wanted.state is not None:
        found.append(table.c.state == wanted.state.value)
    if wanted.control is not None:
        found.append(table.c.control == wanted.control.value)
    if wanted.business_key is not None:
        found.append(table.c.business_key == wanted.business_key.encode())
    if wanted.parent_id is not None:
        found.append(table.c.parent_id == wanted.parent_id)
    return found


def _between(
    started_at: ColumnElement[Any], identifier: ColumnElement[Any], wanted: Filter, after: Place | None
) -> list[ColumnElement[bool]]:
    """Bound a list by time and by the place of the page before; the columns are those of the index that is walked."""
    found: list[ColumnElement[bool]] = []
    if wanted.started_after is not None:
        found.append(started_at >= wanted.started_after)
    if wanted.started_before is not None:
        found.append(started_at < wanted.started_before)
    if after is not None:
        # The first condition follows from the second; it is what an optimizer makes a range of.
        found.append(started_at <= after.started_at)
        same_instant = and_(started_at == after.started_at, identifier < after.id)
        found.append(or_(started_at < after.started_at, same_instant))
    return found
