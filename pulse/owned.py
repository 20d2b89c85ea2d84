"""What the owner of tasks decides about them: the verdict on one under review, and the line that a retry continues.

Pulse's own endpoints refuse owned tasks; this is the way for the owner, inside its transaction, after its own locks.
The surprising rule: the owner is not told of the end that it has decided itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orbit.errors import StateConflict
from orbit.jsontext import Json, dumps
from pulse.listener import TaskListener
from pulse.policy import Finish, TaskError
from pulse.requests import TaskRequest
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import ErrorClass, TaskState
from pulse.store.recover import VerdictRow, verdict_insert
from pulse.store.rows import tasks_lock

if TYPE_CHECKING:
    from orbit.database import Transaction
    from pulse.arrivals import Arrivals
    from pulse.sessions import Offer

REVIEWED_FAILED = TaskError(ErrorClass.NON_RETRYABLE, "REVIEWED_FAILED", "a person judged that it failed")
SUPERSEDED = TaskError(
    ErrorClass.UNCLASSIFIED, "SUPERSEDED_BY_RECOVERY", "a person decided without its outcome", effect_unknown=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedVerdict:
    """A person's decision about an owned task under review, as the owner gives it.

    `finish` is what the task becomes, `kind` the word of the verdict; `output` is JSON text of what is vouched for.
    """

    task_id: bytes
    finish: Finish
    kind: str
    evidence: Json
    reason: str
    actor: str
    safety_statement: str | None = None
    output: bytes | None = None


def owned_settle(tx: Transaction, verdict: OwnedVerdict, around: Surroundings) -> None:
    """Settle an owned task that is in NEEDS_REVIEW. Raises StateConflict if it is not: something was faster."""
    task = tasks_lock(tx, [verdict.task_id]).get(verdict.task_id)
    assert task is not None, "an owned task is there"
    if task.state is not TaskState.NEEDS_REVIEW:
        message = f"its task is {task.state}: look again"
        raise StateConflict(message, details={"task_id": task.id.hex(), "task_state": task.state})
    row = VerdictRow(
        task_id=task.id,
        kind=verdict.kind,
        safety_statement=verdict.safety_statement,
        evidence=dumps(verdict.evidence).decode(),
        reason=verdict.reason,
        output=verdict.output,
        actor=verdict.actor,
    )
    now = tx.now()
    verdict_insert(tx, row, now=now)
    settle(tx, [Settlement(task, verdict.finish)], _Untold(around), now=now)


def owned_continued(tx: Transaction, requests: Sequence[TaskRequest]) -> list[TaskRequest]:
    """Let requests with `retry_of` continue the line of that task: its operation id, and a rising fencing number."""
    former = tasks_lock(tx, {request.retry_of for request in requests if request.retry_of is not None})
    continued = []
    for request in requests:
        task = None if request.retry_of is None else former[request.retry_of]
        if task is not None:
            fencing_base = task.fencing_base + task.starts_count
            request = replace(request, operation_id=task.operation_id or task.id, fencing_base=fencing_base)  # noqa: PLW2901
        continued.append(request)
    return continued


class _Untold:
    """The surroundings without the owners."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.listeners: list[TaskListener] = []
        self.catalog = around.catalog

    def offer(self, lanes: Mapping[bytes, int]) -> Offer | None:
        return self._around.offer(lanes)

    def on_ready(self, lanes: Mapping[bytes, Arrivals]) -> None:
        self._around.on_ready(lanes)

    def on_changed(self, task_ids: frozenset[bytes]) -> None:
        self._around.on_changed(task_ids)

    def on_ended(self, attempt_ids: frozenset[bytes]) -> None:
        self._around.on_ended(attempt_ids)

    def on_trouble(self, *, retries: int, lost: int) -> None:
        self._around.on_trouble(retries=retries, lost=lost)

    def on_keys_free(self) -> None:
        self._around.on_keys_free()

    def on_verification(self) -> None:
        self._around.on_verification()

    def on_cancel_wanted(self, reasons: Mapping[bytes, str]) -> None:
        self._around.on_cancel_wanted(reasons)
