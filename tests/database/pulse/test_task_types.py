"""Registered task types: what is frozen into a task, what params and results must look like, who contradicts whom."""

import json

import pytest
from sqlalchemy import select

from orbit.database import Transaction
from orbit.errors import InvalidRequest, StateConflict
from orbit.ids import new_id
from orbit.store.journal import EventChoice, Page, events_list
from orbit.tables import audit
from pulse import limits
from pulse.dispatch import Dispatcher
from pulse.report import Outcome, ReceiptKind, RejectCode, ReportedError
from pulse.requests import RetryPolicy, RetryWish
from pulse.sessions import Handler, SessionHello
from pulse.states import AttemptState, ErrorClass, RecoverySafety, TaskState
from pulse.store.types import marks_read
from pulse.tables import attempt
from pulse.tasks import attempts_list
from tests.support.pulse import Pulse

AMOUNT = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "minimum": 1}}}
SECOND = 1_000_000


def safety_of(pulse: Pulse, task_id: bytes) -> str:
    rows = pulse.database.transaction(lambda tx: tx.rows(select(attempt).where(attempt.c.task_id == task_id)))
    return str(rows[-1].recovery)


@pytest.mark.requirement("R151")
def test_r126_what_a_task_was_accepted_under_stays_with_it(pulse: Pulse) -> None:
    pulse.queue()
    policy = {"retry": {"max_attempts": 7, "backoff_seconds": 5}, "attempt_timeout_seconds": 60, "deadline_seconds": 90}
    pulse.register(defaults=policy)
    task_id = pulse.submit()
    pulse.register(recovery=RecoverySafety.MANUAL, expected_revision=1)
    later = pulse.submit()
    row = pulse.task(task_id).row
    frozen = (row.recovery, row.attempts_max, row.backoff_micros, row.attempt_timeout_micros)
    assert frozen == ("REPLAY_SAFE", 7, 5 * SECOND, 60 * SECOND)
    assert row.deadline_at - row.accepted_at == 90 * SECOND
    assert (pulse.task(later).row.recovery, pulse.task(later).row.attempts_max) == ("MANUAL", limits.ATTEMPTS_DEFAULT)
    # Whatever the handler says: the frozen safety judges.
    first = pulse.run(safety=RecoverySafety.MANUAL)
    assert (first.task.id, safety_of(pulse, task_id)) == (task_id, "REPLAY_SAFE")
    pulse.fail(first, ErrorClass.UNCLASSIFIED)
    assert pulse.task(task_id).state is TaskState.WAITING
    second = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    pulse.fail(second, ErrorClass.UNCLASSIFIED)
    assert (second.task.id, pulse.task(later).state) == (later, TaskState.NEEDS_REVIEW)


def test_what_a_task_says_stands_above_its_type_and_that_above_the_defaults(pulse: Pulse) -> None:
    pulse.queue()
    pulse.register(defaults={"retry": {"max_attempts": 7, "backoff_seconds": 5}, "attempt_timeout_seconds": 60})
    partly = pulse.task(pulse.submit(retry=RetryWish(attempts_max=2))).row
    assert (partly.attempts_max, partly.backoff_micros) == (2, 5 * SECOND)
    wholly = pulse.task(pulse.submit(retry=RetryPolicy(), attempt_timeout_micros=SECOND)).row
    assert (wholly.attempts_max, wholly.backoff_micros, wholly.attempt_timeout_micros) == (3, 2 * SECOND, SECOND)
    refused = pulse.refusal(retry=RetryWish(backoff_micros_max=SECOND))
    assert isinstance(refused, InvalidRequest)
    assert refused.pointer == "/retry/backoff_seconds_max"


