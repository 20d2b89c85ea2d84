"""What limits a queue: pause, permits and the rate window, and what a change of them leaves alone."""

import pytest

from orbit.ids import new_id
from pulse.report import ReceiptKind
from pulse.start import StartCode
from pulse.states import RecoverySafety, TaskState, WaitReason
from tests.support.pulse import Pulse

SECOND = 1_000_000
SAFE = RecoverySafety.REPLAY_SAFE


@pytest.mark.requirement("R186")
def test_r043_a_paused_queue_claims_nothing_and_starts_nothing(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_id = pulse.submit()
    (leased,) = pulse.claim()
    pulse.configure(queue_id, paused=True)
    outcome = pulse.start(leased)
    assert (outcome.granted, outcome.code) == (False, StartCode.QUEUE_PAUSED)
    assert pulse.claim() == []
    view = pulse.task(task_id)
    assert (view.state, view.wait_reason, view.row.starts_count) == (TaskState.WAITING, WaitReason.QUEUE_PAUSED, 0)
    pulse.configure(queue_id, paused=False)
    assert [item.task.id for item in pulse.claim()] == [task_id]


def test_r044_a_paused_queue_takes_everything_else(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.submit()
    pulse.submit()
    first, second = pulse.claim(2)
    pulse.start_all([first, second])
    pulse.configure(queue_id, paused=True)
    waiting = pulse.submit()
    assert pulse.renew(first).lease_micros is not None
    assert pulse.succeed(first).receipt == ReceiptKind.ACCEPTED
    pulse.cancel(waiting)
    assert pulse.task(waiting).state == TaskState.CANCELLED
    pulse.pass_time(31)
    assert pulse.task(second.task.id).state == TaskState.NEEDS_REVIEW


def test_r045_permits_limit_what_is_leased_or_running(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_concurrency=3)
    for _ in range(8):
        pulse.submit()
    first = pulse.claim(10)
    assert len(first) == 3
    assert pulse.claim(10) == []
    pulse.start_all(first)
    assert pulse.claim(10) == []
    pulse.succeed(first[0])
    assert len(pulse.claim(10)) == 1
    assert pulse.usage(queue_id).active == 3


@pytest.mark.requirement("R049", "R050", "R051")
def test_r047_a_window_opens_with_the_first_start_and_lasts_a_second(pulse: Pulse) -> None:
    queue_id = pulse.queue(rate_per_second=2)
    for _ in range(6):
        pulse.submit()
    pulse.database.clock.advance(seconds_forward=0)
    first = pulse.claim(10)
    assert len(first) == 2
    message_ids = [new_id(), new_id()]
    assert all(pulse.start(item, message).granted for item, message in zip(first, message_ids, strict=True))
    opened = pulse.usage(queue_id).window_started_at
    # The same message again gets the same answer and is not counted.
    assert all(pulse.start(item, message).granted for item, message in zip(first, message_ids, strict=True))
    pulse.renew(first[0])
    assert (pulse.usage(queue_id).window_used, pulse.claim(10)) == (2, [])
    pulse.database.clock.advance(seconds_forward=1.2)
    second = pulse.claim(10)
    assert len(second) == 2
    pulse.start_all(second)
    usage = pulse.usage(queue_id)
    assert usage.window_used == 2
    assert usage.window_started_at >= opened + 1.2 * SECOND


def test_r053_a_claim_reserves_room_for_what_has_not_started(pulse: Pulse) -> None:
    pulse.queue(rate_per_second=1)
    ids = [pulse.submit() for _ in range(5)]
    (only,) = pulse.claim(5)
    assert pulse.claim(5) == []
    pulse.start(only)
    assert pulse.claim(5) == []
    waiting = [pulse.task(task_id) for task_id in ids if task_id != only.task.id]
    assert all(view.row.leases_count == 0 for view in waiting)


@pytest.mark.requirement("R055")
def test_r054_a_rate_lowered_after_the_claim_limits_starts_and_spends_nothing(pulse: Pulse) -> None:
    queue_id = pulse.queue(rate_per_second=100)
    for _ in range(5):
        pulse.submit()
    leased = pulse.claim(5)
    pulse.configure(queue_id, rate_per_second=1)
    message_ids = {item.attempt_id: new_id() for item in leased}
    started: list[bytes] = []
    for _ in range(5):
        for item in leased:
            if item.attempt_id in started:
                continue
            before = pulse.task(item.task.id).row
            outcome = pulse.start(item, message_ids[item.attempt_id])
            if outcome.granted:
                started.append(item.attempt_id)
            else:
                assert outcome.code is StartCode.RATE_LIMITED
                assert 0 < outcome.retry_after_micros <= SECOND
                assert pulse.task(item.task.id).row == before
        pulse.pass_time(1.05)
    assert len(started) == 5
    assert all(pulse.task(item.task.id).row.starts_count == 1 for item in leased)


def test_a_limited_start_prolongs_its_assignment_to_half_a_minute_at_most(pulse: Pulse) -> None:
    queue_id = pulse.queue(rate_per_second=40)
    for _ in range(40):
        pulse.submit()
    leased = pulse.claim(40)
    pulse.configure(queue_id, rate_per_second=1)
    message_ids = {item.attempt_id: new_id() for item in leased}
    # Well within the half minute, since real time passes too: a busy machine must not reach it before the assertion.
    for _ in range(20):
        # All ask together in the same order, so the last ones are limited every time.
        pulse.start_all(leased, message_ids)
        pulse.pass_time(1.01)
    states = [pulse.task(item.task.id).state for item in leased]
    assert states == [TaskState.RUNNING] * 20 + [TaskState.LEASED] * 20
    for _ in range(3):
        # Each would prolong it to five seconds from now, but the half minute is over before that.
        pulse.start_all(leased, message_ids)
        pulse.pass_time(4)
    assert pulse.task(leased[-1].task.id).state == TaskState.WAITING


def test_r056_the_rate_moves_no_deadline(pulse: Pulse) -> None:
    pulse.queue(rate_per_second=1)
    ids = [pulse.submit(start_within_micros=5 * SECOND) for _ in range(20)]
    started = 0
    for _ in range(12):
        for item in pulse.claim(20):
            started += pulse.start(item).granted
        pulse.pass_time(0.5)
    codes = [pulse.error_code(task_id) for task_id in ids if pulse.task(task_id).state == TaskState.FAILED]
    # A slow machine passes more time between two rounds and starts fewer; more than a window a second never.
    assert 2 <= started <= 6
    assert codes == ["START_DEADLINE_EXCEEDED"] * (20 - started)


def test_r057_lowered_concurrency_revokes_nothing(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_concurrency=4)
    for _ in range(6):
        pulse.submit()
    running = pulse.claim(4)
    pulse.start_all(running)
    pulse.configure(queue_id, max_concurrency=1)
    for item in running[:3]:
        assert pulse.task(item.task.id).state == TaskState.RUNNING
        pulse.succeed(item)
        assert pulse.claim(4) == []
    pulse.succeed(running[3])
    assert len(pulse.claim(4)) == 1


def test_r058_a_lowered_rate_keeps_what_the_window_has_used(pulse: Pulse) -> None:
    queue_id = pulse.queue(rate_per_second=10)
    for _ in range(12):
        pulse.submit()
    pulse.start_all(pulse.claim(8))
    pulse.configure(queue_id, rate_per_second=5)
    assert pulse.claim(4) == []
    pulse.pass_time(1.1)
    assert len(pulse.claim(10)) == 4


def test_r060_nothing_resets_what_is_used(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    for _ in range(5):
        pulse.submit()
    pulse.start_all(pulse.claim(2))
    pulse.claim(1)
    before, backlog = pulse.usage(queue_id), pulse.read(queue_id).unfinished_tasks
    pulse.configure(queue_id, paused=True, max_concurrency=7, rate_per_second=7, max_unfinished_tasks=7)
    pulse.configure(queue_id, paused=False)
    after = pulse.usage(queue_id)
    assert (after.active, after.leased_unstarted, after.window_used, after.window_started_at) == (
        before.active,
        before.leased_unstarted,
        before.window_used,
        before.window_started_at,
    )
    assert pulse.read(queue_id).unfinished_tasks == backlog


def test_r060_a_lost_session_and_its_leases_reset_nothing(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_concurrency=2)
    for _ in range(4):
        pulse.submit()
    pulse.start_all(pulse.claim(2, safety=SAFE))
    pulse.session_id = new_id()
    assert (pulse.claim(), pulse.usage(queue_id).active) == ([], 2)
    pulse.pass_time(31)
    assert pulse.usage(queue_id).active == 0
