"""Three clocks, each with its own code and its own behaviour while a task is WAITING, LEASED and RUNNING."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pulse.claim import Assignment
from pulse.report import Outcome, ReceiptKind
from pulse.requests import RetryPolicy
from pulse.start import StartCode
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from tests.support.pulse import Pulse

SECOND = 1_000_000
SAFE, MANUAL = RecoverySafety.REPLAY_SAFE, RecoverySafety.MANUAL
LONG: dict[str, Any] = {"attempt_timeout_micros": 3_600 * SECOND}
# The fields of a task with one limit of 400 seconds, and the code of what passes it before the first Start.
LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "start deadline": ({"start_within_micros": 400 * SECOND}, "START_DEADLINE_EXCEEDED"),
    "total deadline": ({"deadline_micros": 400 * SECOND}, "DEADLINE_EXCEEDED"),
}


def end_of(pulse: Pulse, task_id: bytes) -> tuple[str, str, bool]:
    """Return a task's state, the code of its error and whether an effect is possible."""
    view = pulse.task(task_id)
    error = json.loads(view.row.error)
    return view.state, error["code"], error.get("effect_unknown", False)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("waits", ["READY", "QUEUE_PAUSED", "DELAYED", "KEY_BLOCKED"])
def test_r128_a_waiting_task_ends_by_its_deadline_whatever_it_waits_for(pulse: Pulse, limit: str, waits: str) -> None:
    """Only a closed gate stops the clocks: pause, rate, quota, key and back-off do not."""
    fields, code = LIMITS[limit]
    queue_id = pulse.queue()
    if waits == "KEY_BLOCKED":
        pulse.submit(concurrency_keys=("k",), type="other")
        pulse.run(type_="other")
        fields = fields | {"concurrency_keys": ("k",)}
    if waits == "DELAYED":
        fields = fields | {"delay_micros": 300 * SECOND}
    task_id = pulse.submit(**fields)
    if waits == "QUEUE_PAUSED":
        pulse.configure(queue_id, paused=True)
    if waits == "KEY_BLOCKED":
        assert pulse.claim() == []
        assert pulse.task(task_id).wait_reason == WaitReason.KEY_BLOCKED
    if waits == "DELAYED":
        pulse.pass_time(300)  # a span counts from when it may start
    pulse.pass_time(350)
    assert pulse.task(task_id).state == TaskState.WAITING
    pulse.pass_time(51)
    assert end_of(pulse, task_id) == ("FAILED", code, False)
    assert pulse.drifts() == []


