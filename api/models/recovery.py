"""Requests and answers of what people decide about tasks: reviews, retries, other times."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.answers import OutputReference
from api.models.fields import Count, HexId, Instant, Priority, Reason, Request, Revision, raw_schema

EVIDENCE_BYTES_MAX = 16 * 1024

Evidence = Annotated[Raw, raw_schema("What the decision rests on: any JSON but null, up to 16 KiB")]
Statement = Annotated[
    str,
    Meta(
        min_length=1, max_length=1024, pattern=r"\S", description="Why another attempt can't repeat an outside effect"
    ),
]


class LateResult(Request, frozen=True, kw_only=True):
    """A report that came after its attempt had ended, as the task's attempts show it."""

    attempt_id: HexId
    message_id: HexId


class ReviewTask(Request, frozen=True, kw_only=True):
    """Settle a task under review; RETRY needs a safety statement, SUCCEEDED may carry the result.

    `late_result` names a report that came late: with SUCCEEDED its result is the task's, with FAILED its error.
    """

    expected_revision: Revision
    verdict: Literal["SUCCEEDED", "FAILED", "RETRY"]
    evidence: Evidence
    reason: Reason
    safety_statement: Statement | None = None
    output: Annotated[Raw, raw_schema("The result vouched for, up to 64 KiB; default null")] | UnsetType = UNSET
    late_result: LateResult | None = None


class RetryTask(Request, frozen=True, kw_only=True):
    """Make a new task in place of one that ended FAILED or CANCELLED."""

    expected_revision: Revision
    evidence: Evidence
    reason: Reason
    safety_statement: Statement


class RescheduleTask(Request, frozen=True, kw_only=True):
    """Move a waiting task to another time or priority, or both."""

    expected_revision: Revision
    reason: Reason
    available_at: Instant | None = None
    priority: Priority | None = None


class DecidedTask(Struct, kw_only=True):
    """A task after a decision."""

    id: HexId
    state: str
    revision: Count


class DecisionResult(Struct, kw_only=True):
    """The receipt of a decision."""

    deduplicated: bool
    task: DecidedTask


class RetryResult(Struct, kw_only=True):
    """The receipt of a retry: the new task."""

    deduplicated: bool
    task: dict[str, Any]


class Verdict(Struct, kw_only=True):
    """What was decided about a task, by a person or a verification, with all that it rests on.

    `kind` is SUCCEEDED, FAILED or RETRY of a review, or SUCCESSOR: it was retried as a new task.
    """

    id: HexId
    kind: str
    reason: str
    evidence: Any
    safety_statement: str | None
    output: Any
    output_ref: OutputReference | None
    late_result: LateResult | None
    actor: str
    created_at: Instant
