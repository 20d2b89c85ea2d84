"""Workflows: check, publish, read. The language is the compiler's, versions are the registry's.

What people decide about versions is in `api.resources.versions`.

Compilation is pure Python that may take a while, so it runs in a native thread and never holds the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.json import decode
from msgspec.structs import asdict

from api.calls import Call, Operation, Reply
from api.graph_reader import GraphReader
from api.models.instances import CheckResult, Graph
from api.models.versions import Bounds, ListedWorkflow, PublishResult, Workflow, WorkflowVersion
from api.models.workflows import WorkflowSource
from api.native_thread import NativeThread
from api.parameters import CURSOR, LIMIT, word_parameter
from api.queries import cursor_text
from definitions.bound_limits import CEILINGS, BoundLimits
from definitions.children import Children
from definitions.codes import Code
from definitions.compiler import NO_CHILDREN, Compiled, compile_definition
from definitions.graph import Graph as DrawnGraph
from definitions.graph import queues_of
from definitions.mermaid import graph_to_mermaid
from definitions.registry import (
    Aside,
    VersionContent,
    VersionSummary,
    children_read,
    compare,
    default_content,
    document_of,
    is_published,
    version_get,
    version_get_content,
    version_publish,
    versions_list,
    workflows_list,
)
from definitions.registry import Workflow as StoredWorkflow
from definitions.svg import graph_to_svg
from definitions.versions import workflow_get
from engine.namespace_limits import bound_limits_read
from orbit.access import Credential, Scope, queue_not_found
from orbit.canonical import digest
from orbit.clock import to_rfc3339
from orbit.database import Database, Transaction
from orbit.errors import NotFound
from orbit.idempotency import Answer, Made, once
from orbit.jsontext import Json
from pulse.store.queue import queue_ids

ResultT = TypeVar("ResultT")

_NUMBER_MAX = 2**31 - 1
_PATH = "/v1/workflows/{name}/versions/{number}"
_DRAWINGS: dict[str, tuple[str, Callable[[DrawnGraph], str]]] = {
    "svg": ("image/svg+xml", graph_to_svg),
    "mermaid": ("text/plain; charset=utf-8", graph_to_mermaid),
}
_DRAWN_TYPES = tuple(media_type.partition(";")[0] for media_type, _ in _DRAWINGS.values())
_FORMATS = ("json", *_DRAWINGS)
_FORMAT = word_parameter("format", "The graph as data, or drawn as a picture or as Mermaid text", list(_FORMATS))


class _Bounded(Struct):
    """Of a stored graph only this."""

    bounds: Raw


class Workflows:
    """The workflow resource."""

    def __init__(self, database: Database, graphs: GraphReader, compiler: NativeThread) -> None:
        self._database = database
        self._graphs = graphs
        self._compiler = compiler

    def operations(self) -> list[Operation]:
        """Declare what can be done with workflows."""
        read = Scope.WORKFLOWS_READ
        return [
            Operation(
                "POST", "/v1/workflows", "Publish a version: YAML, or JSON that holds it", self.publish,
                Scope.WORKFLOWS_PUBLISH, PublishResult, WorkflowSource, keyed=True, creates=True, takes_yaml=True,
            ),
            Operation(
                "POST", "/v1/workflows:check", "Compile a definition and list all findings", self.check, read,
                CheckResult, WorkflowSource, takes_yaml=True,
            ),
            Operation("GET", "/v1/workflows", "List workflows, by name", self.list_page, read, ListedWorkflow,
                      query=(LIMIT, CURSOR), is_page=True),
            Operation("GET", "/v1/workflows/{name}", "Read a workflow", self.get_workflow, read, Workflow),
            Operation("GET", "/v1/workflows/{name}/versions", "List a workflow's versions, the highest first",
                      self.versions, read, WorkflowVersion, query=(LIMIT, CURSOR), is_page=True),
            Operation("GET", _PATH, "Read a version with its text", self.get, read, WorkflowVersion),
            Operation("GET", f"{_PATH}/graph", "Read a version's step graph, as JSON or drawn", self.graph, read, Graph,
                      query=(_FORMAT,), other_types=_DRAWN_TYPES),
            Operation("GET", f"{_PATH}/bounds", "Read a version's proven maxima", self.bounds, read, Bounds),
        ]  # fmt: skip

    def publish(self, call: Call) -> Reply:
        """Publish a version; the same content under the same number is a replay whatever its key."""
        compiled, noticed = self._compile(call)
        _check_queues(compiled, call.caller)
        diff = self._diff(call.namespace_id, compiled)
        document = None if compiled.graph is None else self._compiler.run(document_of, compiled.graph)
        aside = Aside(document, lambda content, sent: self._compiler.run(compare, content, sent))
        command = call.command("workflow.publish", meaning=digest({"source": compiled.digest.hex()}))
        is_known = False

        def work(tx: Transaction) -> Answer:
            def make() -> Made:
                nonlocal is_known
                published = version_publish(tx, call.namespace_id, compiled, call.actor, aside=aside)
                is_known = published.deduplicated
                version = published.version
                graph = compiled.graph
                assert graph is not None, "what has findings is not published"
                answer = {
                    "workflow": version.workflow,
                    "version": version.version,
                    "title": version.title,
                    "digest": version.digest.hex(),
                    "bounds": asdict(graph.bounds),
                    "diff": None if published.deduplicated else diff,
                    "warnings": [*published.warnings, *noticed, *_unknown_queues(tx, call.namespace_id, graph)],
                }
                return Made(version.id, answer)

            return once(tx, command, make)

        answer = self._database.transaction(work)
        return call.receipt(
            Answer(answer.subject_id, answer.data, deduplicated=answer.deduplicated or is_known), creates=True
        )

    def check(self, call: Call) -> Reply:
        """Compile a definition; a bad one is a good answer."""
        compiled, _ = self._compile(call)
        return call.data(
            {
                "valid": compiled.graph is not None,
                "findings": [finding.to_json() for finding in compiled.findings],
                "bounds": None if compiled.graph is None else asdict(compiled.graph.bounds),
            }
        )

    def list_page(self, call: Call) -> Reply:
        """List workflows."""
        limit, after = call.query.limit(), _cursor_part(call, str)
        found = self._database.transaction(
            lambda tx: workflows_list(tx, call.namespace_id, limit=limit, after_name=after)
        )
        return call.page(
            [
                {**workflow_json(each), "versions": versions, "highest_version": highest}
                for each, versions, highest in found
            ],
            cursor_text([found[-1].workflow.name]) if len(found) == limit else None,
        )

    def get_workflow(self, call: Call) -> Reply:
        """Read a workflow."""
        name = call.path["name"]
        return call.data(
            workflow_json(self._database.transaction(lambda tx: workflow_get(tx, call.namespace_id, name)))
        )

    def versions(self, call: Call) -> Reply:
        """List a workflow's versions."""
        limit, below, name = call.query.limit(), _cursor_part(call, int), call.path["name"]
        found = self._database.transaction(
            lambda tx: versions_list(tx, call.namespace_id, name, limit=limit, below=below)
        )
        next_cursor = cursor_text([found[-1].version]) if len(found) == limit else None
        return call.page([version_json(each) for each in found], next_cursor)

    def get(self, call: Call) -> Reply:
        """Read a version."""
        summary, content = self._read(
            call,
            lambda tx, name, number: (
                version_get(tx, call.namespace_id, name, number),
                version_get_content(tx, call.namespace_id, name, number),
            ),
        )
        return call.data({**version_json(summary), "source": content.source.decode("utf-8")})

    def graph(self, call: Call) -> Reply:
        """Read a version's graph, or draw it."""
        form = call.query.word("format", _FORMATS)
        if form is None or form == "json":
            return call.data_written(self._content(call).graph)
        media_type, draw = _DRAWINGS[form]
        loaded = self._read(call, lambda tx, name, number: self._graphs.load(tx, call.namespace_id, name, number))
        drawn = self._compiler.run(draw, loaded)
        # What a browser opens from here is a picture: it runs and loads nothing.
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
        return Reply(drawn.encode(), content_type=media_type, headers=headers)

    def bounds(self, call: Call) -> Reply:
        """Read a version's bounds."""
        content = self._content(call)
        return call.data_written(decode(content.graph, type=_Bounded).bounds)

    def _compile(self, call: Call) -> tuple[Compiled, list[Json]]:
        """Compile what was sent by the namespace's limits; one that names children again, when they are read.

        So is what passes a limit, if it is published already: a limit is about what is new.
        """
        text: bytes | str = call.model(WorkflowSource).source if call.text is None else call.text
        namespace_id = call.namespace_id
        allowed = self._database.transaction(lambda tx: bound_limits_read(tx, namespace_id))
        compiled = self._compiled(text, NO_CHILDREN, allowed)
        passes_limit = any(finding.code is Code.BOUND_EXCEEDED for finding in compiled.findings)
        if not compiled.wanted and not passes_limit:
            return compiled, []

        def read(tx: Transaction) -> tuple[Children, list[Json], bool]:
            found, noticed = children_read(tx, namespace_id, compiled, self._graphs.load)
            return found, noticed, is_published(tx, namespace_id, compiled)

        children, noticed, is_known = self._database.transaction(read)
        return self._compiled(text, children, CEILINGS if is_known else allowed), noticed

    def _compiled(self, text: bytes | str, children: Children, allowed: BoundLimits) -> Compiled:
        return self._compiler.run(compile_definition, text, children, allowed=allowed)

    def _diff(self, namespace_id: bytes, compiled: Compiled) -> Json:
        """Compare what was compiled with the default version, if there is one."""
        graph = compiled.graph
        if graph is None:
            return None
        default = self._database.transaction(lambda tx: default_content(tx, namespace_id, graph.workflow))
        if default is None:
            return None
        number, content = default
        found = self._compiler.run(compare, content, compiled)
        return None if found is None else {"against": number, **found}

    def _content(self, call: Call) -> VersionContent:
        return self._read(call, lambda tx, name, number: version_get_content(tx, call.namespace_id, name, number))

    def _read(self, call: Call, read: Callable[[Transaction, str, int], ResultT]) -> ResultT:
        name, number = call.path["name"], version_number(call)
        return self._database.transaction(lambda tx: read(tx, name, number))


