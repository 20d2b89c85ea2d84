"""Unknown outcomes that another task finds out about: asked once for each review, applied once, or left to a person."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from orbit.clock import SECOND
from orbit.database import Transaction
from orbit.errors import StateConflict
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.store.journal import EventChoice, Page, events_list
from pulse import limits
from pulse.claim import Assignment
from pulse.listener import TaskChange, TaskOwner
from pulse.report import Outcome
from pulse.requests import RetryPolicy
from pulse.review import Verdict
from pulse.states import ErrorClass, RecoverySafety, SourceKind, TaskState
from pulse.store.verification import evidence_read
from pulse.tasks import TaskView
from tests.support.pulse import Pulse

TIMEOUT = 60 * 1_000_000
NOTHING = {"verdict": "NOT_EXECUTED"}


@pytest.fixture
def paying(pulse: Pulse) -> Pulse:
    """`pay@1` is verified by `ask@1`."""
    pulse.queue()
    pulse.register("ask")
    schema = {"type": "object", "required": ["ref"]}
    pulse.register("pay", RecoverySafety.VERIFY, verify_with="ask@1", result_schema=schema)
    return pulse


def doubtful(pulse: Pulse, **fields: Any) -> tuple[bytes, Assignment]:
    """Pay, and lose sight of what happened."""
    task_id = pulse.submit(type="pay", params=b'{"n":1}', attempt_timeout_micros=TIMEOUT, **fields)
    attempt = pulse.run(type_="pay")
    assert pulse.fail(attempt, ErrorClass.UNCLASSIFIED).task_state is TaskState.NEEDS_REVIEW
    pulse.sweep()
    return task_id, attempt


def asked(pulse: Pulse) -> Assignment:
    """Let the verifier's time come and start it."""
    pulse.pass_time(TIMEOUT / 1_000_000 + 11)
    return pulse.run(type_="ask")


def answered(pulse: Pulse, said: Json) -> None:
    pulse.succeed(asked(pulse), said)
    pulse.sweep()


def verification(pulse: Pulse, task_id: bytes) -> dict[str, Json]:
    found = pulse.task(task_id).verification
    assert found is not None
    return found


def events(pulse: Pulse, task_id: bytes) -> list[str]:
    choice = EventChoice(subject_id=task_id)
    found = pulse.database.transaction(lambda tx: events_list(tx, pulse.namespace_id, Page(100), choice))
    return [row.type for row in reversed(found.rows)]


@pytest.mark.requirement("R218")
def test_r171_an_unknown_outcome_is_found_out_by_a_task_of_its_own(paying: Pulse) -> None:
    task_id, attempt = doubtful(paying, business_key="order 7")
    view = paying.task(task_id)
    assert (view.state, verification(paying, task_id)["state"]) == (TaskState.NEEDS_REVIEW, "OPEN")
    asking = paying.task(bytes.fromhex(verification(paying, task_id)["task_id"]))
    row = asking.row
    assert (asking.type, row.source_kind, row.source_id) == ("ask", SourceKind.VERIFICATION, task_id)
    started_at = paying.task(task_id).row.accepted_at
    assert row.available_at >= started_at + TIMEOUT + 10_000_000, "the attempt in doubt must have stopped"
    assert asking.as_json()["source"] == {"kind": "VERIFICATION", "id": task_id.hex()}
    told = json.loads(asked(paying).payload.params)
    assert told | {"params": None} == {
        "task_id": task_id.hex(),
        "operation_id": task_id.hex(),
        "attempt_id": attempt.attempt_id.hex(),
        "attempt": 1,
        "fencing": str(attempt.fencing),
        "type": "pay",
        "version": 1,
        "params_version": "1",
        "params": None,
    }
    assert told["params"] == {"n": 1}


def test_what_was_executed_has_succeeded_with_its_result(paying: Pulse) -> None:
    task_id, _ = doubtful(paying)
    answered(paying, {"verdict": "EXECUTED", "result": {"ref": "T-1"}})
    view = paying.task(task_id)
    assert (view.state, view.output) == (TaskState.SUCCEEDED, b'{"ref":"T-1"}')
    assert verification(paying, task_id)["outcome"] == "EXECUTED"
    assert events(paying, task_id)[-3:] == ["task.verifying", "task.verified", "task.succeeded"]


