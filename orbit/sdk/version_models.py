"""What the client gets about workflows and their versions; how it is read is `orbit.sdk.models`' rule."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Notice(Struct, frozen=True, kw_only=True):
    """Something that was accepted and deserves a look."""

    code: str = ""
    message: str = ""


class VersionDiff(Struct, frozen=True, kw_only=True):
    """What a version means for running instances of the version `against`."""

    against: int = 0
    verdict: str = ""
    at: list[str] = []
    mapping: dict[str, str] = {}
    reasons: list[dict[str, Any]] = []


class Workflow(Struct, frozen=True, kw_only=True):
    """A workflow, with the version that a start without a number runs.

    In a list it has the number of its versions, retired ones included, and the highest; elsewhere both are 0.
    """

    workflow: str = ""
    default_version: int = 0
    default_pinned: bool = False
    revision: int = 0
    created_at: str = ""
    versions: int = 0
    highest_version: int = 0


class WorkflowVersion(Struct, frozen=True, kw_only=True):
    """A published version: ACTIVE, DEPRECATED (starts warn) or RETIRED (starts are refused)."""

    workflow: str = ""
    version: int = 0
    title: str | None = None
    state: str = ""
    state_reason: str | None = None
    state_changed_at: str | None = None
    digest: str = ""
    published_by: str = ""
    published_at: str = ""
    source: str | None = None


class WorkflowChangeResult(Struct, frozen=True, kw_only=True):
    """The receipt of a change of the default or of a version's state."""

    deduplicated: bool = False
    workflow: Workflow = Workflow()
    version: WorkflowVersion = WorkflowVersion()


class PublishResult(Struct, frozen=True, kw_only=True):
    """The receipt of a publication."""

    deduplicated: bool = False
    workflow: str = ""
    version: int = 0
    title: str | None = None
    digest: str = ""
    bounds: dict[str, Any] = {}
    diff: VersionDiff | None = None
    warnings: list[Notice] = []


class CheckResult(Struct, frozen=True, kw_only=True):
    """What the compiler says of a definition: valid with its bounds, or all findings."""

    valid: bool = False
    findings: list[dict[str, Any]] = []
    bounds: dict[str, Any] | None = None
