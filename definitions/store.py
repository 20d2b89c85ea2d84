"""The statements on workflows and their published versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select, update

from definitions.tables import version, workflow

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


@dataclass(frozen=True, slots=True)
class VersionContent:
    """What a version is made of: the YAML as sent, and the graph as JSON text with its format number."""

    source: bytes
    graph_format: int
    graph: bytes


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow by name, with the version that a start without a number runs."""

    name: str
    default_version: int
    created_at: Micros


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
)
_LOCK_WORKFLOW = (
    select(workflow.c.default_version)
    .where(workflow.c.namespace_id == bindparam("namespace_id"), workflow.c.name == bindparam("name"))
    .with_for_update()
)
_FIND = _SUMMARY.where(
    version.c.namespace_id == bindparam("namespace_id"),
    version.c.workflow == bindparam("workflow"),
    version.c.version == bindparam("version"),
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
    )


def workflow_lock(tx: Transaction, namespace_id: bytes, name: str) -> int | None:
    """Lock a workflow's row and return its default version, None if the workflow is new."""
    row = tx.row(_LOCK_WORKFLOW, {"namespace_id": namespace_id, "name": name})
    return None if row is None else int(row.default_version)


def workflow_insert(tx: Transaction, namespace_id: bytes, made: Workflow) -> None:
    """Make a workflow's row."""
    row = {"namespace_id": namespace_id, "name": made.name, "default_version": made.default_version}
    tx.insert(workflow, [row | {"created_at": made.created_at}])


def workflow_set_default(tx: Transaction, namespace_id: bytes, name: str, *, default_version: int) -> None:
    """Write which version a start without a number runs; the row is locked."""
    statement = (
        update(workflow)
        .where(workflow.c.namespace_id == namespace_id, workflow.c.name == name)
        .values(default_version=default_version)
    )
    tx.expect(statement, count=1)


def workflow_default(tx: Transaction, namespace_id: bytes, name: str) -> int | None:
    """Read a workflow's default version, None if there is no such workflow."""
    row = tx.row(_DEFAULT, {"namespace_id": namespace_id, "name": name})
    return None if row is None else int(row.default_version)


def workflows_find(tx: Transaction, namespace_id: bytes, *, limit: int, after_name: str | None) -> list[Workflow]:
    """Read a page of a namespace's workflows in the order of their names."""
    query = select(workflow.c.name, workflow.c.default_version, workflow.c.created_at).where(
        workflow.c.namespace_id == namespace_id
    )
    if after_name is not None:
        query = query.where(workflow.c.name > after_name)
    rows = tx.rows(query.order_by(workflow.c.name).limit(limit))
    return [Workflow(row.name, row.default_version, row.created_at) for row in rows]


def version_find(tx: Transaction, namespace_id: bytes, name: str, *, number: int) -> VersionSummary | None:
    """Read a version without its source and graph."""
    row = tx.row(_FIND, {"namespace_id": namespace_id, "workflow": name, "version": number})
    return None if row is None else _summary(row)


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
