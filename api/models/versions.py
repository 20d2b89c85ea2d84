"""Answers about workflows and their published versions."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from api.models.fields import Count, Instant


class Bounds(Struct, kw_only=True):
    """The proven maxima of one instance."""

    tasks: int
    attempts: int
    rounds: int
    concurrent_tasks: int
    stored_bytes: int
    active_seconds: float
    lingering_tasks: int = 0


class Notice(Struct, kw_only=True):
    """Something that was accepted and deserves a look."""

    code: str
    message: str


class Workflow(Struct, kw_only=True):
    """A workflow, with the version that a start without a number runs and whether a person has pinned that."""

    workflow: str
    default_version: int
    default_pinned: bool
    revision: Count
    created_at: Instant


class ListedWorkflow(Workflow, kw_only=True):
    """A workflow in a list, with how many versions it has, retired ones included, and the highest number."""

    versions: int
    highest_version: int


class WorkflowVersion(Struct, kw_only=True):
    """A published version of a workflow; `source` where one is read."""

    workflow: str
    version: int
    title: str | None
    state: str
    state_reason: str | None
    state_changed_at: Instant | None
    digest: str
    published_by: str
    published_at: Instant
    source: str | UnsetType = UNSET


class VersionDiff(Struct, kw_only=True):
    """What a version means for running instances of the version `against`."""

    against: int
    verdict: str
    at: list[str]
    mapping: dict[str, str]
    reasons: list[dict[str, Any]]


class PublishResult(Struct, kw_only=True):
    """The receipt of a publication; the same content again is `deduplicated`.

    `diff` is against what was the default version until then; null for a workflow's first version.
    """

    deduplicated: bool
    workflow: str
    version: int
    title: str | None
    digest: str
    bounds: Bounds
    diff: VersionDiff | None
    warnings: list[Notice]


class WorkflowChangeResult(Struct, kw_only=True):
    """The receipt of a change of the default or of a version's state."""

    deduplicated: bool
    workflow: Workflow
    version: WorkflowVersion
