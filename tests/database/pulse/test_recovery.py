"""What a person decides: reviews, retries of ended tasks, and other times and priorities for waiting ones."""

import pytest
from sqlalchemy import select

from orbit.errors import InvalidRequest, StateConflict
from orbit.tables import audit
from pulse.requests import RetryPolicy
from pulse.review import Verdict
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from pulse.tables import verdict
from tests.support.pulse import Pulse

SECOND = 1_000_000


def in_review(pulse: Pulse) -> bytes:
    task_id = pulse.submit(params=b'{"n":1}', business_key="order 7", retry=RetryPolicy(attempts_max=2))
    pulse.fail(pulse.run(), ErrorClass.UNKNOWN_OUTCOME)
    assert pulse.task(task_id).state == TaskState.NEEDS_REVIEW
    return task_id


def test_a_verdict_of_success_carries_its_result(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    task_id = in_review(pulse)
    pulse.review(task_id, Verdict.SUCCEEDED, output=b'{"ref":"T-1"}')
    view = pulse.task(task_id)
    assert (view.state, view.output, pulse.read(queue_id).unfinished_tasks) == (
        TaskState.SUCCEEDED,
        b'{"ref":"T-1"}',
        0,
    )


def test_a_verdict_of_failure_ends_the_task(pulse: Pulse) -> None:
    pulse.queue()
    task_id = in_review(pulse)
    pulse.review(task_id, Verdict.FAILED)
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (TaskState.FAILED, "REVIEWED_FAILED")


def test_a_verdict_of_retry_grants_one_more_attempt(pulse: Pulse) -> None:
    pulse.queue()
    task_id = in_review(pulse)
    pulse.review(task_id, Verdict.RETRY)
    pulse.fail(pulse.run(), ErrorClass.UNKNOWN_OUTCOME)
    pulse.review(task_id, Verdict.RETRY)
    running = pulse.run()
    assert (running.task.id, running.attempt_number) == (task_id, 3)
    pulse.succeed(running)
    assert pulse.task(task_id).state == TaskState.SUCCEEDED


def test_a_review_is_settled_once_and_at_its_revision(pulse: Pulse) -> None:
    pulse.queue()
    task_id = in_review(pulse)
    with pytest.raises(StateConflict) as stale:
        pulse.review(task_id, Verdict.FAILED, expected_revision=1)
    assert stale.value.details == {"state": "NEEDS_REVIEW", "current_revision": str(pulse.task(task_id).revision)}
    pulse.review(task_id, Verdict.FAILED)
    with pytest.raises(StateConflict):
        pulse.review(task_id, Verdict.SUCCEEDED, output=b"1")
    assert pulse.task(task_id).state == TaskState.FAILED


def test_a_retry_needs_a_safety_statement_and_no_wanted_cancel(pulse: Pulse) -> None:
    pulse.queue()
    task_id = in_review(pulse)
    with pytest.raises(InvalidRequest) as missing:
        pulse.review(task_id, Verdict.RETRY, safety_statement=None)
    assert missing.value.pointer == "/safety_statement"
    pulse.cancel(task_id)
    with pytest.raises(StateConflict):
        pulse.review(task_id, Verdict.RETRY)
    assert pulse.task(task_id).state == TaskState.NEEDS_REVIEW


@pytest.mark.requirement("R136", "R137", "R138")
def test_r134_a_retry_is_a_new_task_in_the_same_line(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(params=b'{"n":1}', business_key="order 7")
    first = pulse.run()
    pulse.fail(first, ErrorClass.NON_RETRYABLE)
    before = pulse.task(task_id).row
    successor = pulse.retry(task_id).subject_id
    assert pulse.task(task_id).row == before
    view = pulse.task(successor).as_json()
    assert (view["retry_of"], view["operation_id"], view["params"], view["business_key"]) == (
        task_id.hex(),
        task_id.hex(),
        {"n": 1},
        "order 7",
    )
    with pytest.raises(StateConflict):
        pulse.retry(task_id)
    second = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    pulse.fail(second, ErrorClass.NON_RETRYABLE)
    third = pulse.retry(successor).subject_id
    assert pulse.task(third).as_json()["operation_id"] == task_id.hex()
    assert pulse.run().task.fencing_base == 2


def test_r139_what_a_person_decides_is_kept_with_its_evidence(pulse: Pulse) -> None:
    pulse.queue()
    task_id = in_review(pulse)
    pulse.review(task_id, Verdict.FAILED)
    pulse.retry(task_id)
    verdicts = pulse.database.transaction(lambda tx: tx.rows(select(verdict).order_by(verdict.c.id)))
    assert [(row.kind, row.evidence, row.reason) for row in verdicts] == [
        ("FAILED", '{"ticket":7}', "a test"),
        ("SUCCESSOR", '{"ticket":7}', "a test"),
    ]
    records = pulse.database.transaction(lambda tx: tx.rows(select(audit.c.operation).order_by(audit.c.id)))
    assert [row.operation for row in records][-2:] == ["task.review", "task.retry"]


def test_only_an_ended_failure_is_retried(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    with pytest.raises(StateConflict):
        pulse.retry(task_id)
    pulse.succeed(pulse.run())
    with pytest.raises(StateConflict):
        pulse.retry(task_id)


def test_a_waiting_task_gets_another_time_and_priority(pulse: Pulse) -> None:
    pulse.queue()
    first, second = pulse.submit(), pulse.submit()
    pulse.reschedule(second, priority=9)
    assert [item.task.id for item in pulse.claim(1)] == [second]
    now = pulse.database.transaction(lambda tx: tx.now())
    pulse.reschedule(first, available_at=now + 10 * SECOND)
    assert (pulse.claim(), pulse.task(first).wait_reason) == ([], WaitReason.DELAYED)
    pulse.reschedule(first, available_at=now)
    assert [item.task.id for item in pulse.claim()] == [first]
    with pytest.raises(StateConflict):
        pulse.reschedule(first, priority=1)
