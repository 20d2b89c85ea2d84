"""What operators do to many tasks: cancel, settle reviews, retry; and how the tasks are chosen.

Each item is decided by the very code that decides a request for one task, so it is refused for the same reasons and
leaves the same audit record, by the same actor. A task that a workflow owns is never chosen by a filter; named by its
id it is refused as `OWNED_BY_WORKFLOW`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbit.jsontext import Json
from pulse.batches import BatchOperation, Order, Subject
from pulse.cancellation import Cancel, cancel_now
from pulse.review import Decided, Verdict, retry_now, review_now
from pulse.settle import Surroundings
from pulse.states import UNFINISHED, TaskState
from pulse.store.search import ChosenTask, TaskFilter, tasks_choose, tasks_named

if TYPE_CHECKING:
    from orbit.database import Transaction

CANCEL, REVIEW, RETRY = "task.cancel", "task.review", "task.retry"

# Which tasks an operation can be meant for; of tasks that are named by their ids none is left out.
STATES: Mapping[str, frozenset[TaskState]] = {
    CANCEL: UNFINISHED,
    REVIEW: frozenset({TaskState.NEEDS_REVIEW}),
    RETRY: frozenset({TaskState.FAILED, TaskState.CANCELLED}),
}


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """Which tasks: named ones, or what a filter finds; of these only the ones in `queues` (None: all queues)."""

    namespace_id: bytes
    operation: str
    task_ids: Sequence[bytes] | None
    wanted: TaskFilter | None
    queues: frozenset[str] | None


def tasks_chosen(tx: Transaction, choice: TaskChoice) -> list[ChosenTask]:
    """Read the tasks of a choice; one more than a batch may have, if there are more."""
    if choice.task_ids is not None:
        found = tasks_named(tx, choice.namespace_id, choice.task_ids)
    else:
        assert choice.wanted is not None, "tasks are named or filtered"
        wanted = choice.wanted
        states = STATES[choice.operation]
        if wanted.state is not None:
            states &= {wanted.state}
        found = tasks_choose(tx, wanted, states) if states else []
    return [task for task in found if choice.queues is None or task.queue in choice.queues]


class CancelTasks:
    """Cancel each task, or ask its handler to stop. What has ended meanwhile stays as it is."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Cancel one task."""
        cancel = Cancel(subject.id, order.reason)
        return cancel_now(tx, order.namespace_id, order.actor, cancel, self._around).answer


class ReviewTasks:
    """Settle each task under review by one verdict, on one evidence."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Settle one task."""
        decided = _decided(order, subject, verdict=Verdict(order.arguments["verdict"]))
        return review_now(tx, order.namespace_id, order.actor, decided, self._around).answer


class RetryTasks:
    """Make a successor of each ended task."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Retry one task; its successor is what came of it."""
        decided = _decided(order, subject)
        successor = retry_now(tx, order.namespace_id, order.actor, decided, self._around)
        return {"successor": successor.subject_id.hex()}


def _decided(order: Order, subject: Subject, *, verdict: Verdict | None = None) -> Decided:
    output = order.arguments.get("output")
    return Decided(
        task_id=subject.id,
        expected_revision=subject.revision,
        evidence=order.arguments["evidence"],
        reason=order.reason,
        safety_statement=order.arguments.get("safety_statement"),
        output=None if output is None else output.encode(),
        verdict=verdict,
    )


def task_operations(around: Surroundings) -> dict[str, BatchOperation]:
    """Return the operations on tasks by name."""
    return {CANCEL: CancelTasks(around), REVIEW: ReviewTasks(around), RETRY: RetryTasks(around)}
