"""Acceptance: receipts, refusals, the backlog, batches."""

import threading
from collections.abc import Sequence

import pytest
from sqlalchemy import func, select

from orbit.database import Database, Transaction, metadata
from orbit.errors import ApplicationQuotaExceeded, IdempotencyConflict, InvalidRequest, NotFound, OrbitError, QueueFull
from orbit.idempotency import Answer
from pulse.acceptance import Scarce, tasks_accept
from pulse.report import Outcome, report
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from pulse.submission import Submit
from tests.support.applications import Application
from tests.support.pulse import Pulse

SECOND = 1_000_000


def row_counts(database: Database) -> dict[str, int]:
    tables = ("pulse_task", "pulse_ready", "pulse_delayed", "orbit_receipt", "orbit_event", "orbit_audit")

    def read(tx: Transaction) -> dict[str, int]:
        return {name: tx.rows(select(func.count()).select_from(metadata.tables[name]))[0][0] for name in tables}

    return database.transaction(read)


def test_an_accepted_task_waits_ready(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_id = pulse.submit(params=b'{"n": 1.50, "id":3544790567247868102}')
    view = pulse.task(task_id)
    assert (view.state, view.revision, view.wait_reason) == (TaskState.WAITING, 1, WaitReason.NO_COMPATIBLE_WORKER)
    assert bytes(view.row.params) == b'{"n": 1.50, "id":3544790567247868102}'
    assert pulse.read(queue_id).unfinished_tasks == 1


def test_the_same_key_gives_the_first_receipt(pulse: Pulse) -> None:
    pulse.queue()
    first = pulse.submit_all(pulse.submit_item("k", {"n": 1}))[0]
    again = pulse.submit_all(pulse.submit_item("k", {"n": 1}))[0]
    assert isinstance(first, Answer)
    assert isinstance(again, Answer)
    assert (again.data, again.deduplicated) == (first.data, True)
    assert isinstance(pulse.refusal("k", {"n": 2}), IdempotencyConflict)


def test_twins_in_one_batch_are_one_task(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    items = [pulse.submit_item("k", 1), pulse.submit_item("k", 1), pulse.submit_item("k", 2)]
    first, twin, other = pulse.submit_all(*items)
    assert isinstance(first, Answer)
    assert isinstance(twin, Answer)
    assert (first.deduplicated, twin.deduplicated, twin.subject_id) == (False, True, first.subject_id)
    assert isinstance(other, IdempotencyConflict)
    assert pulse.read(queue_id).unfinished_tasks == 1


def test_one_bad_item_touches_no_other(pulse: Pulse) -> None:
    pulse.queue()
    outcomes = pulse.submit_all(
        pulse.submit_item(), pulse.submit_item(queue="missing"), pulse.submit_item(), pulse.submit_item(available_at=1)
    )
    assert [type(outcome) for outcome in outcomes] == [Answer, NotFound, Answer, InvalidRequest]


@pytest.mark.requirement("R066")
def test_r067_a_refused_request_leaves_nothing(pulse: Pulse) -> None:
    pulse.queue(max_unfinished_tasks=2)
    pulse.submit()
    pulse.submit()
    before = row_counts(pulse.database)
    refusal = pulse.refusal("third")
    assert isinstance(refusal, QueueFull)
    assert refusal.message == "queue unfinished task limit reached; retry later using the original identity"
    assert row_counts(pulse.database) == before


@pytest.mark.requirement("R069")
def test_r068_a_replay_wins_over_a_full_queue(pulse: Pulse) -> None:
    pulse.queue(max_unfinished_tasks=1)
    first = pulse.submit("a")
    assert isinstance(pulse.refusal("b"), QueueFull)
    assert pulse.submit("a") == first
    pulse.cancel(first)
    (second,) = pulse.submit_all(pulse.submit_item("b"))
    assert isinstance(second, Answer)
    assert not second.deduplicated


class Counted(Scarce):
    """Counts the batches that had to run again."""

    again = 0

    def note(self, submits: Sequence[Submit]) -> None:
        self.again += 1
        super().note(submits)


@pytest.mark.parametrize("limit", ["queue", "quota"])
def test_a_batch_for_a_queue_that_was_short_a_moment_ago_runs_once(pulse: Pulse, limit: str) -> None:
    if limit == "queue":
        pulse.queue(max_unfinished_tasks=1)
    else:
        Application(pulse).configure(max_unfinished_tasks=1)
    pulse.queue("other")
    scarce = Counted()

    def accept(*queues: str) -> list[type]:
        items = [pulse.submit_item(queue=queue) for queue in queues]
        return [type(outcome) for outcome in tasks_accept(pulse.database, items, pulse, scarce)]

    refused = QueueFull if limit == "queue" else ApplicationQuotaExceeded
    assert accept("main", "main") == [Answer, refused]
    assert accept("main") == [refused]
    assert scarce.again == 1
    assert not scarce.holds_any([pulse.submit_item(queue="other")])
    assert accept("other") == [Answer if limit == "queue" else refused]


def test_a_nearly_full_queue_grants_in_order_of_arrival(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_unfinished_tasks=3)
    outcomes = pulse.submit_all(*[pulse.submit_item(f"k{index}") for index in range(5)])
    assert [type(outcome) for outcome in outcomes] == [Answer, Answer, Answer, QueueFull, QueueFull]
    assert pulse.read(queue_id).unfinished_tasks == 3


def test_r070_what_has_passed_is_refused_but_a_replay_is_not(pulse: Pulse) -> None:
    pulse.queue()
    now = pulse.database.transaction(lambda tx: tx.now())
    accepted = pulse.submit("k", start_deadline_at=now + 5 * SECOND)
    pulse.pass_time(10)
    assert pulse.submit("k", start_deadline_at=now + 5 * SECOND) == accepted
    refusals = (
        pulse.refusal(start_deadline_at=now + 5 * SECOND),
        pulse.refusal(available_at=now - 61 * SECOND),
        pulse.refusal(deadline_at=now),
    )
    pointers = [refusal.pointer for refusal in refusals if isinstance(refusal, InvalidRequest)]
    assert pointers == ["/start_deadline_at", "/available_at", "/deadline_at"]


@pytest.mark.requirement("R011", "R026")
def test_r025_the_backlog_counts_the_four_unfinished_states(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    for _ in range(7):
        pulse.submit()
    one, two, three, four, five, six = pulse.claim(6)
    for assignment in (two, three, four, five, six):
        assert pulse.start(assignment).granted
    pulse.fail(three, ErrorClass.UNKNOWN_OUTCOME)
    pulse.succeed(four)
    pulse.fail(five, ErrorClass.NON_RETRYABLE)
    pulse.cancel(six.task.id)
    pulse.report(pulse.result(six, outcome=Outcome.CANCELLED))
    states = [pulse.task(item.task.id).state for item in (one, two, three, four, five, six)]
    assert states == ["LEASED", "RUNNING", "NEEDS_REVIEW", "SUCCEEDED", "FAILED", "CANCELLED"]
    read = pulse.read(queue_id)
    assert (read.unfinished_tasks, read.revision) == (4, 1)
    assert pulse.configure(queue_id, max_unfinished_tasks=4).data["queue"]["revision"] == "2"
    assert isinstance(pulse.refusal(), QueueFull)


@pytest.mark.requirement("R062")
def test_r048_only_new_entries_are_refused_and_a_retry_keeps_its_place(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_unfinished_tasks=1)
    task_id = pulse.submit()
    pulse.fail(pulse.run())
    assert pulse.task(task_id).wait_reason == WaitReason.BACKOFF
    assert isinstance(pulse.refusal(), QueueFull)
    assert pulse.read(queue_id).unfinished_tasks == 1
    pulse.pass_time(5)
    pulse.fail(pulse.run(), ErrorClass.UNKNOWN_OUTCOME)
    assert pulse.task(task_id).state == TaskState.NEEDS_REVIEW
    assert pulse.read(queue_id).unfinished_tasks == 1
    assert isinstance(pulse.refusal(), QueueFull)


def test_r059_a_lowered_backlog_keeps_what_is_there(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    ids = [pulse.submit() for _ in range(10)]
    pulse.configure(queue_id, max_unfinished_tasks=3)
    for task_id in ids[:7]:
        assert isinstance(pulse.refusal(), QueueFull)
        pulse.cancel(task_id)
    assert isinstance(pulse.refusal(), QueueFull)
    pulse.cancel(ids[7])
    pulse.submit()
    assert pulse.read(queue_id).unfinished_tasks == 3


@pytest.mark.requirement("R062", "R063", "R064")
def test_r061_each_end_frees_one_place_once(pulse: Pulse) -> None:
    queue_id = pulse.queue()

    def unfinished() -> int:
        return pulse.read(queue_id).unfinished_tasks

    pulse.submit()
    running = pulse.run()
    pulse.cancel(running.task.id)
    assert (pulse.task(running.task.id).state, unfinished()) == (TaskState.RUNNING, 1)
    assert pulse.task(running.task.id).row.cancel_requested_at is not None
    stopped = pulse.result(running, outcome=Outcome.CANCELLED)
    assert pulse.report(stopped).receipt == "ACCEPTED"
    assert pulse.report(stopped).receipt == "DUPLICATE"
    assert unfinished() == 0
    assert pulse.succeed(running).receipt == "LATE"
    assert (pulse.task(running.task.id).state, unfinished()) == (TaskState.CANCELLED, 0)


@pytest.mark.requirement("R046")
def test_r061_a_crash_before_commit_moves_neither_state_nor_counter(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_id = pulse.submit()
    running = pulse.run()

    class PowerCutError(Exception):
        pass

    def cut(tx: Transaction) -> None:
        report(tx, [pulse.result(running, Outcome.SUCCEEDED)], pulse)
        raise PowerCutError

    with pytest.raises(PowerCutError):
        pulse.database.transaction(cut)
    assert pulse.task(task_id).state == TaskState.RUNNING
    assert (pulse.read(queue_id).unfinished_tasks, pulse.usage(queue_id).active) == (1, 1)
    pulse.succeed(running)
    assert (pulse.read(queue_id).unfinished_tasks, pulse.usage(queue_id).active) == (0, 0)


def test_c073_the_same_key_from_many_threads_is_one_task(pulse: Pulse) -> None:
    pulse.queue()
    outcomes: list[Answer | OrbitError] = []
    gate = threading.Barrier(8)

    def send() -> None:
        gate.wait()
        outcomes.extend(pulse.submit_all(pulse.submit_item("same", 1)))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    assert len(answers) == 8
    assert len({answer.subject_id for answer in answers}) == 1
    assert sum(not answer.deduplicated for answer in answers) == 1


def test_a_delayed_task_becomes_ready_at_its_time(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(delay_micros=200 * SECOND)
    assert pulse.task(task_id).wait_reason == WaitReason.DELAYED
    pulse.pass_time(150)
    assert pulse.claim() == []
    pulse.pass_time(51)
    assert [item.task.id for item in pulse.claim(safety=RecoverySafety.REPLAY_SAFE)] == [task_id]
