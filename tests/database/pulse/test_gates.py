"""Gates: what they hold, what they let go on, and how the deadlines of held tasks stand still."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orbit.clock import SECOND
from orbit.database import Transaction
from orbit.ids import new_id
from pulse.claim import Assignment
from pulse.gates import gate_close, gate_create, gate_open
from pulse.listener import TaskOwner
from pulse.requests import RetryPolicy
from pulse.start import StartCode
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from tests.support.pulse import Pulse

ROUNDS = 8


class Gate:
    """A gate before the tasks of one owner, which hears when it is quiet."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.id = new_id()
        self.quiet: list[bytes] = []
        pulse.listeners.append(self)
        pulse.database.transaction(lambda tx: gate_create(tx, self.id, namespace_id=pulse.namespace_id))

    def tasks_changed(self, tx: Transaction, changes: object) -> None:
        """Nothing is asked of it."""

    def gate_quiet(self, tx: Transaction, gate_id: bytes) -> None:
        """Note it, in the transaction that makes it so."""
        assert tx.statement_count
        self.quiet.append(gate_id)

    def submit(self, **fields: object) -> bytes:
        """Submit a task behind it."""
        owner = TaskOwner(self.id, new_id().hex(), 1)
        return self.pulse.submit(None, None, owner=owner, gate_id=self.id, **fields)

    def close(self) -> int:
        """Close it."""
        return self.pulse.database.transaction(lambda tx: gate_close(tx, self.id, self.pulse))

    def open(self) -> int:
        """Open it."""
        return self.pulse.database.transaction(lambda tx: gate_open(tx, self.id, self.pulse))


