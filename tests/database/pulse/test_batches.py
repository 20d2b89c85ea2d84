"""Batches: many decisions by one order, each once, at a bounded rate, refused one by one, stopped between two."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, StateConflict
from orbit.idempotency import Answer
from orbit.ids import new_id
from orbit.jsontext import Json
from pulse import limits
from pulse.batches import (
    BatchOrder,
    BatchRunner,
    Order,
    Subject,
    batch_create,
    batch_read,
    batch_stop,
    items_find,
)
from pulse.review import Verdict
from pulse.states import BatchState, ErrorClass, ItemState, TaskState
from pulse.store.search import TaskFilter
from pulse.task_batches import CANCEL, RETRY, REVIEW, TaskChoice, task_operations, tasks_chosen
from tests.support.pulse import Pulse

DECISION = {"evidence": {"ticket": 7}, "safety_statement": "the bank knows none of them"}


def runner_of(pulse: Pulse) -> BatchRunner:
    runner = BatchRunner(pulse.database)
    runner.operations |= task_operations(pulse)
    return runner


def create(
    pulse: Pulse,
    operation: str,
    subjects: Sequence[Subject],
    arguments: Json = None,
    *,
    rate_per_second: float = limits.BATCH_RATE_MAX,
) -> Answer:
    order = BatchOrder(
        operation=operation,
        arguments=arguments or {},
        selection={"tasks": {"queue": "main"}},
        choose=lambda _: subjects,
        rate_per_second=rate_per_second,
        reason="a test",
    )
    command, actor = pulse.command("batch.create"), pulse.actor()
    return pulse.database.transaction(lambda tx: batch_create(tx, command, actor, order))


def chosen(pulse: Pulse, operation: str, **fields: object) -> list[Subject]:
    wanted = TaskFilter(pulse.namespace_id, limits.BATCH_SUBJECTS_MAX + 1, accepted_after=0, **fields)  # type: ignore[arg-type]
    choice = TaskChoice(pulse.namespace_id, operation, None, wanted, None)
    found = pulse.database.transaction(lambda tx: tasks_chosen(tx, choice))
    return [Subject(task.id, task.revision) for task in found]


def finish(pulse: Pulse, batch_id: bytes) -> list[tuple[ItemState, Json]]:
    """Run a batch to its end and return its items' states and outcomes."""
    runner = runner_of(pulse)
    while state(pulse, batch_id) is BatchState.RUNNING:
        runner.run_once()
        pulse.database.clock.advance(seconds_forward=1)
    items = pulse.database.transaction(lambda tx: items_find(tx, batch_id, limit=1000))
    return [(item.state, None if item.outcome is None else json.loads(item.outcome)) for item in items]


def state(pulse: Pulse, batch_id: bytes) -> BatchState:
    row = pulse.database.transaction(lambda tx: batch_read(tx, pulse.namespace_id, batch_id))
    assert row is not None
    return row.state


