"""The statements on workflows and their published versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, bindparam, func, select, update

from definitions.tables import version, workflow
from orbit.database.hot import Hot, Query

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class VersionState(StrEnum):
    """How a version is used; it leaves a state only by a person's command."""

    ACTIVE = "ACTIVE"  # starts are accepted
    DEPRECATED = "DEPRECATED"  # starts are accepted and warn
    RETIRED = "RETIRED"  # starts are refused; running instances go on


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """A published version without its source and graph."""

    id: bytes
    namespace_id: bytes
    workflow: str
    version: int
    title: str | None
    state: VersionState
    digest: bytes
    published_by: str
    published_at: Micros
    state_reason: str | None = None
    state_changed_at: Micros | None = None


@dataclass(frozen=True, slots=True)
class VersionContent:
    """What a version is made of: the YAML as sent, and the graph as JSON text with its format number."""

    source: bytes
    graph_format: int
    graph: bytes


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow by name, with the version that a start without a number runs; `revision` counts its changes."""

    name: str
    default_version: int
    created_at: Micros
    default_pinned: bool = False
    revision: int = 1


class ListedWorkflow(NamedTuple):
    """A workflow, how many versions it has, retired ones included, and the highest of their numbers."""

    workflow: Workflow
    versions: int
    highest_version: int


_SUMMARY = select(
    version.c.id,
    version.c.namespace_id,
    version.c.workflow,
    version.c.version,
    version.c.title,
    version.c.state,
    version.c.digest,
    version.c.published_by,
    version.c.published_at,
    version.c.state_reason,
    version.c.state_changed_at,
)
_WORKFLOW = select(workflow).where(
    workflow.c.namespace_id == bindparam("namespace_id"), workflow.c.name == bindparam("name")
)
_LOCK_WORKFLOW = _WORKFLOW.with_for_update()
_HIGHEST_USABLE = select(func.max(version.c.version)).where(
    version.c.namespace_id == bindparam("namespace_id"),
    version.c.workflow == bindparam("workflow"),
    version.c.state != VersionState.RETIRED.value,
)
_FIND = Hot(
    _SUMMARY.where(
        version.c.namespace_id == bindparam("namespace_id"),
        version.c.workflow == bindparam("workflow"),
        version.c.version == bindparam("version"),
    )
)
_FIND_DEFAULT = Hot(
    _SUMMARY.join(
        workflow,
        and_(
            workflow.c.namespace_id == version.c.namespace_id,
            workflow.c.name == version.c.workflow,
            workflow.c.default_version == version.c.version,
        ),
    ).where(version.c.namespace_id == bindparam("namespace_id"), version.c.workflow == bindparam("workflow"))
)
_CONTENT = select(version.c.source, version.c.graph_format, version.c.graph).where(
    version.c.namespace_id == bindparam("namespace_id"),
    version.c.workflow == bindparam("workflow"),
    version.c.version == bindparam("version"),
)
_DEFAULT = select(workflow.c.default_version).where(
    workflow.c.namespace_id == bindparam("namespace_id"), workflow.c.name == bindparam("name")
)


def _summary(row: Any) -> VersionSummary:
    return VersionSummary(
        id=row.id,
        namespace_id=row.namespace_id,
        workflow=row.workflow,
        version=row.version,
        title=row.title,
        state=VersionState(row.state),
        digest=row.digest,
        published_by=row.published_by,
        published_at=row.published_at,
        state_reason=row.state_reason,
        state_changed_at=row.state_changed_at,
    )


def _workflow(row: Any) -> Workflow:
    return Workflow(row.name, row.default_version, row.created_at, bool(row.default_pinned), row.revision)


def workflow_lock(tx: Transaction, namespace_id: bytes, name: str) -> Workflow | None:
    """Lock a workflow's row, under which its versions are published and change their states; None if it is new."""
    row = tx.row(_LOCK_WORKFLOW, {"namespace_id": namespace_id, "name": name})
    return None if row is None else _workflow(row)


def workflow_find(tx: Transaction, namespace_id: bytes, name: str) -> Workflow | None:
    """Read a workflow."""
    row = tx.row(_WORKFLOW, {"namespace_id": namespace_id, "name": name})
    return None if row is None else _workflow(row)


def workflow_insert(tx: Transaction, namespace_id: bytes, made: Workflow) -> None:
    """Make a workflow's row."""
    tx.insert(
        workflow,
        [
            {
                "namespace_id": namespace_id,
                "name": made.name,
                "default_version": made.default_version,
                "default_pinned": made.default_pinned,
                "revision": made.revision,
                "created_at": made.created_at,
            }
        ],
    )


