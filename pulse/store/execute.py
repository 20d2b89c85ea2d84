"""The writes of a task's way through a worker: leased, started, renewed, reported.

Uniform where rows have no values of their own, joined where they have; the number of rows is always checked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import BindParameter, bindparam, case, select, update

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from pulse.states import AttemptState, TaskState
from pulse.tables import attempt, result, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_LEASE_TASKS = Hot(
    through(update(task), task)
    .where(ids_in(task.c.id), task.c.state == TaskState.WAITING)
    .values(
        state=TaskState.LEASED, wait_reason=None, leases_count=task.c.leases_count + 1, revision=task.c.revision + 1
    )
)
_START_TASKS = Hot(
    through(update(task), task)
    .where(ids_in(task.c.id), task.c.state == TaskState.LEASED)
    .values(
        state=TaskState.RUNNING, starts_count=task.c.starts_count + 1, released_count=0, revision=task.c.revision + 1
    )
)
_UNTIL: BindParameter[Any] = bindparam("until")
_RENEW = Hot(
    through(update(attempt), attempt)
    .where(ids_in(attempt.c.id), attempt.c.state == AttemptState.RUNNING)
    .values(lease_expires_at=case((attempt.c.limit_at < _UNTIL, attempt.c.limit_at), else_=_UNTIL))
)
_WANTED_CANCELS = Hot(
    through(select(task.c.id, task.c.cancel_reason, task.c.deadline_at), task).where(
        ids_in(task.c.id), task.c.cancel_requested_at.is_not(None)
    )
)
_RESULTS = Hot(
    through(select(result.c.attempt_id, result.c.message_id, result.c.meaning), result).where(
        ids_in(result.c.attempt_id)
    )
)
_EXPIRED = Hot(
    select(attempt.c.id)
    .where(attempt.c.lease_expires_at <= bindparam("now"))
    .order_by(attempt.c.lease_expires_at)
    .limit(bindparam("limit"))
)


class NewAttempt(Struct, frozen=True):
    """An attempt to be made by a claim."""

    id: bytes
    task_id: bytes
    number: int
    token_hash: bytes
    recovery: str
    session_id: bytes


class StartWrite(Struct, frozen=True):
    """A granted Start: the message that asked, and the instants that bound the attempt."""

    attempt_id: bytes
    message_id: bytes
    started_at: Micros
    limit_at: Micros
    lease_expires_at: Micros


class ResultRow(Struct, frozen=True):
    """A report as it is kept; `output` is JSON as it was sent, `output_ref` JSON text of a reference."""

    attempt_id: bytes
    message_id: bytes
    task_id: bytes
    receipt: str
    meaning: bytes
    outcome: str
    output: bytes | None
    output_ref: str | None
    error: str | None


def tasks_lease(tx: Transaction, task_ids: Collection[bytes]) -> None:
    """Move locked WAITING tasks to LEASED."""
    tx.expect(_LEASE_TASKS, {"ids": task_ids}, count=len(task_ids))


def attempts_insert(tx: Transaction, attempts: Sequence[NewAttempt], *, now: Micros, expires_at: Micros) -> None:
    """Insert the attempts of a claim."""
    tx.insert(
        attempt,
        [
            {
                "id": item.id,
                "task_id": item.task_id,
                "number": item.number,
                "state": AttemptState.LEASED,
                "token_hash": item.token_hash,
                "recovery": item.recovery,
                "session_id": item.session_id,
                "leased_at": now,
                "lease_expires_at": expires_at,
            }
            for item in attempts
        ],
    )


def tasks_start(tx: Transaction, task_ids: Collection[bytes]) -> None:
    """Move locked LEASED tasks to RUNNING."""
    tx.expect(_START_TASKS, {"ids": task_ids}, count=len(task_ids))


def attempts_start(tx: Transaction, starts: Sequence[StartWrite]) -> None:
    """Move locked LEASED attempts to RUNNING, each with its own instants and message."""
    rows = [
        {
            "id": start.attempt_id,
            "state": AttemptState.RUNNING,
            "start_message_id": start.message_id,
            "started_at": start.started_at,
            "limit_at": start.limit_at,
            "lease_expires_at": start.lease_expires_at,
        }
        for start in sorted(starts, key=lambda start: start.attempt_id)
    ]
    tx.update_many(attempt, rows=rows, where={"state": AttemptState.LEASED})


def attempts_renew(tx: Transaction, attempt_ids: Collection[bytes], *, until: Micros) -> None:
    """Extend the leases of locked RUNNING attempts, none beyond its own limit."""
    tx.expect(_RENEW, {"ids": attempt_ids, "until": until}, count=len(attempt_ids))


def assignments_extend(tx: Transaction, until: dict[bytes, Micros]) -> None:
    """Prolong the assignments of locked LEASED attempts whose Start is rate limited."""
    rows = [{"id": key, "lease_expires_at": until[key]} for key in sorted(until)]
    tx.update_many(attempt, rows=rows, where={"state": AttemptState.LEASED})


def attempts_adopt(tx: Transaction, attempt_ids: Collection[bytes], session_id: bytes) -> None:
    """Move locked live attempts to another session of their worker."""
    if attempt_ids:
        statement = through(update(attempt), attempt).where(ids_in(attempt.c.id)).values(session_id=session_id)
        tx.expect(statement, {"ids": attempt_ids}, count=len(attempt_ids))


def progress_write(tx: Transaction, progress: dict[bytes, str]) -> None:
    """Keep the last progress of locked RUNNING attempts."""
    rows = [{"id": key, "progress": progress[key]} for key in sorted(progress)]
    tx.update_many(attempt, rows=rows, where={"state": AttemptState.RUNNING})


def cancels_wanted(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, str]:
    """Read which of the tasks are wanted to be cancelled, and why."""
    if not task_ids:
        return {}
    return {row.id: row.cancel_reason or "" for row in tx.rows(_WANTED_CANCELS, {"ids": task_ids})}


def checkpoints_read(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, str]:
    """Read the last progress of earlier attempts of tasks, to hand it to the next one."""
    if not task_ids:
        return {}
    query = (
        through(select(attempt.c.task_id, attempt.c.progress), attempt, "pulse_attempt_number_unique")
        .where(ids_in(attempt.c.task_id), attempt.c.progress.is_not(None))
        .order_by(attempt.c.task_id, attempt.c.number)
    )
    return {row.task_id: row.progress for row in tx.rows(query, {"ids": task_ids})}


def results_find(tx: Transaction, attempt_ids: Collection[bytes]) -> dict[tuple[bytes, bytes], bytes]:
    """Read what was reported for attempts: (attempt, message) → meaning."""
    if not attempt_ids:
        return {}
    rows = tx.rows(_RESULTS, {"ids": attempt_ids})
    return {(row.attempt_id, row.message_id): row.meaning for row in rows}


def results_insert(tx: Transaction, rows: Sequence[ResultRow], *, now: Micros) -> None:
    """Keep reports."""
    tx.insert(
        result,
        [
            {
                "attempt_id": row.attempt_id,
                "message_id": row.message_id,
                "task_id": row.task_id,
                "receipt": row.receipt,
                "meaning": row.meaning,
                "outcome": row.outcome,
                "output": row.output,
                "output_ref": row.output_ref,
                "error": row.error,
                "recorded_at": now,
            }
            for row in rows
        ],
    )


def attempts_live(tx: Transaction, *, limit: int) -> list[bytes]:
    """Read, without locks, attempts that are LEASED or RUNNING."""
    query = select(attempt.c.id).where(attempt.c.lease_expires_at.is_not(None)).limit(limit)
    return [row.id for row in tx.rows(query)]


def attempts_expired(tx: Transaction, *, now: Micros, limit: int) -> list[bytes]:
    """Read, without locks, attempts whose lease has passed."""
    return [row.id for row in tx.rows(_EXPIRED, {"now": now, "limit": limit})]
