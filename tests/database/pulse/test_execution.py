"""The way through a worker: claim, Start, renewal, results, recovery."""

import pytest

from orbit.ids import new_id
from orbit.jsontext import dumps
from pulse import limits
from pulse.report import Outcome, ReceiptKind, RejectCode
from pulse.requests import RetryPolicy
from pulse.start import StartCode
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from tests.support.pulse import Pulse

SECOND = 1_000_000
SAFE = RecoverySafety.REPLAY_SAFE


def test_a_task_goes_its_way_and_gives_everything_back(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_id = pulse.submit(params=b'{"n":1}')
    (assignment,) = pulse.claim()
    assert (assignment.payload.params, assignment.attempt_number) == (b'{"n":1}', 1)
    assert (pulse.usage(queue_id).active, pulse.usage(queue_id).leased_unstarted) == (1, 1)
    assert pulse.start(assignment).granted
    assert (pulse.usage(queue_id).active, pulse.usage(queue_id).leased_unstarted) == (1, 0)
    outcome = pulse.succeed(assignment, {"f": 0.1, "id": -9223372036854775808})
    assert (outcome.receipt, outcome.task_state) == (ReceiptKind.ACCEPTED, TaskState.SUCCEEDED)
    view = pulse.task(task_id)
    assert view.output == b'{"f":0.1,"id":-9223372036854775808}'
    assert (view.row.starts_count, pulse.usage(queue_id).active) == (1, 0)
    assert assignment.attempt_id in pulse.ended


def test_claims_follow_time_less_priority(pulse: Pulse) -> None:
    pulse.queue()
    low, plain, high = (pulse.submit(priority=priority) for priority in (0, 4, 9))
    later = pulse.submit(priority=4)
    assert [item.task.id for item in pulse.claim()] == [high, plain, later, low]


def test_another_message_never_starts_a_running_attempt(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit()
    running = pulse.run()
    assert pulse.start(running).code is StartCode.ALREADY_STARTED


def test_two_messages_in_one_batch_start_an_attempt_once(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.submit()
    (leased,) = pulse.claim()
    outcomes = pulse.start_all([leased, leased])
    assert [outcome.granted for outcome in outcomes] == [True, False]
    assert pulse.usage(queue_id).window_used == 1


def test_an_unanswered_assignment_is_undone_at_no_cost(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    (leased,) = pulse.claim()
    pulse.pass_time(5.1)
    view = pulse.task(task_id)
    assert (view.state, view.row.starts_count, view.row.failed_count) == (TaskState.WAITING, 0, 0)
    assert pulse.start(leased).code is StartCode.LEASE_LOST
    assert not pulse.release(leased)
    (again,) = pulse.claim()
    assert again.attempt_id != leased.attempt_id


def test_releases_in_a_row_wait_longer_each_time(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    assert pulse.release(pulse.claim()[0])
    assert pulse.release(pulse.claim()[0])
    assert (pulse.claim(), pulse.task(task_id).wait_reason) == ([], WaitReason.DELAYED)
    pulse.pass_time(0.3)
    assert pulse.release(pulse.claim()[0])
    pulse.pass_time(0.3)
    assert pulse.claim() == []
    pulse.pass_time(0.3)
    assert len(pulse.claim()) == 1


@pytest.mark.requirement("R180")
@pytest.mark.parametrize(
    ("safety", "state"), [(SAFE, TaskState.WAITING), (RecoverySafety.MANUAL, TaskState.NEEDS_REVIEW)]
)
def test_r173_a_lost_lease_is_judged_by_the_recovery_safety(
    pulse: Pulse, safety: RecoverySafety, state: TaskState
) -> None:
    pulse.queue()
    task_id = pulse.submit()
    lost = pulse.run(safety=safety)
    pulse.pass_time(20)
    assert pulse.renew(lost).lease_micros == limits.LEASE_MICROS
    pulse.pass_time(29)
    assert pulse.task(task_id).state == TaskState.RUNNING
    pulse.pass_time(2)
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (state, "LEASE_LOST")
    # The zombie: nothing changes but stored evidence.
    assert pulse.renew(lost).lease_micros is None
    assert pulse.start(lost).code is StartCode.LEASE_LOST
    assert pulse.succeed(lost).receipt == ReceiptKind.LATE
    assert pulse.task(task_id).state == state
    assert pulse.task(task_id).row.starts_count == 1


def test_a_task_that_is_lost_too_often_is_parked(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(retry=RetryPolicy(attempts_max=50))
    for _ in range(limits.LOST_MAX):
        pulse.run(safety=SAFE)
        pulse.pass_time(31)
        pulse.pass_time(60)
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (TaskState.NEEDS_REVIEW, "LOST_TOO_OFTEN")


def test_a_result_counts_while_the_attempt_runs_though_its_lease_has_passed(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit()
    running = pulse.run()
    pulse.database.clock.advance(seconds_forward=40)
    assert pulse.renew(running).lease_micros is None
    assert pulse.succeed(running).receipt == ReceiptKind.ACCEPTED


def test_a_message_id_means_one_report(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit()
    running = pulse.run()
    message_id = new_id()
    assert pulse.succeed(running, 1, message_id).receipt == ReceiptKind.ACCEPTED
    assert pulse.succeed(running, 1, message_id).receipt == ReceiptKind.DUPLICATE
    other = pulse.succeed(running, 2, message_id)
    assert (other.receipt, other.code) == (ReceiptKind.REJECTED, RejectCode.MESSAGE_CONFLICT)
    assert pulse.succeed(running, 1).receipt == ReceiptKind.LATE
    assert pulse.task(running.task.id).output == b"1"


@pytest.mark.requirement("R110")
def test_c063_reports_of_nothing_are_rejected_one_by_one(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit()
    (leased,) = pulse.claim()
    early = pulse.succeed(leased)
    assert (early.receipt, early.code) == (ReceiptKind.REJECTED, RejectCode.NOT_STARTED)
    pulse.start(leased)
    unknown = pulse.report(pulse.result(leased, Outcome.SUCCEEDED, attempt_id=new_id()))
    stolen = pulse.report(pulse.result(leased, Outcome.SUCCEEDED, token="0" * 32))
    assert {unknown.code, stolen.code} == {RejectCode.ATTEMPT_UNKNOWN}
    assert pulse.succeed(leased).receipt == ReceiptKind.ACCEPTED


def test_c042_the_last_failure_ends_the_task_at_once(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(retry=RetryPolicy(attempts_max=3, backoff_micros=3 * SECOND, backoff_micros_max=60 * SECOND))
    for longest in (3, 6):
        pulse.fail(pulse.run())
        assert pulse.task(task_id).wait_reason == WaitReason.BACKOFF
        pulse.pass_time(longest + 0.1)
    pulse.fail(pulse.run())
    view = pulse.task(task_id)
    assert (view.state, view.row.failed_count, view.row.starts_count) == (TaskState.FAILED, 3, 3)


def test_c040_put_offs_are_counted_apart(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    for _ in range(12):
        running = pulse.run()
        pulse.report(pulse.result(running, Outcome.DEFERRED, retry_after_micros=SECOND))
        assert pulse.claim() == []
        pulse.pass_time(1.1)
    pulse.fail(pulse.run())
    row = pulse.task(task_id).row
    assert (row.failed_count, row.deferred_count, row.wait_reason) == (1, 12, "BACKOFF")
    pulse.pass_time(2.1)
    assert len(pulse.claim()) == 1


def test_c044_a_deadline_ends_the_task_and_no_second_attempt_follows(pulse: Pulse) -> None:
    pulse.queue()
    retry = RetryPolicy(attempts_max=6)
    task_id = pulse.submit(deadline_micros=10 * SECOND, retry=retry)
    running = pulse.run(safety=SAFE)
    pulse.pass_time(10.1)
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (TaskState.FAILED, "DEADLINE_EXCEEDED")
    assert pulse.claim() == []
    assert pulse.succeed(running).receipt == ReceiptKind.LATE
    assert pulse.task(task_id).state == TaskState.FAILED


def test_r128_three_limits_give_three_codes(pulse: Pulse) -> None:
    pulse.queue()
    never = pulse.submit(start_within_micros=5 * SECOND)
    pulse.pass_time(5.1)
    slow = pulse.submit(attempt_timeout_micros=3 * SECOND)
    pulse.run()
    pulse.pass_time(3.1)
    late = pulse.submit(deadline_micros=4 * SECOND)
    pulse.pass_time(4.1)
    codes = [pulse.error_code(task_id) for task_id in (never, slow, late)]
    assert codes == ["START_DEADLINE_EXCEEDED", "ATTEMPT_TIMED_OUT", "DEADLINE_EXCEEDED"]


def test_many_deadlines_that_pass_at_once_cost_no_more_statements_than_few(pulse: Pulse) -> None:
    pulse.queue()
    pulse.look_for_no_subscribers()
    spent: list[int] = []
    for count in (2, 20):
        for _ in range(count):
            pulse.submit(deadline_micros=5 * SECOND)
        pulse.database.clock.advance(seconds_forward=6)
        before = pulse.database.counts["statements"]
        assert pulse.deadlines.run_once() == count
        spent.append(pulse.database.counts["statements"] - before)
    assert spent[0] >= spent[1]


def test_c081_a_timed_out_attempt_frees_its_permit(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_concurrency=1)
    retry = RetryPolicy(attempts_max=2, backoff_micros=SECOND)
    task_id = pulse.submit(attempt_timeout_micros=2 * SECOND, retry=retry)
    for _ in range(2):
        pulse.run(safety=SAFE)
        pulse.pass_time(2.1)
        assert pulse.usage(queue_id).active == 0
        pulse.pass_time(3)
    view = pulse.task(task_id)
    assert (view.state, view.row.starts_count, pulse.error_code(task_id)) == (
        TaskState.FAILED,
        2,
        "ATTEMPTS_EXHAUSTED",
    )


@pytest.mark.parametrize(
    ("class_", "safety", "state"),
    [
        (ErrorClass.RETRYABLE, RecoverySafety.MANUAL, "WAITING"),
        (ErrorClass.NON_RETRYABLE, SAFE, "FAILED"),
        (ErrorClass.UNKNOWN_OUTCOME, SAFE, "WAITING"),
        (ErrorClass.UNKNOWN_OUTCOME, RecoverySafety.MANUAL, "NEEDS_REVIEW"),
        (ErrorClass.NEEDS_HUMAN, SAFE, "NEEDS_REVIEW"),
        (ErrorClass.UNCLASSIFIED, SAFE, "WAITING"),
        (ErrorClass.UNCLASSIFIED, RecoverySafety.MANUAL, "NEEDS_REVIEW"),
    ],
)
def test_r171_each_class_of_failure_has_its_way(
    pulse: Pulse, class_: ErrorClass, safety: RecoverySafety, state: str
) -> None:
    pulse.queue()
    task_id = pulse.submit()
    pulse.fail(pulse.run(safety=safety), class_)
    assert pulse.task(task_id).state == state


@pytest.mark.parametrize(
    ("safety", "ran", "state"),
    [(SAFE, True, "WAITING"), (SAFE, False, "WAITING"), (RecoverySafety.MANUAL, True, "NEEDS_REVIEW")],
)
def test_r170_what_a_drain_gives_back_is_judged_at_once(
    pulse: Pulse, safety: RecoverySafety, *, ran: bool, state: str
) -> None:
    pulse.queue()
    task_id = pulse.submit()
    running = pulse.run(safety=safety)
    pulse.report(pulse.result(running, Outcome.RETURNED, ran=ran))
    assert pulse.task(task_id).state == state
    if state == "WAITING":
        pulse.sweep()
        assert [item.task.id for item in pulse.claim()] == [task_id]


def test_c033_an_output_that_is_too_large_closes_the_attempt(pulse: Pulse) -> None:
    pulse.queue()
    for safety, state in ((SAFE, TaskState.FAILED), (RecoverySafety.MANUAL, TaskState.NEEDS_REVIEW)):
        task_id = pulse.submit()
        running = pulse.run(safety=safety)
        fault = RejectCode.OUTPUT_TOO_LARGE
        outcome = pulse.report(pulse.result(running, Outcome.SUCCEEDED, output=b"1", output_fault=fault))
        assert (outcome.receipt, outcome.code, outcome.task_state) == (ReceiptKind.ACCEPTED, fault, state)
        assert pulse.error_code(task_id) == fault
        assert pulse.task(task_id).output is None


@pytest.mark.requirement("R133")
def test_r065_a_cancel_settles_no_unknown_outcome(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_id = pulse.submit()
    pulse.fail(pulse.run(), ErrorClass.UNKNOWN_OUTCOME)
    answer = pulse.cancel(task_id)
    assert answer.data["task"] == {"id": task_id.hex(), "state": "NEEDS_REVIEW", "cancel_requested": True}
    assert pulse.read(queue_id).unfinished_tasks == 1


def test_c052_a_cancelled_waiting_task_never_runs(pulse: Pulse) -> None:
    pulse.queue(max_concurrency=1)
    first = pulse.submit()
    second = pulse.submit(retry=RetryPolicy(attempts_max=5))
    running = pulse.run()
    pulse.cancel(second)
    pulse.succeed(running)
    assert running.task.id == first
    assert pulse.claim() == []
    before = pulse.task(second).as_json()
    assert (before["state"], before["attempts"]) == ("CANCELLED", 0)
    assert pulse.cancel(second).data["task"]["state"] == "CANCELLED"
    assert pulse.task(second).as_json() == before, "a second cancel changes nothing"
    pulse.pass_time(3600)
    assert pulse.claim() == []


def test_a_cancel_reaches_a_delayed_a_backed_off_and_a_leased_task(pulse: Pulse) -> None:
    pulse.queue()
    delayed = pulse.submit(delay_micros=SECOND)
    pulse.cancel(delayed)
    backed_off = pulse.submit()
    pulse.fail(pulse.run())
    pulse.cancel(backed_off)
    leased = pulse.submit()
    (assignment,) = pulse.claim()
    pulse.cancel(leased)
    assert pulse.start(assignment).code is StartCode.LEASE_LOST
    assert {pulse.task(task_id).state for task_id in (delayed, backed_off, leased)} == {TaskState.CANCELLED}
    pulse.pass_time(10)
    assert pulse.claim() == []


def test_a_wanted_cancel_reaches_the_worker_and_makes_its_failure_final(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    running = pulse.run()
    pulse.cancel(task_id, "changed my mind")
    assert pulse.cancels == {task_id: "changed my mind"}
    assert pulse.renew(running).cancel == "changed my mind"
    pulse.fail(running)
    assert pulse.task(task_id).state == TaskState.CANCELLED


def test_r133_a_handler_that_ignores_a_cancel_succeeds(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    running = pulse.run()
    pulse.cancel(task_id)
    pulse.succeed(running)
    assert pulse.task(task_id).state == TaskState.SUCCEEDED


def test_an_unasked_cancelled_is_an_unknown_outcome(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    pulse.report(pulse.result(pulse.run(), Outcome.CANCELLED))
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (TaskState.NEEDS_REVIEW, "CANCELLED_UNASKED")


def test_c099_four_byte_characters_come_back_unchanged(pulse: Pulse) -> None:
    text = "💾 𠮷 你 ' \" \\ %s %(x)s"
    pulse.queue()
    task_id = pulse.submit(params=dumps({"t": text}), business_key=text, labels=dumps({"l": text}).decode())
    (leased,) = pulse.claim()
    assert leased.payload.params == dumps({"t": text})
    pulse.start(leased)
    pulse.succeed(leased, {"t": text})
    view = pulse.task(task_id).as_json()
    assert (view["params"], view["output"], view["labels"], view["business_key"]) == (
        {"t": text},
        {"t": text},
        {"l": text},
        text,
    )