@pytest.mark.requirement("R174")
def test_r173_an_unregistered_type_whose_handler_declares_nothing_is_judged_as_manual(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit()
    assert pulse.task(task_id).row.recovery is None
    pulse.run(safety=Handler("echo", 1, RecoverySafety.MANUAL).recovery)
    pulse.pass_time(31)
    assert (pulse.task(task_id).state, pulse.error_code(task_id)) == (TaskState.NEEDS_REVIEW, "LEASE_LOST")
    pulse.pass_time(3600)
    assert pulse.task(task_id).row.starts_count == 1


def test_r174_a_handler_that_contradicts_its_registered_type_is_refused(pulse: Pulse) -> None:
    pulse.queue()
    pulse.register("careful", RecoverySafety.MANUAL)
    pulse.register("safe")
    dispatcher = Dispatcher(pulse.database, "node", pulse, lambda _: None)
    handlers = (
        Handler("careful", 1, RecoverySafety.REPLAY_SAFE),
        Handler("safe", 1, RecoverySafety.REPLAY_SAFE),
        Handler("careful", 2, RecoverySafety.REPLAY_SAFE),
    )
    hello = SessionHello(pulse.namespace_id, new_id(), "w", frozenset({"main"}), handlers, 10)
    session = dispatcher.attach(hello, None)  # type: ignore[arg-type]  # nothing is sent
    assert [(each.handler, each.registered) for each in session.refused] == [(handlers[0], RecoverySafety.MANUAL)]
    assert session.hello.handlers == handlers[1:]


def test_params_are_checked_when_they_come_and_the_error_points_at_them(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.register(params_schema=AMOUNT)
    refused = pulse.refusal(key="k", params=b'{"amount":0}')
    assert isinstance(refused, InvalidRequest)
    assert (refused.pointer, "minimum of 1" in refused.message) == ("/params/amount", True)
    assert pulse.refusal(params=b"null").details == {"pointer": "/params"}
    assert pulse.read(queue_id).unfinished_tasks == 0
    accepted = pulse.submit(key="k", params=b'{"amount":1}')
    # What was accepted is not checked again: neither when it is retried by a person nor when its type has changed.
    pulse.register(expected_revision=1, params_schema={"type": "string"})
    pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    successor = pulse.retry(accepted).subject_id
    assert pulse.task(successor).row.type_revision_id == pulse.task(accepted).row.type_revision_id
    assert pulse.submit(params=b'"text"')


def test_r124_the_schema_may_depend_on_the_params_version(pulse: Pulse) -> None:
    pulse.queue()
    pulse.register(params_schemas={"1": AMOUNT, "2": {"type": "array"}})
    assert pulse.submit(params=b"[]", params_version="2")
    assert pulse.refusal(params=b"[]").details == {"pointer": "/params"}
    assert pulse.refusal(params=b"[]", params_version="3").details == {"pointer": "/params_version"}


@pytest.mark.parametrize(
    ("recovery", "state"),
    [(RecoverySafety.REPLAY_SAFE, TaskState.FAILED), (RecoverySafety.MANUAL, TaskState.NEEDS_REVIEW)],
)
def test_r104_a_result_that_breaks_its_schema_closes_the_attempt(
    pulse: Pulse, recovery: RecoverySafety, state: TaskState
) -> None:
    pulse.queue()
    pulse.register(recovery=recovery, result_schema=AMOUNT)
    fitting = pulse.submit()
    assert pulse.succeed(pulse.run(), {"amount": 7}).code is None
    assert pulse.task(fitting).output == b'{"amount":7}'
    task_id = pulse.submit()
    item = pulse.run()
    report = pulse.result(item, Outcome.SUCCEEDED, output=b'{"amount":"seven"}')
    answer = pulse.report(report)
    assert (answer.code, answer.task_state) == (RejectCode.OUTPUT_MISMATCH, state)
    error = json.loads(pulse.task(task_id).row.error)
    assert (error["code"], error["details"][0]["pointer"]) == ("OUTPUT_MISMATCH", "/amount")
    again = pulse.report(report)
    assert (again.receipt, again.task_state) == (ReceiptKind.DUPLICATE, state)
    attempts = pulse.database.transaction(lambda tx: attempts_list(tx, pulse.namespace_id, task_id))
    assert [each.state for each in attempts] == [AttemptState.FAILED]
    assert pulse.report(report).task_state is state


def test_an_output_may_lie_elsewhere(pulse: Pulse) -> None:
    pulse.queue()
    pulse.register(result_schema=AMOUNT)
    task_id = pulse.submit()
    reference = {"uri": "s3://bucket/7", "sha256": "0" * 64, "bytes": 7}
    pulse.report(pulse.result(pulse.run(), Outcome.SUCCEEDED, output_ref=json.dumps(reference)))
    shown = pulse.task(task_id).as_json()
    assert (shown["state"], shown["output"], shown["output_ref"]) == ("SUCCEEDED", None, reference)


def test_a_type_is_registered_and_changed_in_revisions_with_its_reason(pulse: Pulse) -> None:
    made = pulse.register()
    assert (made.is_new, made.type["revision"]) == (True, "1")
    with pytest.raises(StateConflict) as stale:
        pulse.register(recovery=RecoverySafety.MANUAL)
    assert stale.value.details == {"current_revision": "1"}
    assert pulse.register().is_unchanged, "the same again, at the revision that it made"
    changed = pulse.register(expected_revision=1, redact=["/params/card"])
    assert (changed.is_new, changed.type["revision"], changed.type["redact"]) == (False, "2", ["/params/card"])
    records = pulse.database.transaction(lambda tx: tx.rows(select(audit).order_by(audit.c.id)))
    assert [(row.operation, row.reason) for row in records[-2:]] == [("task_type.put", "a test")] * 2
    assert json.loads(records[-1].before)["revision"] == "1"


@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ({"params_schema": {"type": "nothing"}}, "/params_schema/type"),
        ({"result_schema": {"$ref": "https://example.com/schema"}}, "/result_schema/$ref"),
        ({"params_schemas": {"2": {"pattern": "(a"}}}, "/params_schemas/2/pattern"),
        ({"params_schema": {"pattern": r"(a)\1"}}, "/params_schema/pattern"),
        ({"params_schema": {"$ref": "#"}}, "/params_schema"),
        ({"params_schema": {"properties": {"n": {"type": "integer", "default": "x"}}}}, "/params_schema/properties/n"),
        ({"redact": ["params/card"]}, "/redact/0"),
        ({"redact": ["/params", "/business_key"]}, "/redact/1"),
        ({"verify_with": "other@1"}, "/verify_with"),
        ({"recovery": "VERIFY"}, "/verify_with"),
        ({"recovery": "VERIFY", "verify_with": "nobody@1"}, "/verify_with"),
        ({"recovery": "VERIFY", "verify_with": "nobody"}, "/verify_with"),
        ({"defaults": {"retry": {"backoff_seconds": 9, "backoff_seconds_max": 1}}}, "/defaults/retry"),
    ],
)
def test_what_can_not_hold_is_not_registered(pulse: Pulse, content: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pulse.register("odd", **content)  # type: ignore[arg-type]
    assert (refused.value.pointer or "").startswith(pointer)


def test_a_verifier_stays_replay_safe_while_a_type_names_it(pulse: Pulse) -> None:
    pulse.register("ask")
    pulse.register("pay", RecoverySafety.VERIFY, verify_with="ask@1")
    with pytest.raises(StateConflict) as used:
        pulse.register("ask", RecoverySafety.MANUAL, expected_revision=1)
    assert "pay@1" in used.value.message
    with pytest.raises(InvalidRequest):
        pulse.register("transfer", RecoverySafety.VERIFY, verify_with="pay@1")
    pulse.register("pay", RecoverySafety.MANUAL, expected_revision=1)
    assert pulse.register("ask", RecoverySafety.MANUAL, expected_revision=1).type["recovery"] == "MANUAL"


def test_a_change_is_seen_by_other_nodes_and_a_submission_looks_for_it_only_now_and_then(pulse: Pulse) -> None:
    pulse.queue()
    other = Pulse(pulse.database)
    other.submit()
    pulse.look_for_no_subscribers()
    counts = pulse.database.counts
    before = counts["statements"]
    other.submit()
    unregistered = counts["statements"] - before
    pulse.register(params_schema={"type": "object"})
    assert other.task(other.submit()).row.recovery is None, "it has just looked"
    other.catalog.forget()
    assert other.task(other.submit()).row.recovery == "REPLAY_SAFE"
    before = counts["statements"]
    other.submit()
    assert counts["statements"] - before == unregistered


def test_a_change_made_here_counts_at_once_though_a_look_from_before_it_is_under_way(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse.queue()
    pulse.register()
    seen: list[dict[str, int]] = []

    def marks_before(tx: Transaction) -> dict[str, int]:
        seen.append(marks_read(tx))
        if len(seen) > 1:
            return seen[-1]
        # The first look has read nothing yet when the type is committed, and its maker says so.
        pulse.catalog.forget()
        return {}

    monkeypatch.setattr("pulse.catalog.marks_read", marks_before)
    task_id = pulse.submit()
    assert len(seen) == 2
    assert pulse.task(task_id).row.type_revision_id is not None


def test_r187_what_a_type_masks_is_shown_nowhere(pulse: Pulse) -> None:
    pulse.queue()
    masks = ["/params/card/number", "/output/token", "/error/details", "/progress/details/seen", "/params/list/*/pin"]
    pulse.register(redact=masks, params_schema={"properties": {"card": {"properties": {"number": {"type": "string"}}}}})
    secret = "S3CR3T"
    params = json.dumps({"card": {"number": secret, "name": "Ada"}, "list": [{"pin": secret, "n": 1}]}).encode()
    task_id = pulse.submit(params=params)
    item = pulse.run()
    assert json.loads(item.payload.params)["card"]["number"] == secret, "the handler gets all of it"
    error = ReportedError(ErrorClass.RETRYABLE, "BROKEN", "it broke", {"card": secret})
    pulse.report(pulse.result(item, Outcome.FAILED, error=error))
    pulse.pass_time(10)
    last = pulse.run()
    pulse.succeed(last, {"token": secret, "n": 7})
    pulse.report(pulse.result(last, Outcome.SUCCEEDED, output=json.dumps({"token": secret}).encode()))
    shown = pulse.task(task_id).as_json()
    assert shown["params"] == {
        "card": {"number": "[redacted]", "name": "Ada"},
        "list": [{"pin": "[redacted]", "n": 1}],
    }
    assert shown["output"] == {"token": "[redacted]", "n": 7}
    attempts = pulse.database.transaction(lambda tx: attempts_list(tx, pulse.namespace_id, task_id))
    choice = EventChoice(subject_id=task_id)
    events = pulse.database.transaction(lambda tx: events_list(tx, pulse.namespace_id, Page(100), choice))
    wrong = pulse.refusal(params=json.dumps({"card": {"number": [secret]}}).encode())
    for text in (json.dumps(shown), repr(attempts), repr(events), wrong.message):
        assert secret not in text
    assert wrong.details == {"pointer": "/params/card/number"}
    # A path that is added later masks what was accepted before.
    pulse.register(expected_revision=1, redact=["/params/card"])
    assert pulse.task(task_id).as_json()["params"]["card"] == "[redacted]"
    assert pulse.task(task_id).as_json()["output"]["token"] == "[redacted]"
