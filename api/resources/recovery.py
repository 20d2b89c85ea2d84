"""What people decide about tasks: settle a review, retry what ended, move what waits. The rules are Pulse's."""

from __future__ import annotations

import json

from msgspec import UNSET, Raw

from api.calls import Call, Operation, Reply
from api.models.fields import revision_number
from api.models.recovery import (
    EVIDENCE_BYTES_MAX,
    DecisionResult,
    LateResult,
    RescheduleTask,
    RetryResult,
    RetryTask,
    ReviewTask,
)
from api.models.recovery import Verdict as VerdictShown
from orbit.access import Scope
from orbit.clock import from_rfc3339
from orbit.database import Database
from orbit.errors import InvalidRequest, NotFound, PayloadTooLarge
from orbit.ids import from_hex
from orbit.jsontext import Json
from pulse.limits import OUTPUT_BYTES_MAX
from pulse.node import PulseNode
from pulse.reschedule import Reschedule, task_reschedule
from pulse.review import Decided, Verdict, task_retry, task_review
from pulse.store.recover import LateKey
from pulse.tasks import task_get
from pulse.verdicts import verdicts_list

_MISSING = "no such task"
_REVISION = "/expected_revision"


class TaskRecovery:
    """`:review`, `:retry` and `:reschedule` of tasks, and what was decided about each."""

    def __init__(self, database: Database, pulse: PulseNode) -> None:
        self._database = database
        self._pulse = pulse

    def operations(self) -> list[Operation]:
        """Declare them."""
        scope = Scope.TASKS_RECOVER
        return [
            Operation(
                "POST", "/v1/tasks/{task_id}:review", "Settle a task under review", self.review, scope, DecisionResult,
                ReviewTask, keyed=True,
            ),
            Operation(
                "POST", "/v1/tasks/{task_id}:retry", "Retry an ended task as a new one", self.retry, scope, RetryResult,
                RetryTask, keyed=True, creates=True,
            ),
            Operation(
                "POST", "/v1/tasks/{task_id}:reschedule", "Move a waiting task to another time or priority",
                self.reschedule, scope, DecisionResult, RescheduleTask, keyed=True,
            ),
            Operation(
                "GET", "/v1/tasks/{task_id}/verdicts", "List what was decided about a task, in order", self.verdicts,
                Scope.TASKS_READ, VerdictShown, is_page=True,
            ),
        ]  # fmt: skip

    def review(self, call: Call) -> Reply:
        """Settle a task under review."""
        body = call.model(ReviewTask)
        output = None if body.output is UNSET else bytes(body.output)
        if output is not None and len(output) > OUTPUT_BYTES_MAX:
            message = f"an output may have {OUTPUT_BYTES_MAX} bytes"
            raise PayloadTooLarge(message, pointer="/output")
        if output is not None and body.verdict != Verdict.SUCCEEDED:
            message = "only the verdict SUCCEEDED has an output"
            raise InvalidRequest(message, pointer="/output")
        if output is not None and body.late_result is not None:
            raise InvalidRequest("the late result's output is taken: give none beside it", pointer="/output")
        decided = Decided(
            task_id=self._in_range(call),
            expected_revision=revision_number(body.expected_revision, pointer=_REVISION),
            evidence=evidence_read(body.evidence),
            reason=body.reason,
            safety_statement=body.safety_statement,
            output=output,
            late=None if body.late_result is None else _late(body.late_result),
            verdict=Verdict(body.verdict),
        )
        command = call.command("task.review", resource=decided.task_id.hex())
        answer = self._database.transaction(lambda tx: task_review(tx, command, call.actor, decided, self._pulse))
        return call.receipt(answer, creates=False)

    def retry(self, call: Call) -> Reply:
        """Retry a task that ended FAILED or CANCELLED as a new task."""
        body = call.model(RetryTask)
        decided = Decided(
            task_id=self._in_range(call),
            expected_revision=revision_number(body.expected_revision, pointer=_REVISION),
            evidence=evidence_read(body.evidence),
            reason=body.reason,
            safety_statement=body.safety_statement,
        )
        command = call.command("task.retry", resource=decided.task_id.hex())
        answer = self._database.transaction(lambda tx: task_retry(tx, command, call.actor, decided, self._pulse))
        return call.receipt(answer, creates=True)

    def reschedule(self, call: Call) -> Reply:
        """Move a waiting task."""
        body = call.model(RescheduleTask)
        if body.available_at is None and body.priority is None:
            message = "available_at or priority is required"
            raise InvalidRequest(message, pointer="/available_at")
        at = None if body.available_at is None else from_rfc3339(body.available_at, pointer="/available_at")
        change = Reschedule(
            task_id=self._in_range(call),
            expected_revision=revision_number(body.expected_revision, pointer=_REVISION),
            reason=body.reason,
            priority=body.priority,
            available_at=at,
        )
        command = call.command("task.reschedule", resource=change.task_id.hex())
        answer = self._database.transaction(lambda tx: task_reschedule(tx, command, call.actor, change, self._pulse))
        return call.receipt(answer, creates=False)

    def verdicts(self, call: Call) -> Reply:
        """List what was decided about a task; nobody decides so often that it does not fit on a page."""
        task_id = self._in_range(call)
        return call.page(self._database.transaction(lambda tx: verdicts_list(tx, call.namespace_id, task_id)), None)

    def _in_range(self, call: Call) -> bytes:
        """Return the task's id if its queue is in the caller's range."""
        task_id = call.path_id("task_id", message=_MISSING)
        view = self._database.transaction(lambda tx: task_get(tx, call.namespace_id, task_id))
        if not call.caller.covers(view.queue):
            raise NotFound(_MISSING)
        return task_id


def _late(named: LateResult) -> LateKey:
    attempt_id = from_hex(named.attempt_id, pointer="/late_result/attempt_id")
    return LateKey(attempt_id, from_hex(named.message_id, pointer="/late_result/message_id"))


def evidence_read(raw: Raw) -> Json:
    """Read evidence; raises PayloadTooLarge, and InvalidRequest for what says nothing."""
    text = bytes(raw)
    if len(text) > EVIDENCE_BYTES_MAX:
        message = f"evidence may have {EVIDENCE_BYTES_MAX} bytes: keep more elsewhere and pass a reference and a hash"
        raise PayloadTooLarge(message, pointer="/evidence")
    value: Json = json.loads(text)
    if value in (None, "", {}, []):
        message = "a decision needs evidence"
        raise InvalidRequest(message, pointer="/evidence")
    return value
