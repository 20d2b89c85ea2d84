"""The rows of verifications: moved by their state, found by the instant at which a node has to act."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import bindparam, select, update

from orbit.database.ids import ids_in, through
from orbit.ids import new_id
from pulse.states import VerificationOutcome, VerificationState
from pulse.tables import attempt, task, verification

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.store.rows import LockedAttempt, LockedTask


class VerificationRow(Struct, frozen=True):
    """A verification; its id is that of its task."""

    id: bytes
    namespace_id: bytes
    subject_id: bytes
    attempt_id: bytes
    state: VerificationState
    outcome: VerificationOutcome | None
    created_at: Micros
    settled_at: Micros | None


_ROW = select(*(verification.c[name] for name in VerificationRow.__struct_fields__))
_DUE = (
    _ROW.where(verification.c.due_at <= bindparam("now"))
    .order_by(verification.c.due_at)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_ANSWER = (
    through(update(verification), verification)
    .where(ids_in(verification.c.id), verification.c.state == VerificationState.OPEN)
    .values(state=VerificationState.ANSWERED, due_at=bindparam("now"))
)
_LATEST = through(_ROW, verification, "pulse_verification_by_subject").where(ids_in(verification.c.subject_id))
_EVIDENCE = (
    select(
        attempt.c.number,
        attempt.c.started_at,
        task.c.attempt_timeout_micros,
        task.c.params,
        task.c.params_version,
        task.c.business_key,
        task.c.traceparent,
        task.c.redact,
        task.c.error,
    )
    .join(task, task.c.id == attempt.c.task_id)
    .where(attempt.c.id == bindparam("id"))
)


def verifications_insert(tx: Transaction, parked: Sequence[tuple[LockedTask, LockedAttempt]], *, now: Micros) -> None:
    """Want verifications of attempts whose outcome became unknown, one for each review."""
    tx.insert(
        verification,
        [
            {
                "id": new_id(),
                "namespace_id": subject.namespace_id,
                "subject_id": subject.id,
                "attempt_id": ended.id,
                "state": VerificationState.WANTED,
                "due_at": now,
                "created_at": now,
            }
            for subject, ended in parked
        ],
    )


def verifications_answer(tx: Transaction, ids: Collection[bytes], *, now: Micros) -> None:
    """Note that verification tasks have ended."""
    tx.execute(_ANSWER, {"ids": ids, "now": now})


def verifications_lock_due(tx: Transaction, *, now: Micros, limit: int) -> list[VerificationRow]:
    """Lock verifications for which a node has to act and that nobody else holds."""
    return [_row(row) for row in tx.rows(_DUE, {"now": now, "limit": limit})]


def verification_open(tx: Transaction, verification_id: bytes) -> None:
    """Note that a wanted verification's task was made."""
    query = update(verification).where(
        verification.c.id == verification_id, verification.c.state == VerificationState.WANTED
    )
    tx.expect(query.values(state=VerificationState.OPEN, due_at=None), count=1)


def verification_settle(tx: Transaction, verification_id: bytes, outcome: VerificationOutcome, *, now: Micros) -> None:
    """End a locked verification."""
    query = update(verification).where(
        verification.c.id == verification_id, verification.c.state != VerificationState.SETTLED
    )
    values = {"state": VerificationState.SETTLED, "outcome": outcome, "due_at": None, "settled_at": now}
    tx.expect(query.values(**values), count=1)


def verification_put_off(tx: Transaction, verification_id: bytes, *, micros: Micros) -> None:
    """Let a node act on a verification only so much later than now, however long it has been due."""
    query = update(verification).where(verification.c.id == verification_id, verification.c.due_at.is_not(None))
    tx.execute(query.values(due_at=tx.now() + micros))


def verifications_latest(tx: Transaction, subject_ids: Collection[bytes]) -> dict[bytes, VerificationRow]:
    """Read the latest verification of each task that has one."""
    if not subject_ids:
        return {}
    rows = [_row(row) for row in tx.rows(_LATEST.order_by(verification.c.id), {"ids": subject_ids})]
    return {row.subject_id: row for row in rows}


def evidence_read(tx: Transaction, attempt_id: bytes) -> Any:
    """Read what a verifier is told of an attempt, and its task's last error."""
    row = tx.row(_EVIDENCE, {"id": attempt_id})
    assert row is not None, "an attempt is kept as long as its task"
    return row


def _row(row: Any) -> VerificationRow:
    values = row._asdict()
    outcome = values["outcome"]
    words = {
        "state": VerificationState(values["state"]),
        "outcome": None if outcome is None else VerificationOutcome(outcome),
    }
    return VerificationRow(**(values | words))
