"""Verifications: what another task finds out about an unknown outcome, before a person has to.

A review of a VERIFY type leaves a row (`settle` inserts it); a node makes the verification task from it, and applies
that task's answer once it has ended. Each step is a transaction of its own, found by an index, repeated by any node: a
crash between two loses nothing. The verification task stands behind no gate, since it finds out about work that was
authorised before, and it is exempt from limits of unfinished tasks. It becomes available only when the attempt in doubt
must have stopped. An answer after the review was settled otherwise is evidence only.

Locks: the verification, then its subject, then counters in `settle`. A verification task's own end touches its row
after all tasks, but only while it is OPEN, when nobody here holds it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from orbit.clock import SECOND, to_rfc3339
from orbit.database import Pool
from orbit.errors import OrbitError
from orbit.jsontext import Json, dumps
from orbit.store.journal import EventRecord
from pulse import limits
from pulse.policy import Decision, Ending, Finish, Park, TaskError, on_not_executed
from pulse.requests import TaskRequest
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import ErrorClass, TaskState, VerificationOutcome, VerificationState
from pulse.store.queue import queue_find
from pulse.store.recover import VerdictRow, verdict_insert
from pulse.store.rows import LockedTask, task_read, tasks_lock
from pulse.store.task import outputs_read
from pulse.store.verification import (
    VerificationRow,
    evidence_read,
    verification_open,
    verification_put_off,
    verification_settle,
    verifications_latest,
    verifications_lock_due,
)
from pulse.submission import Submit, tasks_submit
from pulse.telling import task_events_insert

if TYPE_CHECKING:
    from orbit.database import Database, Transaction

_MARGIN_MICROS = 10 * SECOND
ACTOR = "verification"


class _Answer(Struct):
    """What a verifier returns; anything else is no answer."""

    verdict: VerificationOutcome
    result: Raw | UnsetType = UNSET


_answer = msgspec.json.Decoder(_Answer)
_ANSWERS = frozenset({VerificationOutcome.EXECUTED, VerificationOutcome.NOT_EXECUTED, VerificationOutcome.UNKNOWN})


def verification_sweep(database: Database, around: Surroundings) -> int:
    """Make one task that is wanted, or apply one answer that has come; return how many: 0 or 1.

    What fails is put off, so that it holds up no other, and raised.
    """
    seen: list[bytes] = []

    def work(tx: Transaction) -> int:
        for row in verifications_lock_due(tx, now=tx.now(), limit=1):
            seen.append(row.id)
            step = _open if row.state is VerificationState.WANTED else _apply
            step(tx, row, around)
            return 1
        return 0

    try:
        return database.transaction(work, pool=Pool.DISPATCH)
    except Exception:
        if seen:
            put_off = partial(verification_put_off, verification_id=seen[-1], micros=limits.VERIFICATION_RETRY_MICROS)
            database.transaction(put_off, pool=Pool.DISPATCH)
        raise


def verifications_json(tx: Transaction, subject_ids: Collection[bytes]) -> dict[bytes, dict[str, Json]]:
    """Say for each task that has one what its latest verification came to; `outcome` is null while it is under way."""
    return {
        subject_id: {
            "task_id": None if row.state is VerificationState.WANTED else row.id.hex(),
            "state": row.state,
            "outcome": row.outcome,
            "attempt_id": row.attempt_id.hex(),
            "created_at": to_rfc3339(row.created_at),
            "settled_at": None if row.settled_at is None else to_rfc3339(row.settled_at),
        }
        for subject_id, row in verifications_latest(tx, subject_ids).items()
    }


def _open(tx: Transaction, row: VerificationRow, around: Surroundings) -> None:
    subject = task_read(tx, row.subject_id)
    if subject is None or subject.state is not TaskState.NEEDS_REVIEW:
        verification_settle(tx, row.id, VerificationOutcome.SUPERSEDED, now=tx.now())
        return
    (outcome,) = tasks_submit(tx, [Submit(_request(tx, row, subject, around))], around)
    if isinstance(outcome, OrbitError):
        # The verifier takes no such params, or its queue has no lane left: nobody would ever answer.
        data: dict[str, Json] = {"error": {"code": outcome.code, "message": outcome.message}}
        _settled(tx, row, subject, VerificationOutcome.FAILED, data)
        return
    verification_open(tx, row.id)
    data = {"verification": row.id.hex(), "attempt_id": row.attempt_id.hex()}
    task_events_insert(tx, [_event(subject, "task.verifying", data)], now=tx.now())


def _request(tx: Transaction, row: VerificationRow, subject: LockedTask, around: Surroundings) -> TaskRequest:
    assert subject.type_revision_id is not None, "only a registered type is verified"
    revision = around.catalog.revision(tx, subject.type_revision_id)
    assert revision.verify_with is not None, "the verifier was checked when the type was registered"
    seen = evidence_read(tx, row.attempt_id)
    fencing = (around.catalog.fencing_epoch << 32) + subject.fencing_base + subject.starts_count
    told: dict[str, Json] = {
        "task_id": subject.id.hex(),
        "operation_id": (subject.operation_id or subject.id).hex(),
        "attempt_id": row.attempt_id.hex(),
        "attempt": subject.starts_count,
        "fencing": str(fencing),
        "type": revision.key.type,
        "version": revision.key.version,
        "params_version": seen.params_version,
    }
    head = dumps(told)[:-1]
    stopped_at = (seen.started_at or 0) + seen.attempt_timeout_micros + _MARGIN_MICROS
    own = [] if seen.redact is None else json.loads(seen.redact)
    hidden = [
        f"/params{path}" for path in [*own, *(revision.content.get("redact") or ())] if path.startswith("/params")
    ]
    queue = queue_find(tx, subject.namespace_id, subject.queue_id)
    assert queue is not None, "a task's queue is there"
    return TaskRequest(
        namespace_id=subject.namespace_id,
        queue=queue.name,
        type=revision.verify_with.type,
        version=revision.verify_with.version,
        params=head + b',"params":' + bytes(seen.params) + b"}",
        available_at=max(tx.now(), stopped_at),
        priority=subject.priority,
        business_key=None if seen.business_key is None else bytes(seen.business_key).decode(),
        traceparent=seen.traceparent,
        task_id=row.id,
        verifies=subject.id,
        redact=dumps(hidden).decode() if hidden else None,
    )


def _apply(tx: Transaction, row: VerificationRow, around: Surroundings) -> None:
    """Apply an answer to the review that it was asked for, if that is still open."""
    verdict, result = _read_answer(tx, row)
    subject = tasks_lock(tx, [row.subject_id])[row.subject_id]
    if subject.state is not TaskState.NEEDS_REVIEW or evidence_read(tx, row.attempt_id).number != subject.leases_count:
        _settled(tx, row, subject, VerificationOutcome.SUPERSEDED, {"verdict": verdict})
        return
    if verdict is VerificationOutcome.EXECUTED and subject.type_revision_id is not None:
        faults = around.catalog.revision(tx, subject.type_revision_id).result_faults(result)
        if faults:
            error = {"pointer": f"/result{faults[0].pointer}", "message": faults[0].message}
            _settled(tx, row, subject, VerificationOutcome.FAILED, {"error": error})
            return
    _settled(tx, row, subject, verdict, {})
    decision = _decision(tx, row, subject, verdict)
    if decision is None:
        return
    now = tx.now()
    kept = VerdictRow(
        task_id=subject.id,
        kind=decision.state if isinstance(decision, Finish) else "RETRY",
        safety_statement=None if isinstance(decision, Finish) else "a verification found that nothing happened",
        evidence=dumps({"verification": row.id.hex(), "attempt_id": row.attempt_id.hex()}).decode(),
        reason=f"verified: {verdict}",
        output=result,
        actor=ACTOR,
    )
    verdict_insert(tx, kept, now=now)
    settle(tx, [Settlement(subject, decision)], around, now=now)


def _decision(
    tx: Transaction, row: VerificationRow, subject: LockedTask, verdict: VerificationOutcome
) -> Decision | None:
    """Say what becomes of the task; None leaves it to a person."""
    if verdict is VerificationOutcome.EXECUTED:
        return Finish(TaskState.SUCCEEDED)
    if verdict is not VerificationOutcome.NOT_EXECUTED or subject.recovery is None:
        return None
    ending = Ending(subject.budget(), subject.recovery, tx.now(), jitter=random.random())
    decided = on_not_executed(ending, _error(evidence_read(tx, row.attempt_id).error))
    assert not isinstance(decided, Park), "what did not happen needs no person"
    return decided


def _error(text: str | None) -> TaskError | None:
    if text is None:
        return None
    value = json.loads(text)
    return TaskError(ErrorClass(value["class"]), value["code"], value["message"])


def _read_answer(tx: Transaction, row: VerificationRow) -> tuple[VerificationOutcome, bytes | None]:
    """Read what a verification task found out; a task that failed, or said something else, is no answer."""
    ended = task_read(tx, row.id)
    if ended is None or ended.state is not TaskState.SUCCEEDED:
        return VerificationOutcome.FAILED, None
    output = outputs_read(tx, [row.id]).get(row.id, b"null")
    try:
        answer = _answer.decode(output)
    except msgspec.DecodeError:
        return VerificationOutcome.FAILED, None
    if answer.verdict not in _ANSWERS:
        return VerificationOutcome.FAILED, None
    is_given = answer.verdict is VerificationOutcome.EXECUTED and not isinstance(answer.result, UnsetType)
    return answer.verdict, bytes(answer.result) if is_given else None  # type: ignore[arg-type]


def _settled(
    tx: Transaction,
    row: VerificationRow,
    subject: LockedTask,
    outcome: VerificationOutcome,
    data: dict[str, Json],
) -> None:
    now = tx.now()
    verification_settle(tx, row.id, outcome, now=now)
    name = "task.evidence_received" if outcome is VerificationOutcome.SUPERSEDED else "task.verified"
    told = {"verification": row.id.hex(), "outcome": outcome, **data}
    task_events_insert(tx, [_event(subject, name, told)], now=now)


def _event(subject: LockedTask, name: str, data: dict[str, Json]) -> EventRecord:
    text = dumps(data).decode()
    return EventRecord(
        subject.namespace_id, name, subject.id, subject.revision, text, subject.queue_id, subject.lane_id
    )
