"""Results: what a worker says of an attempt, judged by the attempt's row and not by the clock.

RUNNING accepts a result though its lease has passed; once the attempt is closed a result is LATE: kept as evidence, and
no state and no counter moves. The same message again gets the same receipt; the same id with other content is REJECTED.
Locks: tasks, attempts; counters last, in `settle`.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from orbit.canonical import canonical
from orbit.jsontext import Json, dumps
from orbit.store.journal import EventRecord
from pulse import limits
from pulse.claim import token_hash
from pulse.listener import TaskFollower
from pulse.policy import (
    Decision,
    Ending,
    Finish,
    Park,
    TaskError,
    on_cancelled,
    on_deferred,
    on_failure,
    on_returned,
    passed_limit,
)
from pulse.settle import Settlement, Surroundings, settle, tell_late_successes
from pulse.states import TERMINAL, AttemptState, ErrorClass, RecoverySafety, TaskState
from pulse.store.execute import ResultRow, results_find, results_insert
from pulse.store.rows import LockedAttempt, LockedTask, attempts_lock_with_tasks
from pulse.telling import task_events_insert
from pulse.type_revision import Misfit

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Outcome(StrEnum):
    """What a worker reports."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RETURNED = "RETURNED"
    DEFERRED = "DEFERRED"


class ReceiptKind(StrEnum):
    """What became of a report."""

    ACCEPTED = "ACCEPTED"
    DUPLICATE = "DUPLICATE"  # the same message again: nothing new happened
    LATE = "LATE"  # kept as evidence only
    REJECTED = "REJECTED"  # not kept; the code says why


class RejectCode(StrEnum):
    """Why a report was rejected, or refused as the attempt's result."""

    ATTEMPT_UNKNOWN = "ATTEMPT_UNKNOWN"  # no such attempt, or the token is not its own
    NOT_STARTED = "NOT_STARTED"  # the attempt was never granted Start
    MESSAGE_CONFLICT = "MESSAGE_CONFLICT"  # the message id was used for another report
    OUTPUT_TOO_LARGE = "OUTPUT_TOO_LARGE"  # the attempt is closed all the same
    OUTPUT_INVALID = "OUTPUT_INVALID"  # not strict JSON; the attempt is closed all the same
    OUTPUT_MISMATCH = "OUTPUT_MISMATCH"  # not what the result schema asks for; the attempt is closed all the same


@dataclass(frozen=True, slots=True)
class ReportedError:
    """A handler's failure in the worker's words."""

    class_: ErrorClass
    code: str
    message: str
    details: Json = None


class Report(Struct, frozen=True, kw_only=True):
    """A worker's result; `output` is JSON text as it was sent, `output_fault` says why it can't be taken.

    `output_ref` is the JSON text of a reference {uri, sha256, bytes} to an output that lies elsewhere.
    """

    message_id: bytes
    attempt_id: bytes
    token: str
    outcome: Outcome
    output: bytes | None = None
    output_fault: RejectCode | None = None
    output_ref: str | None = None
    error: ReportedError | None = None
    ran: bool = True
    retry_after_micros: Micros = 0

    def meaning(self) -> bytes:
        """Hash what the report says, without its token."""
        error = b"" if self.error is None else canonical(astuple(self.error))
        parts = (self.outcome.encode(), self.output or b"", (self.output_fault or "").encode(), error)
        rest = f"{self.output is None} {self.ran} {self.retry_after_micros}".encode()
        if self.output_ref is not None:
            rest += self.output_ref.encode()
        return hashlib.sha256(b"\x00".join((*parts, rest))).digest()


class ReportOutcome(Struct, frozen=True):
    """The answer to one report, after COMMIT."""

    message_id: bytes
    receipt: ReceiptKind
    code: RejectCode | None = None
    task_state: TaskState | None = None