def version_number(call: Call) -> int:
    """Read the number of a version in the path; raise NotFound for what is none."""
    text = call.path["number"]
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_NUMBER_MAX)) else 0
    if not 1 <= number <= _NUMBER_MAX:
        message = "a version is a number from 1"
        raise NotFound(message)
    return number


def _unknown_queues(tx: Transaction, namespace_id: bytes, graph: DrawnGraph) -> list[Json]:
    """Warn of queues that nobody has made: a step on one would wait and then fail."""
    named = sorted(graph.queues)
    missing = set(named) - queue_ids(tx, namespace_id, named).keys()
    return [
        {"code": "QUEUE_UNKNOWN", "message": f"there is no queue {name}: make it before an instance gets there"}
        for name in sorted(missing)
    ]


def _check_queues(compiled: Compiled, caller: Credential) -> None:
    """Refuse a definition whose steps name a queue out of the publisher's range."""
    for node in () if compiled.graph is None else compiled.graph.nodes:
        for queue in queues_of(node):
            if not caller.covers(queue):
                error = queue_not_found()
                error.details = {"step": node.id, "queue": queue}
                raise error


def _cursor_part(call: Call, kind: type[ResultT]) -> ResultT | None:
    parts = call.query.cursor_parts(1)
    if parts is None:
        return None
    part: Any = parts[0]
    if type(part) is not kind or (isinstance(part, int) and not 0 <= part <= _NUMBER_MAX):
        raise call.query.refused("cursor", "this is not a cursor of this list")
    return part


def workflow_json(workflow: StoredWorkflow) -> dict[str, Json]:
    """Write a workflow."""
    return {
        "workflow": workflow.name,
        "default_version": workflow.default_version,
        "default_pinned": workflow.default_pinned,
        "revision": str(workflow.revision),
        "created_at": to_rfc3339(workflow.created_at),
    }


def version_json(version: VersionSummary) -> dict[str, Json]:
    """Write a version without its text."""
    return {
        "workflow": version.workflow,
        "version": version.version,
        "title": version.title,
        "state": version.state.value,
        "state_reason": version.state_reason,
        "state_changed_at": None if version.state_changed_at is None else to_rfc3339(version.state_changed_at),
        "digest": version.digest.hex(),
        "published_by": version.published_by,
        "published_at": to_rfc3339(version.published_at),
    }
