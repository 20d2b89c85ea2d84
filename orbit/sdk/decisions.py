"""What the client sends and gets of decisions about tasks (reviews, retries, other times), and why one waits."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from orbit.sdk.type_models import OutputReference
from orbit.sdk.wire import Request


class Decision(Request, frozen=True, kw_only=True):
    """What every decision says: on top of which revision, and why."""

    expected_revision: int
    reason: str

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class LateResult(Request, frozen=True, kw_only=True):
    """Names a report that came after its attempt had ended: its attempt, and `message_id` as `late` shows it."""

    attempt_id: str = ""
    message_id: str = ""


class ReviewTask(Decision, frozen=True, kw_only=True):
    """A person's verdict on a task under review, on top of the revision that was read.

    `verdict` is SUCCEEDED (with `output`, the result vouched for), FAILED or RETRY (with `safety_statement`: why
    another attempt can't repeat an outside effect). `evidence` is any JSON that is not empty, up to 16 KiB.
    `late_result` names a report that came too late: its result, with FAILED its error, is then the task's.
    """

    verdict: str
    evidence: Any
    safety_statement: str | None = None
    output: Any = UNSET
    late_result: LateResult | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """What was decided about a task, by a person or a verification, with all that it rests on.

    `kind` is SUCCEEDED, FAILED or RETRY of a review, or SUCCESSOR: it was retried as a new task.
    """

    id: str = ""
    kind: str = ""
    reason: str = ""
    evidence: Any = None
    safety_statement: str | None = None
    output: Any = None
    output_ref: OutputReference | None = None
    late_result: LateResult | None = None
    actor: str = ""
    created_at: str = ""


class RetryTask(Decision, frozen=True, kw_only=True):
    """The wish to do a task that ended FAILED or CANCELLED again, as a new task."""

    evidence: Any
    safety_statement: str


class RescheduleTask(Decision, frozen=True, kw_only=True):
    """Another time (RFC 3339) or priority for a waiting task, or both."""

    available_at: str | None = None
    priority: int | None = None


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a task waits: the first thing in its way, and the figures of all that could be."""

    task_id: str = ""
    state: str = ""
    reason: str | None = None
    details: dict[str, Any] = {}


class DecidedTask(Struct, frozen=True, kw_only=True):
    """A task after a review or a move."""

    id: str = ""
    state: str = ""
    revision: int = 0


class DecisionResult(Struct, frozen=True, kw_only=True):
    """The receipt of a review or a move."""

    deduplicated: bool = False
    task: DecidedTask = DecidedTask()