def test_what_was_not_executed_is_tried_again_within_its_budget(paying: Pulse) -> None:
    task_id, _ = doubtful(paying, retry=RetryPolicy(2, 1_000_000, 1_000_000))
    answered(paying, NOTHING)
    assert (paying.task(task_id).state, paying.error_code(task_id)) == (TaskState.WAITING, "NOT_EXECUTED")
    paying.pass_time(2)
    paying.fail(paying.run(type_="pay"), ErrorClass.UNCLASSIFIED)
    paying.sweep()
    answered(paying, NOTHING)
    view = paying.task(task_id)
    assert (view.state, paying.error_code(task_id), view.row.starts_count) == (TaskState.FAILED, "NOT_EXECUTED", 2)
    assert "effect_unknown" not in json.loads(view.row.error)


def test_what_was_not_executed_ends_where_a_cancel_or_the_deadline_forbids_more(paying: Pulse) -> None:
    cancelled, _ = doubtful(paying)
    paying.cancel(cancelled)
    assert paying.task(cancelled).state is TaskState.NEEDS_REVIEW
    answered(paying, NOTHING)
    assert paying.task(cancelled).state is TaskState.CANCELLED
    late, _ = doubtful(paying, deadline_micros=65_000_000)
    answered(paying, NOTHING)
    assert (paying.task(late).state, paying.error_code(late)) == (TaskState.FAILED, "DEADLINE_EXCEEDED")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"verdict": "UNKNOWN"}, "UNKNOWN"),
        ({"verdict": "PERHAPS"}, "FAILED"),
        (None, "FAILED"),
        ({"verdict": "SUPERSEDED"}, "FAILED"),
        ({"verdict": "EXECUTED", "result": {"wrong": 1}}, "FAILED"),
        ({"verdict": "EXECUTED"}, "FAILED"),
    ],
)
def test_what_is_no_answer_is_left_to_a_person(paying: Pulse, said: Json, outcome: str) -> None:
    task_id, _ = doubtful(paying)
    answered(paying, said)
    assert paying.task(task_id).state is TaskState.NEEDS_REVIEW
    assert verification(paying, task_id) | {"settled_at": ""} == verification(paying, task_id) | {
        "state": "SETTLED",
        "outcome": outcome,
        "settled_at": "",
    }
    paying.pass_time(3600)
    assert paying.claim(type_="ask") == [], "one verification a review"
    paying.review(task_id, Verdict.FAILED)


def test_a_verification_that_fails_is_left_to_a_person(paying: Pulse) -> None:
    task_id, _ = doubtful(paying)
    paying.fail(asked(paying), ErrorClass.NON_RETRYABLE)
    paying.sweep()
    assert (paying.task(task_id).state, verification(paying, task_id)["outcome"]) == (TaskState.NEEDS_REVIEW, "FAILED")


def test_an_answer_after_the_review_was_settled_is_evidence_only(paying: Pulse) -> None:
    task_id, _ = doubtful(paying)
    asking = asked(paying)
    paying.review(task_id, Verdict.FAILED)
    paying.succeed(asking, {"verdict": "EXECUTED", "result": {"ref": "T-1"}})
    paying.sweep()
    assert paying.task(task_id).state is TaskState.FAILED
    assert verification(paying, task_id)["outcome"] == "SUPERSEDED"
    assert events(paying, task_id)[-1] == "task.evidence_received"
    # A review of a later attempt is not settled by what was found out about an earlier one.
    second, _ = doubtful(paying)
    asking = asked(paying)
    paying.review(second, Verdict.RETRY)
    paying.fail(paying.run(type_="pay"), ErrorClass.UNCLASSIFIED)
    paying.succeed(asking, NOTHING)
    paying.sweep()
    assert (paying.task(second).state, verification(paying, second)["state"]) == (TaskState.NEEDS_REVIEW, "OPEN")


def test_a_review_that_is_over_before_anybody_was_asked_asks_nobody(paying: Pulse) -> None:
    task_id = paying.submit(type="pay")
    paying.fail(paying.run(type_="pay"), ErrorClass.UNKNOWN_OUTCOME)
    paying.review(task_id, Verdict.FAILED)
    paying.pass_time(3600)
    assert paying.claim(type_="ask") == []
    assert verification(paying, task_id)["outcome"] == "SUPERSEDED"


