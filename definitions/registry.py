"""Published versions: immutable, found again by number, and never published twice.

Publishing the same bytes under the same number gives the same version; other bytes under a published number are
refused. The compiler runs before the transaction (`compile_definition`), so that no lock is held while it works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec.json import decode, encode

from definitions.children import Child, ChildName, child_of
from definitions.collector import collector_paused
from definitions.compiler import Compiled
from definitions.diff import diff_graphs
from definitions.graph import ChildSpec, Graph
from definitions.graph_json import UnknownGraphFormat, graph_from_json, graph_to_json
from definitions.store import (
    ListedWorkflow,
    VersionContent,
    VersionState,
    VersionSummary,
    Workflow,
    version_content,
    version_find,
    version_find_default,
    version_highest_usable,
    version_insert,
    versions_find,
    workflow_default,
    workflow_insert,
    workflow_lock,
    workflow_update,
    workflows_find,
)
from orbit.errors import DefinitionInvalid, NotFound, StateConflict, VersionConflict
from orbit.formats import FIRST, StoredFormat
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.store.formats import formats_read
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert

if TYPE_CHECKING:
    from orbit.database import Transaction

__all__ = [
    "Published",
    "VersionContent",
    "VersionState",
    "VersionSummary",
    "VersionToStart",
    "Workflow",
    "graph_load",
    "version_get",
    "version_get_content",
    "version_publish",
    "version_to_start",
    "versions_list",
    "workflows_list",
]

_SHOWN_CHARACTERS = 200


# Load the graph of a version, as `graph_load` does.
GraphLoad = Callable[["Transaction", bytes, str, int], Graph]
# Compare a version with what was compiled, as `compare` does.
Comparison = Callable[[VersionContent, Compiled], Json]


class VersionToStart(NamedTuple):
    """What a start runs; `warning` is what it is told about a deprecated version."""

    number: int
    warning: Json = None


@dataclass(frozen=True, slots=True)
class Aside:
    """What a node does elsewhere for a publication, as it is too much for its event loop.

    `document` is the graph as `document_of` writes it, `compare` does what the function of that name does.
    """

    document: bytes | None
    compare: Comparison


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of publishing; `deduplicated` if the very same content was there before."""

    version: VersionSummary
    deduplicated: bool
    warnings: tuple[Json, ...] = ()


def document_of(graph: Graph) -> bytes:
    """Write a graph as it is stored. No database, and for a large one work of its own: it may run in a thread."""
    return encode(graph_to_json(graph))


def version_publish(
    tx: Transaction, namespace_id: bytes, compiled: Compiled, actor: Actor, *, aside: Aside | None = None
) -> Published:
    """Store a compiled definition with its audit record and event; an unpinned default is then the highest version.

    Raises DefinitionInvalid with all findings, VersionConflict if the number is taken by other content, StateConflict
    for a graph in a form that older nodes could not read and that is not finalized.
    """
    graph = compiled.graph
    if graph is None:
        message = f"the definition has {len(compiled.findings)} finding(s)"
        raise DefinitionInvalid(message, details={"findings": [finding.to_json() for finding in compiled.findings]})
    # The workflow's row is the lock: two publications of one workflow come one after the other.
    known = workflow_lock(tx, namespace_id, graph.workflow)
    earlier = version_find(tx, namespace_id, graph.workflow, number=graph.version)
    if earlier is not None:
        if earlier.digest == compiled.digest:
            return Published(earlier, deduplicated=True)
        raise _conflict(tx, earlier, compiled, compare if aside is None else aside.compare)
    now = tx.now()
    made = VersionSummary(
        id=new_id(),
        namespace_id=namespace_id,
        workflow=graph.workflow,
        version=graph.version,
        title=graph.title,
        state=VersionState.ACTIVE,
        digest=compiled.digest,
        published_by=actor.name,
        published_at=now,
    )
    _require_format(tx, graph)
    document = document_of(graph) if aside is None or aside.document is None else aside.document
    version_insert(tx, made, VersionContent(compiled.source.encode(), graph.format, document))
    if known is None:
        workflow_insert(tx, namespace_id, Workflow(graph.workflow, graph.version, now))
    else:
        workflow_update(tx, namespace_id, followed(tx, namespace_id, known))
    audit_insert(tx, _audit(made, actor), now=now)
    data = dumps({"workflow": made.workflow, "version": made.version}).decode()
    event = EventRecord(namespace_id, "workflow.published", made.id, 1, data, workflow=made.workflow)
    events_insert(tx, [event], now=now)
    if known is None:
        return Published(made, deduplicated=False)
    return Published(made, deduplicated=False, warnings=_warnings(known, graph))


