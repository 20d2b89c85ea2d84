"""The rows of people's decisions: verdicts, the policy that a retry grants, and a task's successor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select, update

from orbit.database.ids import through
from orbit.ids import new_id
from pulse.states import TaskState
from pulse.tables import lane, queue, result, task, verdict

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class LateKey(NamedTuple):
    """Names a late report: the attempt that it is about, and the worker's message."""

    attempt_id: bytes
    message_id: bytes


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """What a person decided about a task, and by which evidence (JSON text); `late` is the report that settles it."""

    task_id: bytes
    kind: str
    safety_statement: str | None
    evidence: str
    reason: str
    output: bytes | None
    actor: str
    output_ref: str | None = None
    late: LateKey | None = None


def verdict_insert(tx: Transaction, row: VerdictRow, *, now: Micros) -> None:
    """Keep a verdict."""
    tx.insert(
        verdict,
        [
            {
                "id": new_id(),
                "task_id": row.task_id,
                "kind": row.kind,
                "safety_statement": row.safety_statement,
                "evidence": row.evidence,
                "reason": row.reason,
                "output": row.output,
                "output_ref": row.output_ref,
                "late_attempt_id": None if row.late is None else row.late.attempt_id,
                "late_message_id": None if row.late is None else row.late.message_id,
                "actor": row.actor,
                "created_at": now,
            }
        ],
    )


def verdicts_read(tx: Transaction, task_id: bytes) -> Sequence[Any]:
    """Read all that was decided about a task, in order."""
    query = through(select(verdict), verdict, "pulse_verdict_by_task").where(verdict.c.task_id == task_id)
    return list(tx.rows(query.order_by(verdict.c.id)))


def late_read(tx: Transaction, task_id: bytes, late: LateKey) -> Any:
    """Read the report of a task that came too late under this name; None if there is none."""
    query = select(result.c.outcome, result.c.output, result.c.output_ref, result.c.error).where(
        result.c.attempt_id == late.attempt_id,
        result.c.message_id == late.message_id,
        result.c.task_id == task_id,
        result.c.receipt == "LATE",
    )
    return tx.row(query)


def attempt_grant(tx: Transaction, task_id: bytes, *, attempts_max: int) -> None:
    """Allow a locked task under review at least so many attempts."""
    statement = update(task).where(task.c.id == task_id, task.c.state == TaskState.NEEDS_REVIEW)
    tx.expect(statement.values(attempts_max=attempts_max), count=1)


def successor_find(tx: Transaction, task_id: bytes) -> bytes | None:
    """Read which task repeats this one, if one does."""
    row = tx.row(select(task.c.id).where(task.c.retry_of == task_id))
    return None if row is None else row.id


def request_row(tx: Transaction, task_id: bytes) -> Any:
    """Read all that was asked for with a task, with its queue's name, type and version."""
    query = (
        select(task, queue.c.name.label("queue"), lane.c.type, lane.c.version)
        .join(queue, queue.c.id == task.c.queue_id)
        .join(lane, lane.c.id == task.c.lane_id)
        .where(task.c.id == task_id)
    )
    return tx.row(query)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting task stands: its priority, its time and why it waits."""

    priority: int
    available_at: Micros
    wait_reason: str


def place_write(tx: Transaction, task_id: bytes, place: Place, *, revision: int) -> None:
    """Move a locked WAITING task to another place; `revision` is its new one."""
    statement = update(task).where(task.c.id == task_id, task.c.state == TaskState.WAITING)
    values = {"priority": place.priority, "available_at": place.available_at, "wait_reason": place.wait_reason}
    tx.expect(statement.values(**values, revision=revision), count=1)