def report(
    tx: Transaction, reports: Sequence[Report], around: Surroundings, follower: TaskFollower | None = None
) -> list[ReportOutcome]:
    """Record a batch of results; one outcome for each, in order.

    With a `follower` the owners of tasks go on at once; then raises FollowLater, or BacklogShort.
    """
    tasks, attempts = attempts_lock_with_tasks(tx, {item.attempt_id for item in reports})
    closed = [a.id for a in attempts.values() if a.state is not AttemptState.RUNNING]
    recorded = results_find(tx, closed)
    now = tx.now()
    outcomes: list[ReportOutcome] = []
    settlements: dict[bytes, Settlement] = {}
    kept: list[ResultRow] = []
    evidence: list[EventRecord] = []
    late: list[LockedTask] = []
    for item in reports:
        attempt = attempts.get(item.attempt_id)
        if attempt is None or not hmac.compare_digest(attempt.token_hash, token_hash(item.token)):
            outcomes.append(ReportOutcome(item.message_id, ReceiptKind.REJECTED, RejectCode.ATTEMPT_UNKNOWN))
            continue
        task = tasks[attempt.task_id]
        meaning = recorded.get((attempt.id, item.message_id))
        if meaning is not None:
            state = settled_state(settlements[task.id].decision) if task.id in settlements else task.state
            outcomes.append(_again(item, is_same=meaning == item.meaning(), state=state))
            continue
        if attempt.state is AttemptState.LEASED:
            outcomes.append(ReportOutcome(item.message_id, ReceiptKind.REJECTED, RejectCode.NOT_STARTED, task.state))
            continue
        if attempt.state is AttemptState.RUNNING and task.id not in settlements:
            faults = _misfits(tx, item, task, around)
            judged = replace(item, output_fault=RejectCode.OUTPUT_MISMATCH) if faults else item
            settlement = _judge(judged, task, attempt, faults, now=now)
            settlements[task.id] = settlement
            # What the report means is what was sent: the same again is a duplicate, whatever was found in it.
            kept.append(_row(judged, task, ReceiptKind.ACCEPTED, meaning=item.meaning()))
            state = settled_state(settlement.decision)
            outcomes.append(ReportOutcome(item.message_id, ReceiptKind.ACCEPTED, judged.output_fault, state))
        else:
            kept.append(_row(item, task, ReceiptKind.LATE, meaning=item.meaning()))
            evidence += _evidence(item, task, attempt)
            if item.outcome is Outcome.SUCCEEDED:
                late.append(task)
            outcomes.append(ReportOutcome(item.message_id, ReceiptKind.LATE, None, task.state))
        recorded[attempt.id, item.message_id] = kept[-1].meaning
    results_insert(tx, kept, now=now)
    if evidence:
        task_events_insert(tx, evidence, now=now)
    follow = None if follower is None else partial(follower.follow, outputs=_outputs(kept), now=now)
    settle(tx, list(settlements.values()), around, now=now, follow=follow)
    tell_late_successes(tx, late, around)
    return outcomes


def _outputs(kept: Sequence[ResultRow]) -> dict[bytes, bytes]:
    """Give the outputs of results that count, as `tasks.outputs_get` would read them."""
    found = {}
    for row in kept:
        if row.receipt == ReceiptKind.ACCEPTED and row.outcome == Outcome.SUCCEEDED:
            if row.output is not None:
                found[row.task_id] = row.output
            elif row.output_ref is not None:
                found[row.task_id] = f'{{"output_ref":{row.output_ref}}}'.encode()
    return found


def _misfits(tx: Transaction, item: Report, task: LockedTask, around: Surroundings) -> list[Misfit]:
    """Say why a success's output is not what the task's type promises. A reference is taken unseen."""
    is_judged = item.outcome is Outcome.SUCCEEDED and item.output_fault is None and item.output_ref is None
    if not is_judged or task.type_revision_id is None:
        return []
    return around.catalog.revision(tx, task.type_revision_id).result_faults(item.output)


def _evidence(item: Report, task: LockedTask, attempt: LockedAttempt) -> list[EventRecord]:
    """Tell of a late success: it contradicts another end, and is evidence for an open review."""
    if item.outcome is not Outcome.SUCCEEDED or task.state is TaskState.SUCCEEDED:
        return []
    if task.state in TERMINAL:
        name = "task.contradicted"
    elif task.state is TaskState.NEEDS_REVIEW:
        name = "task.evidence_received"
    else:
        return []
    data = dumps({"attempt_id": attempt.id.hex(), "attempt": attempt.number, "state": task.state}).decode()
    return [EventRecord(task.namespace_id, name, task.id, task.revision, data, task.queue_id, task.lane_id)]