def children_read(
    tx: Transaction, namespace_id: bytes, compiled: Compiled, load: GraphLoad | None = None
) -> tuple[dict[ChildName, Child], list[Json]]:
    """Read the children that a definition names, and what deserves a warning about them; what is not there is absent.

    A text that is published already gets the children that it was published with, whatever the defaults are now.
    """
    load = load or graph_load
    pinned = _pinned(tx, namespace_id, compiled, load)
    found: dict[ChildName, Child] = {}
    warnings: list[Json] = []
    for name in sorted(compiled.wanted):
        number = name.version or pinned.get(name.workflow) or workflow_default(tx, namespace_id, name.workflow)
        version = None if number is None else version_find(tx, namespace_id, name.workflow, number=number)
        if version is None:
            continue
        graph = load(tx, namespace_id, name.workflow, version.version)
        found[name] = child_of(graph, is_retired=version.state is VersionState.RETIRED and not pinned)
        if version.state is VersionState.DEPRECATED:
            warnings.append(deprecation_of(version))
    return found, warnings


def is_published(tx: Transaction, namespace_id: bytes, compiled: Compiled) -> bool:
    """Say whether the very same text is published already, whatever there is to find in it now."""
    if compiled.identity is None:
        return False
    workflow, number = compiled.identity
    earlier = version_find(tx, namespace_id, workflow, number=number)
    return earlier is not None and earlier.digest == compiled.digest


def _pinned(tx: Transaction, namespace_id: bytes, compiled: Compiled, load: GraphLoad) -> dict[str, int]:
    """Give the versions of the children with which the very same text was published before."""
    if compiled.identity is None or not is_published(tx, namespace_id, compiled):
        return {}
    workflow, number = compiled.identity
    specs = (node.spec for node in load(tx, namespace_id, workflow, number).nodes)
    return {spec.workflow: spec.version for spec in specs if isinstance(spec, ChildSpec)}


def version_get(tx: Transaction, namespace_id: bytes, workflow: str, number: int | None) -> VersionSummary:
    """Read a version, the default one if `number` is None. Raises NotFound."""
    if number is None:
        found = version_find_default(tx, namespace_id, workflow)
    else:
        found = version_find(tx, namespace_id, workflow, number=number)
    if found is None:
        raise not_found(workflow, number)
    return found


def version_get_content(tx: Transaction, namespace_id: bytes, workflow: str, number: int) -> VersionContent:
    """Read a version's source and its graph as JSON text. Raises NotFound."""
    content = version_content(tx, namespace_id, workflow, number=number)
    if content is None:
        raise not_found(workflow, number)
    return content


def default_content(tx: Transaction, namespace_id: bytes, workflow: str) -> tuple[int, VersionContent] | None:
    """Read the default version of a workflow, None if there is no such workflow."""
    number = workflow_default(tx, namespace_id, workflow)
    return None if number is None else (number, version_get_content(tx, namespace_id, workflow, number))


def version_to_start(tx: Transaction, namespace_id: bytes, workflow: str, number: int | None) -> VersionToStart:
    """Return the version that a start runs. Raises NotFound; StateConflict if it is RETIRED."""
    found = version_get(tx, namespace_id, workflow, number)
    if found.state is VersionState.RETIRED:
        why = "" if found.state_reason is None else f": {found.state_reason}"
        default = workflow_default(tx, namespace_id, workflow)
        message = f"version {found.version} of {workflow} is retired and takes no new instances{why}"
        details = {"state": found.state, "default_version": default if default != found.version else None}
        raise StateConflict(message, details=details)
    is_deprecated = found.state is VersionState.DEPRECATED
    return VersionToStart(found.version, deprecation_of(found) if is_deprecated else None)


def deprecation_of(version: VersionSummary) -> Json:
    """Write the warning that the use of a DEPRECATED version gives."""
    why = "" if version.state_reason is None else f": {version.state_reason}"
    message = f"version {version.version} of {version.workflow} is deprecated{why}"
    return {"code": "VERSION_DEPRECATED", "message": message}


