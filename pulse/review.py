"""What a person decides: the verdict on an unknown outcome, and the retry of an ended task.

No verdict without evidence and reason; where another attempt follows, a statement why it can't repeat an effect. A
review may name a report that came late: its result is then the task's, as it was sent. A review's RETRY goes on with
the same task, one more attempt. A manual retry makes a NEW task: the ended one keeps its end and its result, its
successor has the same params and policy, its operation id and a rising fencing number; at most one task succeeds
another. Locks: the task; counters last, in `settle` and `tasks_submit`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from orbit.errors import InvalidRequest, NotFound, OrbitError, OwnedByWorkflow, StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.jsontext import Json, dumps
from orbit.store.journal import Actor, AuditRecord, audit_insert
from pulse.policy import Decision, Finish, Requeue, TaskError, passed_deadline
from pulse.report import settled_state
from pulse.requests import RetryPolicy, TaskRequest
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import ErrorClass, SourceKind, TaskState
from pulse.store.recover import LateKey, VerdictRow, attempt_grant, request_row, successor_find, verdict_insert
from pulse.store.rows import LockedTask, tasks_lock
from pulse.submission import Submit, tasks_submit
from pulse.verdicts import LateReport, late_report

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Verdict(StrEnum):
    """What a person says of a task under review."""

    SUCCEEDED = "SUCCEEDED"  # the effect happened; the result is given
    FAILED = "FAILED"  # it did not, or does not count
    RETRY = "RETRY"  # the same task, one more attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A person's decision about one task.

    `evidence` is JSON, `output` JSON text of the result vouched for; `late` names the late report that settles it.
    `verdict` is None for the retry of an ended task.
    """

    task_id: bytes
    expected_revision: int
    evidence: Json
    reason: str
    safety_statement: str | None = None
    output: bytes | None = None
    verdict: Verdict | None = None
    late: LateKey | None = None


def task_review(tx: Transaction, command: Command, actor: Actor, decided: Decided, around: Surroundings) -> Answer:
    """Settle a task in NEEDS_REVIEW, with verdict, audit and receipt, or replay the receipt.

    Raises NotFound, OwnedByWorkflow, StateConflict (state or revision), InvalidRequest: no safety statement for RETRY,
    a result that its type does not promise, a late report that is not there or says something else than the verdict.
    """
    return once(tx, command, lambda: review_now(tx, command.namespace_id, actor, decided, around))


def review_now(tx: Transaction, namespace_id: bytes, actor: Actor, decided: Decided, around: Surroundings) -> Made:
    """Settle a task in NEEDS_REVIEW, with verdict and audit, without a receipt. Raises as `task_review`."""
    task = _judged(tx, namespace_id, decided, frozenset({TaskState.NEEDS_REVIEW}))
    late = late_report(tx, task, decided.late, is_success=decided.verdict is Verdict.SUCCEEDED)
    output, reference = (decided.output, None) if late is None else (late.output, late.output_ref)
    if decided.verdict is Verdict.SUCCEEDED and reference is None:
        _check_result(tx, task, output, around, pointer="/output" if late is None else "/late_result")
    now = tx.now()
    decision = _decision(task, decided, late, now=now)
    if isinstance(decision, Requeue) and task.failed_count >= task.attempts_max:
        attempt_grant(tx, task.id, attempts_max=task.failed_count + 1)
    kept = _row(decided, decided.verdict or Verdict.FAILED, actor)
    verdict_insert(tx, replace(kept, output=output, output_ref=reference, late=decided.late), now=now)
    state = settled_state(decision)
    audit_insert(tx, _audit("task.review", task, actor, decided, after={"state": state}), now=now)
    settle(tx, [Settlement(task, decision)], around, now=now)
    return Made(task.id, {"task": {"id": task.id.hex(), "state": state, "revision": str(task.revision + 1)}})


def task_retry(tx: Transaction, command: Command, actor: Actor, decided: Decided, around: Surroundings) -> Answer:
    """Make the successor of a FAILED or CANCELLED task, with verdict, audit and receipt, or replay the receipt.

    Raises NotFound, OwnedByWorkflow, StateConflict (state, revision, or it has a successor), InvalidRequest, QueueFull.
    """
    return once(tx, command, lambda: retry_now(tx, command.namespace_id, actor, decided, around))


def retry_now(tx: Transaction, namespace_id: bytes, actor: Actor, decided: Decided, around: Surroundings) -> Made:
    """Make the successor of an ended task, with verdict and audit, without a receipt. Raises as `task_retry`."""
    task = _judged(tx, namespace_id, decided, frozenset({TaskState.FAILED, TaskState.CANCELLED}))
    if decided.safety_statement is None:
        raise InvalidRequest("a retry needs a safety statement", pointer="/safety_statement")
    successor = successor_find(tx, task.id)
    if successor is not None:
        details = _standing(task) | {"successor": successor.hex()}
        raise StateConflict("the task has a successor; retry that one", details=details)
    (outcome,) = tasks_submit(tx, [Submit(_successor(tx, task))], around)
    if isinstance(outcome, OrbitError):
        raise outcome
    now = tx.now()
    verdict_insert(tx, _row(decided, "SUCCESSOR", actor), now=now)
    after = {"state": task.state, "successor": outcome.subject_id.hex()}
    audit_insert(tx, _audit("task.retry", task, actor, decided, after=after), now=now)
    return Made(outcome.subject_id, outcome.data)