def settled_state(decision: Decision) -> TaskState:
    """Return the state into which a decision moves its task."""
    if isinstance(decision, Finish):
        return decision.state
    return TaskState.NEEDS_REVIEW if isinstance(decision, Park) else TaskState.WAITING


def _again(item: Report, *, is_same: bool, state: TaskState) -> ReportOutcome:
    """Answer a message id that was recorded before, in another transaction or in this batch."""
    if is_same:
        return ReportOutcome(item.message_id, ReceiptKind.DUPLICATE, None, state)
    return ReportOutcome(item.message_id, ReceiptKind.REJECTED, RejectCode.MESSAGE_CONFLICT, state)


def _row(item: Report, task: LockedTask, receipt: ReceiptKind, *, meaning: bytes) -> ResultRow:
    error = None if item.error is None else _task_error(item.error).as_text()
    return ResultRow(
        attempt_id=item.attempt_id,
        message_id=item.message_id,
        task_id=task.id,
        receipt=receipt,
        meaning=meaning,
        outcome=item.outcome,
        output=item.output if item.output_fault is None else None,
        output_ref=item.output_ref,
        error=error,
    )


def _task_error(error: ReportedError) -> TaskError:
    unknown = error.class_ is ErrorClass.UNKNOWN_OUTCOME
    return TaskError(error.class_, error.code, error.message, error.details, effect_unknown=unknown)


def _judge(
    item: Report, task: LockedTask, attempt: LockedAttempt, faults: Sequence[Misfit], *, now: Micros
) -> Settlement:
    """Turn a report on a RUNNING attempt into a decision, by the recovery table."""
    if item.outcome is Outcome.SUCCEEDED:
        if item.output_fault is not None:
            unusable = _unusable(item.output_fault, attempt.recovery, faults)
            return Settlement(task, unusable, attempt, AttemptState.FAILED, failed=1)
        return Settlement(task, Finish(TaskState.SUCCEEDED), attempt, AttemptState.SUCCEEDED)
    ending = Ending(task.budget(), attempt.recovery, now, jitter=random.random())
    match item.outcome:
        case Outcome.FAILED:
            reported = item.error or ReportedError(ErrorClass.UNCLASSIFIED, "UNSPECIFIED", "no error was given")
            decision = on_failure(replace(ending, wait_min=item.retry_after_micros), _task_error(reported))
            return Settlement(task, decision, attempt, AttemptState.FAILED, failed=1)
        case Outcome.CANCELLED:
            cancelled = on_cancelled(ending, _stopped_by(task, attempt, now=now))
            failed = int(cancelled != Finish(TaskState.CANCELLED))
            return Settlement(task, cancelled, attempt, AttemptState.CANCELLED, failed=failed)
        case Outcome.RETURNED:
            returned = on_returned(ending, ran=item.ran)
            return Settlement(task, returned, attempt, AttemptState.RETURNED, lost=int(item.ran))
        case Outcome.DEFERRED:
            deferred = on_deferred(ending, item.retry_after_micros)
            return Settlement(task, deferred, attempt, AttemptState.DEFERRED, deferred=1)


def _stopped_by(task: LockedTask, attempt: LockedAttempt, *, now: Micros) -> TaskError | None:
    """Say which limit a handler was told to stop at, if one was near: its worker counts it by a clock of its own."""
    if attempt.limit_at is None or now < attempt.limit_at - limits.LIMIT_SLACK_MICROS:
        return None
    return passed_limit(limit_at=attempt.limit_at, deadline_at=task.deadline_at)


def _unusable(fault: RejectCode, safety: RecoverySafety, faults: Sequence[Misfit]) -> Decision:
    """Judge a success whose output can't be stored: what happened is known, what came out is lost."""
    match fault:
        case RejectCode.OUTPUT_TOO_LARGE:
            message = f"the output is over {limits.OUTPUT_BYTES_MAX} bytes; return a reference to it"
        case RejectCode.OUTPUT_MISMATCH:
            message = f"the output does not fit the type's result schema at {faults[0].pointer or '/'}"
        case _:
            message = "the output is not strict JSON"
    details = [{"pointer": misfit.pointer, "message": misfit.message} for misfit in faults] or None
    error = TaskError(ErrorClass.NON_RETRYABLE, fault, message, details)
    return Finish(TaskState.FAILED, error) if safety is RecoverySafety.REPLAY_SAFE else Park(error)
