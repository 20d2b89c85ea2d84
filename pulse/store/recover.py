"""The rows of people's decisions: verdicts, the policy that a retry grants, and a task's successor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from orbit.ids import new_id
from pulse.states import TaskState
from pulse.tables import lane, queue, task, verdict

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """What a person decided about a task, and by which evidence (JSON text)."""

    task_id: bytes
    kind: str
    safety_statement: str | None
    evidence: str
    reason: str
    output: bytes | None
    actor: str


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
                "actor": row.actor,
                "created_at": now,
            }
        ],
    )


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
