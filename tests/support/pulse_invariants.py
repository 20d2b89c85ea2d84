"""What must hold of a task layer after every step, by its rows and by what it has answered so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from orbit.tables import event
from pulse.limits import LOST_MAX
from pulse.states import (
    LIVE_ATTEMPT,
    TASK_TRANSITIONS,
    TERMINAL,
    UNFINISHED,
    AttemptState,
    TaskState,
    VerificationOutcome,
    VerificationState,
)
from pulse.store.recount import Drift, drifts_find
from pulse.tables import attempt, queue_usage, task, verification

if TYPE_CHECKING:
    from orbit.database import Transaction
    from tests.support.pulse_world import World

_ENDS = ("task.cancelled", "task.failed", "task.succeeded")
_LIVE = select(attempt.c.id, attempt.c.task_id, attempt.c.state, attempt.c.lease_expires_at).where(
    attempt.c.finished_at.is_(None)
)
_STARTED_IN_WINDOW = (
    select(func.count(attempt.c.id))
    .join(task, task.c.id == attempt.c.task_id)
    .where(task.c.queue_id == queue_usage.c.queue_id, attempt.c.started_at >= queue_usage.c.window_started_at)
    .scalar_subquery()
)


@dataclass(frozen=True)
class Sight:
    """Everything as it stands after a step."""

    tasks: Mapping[bytes, Any]
    live: Sequence[Any]
    windows: Sequence[Any]
    ends: Counter[bytes]
    verifications: Sequence[Any]
    drifts: Sequence[Drift]


class Watch:
    """Looks at a world after each of its moves and remembers what it saw."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._seen: dict[bytes, tuple[TaskState, int]] = {}

    def look(self) -> None:
        """Check everything."""
        sight = self.world.pulse.database.transaction(self._sight)
        assert sight.drifts == []
        self._moves_are_documented(sight)
        self._attempts_are_those_that_are_known(sight)
        self._budgets_are_kept(sight)
        self._ends_are_told_once(sight)
        self._verifications_are_in_order(sight)
        self._nothing_is_overdue(sight)
        assert all(used == started for used, started in sight.windows), "a window counts what did not start in it"

    def _sight(self, tx: Transaction) -> Sight:
        namespace_id, queues = self.world.pulse.namespace_id, self.world.queues.values()
        windows = select(queue_usage.c.window_used, _STARTED_IN_WINDOW).where(queue_usage.c.queue_id.in_(queues))
        ends = select(event.c.subject_id).where(event.c.namespace_id == namespace_id, event.c.type.in_(_ENDS))
        tasks = {row.id: row for row in tx.rows(select(task).where(task.c.namespace_id == namespace_id))}
        return Sight(
            tasks=tasks,
            live=[row for row in tx.rows(_LIVE) if row.task_id in tasks],
            windows=tx.rows(windows),
            ends=Counter(row.subject_id for row in tx.rows(ends)),
            verifications=tx.rows(select(verification).where(verification.c.namespace_id == namespace_id)),
            drifts=drifts_find(tx),
        )

    def _moves_are_documented(self, sight: Sight) -> None:
        """A terminal task stays as it is, another moves only as the table says, and no acceptance is forgotten."""
        assert set(self.world.tasks) | self._seen.keys() <= sight.tasks.keys()
        for task_id, row in sight.tasks.items():
            state = TaskState(row.state)
            before, revision = self._seen.get(task_id, (TaskState.WAITING, 0))
            assert row.revision >= revision
            assert state in (_reached(before) if row.revision > revision else {before}), (before, state)
            assert row.revision == revision or before not in TERMINAL, "an end was left"
            assert (row.finished_at is not None) is (state in TERMINAL)
            assert (row.wait_reason is not None) is (state is TaskState.WAITING)
            self._seen[task_id] = (state, row.revision)

    def _attempts_are_those_that_are_known(self, sight: Sight) -> None:
        """Nothing is live that no worker was given, nothing that is said to be over, and every task has its attempt."""
        known = {each.attempt_id for each in self.world.live()}
        assert {row.state for row in sight.live} <= LIVE_ATTEMPT
        assert {row.id for row in sight.live} == known
        assert {row.id for row in sight.live if row.state == AttemptState.RUNNING} == self.world.started & known
        assert all(sight.tasks[row.task_id].state == row.state for row in sight.live)

    def _budgets_are_kept(self, sight: Sight) -> None:
        for row in sight.tasks.values():
            assert row.failed_count <= row.attempts_max
            assert row.lost_count <= LOST_MAX + self.world.reviews[row.id]
            assert row.starts_count <= row.leases_count

    def _ends_are_told_once(self, sight: Sight) -> None:
        """Each end is one event, and its owner has heard of it once."""
        ended = {task_id: row.state for task_id, row in sight.tasks.items() if row.state in TERMINAL}
        assert sight.ends == Counter(ended.keys())
        for task_id, row in sight.tasks.items():
            if row.source_step is not None:
                told = [state for state in self.world.told[task_id] if state in TERMINAL]
                assert told == ([ended[task_id]] if task_id in ended else [])

    def _verifications_are_in_order(self, sight: Sight) -> None:
        """Each doubtful attempt is verified once, an open verification has a task, an answer counts."""
        assert len({row.attempt_id for row in sight.verifications}) == len(sight.verifications)
        for row in sight.verifications:
            if row.state == VerificationState.OPEN:
                assert sight.tasks[row.id].state in UNFINISHED - {TaskState.NEEDS_REVIEW}
            if row.state == VerificationState.SETTLED and row.outcome == VerificationOutcome.EXECUTED:
                assert sight.tasks[row.subject_id].state == TaskState.SUCCEEDED

    def _nothing_is_overdue(self, sight: Sight) -> None:
        """What was due when the sweepers last looked has been judged."""
        swept_at = self.world.swept_at
        for row in sight.tasks.values():
            if row.state == TaskState.WAITING and row.held_since is None:
                assert row.deadline_at > swept_at
                assert row.starts_count or row.start_deadline_at is None or row.start_deadline_at > swept_at
        assert all(row.lease_expires_at > swept_at for row in sight.live)


def _reached(state: TaskState) -> set[TaskState]:
    """One move of the world may be several of a task."""
    found, todo = {state}, [state]
    while todo:
        new = TASK_TRANSITIONS[todo.pop()] - found
        found |= new
        todo.extend(new)
    return found
