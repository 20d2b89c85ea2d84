"""Requests and answers of the task resource."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.answers import ErrorContent, OutputReference
from api.models.fields import (
    AttemptTimeoutSeconds,
    BusinessKey,
    ConcurrencyKey,
    Count,
    DelaySeconds,
    FairnessKey,
    HexId,
    IdempotencyKey,
    Instant,
    Labels,
    Name,
    Priority,
    Reason,
    Request,
    TaskVersion,
    Traceparent,
    raw_schema,
)
from orbit.clock import SECOND
from pulse.limits import ATTEMPTS_MAX, BACKOFF_MICROS_CAP_MAX, BATCH_ITEMS_MAX, CONCURRENCY_KEYS_MAX

_BACKOFF_MAX = BACKOFF_MICROS_CAP_MAX // SECOND


class Retry(Request, frozen=True, kw_only=True):
    """How failed attempts are repeated; the back-off doubles, with full jitter."""

    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX, description="Default 3")] | None = None
    backoff_seconds: Annotated[float, Meta(ge=0.1, le=_BACKOFF_MAX, description="Default 2")] | None = None
    backoff_seconds_max: Annotated[float, Meta(ge=0.1, le=_BACKOFF_MAX, description="Default 300")] | None = None


class SubmitTask(Request, frozen=True, kw_only=True):
    """Submit a task; its params and its policy are frozen at acceptance."""

    queue: Name
    type: Name
    version: TaskVersion
    params: Annotated[Raw, raw_schema("Any JSON of up to 64 KiB, kept as it was sent; default null")] | UnsetType = (
        UNSET
    )
    params_version: Annotated[str, Meta(min_length=1, max_length=64, description='Default "1"')] | None = None
    available_at: Instant | None = None
    delay_seconds: DelaySeconds | None = None
    start_deadline_at: Instant | None = None
    deadline_at: Instant | None = None
    attempt_timeout_seconds: AttemptTimeoutSeconds | None = None
    priority: Priority | None = None
    retry: Retry | None = None
    business_key: BusinessKey | None = None
    concurrency_keys: (
        Annotated[
            list[ConcurrencyKey],
            Meta(
                max_length=CONCURRENCY_KEYS_MAX,
                description="Keys that the task holds while it is LEASED or RUNNING: all of them, or it waits",
            ),
        ]
        | None
    ) = None
    fairness_key: FairnessKey | None = None
    labels: Labels | None = None
    derived_from: HexId | None = None
    traceparent: Traceparent | None = None


class BatchItem(SubmitTask, frozen=True, kw_only=True):
    """A task of a batch, with an identity of its own."""

    idempotency_key: IdempotencyKey


class SubmitBatch(Request, frozen=True, kw_only=True):
    """Submit up to 32 tasks; each is accepted or refused on its own."""

    # Kept raw, because one bad item must not refuse the others.
    items: Annotated[
        list[Annotated[Raw, raw_schema("A task", {"$ref": "#/components/schemas/BatchItem"})]],
        Meta(min_length=1, max_length=BATCH_ITEMS_MAX),
    ]


class CancelTask(Request, frozen=True, kw_only=True):
    """Cancel a task, or ask its running handler to stop."""

    reason: Reason


class RetryPolicy(Struct, kw_only=True):
    """A task's frozen retry policy."""

    max_attempts: int
    backoff_seconds: float
    backoff_seconds_max: float


class Source(Struct, kw_only=True):
    """What a task comes from directly: `step` and `round` of a workflow's instance, `scheduled_at` of a schedule."""

    kind: str
    id: HexId | None
    step: str | None = None
    round: int | None = None
    scheduled_at: Instant | None = None


class TaskError(Struct, kw_only=True, rename={"class_": "class"}):
    """A failure: the worker's classification, and its code and words."""

    code: str
    message: str
    class_: str | None = None
    details: Any = None


class Verification(Struct, kw_only=True):
    """What another task finds out, or found out, about an unknown outcome; `outcome` is null until it is settled."""

    task_id: HexId | None
    state: str
    outcome: str | None
    attempt_id: HexId
    created_at: Instant
    settled_at: Instant | None


class Task(Struct, kw_only=True, rename={"type_": "type"}):
    """A task as it is now; `attempts` counts granted Starts, `wait_reason` tells why it waits.

    `recovery` is the safety of its registered type, frozen; null if the type is not registered. What the type masks is
    shown as `[redacted]`.
    """

    id: HexId
    namespace_id: HexId
    queue: str
    type_: str
    version: int
    state: str
    wait_reason: str | None
    revision: Count
    priority: int
    params: Any
    params_version: str
    business_key: str | None
    concurrency_keys: list[str]
    fairness_key: str | None
    labels: dict[str, str]
    source: Source
    operation_id: HexId
    retry_of: HexId | None
    derived_from: HexId | None
    traceparent: str | None
    accepted_at: Instant
    available_at: Instant
    start_deadline_at: Instant | None
    deadline_at: Instant
    finished_at: Instant | None
    attempt_timeout_seconds: float
    retry: RetryPolicy
    attempts: int
    attempts_failed: int
    attempts_lost: int
    deferrals: int
    cancel_requested_at: Instant | None
    recovery: str | None
    verification: Verification | None
    error: TaskError | None
    output: Any
    output_ref: OutputReference | None


class AcceptedTask(Struct, kw_only=True, rename={"type_": "type"}):
    """A task as it was accepted; what it is now is read by its id."""

    id: HexId
    queue: str
    type_: str
    version: int
    state: str
    accepted_at: Instant
    available_at: Instant
    deadline_at: Instant
    revision: Count


class CurrentTask(Struct, kw_only=True):
    """What a replayed task is now."""

    state: str
    revision: Count


class TaskResult(Struct, kw_only=True, omit_defaults=True):
    """The receipt of a submission; a replay adds `current`."""

    deduplicated: bool
    task: AcceptedTask
    current: CurrentTask | UnsetType = UNSET


class BatchItemResult(Struct, kw_only=True):
    """What became of one item: the status and `data` or `error` that it would have got alone."""

    index: int
    status: int
    data: TaskResult | UnsetType = UNSET
    error: ErrorContent | UnsetType = UNSET


class BatchResult(Struct, kw_only=True):
    """What became of a batch, in the order of its items."""

    items: list[BatchItemResult]


class CancelledTask(Struct, kw_only=True):
    """A task after a cancel; `cancel_requested` says that its handler is asked to stop."""

    id: HexId
    state: str
    cancel_requested: bool


class CancelResult(Struct, kw_only=True):
    """The receipt of a cancel."""

    deduplicated: bool
    task: CancelledTask


class Attempt(Struct, kw_only=True, rename={"type_": "type"}):
    """One dispatch and execution; `late` are reports that came after its end, kept as evidence."""

    id: HexId
    number: int
    state: str
    type_: str
    version: int
    worker: str | None
    session_id: HexId
    node: str | None
    leased_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    error: TaskError | None
    progress: Any
    late: list[dict[str, Any]]


class Explanation(Struct, kw_only=True):
    """Why a task waits: the first thing that stands in its way, and figures; null if it does not wait."""

    task_id: HexId
    state: str
    reason: str | None
    details: dict[str, Any]
