"""A harsh operator: every decision about a task in every state it can be in, in odd orders, stale and repeated.

Nothing is answered with a 5xx or a code that is not documented; what is refused names the field, or says where the
task stands and at which revision; what is refused changes nothing.
"""

from collections.abc import Callable
from typing import Any

import pytest

from orbit.database import Database
from pulse.gates import gate_close, gate_create
from pulse.listener import TaskOwner
from pulse.report import Outcome
from pulse.requests import RetryPolicy
from pulse.states import ErrorClass, RecoverySafety
from tests.support.http import Api, Caller, Got
from tests.support.pulse import Pulse

SAID: dict[str, Any] = {"evidence": {"ticket": 7}, "reason": "seen", "safety_statement": "it was refused"}
GATE = bytes(range(16))


@pytest.fixture
def pulse(database: Database) -> Pulse:
    made = Pulse(database)
    made.queue()
    return made


def waiting(pulse: Pulse) -> bytes:
    return pulse.submit()


def delayed(pulse: Pulse) -> bytes:
    return pulse.submit(delay_micros=3_600_000_000)


def leased(pulse: Pulse) -> bytes:
    return pulse.claim(1)[0].task.id if pulse.submit() else b""


def running(pulse: Pulse) -> bytes:
    pulse.submit()
    return pulse.run().task.id


def backing_off(pulse: Pulse) -> bytes:
    task_id = pulse.submit(retry=RetryPolicy(attempts_max=3, backoff_micros=3_600_000_000))
    pulse.fail(pulse.run())
    return task_id


def in_review(pulse: Pulse) -> bytes:
    pulse.submit()
    assignment = pulse.run(safety=RecoverySafety.MANUAL)
    pulse.fail(assignment, ErrorClass.UNKNOWN_OUTCOME)
    return assignment.task.id


def in_review_and_cancelled(pulse: Pulse) -> bytes:
    task_id = in_review(pulse)
    pulse.cancel(task_id)
    return task_id


def running_and_cancelled(pulse: Pulse) -> bytes:
    task_id = running(pulse)
    pulse.cancel(task_id)
    return task_id


def succeeded(pulse: Pulse) -> bytes:
    pulse.submit()
    assignment = pulse.run()
    pulse.succeed(assignment)
    return assignment.task.id


def failed(pulse: Pulse) -> bytes:
    pulse.submit()
    assignment = pulse.run()
    pulse.fail(assignment, ErrorClass.NON_RETRYABLE)
    return assignment.task.id


def cancelled(pulse: Pulse) -> bytes:
    task_id = pulse.submit()
    pulse.cancel(task_id)
    return task_id


def retried(pulse: Pulse) -> bytes:
    task_id = failed(pulse)
    pulse.retry(task_id)
    return task_id


def owned(pulse: Pulse) -> bytes:
    return pulse.submit(owner=TaskOwner(GATE, "a", 1), gate_id=GATE)


def owned_and_held(pulse: Pulse) -> bytes:
    pulse.database.transaction(lambda tx: gate_create(tx, GATE, namespace_id=pulse.namespace_id))
    task_id = owned(pulse)
    pulse.database.transaction(lambda tx: gate_close(tx, GATE, pulse))
    return task_id


WHERE: list[Callable[[Pulse], bytes]] = [
    waiting, delayed, leased, running, backing_off, in_review, in_review_and_cancelled, running_and_cancelled,
    succeeded, failed, cancelled, retried, owned, owned_and_held,
]  # fmt: skip
OPERATIONS = ("cancel", "review succeeded", "review failed", "review retry", "retry", "reschedule")
# What is allowed where; everything else is refused.
WAITS = {"waiting", "delayed", "backing_off"}
ALLOWED = {
    "cancel": {each.__name__ for each in WHERE} - {"owned", "owned_and_held"},
    "review succeeded": {"in_review", "in_review_and_cancelled"},
    "review failed": {"in_review", "in_review_and_cancelled"},
    "review retry": {"in_review"},
    "retry": {"failed", "cancelled"},
    "reschedule": WAITS,
}


def decide(caller: Caller, task_id: str, operation: str, *, key: str = "", **changes: Any) -> Got:
    verb, _, verdict = operation.partition(" ")
    revision = caller.get(f"/v1/tasks/{task_id}").data["revision"]
    bodies: dict[str, dict[str, Any]] = {
        "cancel": {"reason": "stop"},
        "review": SAID | {"verdict": verdict.upper(), "expected_revision": revision},
        "retry": SAID | {"expected_revision": revision},
        "reschedule": {"priority": 9, "reason": "urgent", "expected_revision": revision},
    }
    return caller.post(f"/v1/tasks/{task_id}:{verb}", bodies[verb] | changes, key=key)


@pytest.mark.parametrize("where", WHERE, ids=lambda where: where.__name__)
def test_every_decision_in_every_state(caller: Caller, pulse: Pulse, where: Callable[[Pulse], bytes]) -> None:
    for operation in OPERATIONS:
        task_id = where(pulse).hex()
        before = caller.get(f"/v1/tasks/{task_id}").data
        got = decide(caller, task_id, operation)
        if where.__name__ in ALLOWED[operation]:
            assert got.status in {200, 201}, got.json
            assert decide(caller, task_id, operation).status in {200, 201, 409}, "and once more"
            continue
        assert got.status == 409, got.json
        assert caller.get(f"/v1/tasks/{task_id}").data == before, "what is refused changes nothing"
        if before["source"]["kind"] == "WORKFLOW":
            assert got.code == "OWNED_BY_WORKFLOW"
        else:
            details = got.json["error"]["details"]
            assert (got.code, details["state"], details["current_revision"]) == (
                "STATE_CONFLICT",
                before["state"],
                before["revision"],
            )