def workflow_update(tx: Transaction, namespace_id: bytes, changed: Workflow) -> None:
    """Write which version a start without a number runs, and the revision; the row is locked."""
    statement = (
        update(workflow)
        .where(workflow.c.namespace_id == namespace_id, workflow.c.name == changed.name)
        .values(
            default_version=changed.default_version, default_pinned=changed.default_pinned, revision=changed.revision
        )
    )
    tx.expect(statement, count=1)


def workflow_default(tx: Transaction, namespace_id: bytes, name: str) -> int | None:
    """Read a workflow's default version, None if there is no such workflow."""
    row = tx.row(_DEFAULT, {"namespace_id": namespace_id, "name": name})
    return None if row is None else int(row.default_version)


def workflows_find(tx: Transaction, namespace_id: bytes, *, limit: int, after_name: str | None) -> list[ListedWorkflow]:
    """Read a page of a namespace's workflows in the order of their names."""
    query = select(workflow).where(workflow.c.namespace_id == namespace_id)
    if after_name is not None:
        query = query.where(workflow.c.name > after_name)
    found = [_workflow(row) for row in tx.rows(query.order_by(workflow.c.name).limit(limit))]
    if not found:
        return []
    counted = (
        select(version.c.workflow, func.count().label("versions"), func.max(version.c.version).label("highest"))
        .where(version.c.namespace_id == namespace_id, version.c.workflow.in_([each.name for each in found]))
        .group_by(version.c.workflow)
    )
    counts = {row.workflow: (row.versions, row.highest) for row in tx.rows(counted)}
    return [ListedWorkflow(each, *counts[each.name]) for each in found]


def version_query(namespace_id: bytes, name: str, number: int | None) -> Query:
    """Ask for a version, the default one if `number` is None, without its source and graph."""
    named = {"namespace_id": namespace_id, "workflow": name}
    return (_FIND_DEFAULT, named) if number is None else (_FIND, named | {"version": number})


def version_find(tx: Transaction, namespace_id: bytes, name: str, *, number: int) -> VersionSummary | None:
    """Read a version without its source and graph."""
    row = tx.row(*version_query(namespace_id, name, number))
    return None if row is None else _summary(row)


def version_find_default(tx: Transaction, namespace_id: bytes, name: str) -> VersionSummary | None:
    """Read a workflow's default version without its source and graph, None if there is no such workflow."""
    row = tx.row(*version_query(namespace_id, name, None))
    return None if row is None else _summary(row)


def version_highest_usable(tx: Transaction, namespace_id: bytes, name: str) -> int | None:
    """Read the highest number of a workflow's versions that are not retired; None if all are."""
    row = tx.row(_HIGHEST_USABLE, {"namespace_id": namespace_id, "workflow": name})
    return None if row is None or row[0] is None else int(row[0])


def version_set_state(tx: Transaction, changed: VersionSummary, *, was: VersionState) -> None:
    """Write a version's state with its reason; the workflow's row is locked."""
    statement = (
        update(version)
        .where(version.c.id == changed.id, version.c.state == was.value)
        .values(state=changed.state.value, state_reason=changed.state_reason, state_changed_at=changed.state_changed_at)
    )
    tx.expect(statement, count=1)


def version_content(tx: Transaction, namespace_id: bytes, name: str, *, number: int) -> VersionContent | None:
    """Read a version's source and graph."""
    row = tx.row(_CONTENT, {"namespace_id": namespace_id, "workflow": name, "version": number})
    return None if row is None else VersionContent(bytes(row.source), row.graph_format, bytes(row.graph))


def versions_find(
    tx: Transaction, namespace_id: bytes, name: str, *, limit: int, below: int | None
) -> list[VersionSummary]:
    """Read a page of a workflow's versions, the highest number first."""
    query = _SUMMARY.where(version.c.namespace_id == namespace_id, version.c.workflow == name)
    if below is not None:
        query = query.where(version.c.version < below)
    return [_summary(row) for row in tx.rows(query.order_by(version.c.version.desc()).limit(limit))]


def version_insert(tx: Transaction, made: VersionSummary, content: VersionContent) -> None:
    """Store a version. Two at once: the unique number makes the second run again, which then sees the first."""
    tx.insert(
        version,
        [
            {
                "id": made.id,
                "namespace_id": made.namespace_id,
                "workflow": made.workflow,
                "version": made.version,
                "title": made.title,
                "state": made.state.value,
                "digest": made.digest,
                "source": content.source,
                "graph_format": content.graph_format,
                "graph": content.graph,
                "published_by": made.published_by,
                "published_at": made.published_at,
            }
        ],
    )
