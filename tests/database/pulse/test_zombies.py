"""The token of an attempt that is over, against everything that a worker can say: nothing changes or is released."""

from collections.abc import Callable

import pytest

from orbit.ids import new_id
from orbit.jsontext import dumps
from pulse.claim import Assignment
from pulse.lease import Progress, Verdict, progress, resume
from pulse.report import Outcome, ReceiptKind
from pulse.requests import RetryPolicy
from pulse.start import StartCode
from pulse.states import ErrorClass, RecoverySafety, TaskState
from tests.support.pulse import Pulse

SAFE = RecoverySafety.REPLAY_SAFE


def expired_before_start(pulse: Pulse) -> Assignment:
    (leased,) = pulse.claim(1, safety=SAFE)
    pulse.pass_time(6)
    return leased


def released(pulse: Pulse) -> Assignment:
    (leased,) = pulse.claim(1, safety=SAFE)
    assert pulse.release(leased)
    return leased


def lost_while_running(pulse: Pulse) -> Assignment:
    running = pulse.run(safety=SAFE)
    pulse.pass_time(31)
    return running


def superseded(pulse: Pulse) -> Assignment:
    running = pulse.run(safety=SAFE)
    pulse.pass_time(31)
    pulse.pass_time(5)
    pulse.run(safety=SAFE)
    return running


def failed(pulse: Pulse) -> Assignment:
    running = pulse.run(safety=SAFE)
    pulse.fail(running, ErrorClass.RETRYABLE)
    return running


def finished(pulse: Pulse) -> Assignment:
    running = pulse.run(safety=SAFE)
    pulse.succeed(running)
    return running


def cancelled_while_leased(pulse: Pulse) -> Assignment:
    (leased,) = pulse.claim(1, safety=SAFE)
    pulse.cancel(leased.task.id)
    return leased


def parked(pulse: Pulse) -> Assignment:
    running = pulse.run(safety=RecoverySafety.MANUAL)
    pulse.fail(running, ErrorClass.UNKNOWN_OUTCOME)
    return running


@pytest.mark.parametrize(
    "end",
    [
        expired_before_start,
        released,
        lost_while_running,
        superseded,
        failed,
        finished,
        cancelled_while_leased,
        parked,
    ],
)
def test_an_ended_attempt_moves_nothing_by_any_word(pulse: Pulse, end: Callable[[Pulse], Assignment]) -> None:
    queue_id = pulse.queue(max_concurrency=1)
    task_id = pulse.submit(retry=RetryPolicy(5, 100_000, 200_000))
    zombie = end(pulse)
    before = pulse.task(task_id).row, pulse.usage(queue_id), pulse.read(queue_id)
    outcome = pulse.start(zombie)
    assert (outcome.granted, outcome.code) == (False, StartCode.LEASE_LOST)
    assert pulse.renew(zombie).lease_micros is None
    assert pulse.release(zombie) is False
    pulse.database.transaction(lambda tx: progress(tx, [Progress(pulse.held(zombie), '{"percent":50}')]))
    verdicts = pulse.database.transaction(lambda tx: resume(tx, new_id(), [pulse.held(zombie)]))
    assert verdicts[0].verdict in {Verdict.LOST, Verdict.RECORDED}
    for said in Outcome:
        item = pulse.result(zombie, said, output=dumps(1) if said is Outcome.SUCCEEDED else None)
        assert pulse.report(item).receipt is ReceiptKind.LATE
        assert pulse.report(item).receipt is ReceiptKind.DUPLICATE
    after = pulse.task(task_id).row, pulse.usage(queue_id), pulse.read(queue_id)
    assert after == before
    assert pulse.task(task_id).state in TaskState