def test_a_refused_retry_names_the_successor(caller: Caller, pulse: Pulse) -> None:
    task_id = failed(pulse).hex()
    first = decide(caller, task_id, "retry", key="k")
    assert first.status == 201, first.json
    made = first.data["task"]["id"]
    refused = decide(caller, task_id, "retry")
    assert (refused.status, refused.json["error"]["details"]["successor"]) == (409, made)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_decision_is_made_once_under_its_key_and_at_its_revision(
    caller: Caller, pulse: Pulse, operation: str
) -> None:
    """The key's first answer stands whatever became of the task since; another content under it is a conflict."""
    where = {"review": in_review, "retry": failed}.get(operation.partition(" ")[0], waiting)
    task_id = where(pulse).hex()
    revision = caller.get(f"/v1/tasks/{task_id}").data["revision"]
    stamp = {} if operation == "cancel" else {"expected_revision": revision}
    if operation != "cancel":
        stale = decide(caller, task_id, operation, expected_revision=str(int(revision) + 1))
        assert (stale.status, stale.json["error"]["details"]["current_revision"]) == (409, revision)
    first = decide(caller, task_id, operation, key="k", **stamp)
    assert first.status in {200, 201}
    caller.post(f"/v1/tasks/{task_id}:cancel", {"reason": "and now"})
    again = decide(caller, task_id, operation, key="k", **stamp)
    assert (again.status, again.data["deduplicated"], again.data["task"]) == (200, True, first.data["task"])
    other = decide(caller, task_id, operation, key="k", **stamp | {"reason": "another"})
    assert (other.status, other.code) == (409, "IDEMPOTENCY_CONFLICT")


@pytest.mark.parametrize(
    "order",
    [
        ("cancel", "review failed", "retry"),
        ("retry", "cancel", "review succeeded"),
        ("review retry", "reschedule", "cancel"),
        ("reschedule", "retry", "review retry"),
    ],
)
def test_decisions_in_any_order_leave_the_books_exact(
    caller: Caller, pulse: Pulse, order: tuple[str, str, str]
) -> None:
    """Whatever an operator tries one after the other, beside a worker that goes on: no counter drifts, no 5xx."""
    tasks = [where(pulse).hex() for where in (in_review, failed, running, leased, waiting)]
    for operation in order:
        for task_id in tasks:
            assert decide(caller, task_id, operation).status in {200, 201, 409}
        pulse.pass_time(1)
        for assignment in pulse.claim(1):
            if pulse.start(assignment).granted:
                pulse.report(pulse.result(assignment, Outcome.CANCELLED))
    pulse.pass_time(60)
    assert pulse.drifts() == []


@pytest.mark.parametrize(
    ("operation", "changes", "pointer"),
    [
        ("reschedule", {"priority": 10}, "/priority"),
        ("reschedule", {"available_at": "soon"}, "/available_at"),
        ("reschedule", {"available_at": "2999-01-01T00:00:00Z"}, "/available_at"),
        ("reschedule", {"expected_revision": 1}, "/expected_revision"),
        ("reschedule", {"reason": "  "}, "/reason"),
        ("cancel", {"reason": "x" * 1025}, "/reason"),
        ("cancel", {"force": True}, "/force"),
        ("review failed", {"evidence": []}, "/evidence"),
        ("review failed", {"verdict": "OK"}, "/verdict"),
        ("review failed", {"safety_statement": ""}, "/safety_statement"),
        ("review failed", {"output": 1}, "/output"),
        ("retry", {"safety_statement": None}, "/safety_statement"),
        ("retry", {"evidence": None}, "/evidence"),
        ("retry", {"priority": 1}, "/priority"),
    ],
)
def test_what_is_wrong_is_named(
    caller: Caller, pulse: Pulse, operation: str, changes: dict[str, Any], pointer: str
) -> None:
    where = {"review": in_review, "retry": failed}.get(operation.partition(" ")[0], waiting)
    refused = decide(caller, where(pulse).hex(), operation, **changes)
    assert (refused.status, refused.pointer) == (400, pointer)


def test_a_task_is_not_moved_past_its_start_deadline(caller: Caller, pulse: Pulse) -> None:
    task_id = pulse.submit(start_within_micros=60_000_000).hex()
    late = decide(caller, task_id, "reschedule", available_at="2900-01-01T00:00:00Z")
    assert (late.status, late.pointer) == (400, "/available_at")
    at = caller.get(f"/v1/tasks/{task_id}").data["start_deadline_at"]
    assert decide(caller, task_id, "reschedule", available_at=at).pointer == "/available_at"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_task_out_of_range_is_not_there(api: Api, caller: Caller, pulse: Pulse, operation: str) -> None:
    task_id = waiting(pulse).hex()
    revision = caller.get(f"/v1/tasks/{task_id}").data["revision"]
    verb, _, verdict = operation.partition(" ")
    body = {
        "cancel": {"reason": "stop"},
        "review": SAID | {"verdict": verdict.upper(), "expected_revision": revision},
        "retry": SAID | {"expected_revision": revision},
        "reschedule": {"priority": 9, "reason": "urgent", "expected_revision": revision},
    }[verb]
    for other in (api.caller(queues=["other"]), api.caller(namespace="elsewhere")):
        hidden = other.post(f"/v1/tasks/{task_id}:{verb}", body)
        missing = other.post(f"/v1/tasks/{'f' * 32}:{verb}", body)
        assert (hidden.status, hidden.code) == (404, "NOT_FOUND")
        assert hidden.json["error"] == missing.json["error"]
