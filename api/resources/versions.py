"""What people decide about published versions: default, deprecate, retire, activate; and how two versions differ.

A workflow's versions are managed as one, under one revision. The caller's queue range must hold every queue that the
version names; what is out of range is not found.
"""

from __future__ import annotations

from collections.abc import Callable

from api.calls import Call, Operation, Reply
from api.graph_reader import GraphReader
from api.models.fields import revision_number
from api.models.versions import VersionDiff, WorkflowChangeResult
from api.models.workflows import ChangeVersion, SetDefault
from api.native_thread import NativeThread
from api.parameters import number_parameter
from api.resources.workflows import version_json, version_number, workflow_json
from definitions.registry import not_found, version_get_content
from definitions.store import VersionState, VersionSummary, Workflow
from definitions.versions import Change, default_set, operation_of, version_move, versions_diff
from orbit.access import Scope
from orbit.database import Database, Transaction
from orbit.idempotency import Answer, Made, once

_NUMBER_MAX = 2**31 - 1
_VERSION = "/v1/workflows/{name}/versions/{number}"
_FROM = number_parameter("from", "The version that instances run on", maximum=_NUMBER_MAX)
_TO = number_parameter("to", "The version that they would go on with", maximum=_NUMBER_MAX)


class WorkflowVersions:
    """The states of versions, and the default."""

    def __init__(self, database: Database, graphs: GraphReader, compiler: NativeThread) -> None:
        self._database = database
        self._graphs = graphs
        self._compiler = compiler

    def operations(self) -> list[Operation]:
        """Declare what can be decided about versions."""
        manage, answer = Scope.WORKFLOWS_MANAGE, WorkflowChangeResult
        return [
            Operation("POST", "/v1/workflows/{name}:set-default", "Pin the default version, or let it follow again",
                      self.set_default, manage, answer, SetDefault, keyed=True),
            Operation("POST", f"{_VERSION}:deprecate", "Let starts of a version warn",
                      self._mover(VersionState.DEPRECATED), manage, answer, ChangeVersion, keyed=True),
            Operation("POST", f"{_VERSION}:retire", "Refuse starts of a version; what runs goes on",
                      self._mover(VersionState.RETIRED), manage, answer, ChangeVersion, keyed=True),
            Operation("POST", f"{_VERSION}:activate", "Take a version back into use",
                      self._mover(VersionState.ACTIVE), manage, answer, ChangeVersion, keyed=True),
            Operation("GET", "/v1/workflows/{name}:diff", "Say what a version means for instances of another",
                      self.diff, Scope.WORKFLOWS_READ, VersionDiff, query=(_FROM, _TO)),
        ]  # fmt: skip

    def set_default(self, call: Call) -> Reply:
        """Pin the default version, or without a number let it be the highest again."""
        body = call.model(SetDefault)
        change = _change(call, reason=body.reason, expected_revision=body.expected_revision)
        return self._run(call, "workflow.set_default", lambda tx: default_set(tx, change, body.version))

    def diff(self, call: Call) -> Reply:
        """Compare two published versions."""
        numbers = {name: call.query.number(name, minimum=1, maximum=_NUMBER_MAX) for name in ("from", "to")}
        old, new = numbers["from"], numbers["to"]
        for name, number in numbers.items():
            if number is None:
                raise call.query.refused(name, "both versions are needed")
        assert old is not None
        assert new is not None
        contents = self._database.transaction(
            lambda tx: [version_get_content(tx, call.namespace_id, call.path["name"], number) for number in (old, new)]
        )
        found = self._compiler.run(versions_diff, *contents)
        return call.data({"against": old, **found.to_json()})

    def _mover(self, state: VersionState) -> Callable[[Call], Reply]:
        def move(call: Call) -> Reply:
            body = call.model(ChangeVersion)
            change = _change(call, reason=body.reason, expected_revision=body.expected_revision)
            number = version_number(call)
            return self._run(call, operation_of(state), lambda tx: version_move(tx, change, number, state))

        return move

    def _run(self, call: Call, operation: str, make: Callable[[Transaction], tuple[Workflow, VersionSummary]]) -> Reply:
        resource = "/".join(call.path.values())
        command = call.command(operation, resource=resource)

        def work(tx: Transaction) -> Answer:
            def made() -> Made:
                workflow, version = make(tx)
                return Made(version.id, {"workflow": workflow_json(workflow), "version": version_json(version)})

            answer = once(tx, command, made)
            self._require_queues(tx, call, answer.data["version"]["version"])
            return answer

        return call.receipt(self._database.transaction(work), creates=False)

    def _require_queues(self, tx: Transaction, call: Call, number: int) -> None:
        """Refuse, before COMMIT and for replays too, a version that names a queue out of the caller's range."""
        queues, name = call.caller.queues, call.path["name"]
        if queues is not None and not self._graphs.load(tx, call.namespace_id, name, number).queues <= queues:
            raise not_found(name, number)


def _change(call: Call, *, reason: str, expected_revision: str | None) -> Change:
    revision = None
    if expected_revision is not None:
        revision = revision_number(expected_revision, pointer="/expected_revision")
    return Change(
        namespace_id=call.namespace_id,
        workflow=call.path["name"],
        actor=call.actor,
        reason=reason,
        expected_revision=revision,
    )