def test_r142_a_closed_gate_lets_no_claim_start_or_retry_through_and_takes_results(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    ids = [gate.submit() for _ in range(3)]
    running = pulse.run()
    (leased,) = pulse.claim(1)
    assert gate.close() == 1
    assert pulse.claim() == []
    outcome = pulse.start(leased)
    assert (outcome.granted, outcome.code) == (False, StartCode.HELD)
    assert pulse.fail(running).task_state is TaskState.WAITING
    assert gate.quiet == [gate.id]
    pulse.pass_time(600)
    assert pulse.claim() == []
    for task_id in ids:
        view = pulse.task(task_id)
        assert (view.state, view.wait_reason) == (TaskState.WAITING, WaitReason.HELD)
    assert gate.open() == 3
    assert {assignment.task.id for assignment in pulse.claim()} == set(ids)


def test_a_result_behind_a_closed_gate_counts_and_the_last_one_is_told(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    ids = [gate.submit() for _ in range(2)]
    first, second = pulse.run(), pulse.run()
    assert gate.close() == 2
    pulse.succeed(first)
    assert gate.quiet == []
    pulse.succeed(second)
    assert gate.quiet == [gate.id]
    assert [pulse.task(task_id).state for task_id in ids] == [TaskState.SUCCEEDED] * 2


def test_closing_twice_and_opening_twice_changes_nothing(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    task_id = gate.submit()
    pulse.run()
    assert (gate.close(), gate.close()) == (1, 1)
    assert (gate.open(), gate.open()) == (0, 0)
    assert pulse.task(task_id).state is TaskState.RUNNING


def test_a_gate_that_opens_again_forgets_what_ran_while_it_was_closed(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    gate.submit()
    running = pulse.run()
    gate.close()
    gate.open()
    pulse.succeed(running)
    assert gate.quiet == []
    gate.submit()
    assert gate.close() == 0


def test_the_deadlines_of_a_held_task_stand_still_and_are_later_by_that(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    task_id = gate.submit(start_within_micros=60 * SECOND, deadline_micros=100 * SECOND)
    before = pulse.task(task_id).row
    pulse.pass_time(30)
    gate.close()
    pulse.pass_time(1000)
    assert pulse.task(task_id).wait_reason is WaitReason.HELD
    gate.open()
    after = pulse.task(task_id).row
    assert before.start_deadline_at is not None
    assert after.start_deadline_at is not None
    for shift in (after.start_deadline_at - before.start_deadline_at, after.deadline_at - before.deadline_at):
        assert 1000 * SECOND <= shift < 1020 * SECOND
    pulse.pass_time(35)
    assert pulse.error_code(task_id) == "START_DEADLINE_EXCEEDED"


def test_a_deadline_that_passed_before_the_gate_closed_is_found_when_it_opens(pulse: Pulse) -> None:
    """No node was there to judge it: by the time that one is, what it would have found stands still."""
    pulse.queue()
    gate = Gate(pulse)
    late, other = gate.submit(start_within_micros=10 * SECOND), gate.submit(deadline_micros=20 * SECOND)
    pulse.database.clock.advance(seconds_forward=100)
    gate.close()
    pulse.pass_time(200)
    assert pulse.task(late).wait_reason is pulse.task(other).wait_reason is WaitReason.HELD
    gate.open()
    pulse.pass_time(1)
    assert pulse.error_code(late) == "START_DEADLINE_EXCEEDED"
    assert pulse.error_code(other) == "DEADLINE_EXCEEDED"


def test_a_running_attempts_deadline_runs_on_behind_a_closed_gate(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    task_id = gate.submit(attempt_timeout_micros=20 * SECOND, deadline_micros=20 * SECOND)
    pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    gate.close()
    pulse.pass_time(21)
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (TaskState.FAILED, "DEADLINE_EXCEEDED")
    assert gate.quiet == [gate.id]


def test_what_is_submitted_behind_a_closed_gate_is_held_from_the_start(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    gate.close()
    now_id, later_id = gate.submit(), gate.submit(delay_micros=5000 * SECOND)
    other = pulse.submit()
    assert [assignment.task.id for assignment in pulse.claim()] == [other]
    assert gate.open() == 2
    assert [assignment.task.id for assignment in pulse.claim()] == [now_id]
    assert pulse.task(later_id).wait_reason is WaitReason.DELAYED


def test_a_back_off_goes_on_after_the_gate_opens(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    policy = RetryPolicy(3, 3600 * SECOND, 3600 * SECOND)
    task_id = gate.submit(retry=policy)
    pulse.fail(pulse.run(), ErrorClass.RETRYABLE)
    assert pulse.task(task_id).wait_reason is WaitReason.BACKOFF
    gate.close()
    gate.open()
    assert pulse.task(task_id).wait_reason is WaitReason.BACKOFF
    pulse.pass_time(3601)
    assert [assignment.task.id for assignment in pulse.claim()] == [task_id]


def test_an_undone_lease_and_a_cancel_behind_a_closed_gate(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    lost, released, waiting = (gate.submit() for _ in range(3))
    assignments = {assignment.task.id: assignment for assignment in pulse.claim(2)}
    assert set(assignments) == {lost, released}
    gate.close()
    assert pulse.release(assignments[released])
    pulse.pass_time(6)
    assert [pulse.task(task_id).wait_reason for task_id in (lost, released, waiting)] == [WaitReason.HELD] * 3
    pulse.cancel_owned(waiting)
    assert pulse.task(waiting).state is TaskState.CANCELLED
    assert gate.open() == 2
    pulse.pass_time(60)
    assert {assignment.task.id for assignment in pulse.claim()} == {lost, released}


def test_a_running_task_that_is_cancelled_behind_a_closed_gate_makes_it_quiet(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    task_id = gate.submit()
    running = pulse.run()
    gate.close()
    assert pulse.cancel_owned(task_id).is_wanted
    assert pulse.fail(running).task_state is TaskState.CANCELLED
    assert gate.quiet == [gate.id]


@pytest.mark.databases("mariadb", "mysql")
def test_nothing_starts_once_the_gate_is_closed_though_claims_and_starts_race_with_it(pulse: Pulse) -> None:
    pulse.queue()
    gate = Gate(pulse)
    for _ in range(ROUNDS):
        ids = [gate.submit() for _ in range(9)]
        started = threading.Barrier(4)

        def work(started: threading.Barrier = started) -> list[Assignment]:
            started.wait()
            leased = pulse.claim(3)
            outcomes = pulse.start_all(leased) if leased else []
            return [one for one, outcome in zip(leased, outcomes, strict=True) if outcome.granted]

        with ThreadPoolExecutor(3) as threads:
            working = [threads.submit(work) for _ in range(3)]
            started.wait()
            in_flight = gate.close()
            running = [assignment for future in working for assignment in future.result()]
        assert pulse.drifts() == []
        assert len(running) == in_flight
        assert pulse.claim() == []
        gate.quiet.clear()
        for assignment in running:
            pulse.succeed(assignment)
        assert gate.quiet == [gate.id] * bool(in_flight)
        assert gate.open() == len(ids) - in_flight
        for task_id in ids:
            pulse.cancel_owned(task_id)
