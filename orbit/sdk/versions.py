"""What the client can do with published workflows and their versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.version_models import VersionDiff, Workflow, WorkflowChangeResult, WorkflowVersion


class VersionCalls(Calls):
    """The part of `orbit.Client` that is about versions."""

    def list_workflows(self) -> Iterator[Workflow]:
        """List the workflows, by name."""
        return self._pages("/v1/workflows", "list_workflows", {}, Workflow)

    def get_workflow(self, name: str) -> Workflow:
        """Read a workflow: its default version, and the revision that its changes expect."""
        return models.read(self._read(f"/v1/workflows/{segment(name)}", "get_workflow").data, Workflow)

    def workflow_versions(self, name: str) -> Iterator[WorkflowVersion]:
        """List a workflow's versions with their states, the highest first."""
        return self._pages(f"/v1/workflows/{segment(name)}/versions", "workflow_versions", {}, WorkflowVersion)

    def get_workflow_version(self, name: str, version: int) -> WorkflowVersion:
        """Read a version with its text."""
        path = f"/v1/workflows/{segment(name)}/versions/{version}"
        return models.read(self._read(path, "get_workflow_version").data, WorkflowVersion)

    def diff_versions(self, name: str, old: int, new: int) -> VersionDiff:
        """Say what version `new` means for running instances of version `old`."""
        path = f"/v1/workflows/{segment(name)}:diff"
        answer = self._read(path, "diff_versions", **{"from": str(old), "to": str(new)})
        return models.read(answer.data, VersionDiff)

    def set_default_version(
        self, name: str, version: int | None, key: str, *, reason: str, expected_revision: int | None = None
    ) -> WorkflowChangeResult:
        """Pin the version that a start without a number runs; with None let it be the highest again.

        Raises APIError STATE_CONFLICT for a retired version, or a workflow at another revision.
        """
        body: dict[str, Any] = {} if version is None else {"version": version}
        return self._change(f"/v1/workflows/{segment(name)}:set-default", key, body | {"reason": reason},
                            expected_revision)  # fmt: skip

    def deprecate_version(
        self, name: str, version: int, key: str, *, reason: str, expected_revision: int | None = None
    ) -> WorkflowChangeResult:
        """Let starts of a version warn, with this reason."""
        return self._change(_verb(name, version, "deprecate"), key, {"reason": reason}, expected_revision)

    def retire_version(
        self, name: str, version: int, key: str, *, reason: str, expected_revision: int | None = None
    ) -> WorkflowChangeResult:
        """Refuse starts of a version; instances that run go on. Raises APIError STATE_CONFLICT for a pinned default."""
        return self._change(_verb(name, version, "retire"), key, {"reason": reason}, expected_revision)

    def activate_version(
        self, name: str, version: int, key: str, *, reason: str, expected_revision: int | None = None
    ) -> WorkflowChangeResult:
        """Take a deprecated or retired version back into use."""
        return self._change(_verb(name, version, "activate"), key, {"reason": reason}, expected_revision)

    def _change(self, path: str, key: str, body: dict[str, Any], expected_revision: int | None) -> WorkflowChangeResult:
        if expected_revision is not None:
            body = body | {"expected_revision": str(expected_revision)}
        operation = path.rpartition(":")[2].replace("-", "_")
        return models.read(self._write(path, operation, key, jsontext.dumps(body)), WorkflowChangeResult)


def _verb(name: str, version: int, verb: str) -> str:
    return f"/v1/workflows/{segment(name)}/versions/{version}:{verb}"