def _judged(tx: Transaction, namespace_id: bytes, decided: Decided, states: frozenset[TaskState]) -> LockedTask:
    task = tasks_lock(tx, [decided.task_id]).get(decided.task_id)
    if task is None or task.namespace_id != namespace_id:
        raise NotFound("no such task")
    if task.source_kind == SourceKind.WORKFLOW:
        raise OwnedByWorkflow("the task belongs to a workflow instance; recover the instance")
    if task.state not in states or task.revision != decided.expected_revision:
        message = f"the task is {task.state} at revision {task.revision}"
        raise StateConflict(message, details=_standing(task))
    return task


def _standing(task: LockedTask) -> dict[str, Json]:
    """Say where a task stands, for who is refused because of it."""
    return {"state": task.state, "current_revision": str(task.revision)}


def _check_result(
    tx: Transaction, task: LockedTask, output: bytes | None, around: Surroundings, *, pointer: str
) -> None:
    """Hold what a person vouches for to what a worker's result is held to."""
    if task.type_revision_id is None:
        return
    faults = around.catalog.revision(tx, task.type_revision_id).result_faults(output)
    if faults:
        message = f"the result does not fit the type's result schema: {faults[0].message}"
        raise InvalidRequest(message, pointer=pointer + (faults[0].pointer if pointer == "/output" else ""))


def _decision(task: LockedTask, decided: Decided, late: LateReport | None, *, now: Micros) -> Decision:
    match decided.verdict:
        case Verdict.SUCCEEDED:
            return Finish(TaskState.SUCCEEDED)
        case Verdict.FAILED | None:
            if late is not None and late.error is not None:
                return Finish(TaskState.FAILED, late.error)
            error = TaskError(ErrorClass.NON_RETRYABLE, "REVIEWED_FAILED", "a person judged that it failed")
            return Finish(TaskState.FAILED, error)
        case Verdict.RETRY:
            if decided.safety_statement is None:
                raise InvalidRequest("a retry needs a safety statement", pointer="/safety_statement")
            if task.cancel_requested_at is not None:
                raise StateConflict("a cancel is wanted; the task can't be retried", details=_standing(task))
            if passed_deadline(task.budget(), now=now) is not None:
                message = "the task's deadline has passed; settle it and retry it as a new task"
                raise StateConflict(message, details=_standing(task))
            return Requeue(now)


def _row(decided: Decided, kind: str, actor: Actor) -> VerdictRow:
    return VerdictRow(
        task_id=decided.task_id,
        kind=kind,
        safety_statement=decided.safety_statement,
        evidence=dumps(decided.evidence).decode(),
        reason=decided.reason,
        output=decided.output,
        actor=actor.name,
    )


def _audit(operation: str, task: LockedTask, actor: Actor, decided: Decided, *, after: Json) -> AuditRecord:
    return AuditRecord(
        namespace_id=task.namespace_id,
        actor=actor,
        operation=operation,
        subject_kind="task",
        subject_id=task.id,
        reason=decided.reason,
        before={"state": task.state, "revision": str(task.revision)},
        after=after,
    )


def _successor(tx: Transaction, task: LockedTask) -> TaskRequest:
    """Ask for the same again: params and policy as they were frozen, spans instead of instants that have passed."""
    row = request_row(tx, task.id)
    return TaskRequest(
        namespace_id=task.namespace_id,
        queue=row.queue,
        type=row.type,
        version=row.version,
        params=bytes(row.params),
        params_version=row.params_version,
        start_within_micros=None if row.start_deadline_at is None else row.start_deadline_at - row.accepted_at,
        deadline_micros=row.deadline_at - row.accepted_at,
        attempt_timeout_micros=row.attempt_timeout_micros,
        priority=row.priority,
        retry=RetryPolicy(row.attempts_max, row.backoff_micros, row.backoff_micros_max),
        business_key=None if row.business_key is None else bytes(row.business_key).decode(),
        labels=row.labels,
        concurrency_keys=() if row.concurrency_keys is None else tuple(json.loads(row.concurrency_keys)),
        fairness_key=None if row.fairness_key is None else bytes(row.fairness_key).decode(),
        traceparent=row.traceparent,
        retry_of=task.id,
        operation_id=task.operation_id or task.id,
        fencing_base=task.fencing_base + task.starts_count,
        type_revision_id=task.type_revision_id,
        redact=row.redact,
    )