def test_only_unknown_outcomes_are_verified(paying: Pulse) -> None:
    """A wish for a person, a result that does not fit and poison are a person's at once."""
    asked_for = paying.submit(type="pay")
    paying.fail(paying.run(type_="pay"), ErrorClass.NEEDS_HUMAN)
    misfit = paying.submit(type="pay")
    paying.succeed(paying.run(type_="pay"), {"wrong": 1})
    paying.sweep()
    for task_id in (asked_for, misfit):
        assert (paying.task(task_id).state, paying.task(task_id).verification) == (TaskState.NEEDS_REVIEW, None)
    lost = paying.submit(type="pay", attempt_timeout_micros=TIMEOUT, deadline_micros=7200 * 1_000_000)
    for _ in range(limits.LOST_MAX - 1):
        paying.run(type_="pay")
        paying.pass_time(31)
        answered(paying, NOTHING)
        paying.pass_time(300)
    paying.run(type_="pay")
    paying.pass_time(31)
    assert (paying.task(lost).state, paying.error_code(lost)) == (TaskState.NEEDS_REVIEW, "LOST_TOO_OFTEN")
    paying.pass_time(3600)
    assert paying.claim(type_="ask") == []


def test_a_full_queue_and_a_closed_limit_do_not_keep_a_verification_out(paying: Pulse) -> None:
    queue_id = paying.queue("narrow", max_unfinished_tasks=1)
    task_id = paying.submit(type="pay", queue="narrow")
    (attempt,) = paying.claim(type_="pay", queue="narrow")
    paying.start(attempt)
    paying.fail(attempt, ErrorClass.UNKNOWN_OUTCOME)
    paying.sweep()
    assert (verification(paying, task_id)["state"], paying.read(queue_id).unfinished_tasks) == ("OPEN", 2)
    assert paying.refusal(type="pay", queue="narrow").code == "QUEUE_FULL"


def test_a_verification_that_cannot_be_taken_on_holds_up_no_other_however_long_it_was_due(
    paying: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    pays = [paying.submit(type="pay", attempt_timeout_micros=TIMEOUT) for _ in range(2)]
    attempts = [paying.run(type_="pay") for _ in pays]
    for attempt in attempts:
        paying.fail(attempt, ErrorClass.UNCLASSIFIED)
        paying.database.clock.advance(seconds_forward=1)

    def failing(tx: Transaction, attempt_id: bytes) -> Any:
        if attempt_id == attempts[0].attempt_id:
            raise ValueError("a fault")
        return evidence_read(tx, attempt_id)

    # No node was there for long, and the one that comes stumbles over the first.
    paying.database.clock.advance(seconds_forward=10 * limits.VERIFICATION_RETRY_MICROS / SECOND)
    with monkeypatch.context() as faulty:
        faulty.setattr("pulse.verification.evidence_read", failing)
        with pytest.raises(ValueError, match="a fault"):
            paying.sweep()
        paying.sweep()
    assert [verification(paying, task_id)["state"] for task_id in pays] == ["WANTED", "OPEN"]
    paying.pass_time(limits.VERIFICATION_RETRY_MICROS / SECOND + 1)
    assert verification(paying, pays[0])["state"] == "OPEN"


def test_a_verification_is_known_to_the_owner_as_its_review_is(paying: Pulse) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[TaskState] = []

        def tasks_changed(self, _tx: Transaction, changes: Sequence[TaskChange]) -> None:
            self.heard += [change.state for change in changes]

        def gate_quiet(self, _tx: Transaction, _gate_id: bytes) -> None:
            """No gate is closed."""

    listener = Listener()
    paying.listeners.append(listener)
    task_id, _ = doubtful(paying, owner=TaskOwner(new_id(), "pay", 1))
    answered(paying, {"verdict": "EXECUTED", "result": {"ref": "T-1"}})
    assert listener.heard == [TaskState.NEEDS_REVIEW, TaskState.SUCCEEDED]
    assert paying.task(task_id).state is TaskState.SUCCEEDED


def test_a_late_success_is_told_of(paying: Pulse) -> None:
    """It settles nothing by itself."""
    task_id, attempt = doubtful(paying)
    late = paying.result(attempt, Outcome.SUCCEEDED, output=b'{"ref":"T-1"}')
    paying.report(late)
    assert (paying.task(task_id).state, events(paying, task_id)[-1]) == (
        TaskState.NEEDS_REVIEW,
        "task.evidence_received",
    )
    paying.report(late)
    assert events(paying, task_id).count("task.evidence_received") == 1
    paying.review(task_id, Verdict.FAILED)
    paying.report(paying.result(attempt, Outcome.SUCCEEDED, output=b"1"))
    assert (paying.task(task_id).state, events(paying, task_id)[-1]) == (TaskState.FAILED, "task.contradicted")
    with pytest.raises(StateConflict):
        paying.review(task_id, Verdict.SUCCEEDED)


def test_views_tell_of_a_verification(paying: Pulse) -> None:
    task_id, _ = doubtful(paying)
    view: TaskView = paying.task(task_id)
    assert view.as_json()["recovery"] == "VERIFY"
    assert view.as_json()["verification"]["outcome"] is None
