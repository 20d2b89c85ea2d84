"""Requests and answers of batches: one decision about many tasks or instances, carried out item by item."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.fields import LABEL_LENGTH_MAX, BusinessKey, Count, HexId, Instant, Name, Reason, Request, raw_schema
from api.models.recovery import Evidence, Statement
from pulse.limits import BATCH_RATE_DEFAULT, BATCH_RATE_MAX, BATCH_RATE_MIN

# How many ids fit into a body with the rest of it; a filter may select more.
IDS_MAX = 10_000

Operation = Literal[
    "task.cancel",
    "task.review",
    "task.retry",
    "instance.pause",
    "instance.resume",
    "instance.cancel",
    "instance.recover",
    "instance.migrate",
]
Version = Annotated[int, Meta(ge=1, le=2**31 - 1, description="Of the workflow")]
RatePerSecond = Annotated[
    float,
    Meta(
        ge=BATCH_RATE_MIN,
        le=BATCH_RATE_MAX,
        description=f"Most items decided in a second; default {BATCH_RATE_DEFAULT:g}",
    ),
]


class TaskSelection(Request, frozen=True, kw_only=True):
    """Which tasks: the named ones, or those of a filter that could be meant and that no workflow owns."""

    ids: Annotated[list[HexId], Meta(min_length=1, max_length=IDS_MAX)] | None = None
    queue: Name | None = None
    state: Literal["WAITING", "LEASED", "RUNNING", "NEEDS_REVIEW", "FAILED", "CANCELLED"] | None = None
    type: Name | None = None
    business_key: BusinessKey | None = None
    source: Annotated[str, Meta(max_length=64, description="Such as workflow:INSTANCE_ID")] | None = None
    label: Annotated[str, Meta(max_length=LABEL_LENGTH_MAX, description="As name=value")] | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None


class InstanceSelection(Request, frozen=True, kw_only=True):
    """Which instances: the named ones, or those of a filter that could be meant, by workflow, business key or label."""

    ids: Annotated[list[HexId], Meta(min_length=1, max_length=IDS_MAX)] | None = None
    workflow: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    version: Version | None = None
    state: Literal["RUNNING", "NEEDS_RECOVERY", "ENDING", "COMPENSATING"] | None = None
    control: Literal["ACTIVE", "PAUSING", "PAUSED"] | None = None
    business_key: BusinessKey | None = None
    label: Annotated[str, Meta(max_length=LABEL_LENGTH_MAX, description="As name=value")] | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None


class PreviewBatch(Request, frozen=True, kw_only=True):
    """Say what a batch would be about, and change nothing."""

    operation: Operation
    tasks: TaskSelection | None = None
    instances: InstanceSelection | None = None


class CreateBatch(Request, frozen=True, kw_only=True):
    """Decide about many tasks or instances.

    A review needs a verdict and evidence, a retry evidence and a safety statement, a recovery an action and evidence, a
    migration a version. A recovery without a step is about the one that has failed in each instance. With `compensate`
    cancelled instances undo first what their steps have done.
    """

    operation: Operation
    tasks: TaskSelection | None = None
    instances: InstanceSelection | None = None
    reason: Reason
    action: Literal["RETRY", "COMPLETE", "FAIL", "SKIP"] | None = None
    step: Annotated[str, Meta(min_length=1, max_length=128, description="Id of the step to recover")] | None = None
    version: Version | None = None
    compensate: bool | None = None
    rate_per_second: RatePerSecond | None = None
    verdict: Literal["SUCCEEDED", "FAILED", "RETRY"] | None = None
    evidence: Evidence | UnsetType = UNSET
    safety_statement: Statement | None = None
    output: Annotated[Raw, raw_schema("The result vouched for, of each task; default null")] | UnsetType = UNSET


class StopBatch(Request, frozen=True, kw_only=True):
    """Stop a batch before its next item."""

    reason: Reason


class ItemCounts(Struct, kw_only=True):
    """How many items a batch has, and how many are in each state."""

    all: int
    pending: int
    done: int
    refused: int
    stopped: int


class Batch(Struct, kw_only=True):
    """A batch as it is now."""

    id: HexId
    operation: str
    state: str
    selection: dict[str, Any]
    rate_per_second: float
    reason: str
    actor: str
    created_at: Instant
    finished_at: Instant | None
    revision: Count
    items: ItemCounts


class BatchReceipt(Struct, kw_only=True):
    """The receipt of a creation or a stop: the batch as it was at that moment."""

    deduplicated: bool
    batch: Batch


class SelectedSubject(Struct, kw_only=True, rename={"type_": "type"}):
    """A task (with queue and type) or an instance (with workflow and control) that would be an item."""

    id: HexId
    state: str
    version: int
    revision: Count
    queue: str | UnsetType = UNSET
    type_: str | UnsetType = UNSET
    workflow: str | UnsetType = UNSET
    control: str | UnsetType = UNSET


class BatchPreview(Struct, kw_only=True):
    """What would be decided about: how many tasks or instances by state, and the first of them."""

    operation: str
    count: int
    by_state: dict[str, int]
    first: list[SelectedSubject]


class BatchEntry(Struct, kw_only=True):
    """One item of a batch; `outcome` is what came of it, or code and message of the refusal."""

    position: int
    subject_id: HexId
    subject_revision: Count
    state: str
    outcome: Any
    done_at: Instant | None
