"""What people decide about published versions: which one is the default, which ones are deprecated or retired.

A version's content never changes; its state and the workflow's default do, under the lock of the workflow's row, each
with an audit record and an event. Running instances are never touched: each stays on its version.

The surprising rule: a retired version can't stay the default. An unpinned default moves to the highest version that is
left; a pinned one has to be set elsewhere first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from definitions.diff import Diff, diff_graphs
from definitions.registry import VersionContent, followed, graph_of, not_found, version_get
from definitions.store import (
    VersionState,
    VersionSummary,
    Workflow,
    version_set_state,
    workflow_find,
    workflow_lock,
    workflow_update,
)
from orbit.errors import StateConflict
from orbit.jsontext import Json, dumps
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert

if TYPE_CHECKING:
    from orbit.database import Transaction

VERSION_MOVES: Mapping[VersionState, frozenset[VersionState]] = {
    VersionState.ACTIVE: frozenset({VersionState.DEPRECATED, VersionState.RETIRED}),
    VersionState.DEPRECATED: frozenset({VersionState.ACTIVE, VersionState.RETIRED}),
    VersionState.RETIRED: frozenset({VersionState.ACTIVE}),
}

_VERBS = {VersionState.ACTIVE: "activate", VersionState.DEPRECATED: "deprecate", VersionState.RETIRED: "retire"}
_EVENTS = {
    VersionState.ACTIVE: "workflow.activated",
    VersionState.DEPRECATED: "workflow.deprecated",
    VersionState.RETIRED: "workflow.retired",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A person's command about one workflow; `expected_revision` None is whatever revision it has."""

    namespace_id: bytes
    workflow: str
    actor: Actor
    reason: str
    expected_revision: int | None = None


def workflow_get(tx: Transaction, namespace_id: bytes, name: str) -> Workflow:
    """Read a workflow. Raises NotFound."""
    found = workflow_find(tx, namespace_id, name)
    if found is None:
        raise not_found(name, None)
    return found


def default_set(tx: Transaction, change: Change, number: int | None) -> tuple[Workflow, VersionSummary]:
    """Pin the default version, or with None let it be the highest that is not retired again.

    Raises NotFound; StateConflict for a retired version or another revision of the workflow.
    """
    before = _locked(tx, change)
    chosen = None if number is None else version_get(tx, change.namespace_id, change.workflow, number)
    if chosen is not None and chosen.state is VersionState.RETIRED:
        raise _refusal(before, f"version {chosen.version} is retired and can't be the default")
    if number is None:
        after = followed(tx, change.namespace_id, replace(before, default_pinned=False))
    else:
        after = replace(before, default_version=number, default_pinned=True, revision=before.revision + 1)
    default = version_get(tx, change.namespace_id, change.workflow, after.default_version)
    if (after.default_version, after.default_pinned) == (before.default_version, before.default_pinned):
        return before, default
    workflow_update(tx, change.namespace_id, after)
    _tell(tx, change, ("workflow.default_set", default), (_default(before), _default(after)), after.revision)
    return after, default


def version_move(tx: Transaction, change: Change, number: int, state: VersionState) -> tuple[Workflow, VersionSummary]:
    """Give a version another state; to the state that it has, nothing changes.

    Raises NotFound; StateConflict for a move that there is none of, a pinned default that would be retired, or another
    revision of the workflow.
    """
    known = _locked(tx, change)
    before = version_get(tx, change.namespace_id, change.workflow, number)
    if before.state is state:
        return known, before
    if state not in VERSION_MOVES[before.state]:
        raise _refusal(known, f"version {number} is {before.state}: activate it first")
    if state is VersionState.RETIRED and known.default_pinned and known.default_version == number:
        raise _refusal(known, f"version {number} is the pinned default: set another default first")
    after = replace(before, state=state, state_reason=change.reason, state_changed_at=tx.now())
    version_set_state(tx, after, was=before.state)
    workflow = followed(tx, change.namespace_id, known)
    workflow_update(tx, change.namespace_id, workflow)
    shown = (
        {"state": before.state, "default_version": known.default_version},
        {"state": after.state, "default_version": workflow.default_version},
    )
    _tell(tx, change, (_EVENTS[state], after), shown, workflow.revision)
    return workflow, after


def versions_diff(old: VersionContent, new: VersionContent) -> Diff:
    """Say what one published version means for running instances of another. Raises UnknownGraphFormat.

    No database, and for large ones work of its own: it may run in a thread.
    """
    return diff_graphs(graph_of(old), graph_of(new))


def operation_of(state: VersionState) -> str:
    """Name the operation that gives a version this state, for receipts and the audit."""
    return f"workflow.{_VERBS[state]}"


def _locked(tx: Transaction, change: Change) -> Workflow:
    found = workflow_lock(tx, change.namespace_id, change.workflow)
    if found is None:
        raise not_found(change.workflow, None)
    if change.expected_revision not in {None, found.revision}:
        raise _refusal(found, f"the workflow is at revision {found.revision}")
    return found


def _refusal(workflow: Workflow, message: str) -> StateConflict:
    details = {"default_version": workflow.default_version, "current_revision": str(workflow.revision)}
    return StateConflict(message, details=details)


def _default(workflow: Workflow) -> dict[str, Json]:
    return {"default_version": workflow.default_version, "default_pinned": workflow.default_pinned}


def _tell(
    tx: Transaction, change: Change, what: tuple[str, VersionSummary], shown: tuple[Json, Json], revision: int
) -> None:
    """Write the audit record and the event of a change."""
    kind, version = what
    is_default = kind == "workflow.default_set"
    record = AuditRecord(
        namespace_id=change.namespace_id,
        actor=change.actor,
        operation="workflow.set_default" if is_default else operation_of(version.state),
        subject_kind="workflow_version",
        subject_id=version.id,
        reason=change.reason,
        before={"workflow": change.workflow, **shown[0]},
        after={"workflow": change.workflow, "version": version.version, **shown[1]},
    )
    now = tx.now()
    audit_insert(tx, record, now=now)
    data = dumps({"workflow": change.workflow, "version": version.version, **shown[1]}).decode()
    event = EventRecord(change.namespace_id, kind, version.id, revision, data, workflow=change.workflow)
    events_insert(tx, [event], now=now)
