"""What the client can do with whole instances: fork them, let them go on with another version, draw them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.models import ControlledInstance, Instance
from orbit.sdk.transport import Exchange
from orbit.sdk.version_models import Notice


class ForkResult(Struct, frozen=True, kw_only=True):
    """The receipt of a fork, or with `dry_run` what it would be: what is copied, and what runs again."""

    deduplicated: bool = False
    dry_run: bool = False
    forked_from: str = ""
    version: int = 0
    step: str = ""
    copied: list[str] = []
    again: list[str] = []
    instance: Instance | None = None
    warnings: list[Notice] = []


class MigrationResult(Struct, frozen=True, kw_only=True):
    """The receipt of a migration, or with `dry_run` that it could be; `verdict` is the diff's for all instances."""

    deduplicated: bool = False
    dry_run: bool = False
    from_version: int = 0
    to_version: int = 0
    verdict: str = ""
    instance: ControlledInstance = ControlledInstance()


class Explanation(Struct, frozen=True, kw_only=True):
    """Why an instance is not moving: in a sentence, and one reason for each thing that it waits for."""

    state: str = ""
    summary: str = ""
    waits_for: list[dict[str, Any]] = []


class InstanceMoveCalls(Calls):
    """The part of `orbit.Client` that moves whole instances."""

    def fork_instance(self, instance_id: str, key: str, *, step: str, reason: str, **fields: Any) -> ForkResult:
        """Start a new instance that copies what lies before a step, and runs that step and what is behind it.

        `fields` are `version`, `business_key`, `labels`, `safety_statement`, `dry_run` and `expected_revision`. Raises
        APIError STATE_CONFLICT for an instance that runs, and for a step that it never came to.
        """
        body = _body(fields | {"step": step, "reason": reason})
        path = f"/v1/instances/{segment(instance_id)}:fork"
        return models.read(self._write(path, "fork_instance", key, body), ForkResult)

    def migrate_instance(
        self, instance_id: str, key: str, *, version: int, reason: str, **fields: Any
    ) -> MigrationResult:
        """Let a running instance go on with another version of its workflow.

        `fields` are `dry_run` and `expected_revision`. Raises APIError STATE_CONFLICT, with the `reasons` in its
        details, for one that has begun what the version changes.
        """
        body = _body(fields | {"version": version, "reason": reason})
        path = f"/v1/instances/{segment(instance_id)}:migrate"
        return models.read(self._write(path, "migrate_instance", key, body), MigrationResult)

    def explain_instance(self, instance_id: str) -> Explanation:
        """Say why an instance is not moving."""
        answer = self._read(f"/v1/instances/{segment(instance_id)}:explain", "explain_instance")
        return models.read(answer.data, Explanation)

    def instance_graph(self, instance_id: str, *, form: str = "svg") -> str:
        """Draw an instance with the state of each step, as `svg` or `mermaid` text."""
        path = f"/v1/instances/{segment(instance_id)}/graph"
        exchange = Exchange("GET", path, "instance_graph", query={"format": form}, is_text=True)
        return str(self._transport.send(exchange).data)


def _body(fields: dict[str, Any]) -> bytes:
    revision = fields.pop("expected_revision", None)
    known = {name: value for name, value in fields.items() if value is not None}
    return jsontext.dumps(known if revision is None else known | {"expected_revision": str(revision)})