def test_r128_a_back_off_stops_no_clock_but_the_start_deadline_binds_the_first_start_only(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse.report.random.random", lambda: 0.99)  # nearly the whole back-off
    pulse.queue()
    slow = RetryPolicy(attempts_max=3, backoff_micros=3_600 * SECOND, backoff_micros_max=3_600 * SECOND)
    started = pulse.submit(start_within_micros=400 * SECOND, retry=slow)
    pulse.fail(pulse.run(safety=SAFE))
    pulse.pass_time(401)
    assert (pulse.task(started).state, pulse.task(started).wait_reason) == ("WAITING", WaitReason.BACKOFF)
    limited = pulse.submit(deadline_micros=3_700 * SECOND, retry=slow)
    pulse.fail(pulse.run(safety=SAFE))
    # Its back-off is over by then: its deadline still ends it.
    pulse.pass_time(3_701)
    assert end_of(pulse, limited)[:2] == ("FAILED", "DEADLINE_EXCEEDED")


def starts(pulse: Pulse, assignment: Assignment) -> None:
    assert pulse.start(assignment).code is StartCode.DEADLINE


def releases(pulse: Pulse, assignment: Assignment) -> None:
    assert pulse.release(assignment)


def says_nothing(pulse: Pulse, _assignment: Assignment) -> None:
    pulse.pass_time(6)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("does", [starts, releases, says_nothing])
def test_r128_a_leased_task_is_not_started_past_its_deadline(
    pulse: Pulse, limit: str, does: Callable[[Pulse, Assignment], None]
) -> None:
    fields, code = LIMITS[limit]
    queue_id = pulse.queue()
    task_id = pulse.submit(**fields)
    pulse.pass_time(397)
    (assignment,) = pulse.claim()
    pulse.database.clock.advance(seconds_forward=3.1)
    pulse.deadlines.run_once()
    assert pulse.task(task_id).state == TaskState.LEASED, "until somebody asks, or the assignment runs out"
    does(pulse, assignment)
    pulse.sweep()
    assert end_of(pulse, task_id) == ("FAILED", code, False)
    assert (pulse.usage(queue_id).active, pulse.task(task_id).row.starts_count) == (0, 0)


@pytest.mark.requirement("R129")
@pytest.mark.parametrize(
    ("fields", "safety", "ends"),
    [
        ({"attempt_timeout_micros": 400 * SECOND}, MANUAL, ("NEEDS_REVIEW", "ATTEMPT_TIMED_OUT", True)),
        ({"attempt_timeout_micros": 400 * SECOND}, SAFE, ("WAITING", "ATTEMPT_TIMED_OUT", True)),
        ({"deadline_micros": 400 * SECOND, **LONG}, MANUAL, ("NEEDS_REVIEW", "DEADLINE_EXCEEDED", True)),
        ({"deadline_micros": 400 * SECOND, **LONG}, SAFE, ("FAILED", "DEADLINE_EXCEEDED", True)),
    ],
)
@pytest.mark.parametrize("stops", [None, Outcome.CANCELLED, Outcome.RETURNED])
def test_r128_a_running_task_is_judged_by_the_recovery_table_at_its_limit(
    pulse: Pulse, fields: dict[str, Any], safety: RecoverySafety, ends: tuple[str, str, bool], stops: Outcome | None
) -> None:
    """Whether its worker is silent, or stops as it was told: the limit is what ended it, and no effect is ruled out."""
    pulse.queue()
    task_id = pulse.submit(**fields)
    running = pulse.run(safety=safety)
    if stops is None:
        for _ in range(20):
            pulse.renew(running)
            pulse.pass_time(20.1)
    else:
        pulse.database.clock.advance(seconds_forward=401)
        assert pulse.report(pulse.result(running, stops)).receipt == ReceiptKind.ACCEPTED
    state, code, is_unknown = end_of(pulse, task_id)
    assert (state, is_unknown) == (ends[0], ends[2])
    if stops is not Outcome.RETURNED or code == "DEADLINE_EXCEEDED":
        assert code == ends[1]
    assert pulse.succeed(running).receipt == ReceiptKind.LATE
    assert pulse.drifts() == []


def test_r128_a_start_deadline_says_nothing_of_what_runs_and_a_result_in_time_counts(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(start_within_micros=400 * SECOND, **LONG)
    running = pulse.run()
    for _ in range(21):
        pulse.renew(running)
        pulse.pass_time(20)
    assert pulse.renew(running).lease_micros
    assert pulse.succeed(running).receipt == ReceiptKind.ACCEPTED
    assert pulse.task(task_id).state == TaskState.SUCCEEDED


def test_r129_a_failure_past_the_deadline_is_not_tried_again_and_says_so(pulse: Pulse) -> None:
    pulse.queue()
    for class_, code in ((ErrorClass.RETRYABLE, "DEADLINE_EXCEEDED"), (ErrorClass.NON_RETRYABLE, "BROKEN")):
        task_id = pulse.submit(deadline_micros=400 * SECOND)
        running = pulse.run(safety=SAFE)
        pulse.database.clock.advance(seconds_forward=401)
        pulse.fail(running, class_)
        assert end_of(pulse, task_id) == ("FAILED", code, False)
    assert pulse.claim() == []


def test_a_pause_makes_no_later_release_wait_longer(pulse: Pulse) -> None:
    """A refused Start on a paused queue is the operator's doing: the task keeps its place and its patience."""
    queue_id = pulse.queue()
    task_id = pulse.submit()
    (assignment,) = pulse.claim()
    pulse.configure(queue_id, paused=True)
    assert pulse.start(assignment).code is StartCode.QUEUE_PAUSED
    pulse.configure(queue_id, paused=False)
    (again,) = pulse.claim()
    pulse.release(again)
    assert [item.task.id for item in pulse.claim()] == [task_id], "it was ready at once"
