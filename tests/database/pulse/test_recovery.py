"""What a person decides: reviews, retries of ended tasks, and other times and priorities for waiting ones."""

import json

import pytest
from sqlalchemy import select

from orbit.errors import InvalidRequest, StateConflict
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.tables import audit
from pulse.claim import Assignment
from pulse.report import Outcome, ReceiptKind, ReportedError
from pulse.requests import RetryPolicy
from pulse.review import Verdict
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from pulse.store.recover import LateKey
from pulse.tables import verdict
from pulse.tasks import attempts_list, outputs_get
from pulse.verdicts import verdicts_list
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


def lost(pulse: Pulse) -> Assignment:
    """A task of a MANUAL type whose worker has gone: its attempt is LOST, and it waits for a verdict."""
    pulse.submit()
    assignment = pulse.run()
    pulse.pass_time(31)
    assert pulse.task(assignment.task.id).state == TaskState.NEEDS_REVIEW
    return assignment


def late(assignment: Assignment, message_id: bytes) -> LateKey:
    return LateKey(assignment.attempt_id, message_id)


def test_a_review_is_settled_by_naming_a_late_result(pulse: Pulse) -> None:
    pulse.queue()
    assignment = lost(pulse)
    task_id, message_id = assignment.task.id, new_id()
    assert pulse.succeed(assignment, {"ref": "T-1"}, message_id).receipt == ReceiptKind.LATE
    (report,) = pulse.database.transaction(lambda tx: attempts_list(tx, pulse.namespace_id, task_id))[0].late
    assert (report["message_id"], report["output"]) == (message_id, b'{"ref":"T-1"}')
    named = late(assignment, message_id)
    for wrong in (late(assignment, new_id()), LateKey(new_id(), message_id)):
        with pytest.raises(InvalidRequest) as unknown:
            pulse.review(task_id, Verdict.SUCCEEDED, late=wrong)
        assert unknown.value.pointer == "/late_result"
    for verdict_ in (Verdict.FAILED, Verdict.RETRY):
        with pytest.raises(InvalidRequest) as otherwise:
            pulse.review(task_id, verdict_, late=named)
        assert otherwise.value.pointer == "/verdict"
    pulse.review(task_id, Verdict.SUCCEEDED, late=named)
    view = pulse.task(task_id)
    assert (view.state, view.output, view.row.error) == (TaskState.SUCCEEDED, b'{"ref":"T-1"}', None)
    (kept,) = pulse.database.transaction(lambda tx: verdicts_list(tx, pulse.namespace_id, task_id))
    assert (kept["kind"], kept["evidence"], kept["output"], kept["late_result"]) == (
        "SUCCEEDED",
        {"ticket": 7},
        {"ref": "T-1"},
        {"attempt_id": assignment.attempt_id.hex(), "message_id": message_id.hex()},
    )


def test_a_late_result_that_lies_elsewhere_is_the_tasks_output(pulse: Pulse) -> None:
    pulse.queue()
    assignment = lost(pulse)
    task_id, message_id = assignment.task.id, new_id()
    reference = {"uri": "s3://b/k", "sha256": "a" * 64, "bytes": 7}
    pulse.report(pulse.result(assignment, Outcome.SUCCEEDED, message_id, output_ref=json.dumps(reference)))
    pulse.review(task_id, Verdict.SUCCEEDED, late=late(assignment, message_id))
    shown = pulse.task(task_id).as_json()
    assert (shown["state"], shown["output"], shown["output_ref"]) == ("SUCCEEDED", None, reference)
    outputs = pulse.database.transaction(lambda tx: outputs_get(tx, [task_id]))
    assert json.loads(outputs[task_id]) == {"output_ref": reference}


def test_a_late_failure_that_is_named_is_the_tasks_error(pulse: Pulse) -> None:
    pulse.queue()
    assignment = lost(pulse)
    task_id, message_id = assignment.task.id, new_id()
    error = ReportedError(ErrorClass.NON_RETRYABLE, "NO_MONEY", "the account is empty", {"missing": 7})
    pulse.report(pulse.result(assignment, Outcome.FAILED, message_id, error=error))
    with pytest.raises(InvalidRequest):
        pulse.review(task_id, Verdict.SUCCEEDED, late=late(assignment, message_id))
    pulse.review(task_id, Verdict.FAILED, late=late(assignment, message_id))
    shown = pulse.task(task_id).as_json()
    assert (shown["state"], shown["error"]) == (
        "FAILED",
        {"class": "NON_RETRYABLE", "code": "NO_MONEY", "message": "the account is empty", "details": {"missing": 7}},
    )


def test_r104_what_a_person_vouches_for_fits_the_type_too(pulse: Pulse) -> None:
    pulse.queue()
    schema: dict[str, Json] = {"type": "object", "required": ["ref"], "properties": {"ref": {"type": "string"}}}
    pulse.register(recovery=RecoverySafety.MANUAL, result_schema=schema)
    assignment = lost(pulse)
    task_id, message_id = assignment.task.id, new_id()
    pulse.succeed(assignment, {"ref": 7}, message_id)
    for fields, pointer in (
        ({"output": b'{"ref":7}'}, "/output/ref"),
        ({"output": None}, "/output"),
        ({"late": late(assignment, message_id)}, "/late_result"),
    ):
        with pytest.raises(InvalidRequest) as unfit:
            pulse.review(task_id, Verdict.SUCCEEDED, **fields)
        assert unfit.value.pointer == pointer
    pulse.review(task_id, Verdict.SUCCEEDED, output=b'{"ref":"T-7"}')
    assert pulse.task(task_id).output == b'{"ref":"T-7"}'


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
