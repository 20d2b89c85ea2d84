"""Answers of the workflow and instance resources; their inner forms are the engine's and the compiler's."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from api.models.fields import Count, HexId, Instant
from api.models.tasks import Verification
from api.models.versions import Bounds, Notice


class CheckResult(Struct, kw_only=True):
    """What the compiler says of a text: no findings and its bounds, or all findings."""

    valid: bool
    findings: list[dict[str, Any]]
    bounds: Bounds | None


class Graph(Struct, kw_only=True):
    """The compiled step graph: nodes in topological order, edges by index."""

    format: int
    nodes: list[dict[str, Any]]
    edges: list[Any]


class ParentLink(Struct, kw_only=True):
    """Whose child an instance is: the parent, the step that has started it, and that step's round."""

    id: HexId
    step: str
    round: int


class Instance(Struct, kw_only=True):
    """An instance; `started_by` is a credential's id or schedule:ID; `input` and `output` where one is read."""

    id: HexId
    workflow: str
    version: int
    state: str
    ending_as: str | None
    compensation: str | None
    revision: Count
    control: str
    pause: dict[str, Any] | None
    business_key: str | None
    forked_from: HexId | None
    parent: ParentLink | None
    root_id: HexId
    started_by: str
    labels: dict[str, str]
    error: dict[str, Any] | None
    started_at: Instant
    deadline_at: Instant
    finished_at: Instant | None
    input: Any = None
    output: Any = None


class InstanceGraph(Struct, kw_only=True):
    """The step graph of an instance's version, and the state of each step by id."""

    format: int
    nodes: list[dict[str, Any]]
    edges: list[Any]
    states: dict[str, str]


class InstanceResult(Struct, kw_only=True):
    """The receipt of a start; a replay adds `current`, `existing` is an unfinished instance with the business key."""

    deduplicated: bool
    instance: Instance
    existing: bool | UnsetType = UNSET
    warnings: list[Notice] | UnsetType = UNSET
    current: dict[str, Any] | UnsetType = UNSET


class Step(Struct, kw_only=True):
    """A step of an instance, with the task or the child that does its work; `items` counts those of a foreach."""

    id: str
    kind: str
    title: str | None
    state: str
    reason: str | UnsetType | None = UNSET
    round: int | UnsetType = UNSET
    retries: int | UnsetType | None = UNSET  # by its error handlers
    effect_unknown: bool | UnsetType = UNSET  # a task of it ended although its effect is possible
    task_id: HexId | UnsetType | None = UNSET
    child_id: HexId | UnsetType | None = UNSET
    error: dict[str, Any] | UnsetType | None = UNSET
    verification: Verification | UnsetType | None = UNSET
    items: dict[str, int] | UnsetType | None = UNSET


class Item(Struct, kw_only=True):
    """An item of a foreach: its steps, and what it has left for the list of results; null until it has ended."""

    index: int
    steps: list[Step]
    result: Any


class HistoryEntry(Struct, kw_only=True):
    """What happened, in order: `index` counts within the advance that `revision` names."""

    revision: Count
    index: int
    at: Instant
    type: str
    step: str | None
    data: dict[str, Any]


class InstanceExplanation(Struct, kw_only=True):
    """Why an instance is not moving, in words and data."""

    state: str
    summary: str
    waits_for: list[dict[str, Any]]