def test_many_reviews_are_settled_by_one_decision_and_what_changed_meanwhile_is_refused(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_ids = [pulse.submit() for _ in range(5)]
    for _ in task_ids:
        pulse.fail(pulse.run(), ErrorClass.UNKNOWN_OUTCOME)
    waiting = pulse.submit()
    subjects = chosen(pulse, REVIEW, queue_id=queue_id)
    assert [subject.id for subject in subjects] == task_ids
    batch_id = create(pulse, REVIEW, subjects, DECISION | {"verdict": "FAILED"}).subject_id
    pulse.review(task_ids[2], Verdict.SUCCEEDED)
    outcomes = finish(pulse, batch_id)
    assert [item for item, _ in outcomes] == [ItemState.DONE, ItemState.DONE, ItemState.REFUSED, *[ItemState.DONE] * 2]
    assert outcomes[2][1]["code"] == "STATE_CONFLICT"
    assert [pulse.task(task_id).state for task_id in [*task_ids[:3], waiting]] == [
        TaskState.FAILED,
        TaskState.FAILED,
        TaskState.SUCCEEDED,
        TaskState.WAITING,
    ]


def test_many_ended_tasks_get_one_successor_each(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_ids = [pulse.submit() for _ in range(3)]
    for _ in task_ids:
        pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    batch_id = create(pulse, RETRY, chosen(pulse, RETRY, queue_id=queue_id), DECISION).subject_id
    outcomes = finish(pulse, batch_id)
    successors = [bytes.fromhex(outcome["successor"]) for _, outcome in outcomes]
    assert [pulse.task(each).row.retry_of for each in successors] == task_ids
    again = create(pulse, RETRY, [Subject(each, pulse.task(each).revision) for each in task_ids], DECISION).subject_id
    assert {outcome["code"] for _, outcome in finish(pulse, again)} == {"STATE_CONFLICT"}


def test_a_cancelled_batch_of_tasks_frees_their_places(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_ids = [pulse.submit() for _ in range(4)]
    running = pulse.run()
    batch_id = create(pulse, CANCEL, chosen(pulse, CANCEL, queue_id=queue_id)).subject_id
    finish(pulse, batch_id)
    states = [pulse.task(task_id).state for task_id in task_ids]
    assert states == [TaskState.RUNNING, *[TaskState.CANCELLED] * 3]
    assert pulse.task(running.task.id).row.cancel_reason == "a test"
    assert pulse.read(queue_id).unfinished_tasks == 1


def test_items_are_decided_no_faster_than_the_rate(pulse: Pulse) -> None:
    pulse.queue()
    task_ids = [pulse.submit() for _ in range(6)]
    subjects = [Subject(task_id, 1) for task_id in task_ids]
    create(pulse, CANCEL, subjects, rate_per_second=0.1)
    runner = runner_of(pulse)
    cancelled = []
    for _ in range(14):
        while runner.run_once() == 0.0:
            pass
        cancelled.append(sum(pulse.task(task_id).state is TaskState.CANCELLED for task_id in task_ids))
        pulse.database.clock.advance(seconds_forward=5)
    assert cancelled[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(cancelled))
    assert cancelled[-1] == 6


def test_after_a_stop_nothing_more_is_done_and_what_was_done_stays(pulse: Pulse) -> None:
    pulse.queue()
    task_ids = [pulse.submit() for _ in range(3)]
    batch_id = create(pulse, CANCEL, [Subject(each, 1) for each in task_ids], rate_per_second=1).subject_id
    runner_of(pulse).run_once()
    command, actor = pulse.command("batch.stop"), pulse.actor()

    def stop() -> Answer:
        return pulse.database.transaction(lambda tx: batch_stop(tx, command, actor, batch_id=batch_id, reason="enough"))

    assert stop().data["batch"]["items"] == {"all": 3, "pending": 0, "done": 1, "refused": 0, "stopped": 2}
    assert stop().deduplicated
    pulse.database.clock.advance(seconds_forward=60)
    runner_of(pulse).run_once()
    assert [pulse.task(task_id).state for task_id in task_ids] == [TaskState.CANCELLED, *[TaskState.WAITING] * 2]
    command = pulse.command("batch.stop")
    with pytest.raises(StateConflict):
        stop()


def test_a_full_queue_holds_a_batch_up_and_loses_no_item(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_ids = [pulse.submit() for _ in range(2)]
    for _ in task_ids:
        pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    pulse.configure(queue_id, max_unfinished_tasks=1)
    batch_id = create(pulse, RETRY, chosen(pulse, RETRY, queue_id=queue_id), DECISION).subject_id
    runner = runner_of(pulse)
    for _ in range(5):
        runner.run_once()
        pulse.database.clock.advance(seconds_forward=2)
    assert (state(pulse, batch_id), pulse.read(queue_id).unfinished_tasks) == (BatchState.RUNNING, 1)
    pulse.configure(queue_id, max_unfinished_tasks=10)
    assert [item for item, _ in finish(pulse, batch_id)] == [ItemState.DONE] * 2


def test_a_chunk_whose_node_died_is_done_once_by_another(pulse: Pulse, database: Database) -> None:
    """The first node dies between an item's transaction and giving the batch free."""
    done: list[bytes] = []

    class Counting:
        def apply(self, _tx: Transaction, _order: Order, subject: Subject) -> Json:
            if len(done) == 1:
                raise KeyboardInterrupt
            done.append(subject.id)
            return {}

    pulse.queue()
    first, second = BatchRunner(database), BatchRunner(database)
    first.operations["test.count"] = second.operations["test.count"] = Counting()
    subjects = [Subject(new_id(), 1) for _ in range(3)]
    batch_id = create(pulse, "test.count", subjects, rate_per_second=4).subject_id
    first.run_once()
    database.clock.advance(seconds_forward=1)
    with pytest.raises(KeyboardInterrupt):
        first.run_once()
    done.append(b"the first node is gone")
    second.run_once()
    assert state(pulse, batch_id) is BatchState.RUNNING
    database.clock.advance(seconds_forward=limits.BATCH_LEASE_MICROS / 1_000_000 + 1)
    while state(pulse, batch_id) is BatchState.RUNNING:
        second.run_once()
        database.clock.advance(seconds_forward=1)
    assert [each for each in done if each != b"the first node is gone"] == [subject.id for subject in subjects]


def test_nothing_and_too_much_is_no_batch(pulse: Pulse) -> None:
    with pytest.raises(InvalidRequest):
        create(pulse, CANCEL, [])
    with pytest.raises(InvalidRequest):
        create(pulse, CANCEL, [Subject(new_id(), 1)] * (limits.BATCH_SUBJECTS_MAX + 1))