def followed(tx: Transaction, namespace_id: bytes, known: Workflow) -> Workflow:
    """Give a locked workflow after a change of its versions: an unpinned default is the highest that is not retired.

    Where all are retired it stays as it is, and starts without a number are refused.
    """
    default = known.default_version
    if not known.default_pinned:
        default = version_highest_usable(tx, namespace_id, known.name) or default
    return replace(known, default_version=default, revision=known.revision + 1)


def graph_load(tx: Transaction, namespace_id: bytes, workflow: str, number: int) -> Graph:
    """Load a version's graph, its expressions uncompiled. Raises NotFound, UnknownGraphFormat. Keep the outcome."""
    return graph_of(version_get_content(tx, namespace_id, workflow, number))


def graph_of(content: VersionContent) -> Graph:
    """Load a graph that was read. No database, and for a large one work of its own: it may run in a thread."""
    # We wrote it: what a strict reader asks of a stranger's text would take ten times as long.
    with collector_paused():
        return graph_from_json(decode(content.graph))


def versions_list(
    tx: Transaction, namespace_id: bytes, workflow: str, *, limit: int, below: int | None = None
) -> list[VersionSummary]:
    """Read a page of a workflow's versions, the highest number first. Raises NotFound if there is no such workflow."""
    if workflow_default(tx, namespace_id, workflow) is None:
        raise not_found(workflow, None)
    return versions_find(tx, namespace_id, workflow, limit=limit, below=below)


def workflows_list(
    tx: Transaction, namespace_id: bytes, *, limit: int, after_name: str | None = None
) -> list[ListedWorkflow]:
    """Read a page of a namespace's workflows in the order of their names, with the number of their versions."""
    return workflows_find(tx, namespace_id, limit=limit, after_name=after_name)


def _require_format(tx: Transaction, graph: Graph) -> None:
    if graph.format > FIRST and graph.format > formats_read(tx)[StoredFormat.GRAPH]:
        message = f"this needs graph format {graph.format}: run `orbit db finalize` when no older node runs any more"
        raise StateConflict(message)


def _warnings(known: Workflow, graph: Graph) -> tuple[Json, ...]:
    if known.default_pinned:
        message = f"version {known.default_version} stays the default: a person has pinned it"
    elif graph.version < known.default_version:
        message = f"version {known.default_version} stays the default: it is higher"
    else:
        return ()
    return ({"code": "NOT_DEFAULT", "message": message},)


def not_found(workflow: str, number: int | None) -> NotFound:
    """Make the one answer for a workflow or version that is not there."""
    what = f"workflow {workflow[:_SHOWN_CHARACTERS]}"
    return NotFound(f"{what} is not published" if number is None else f"{what} has no version {number}")


def _conflict(tx: Transaction, earlier: VersionSummary, compiled: Compiled, comparing: Comparison) -> VersionConflict:
    content = version_get_content(tx, earlier.namespace_id, earlier.workflow, earlier.version)
    message = f"version {earlier.version} of {earlier.workflow} is published with other content; raise its number"
    details = {
        "published_digest": earlier.digest.hex(),
        "digest": compiled.digest.hex(),
        "first_difference": _first_difference(content.source.decode(), compiled.source),
        "diff": comparing(content, compiled),
    }
    return VersionConflict(message, details=details)


def compare(content: VersionContent, compiled: Compiled) -> Json:
    """Return what compiled content would mean for running instances of a version; None for one of a newer node.

    No database: it may run in a thread.
    """
    assert compiled.graph is not None, "what has findings is not compared"
    try:
        published = graph_of(content)
    except UnknownGraphFormat:
        return None
    return diff_graphs(published, compiled.graph).to_json()


def _first_difference(published: str, sent: str) -> Json:
    """Return the first line in which two sources differ; None on a side that has ended."""
    old, new = published.splitlines(), sent.splitlines()
    for index in range(max(len(old), len(new))):
        left = old[index] if index < len(old) else None
        right = new[index] if index < len(new) else None
        if left != right:
            return {"line": index + 1, "published": _shown(left), "sent": _shown(right)}
    return {"line": len(old), "published": "(line endings)", "sent": "(line endings)"}


def _shown(line: str | None) -> str | None:
    return None if line is None else line[:_SHOWN_CHARACTERS]


def _audit(made: VersionSummary, actor: Actor) -> AuditRecord:
    return AuditRecord(
        namespace_id=made.namespace_id,
        actor=actor,
        operation="workflow.publish",
        subject_kind="workflow_version",
        subject_id=made.id,
        reason=None,
        before=None,
        after={"workflow": made.workflow, "version": made.version, "digest": made.digest.hex()},
    )
