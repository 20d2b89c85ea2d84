"""What people decide about tasks over HTTP: with evidence, reason and revision, audited, only where it is theirs."""

from typing import Any

import pytest
from sqlalchemy import update

from orbit.database import Database
from pulse.tables import task
from tests.support.http import Api, Caller

SETTLED = {"verdict": "SUCCEEDED", "evidence": {"bank": "statement 7"}, "reason": "seen at the bank"}
RETRY = {"evidence": {"ticket": 7}, "reason": "repaired", "safety_statement": "the bank knows no such transfer"}


def submit(caller: Caller) -> str:
    return str(caller.post("/v1/tasks", {"queue": "images", "type": "echo", "version": 1}).data["task"]["id"])


@pytest.fixture
def queue_id(caller: Caller) -> str:
    body = {"name": "images", "max_concurrency": 8, "rate_per_second": 100}
    return str(caller.post("/v1/queues", body).data["queue"]["id"])


@pytest.fixture
def reviewed(caller: Caller, database: Database, queue_id: str) -> str:
    """A task in NEEDS_REVIEW; how it got there is told elsewhere."""
    task_id = submit(caller)
    statement = update(task).where(task.c.id == bytes.fromhex(task_id))
    database.transaction(
        lambda tx: tx.expect(statement.values(state="NEEDS_REVIEW", wait_reason=None, revision=4), count=1)
    )
    return task_id


@pytest.mark.requirement("R139")
def test_r065_a_review_is_settled_by_evidence_not_by_a_cancel(caller: Caller, reviewed: str, queue_id: str) -> None:
    path = f"/v1/tasks/{reviewed}"
    cancelled = caller.post(f"{path}:cancel", {"reason": "free the place"}).data["task"]
    assert (cancelled["state"], cancelled["cancel_requested"]) == ("NEEDS_REVIEW", True)
    assert caller.get(f"/v1/queues/{queue_id}").data["unfinished_tasks"] == "1"
    body: dict[str, Any] = SETTLED | {"expected_revision": caller.get(path).data["revision"]}
    for field in body:
        absent = caller.post(f"{path}:review", {name: value for name, value in body.items() if name != field})
        assert (absent.status, absent.pointer) == (400, f"/{field}")
    nothing: list[Any] = [None, "", {}, []]
    named = {"attempt_id": "0" * 32, "message_id": "1" * 32}
    unknown = caller.post(f"{path}:review", body | {"late_result": named})
    assert (unknown.status, unknown.pointer) == (400, "/late_result")
    assert caller.post(f"{path}:review", body | {"late_result": {}}).pointer == "/late_result/attempt_id"
    assert caller.post(f"{path}:review", body | {"late_result": named, "output": 1}).pointer == "/output"
    for empty in nothing:
        assert caller.post(f"{path}:review", body | {"evidence": empty}).pointer == "/evidence"
    large = caller.post(f"{path}:review", body | {"evidence": "x" * 16 * 1024})
    assert (large.status, large.pointer) == (413, "/evidence")
    assert caller.post(f"{path}:review", body | {"verdict": "MAYBE"}).pointer == "/verdict"
    assert caller.post(f"{path}:review", body | {"verdict": "RETRY"}).pointer == "/safety_statement"
    assert caller.post(f"{path}:review", body | {"verdict": "FAILED", "output": 1}).pointer == "/output"
    stale = caller.post(f"{path}:review", body | {"expected_revision": "1"})
    assert (stale.status, stale.json["error"]["details"]["current_revision"]) == (409, body["expected_revision"])
    settled = caller.post(f"{path}:review", body | {"output": {"ref": "T-1"}}, key="k")
    assert (settled.status, settled.data["task"]["state"]) == (200, "SUCCEEDED")
    assert caller.post(f"{path}:review", body | {"output": {"ref": "T-1"}}, key="k").data["deduplicated"] is True
    assert caller.get(path).data["output"] == {"ref": "T-1"}
    assert caller.get(f"/v1/queues/{queue_id}").data["unfinished_tasks"] == "0"
    (verdict,) = caller.get(f"{path}/verdicts").data
    assert (verdict["kind"], verdict["evidence"], verdict["output"], verdict["late_result"]) == (
        "SUCCEEDED",
        SETTLED["evidence"],
        {"ref": "T-1"},
        None,
    )
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["subject_id"], newest["reason"]) == ("task.review", reviewed, SETTLED["reason"])


@pytest.mark.requirement("R136", "R138")
def test_r134_an_ended_task_is_retried_as_a_new_one_once(api: Api, caller: Caller, queue_id: str) -> None:
    assert queue_id
    task_id = submit(caller)
    path = f"/v1/tasks/{task_id}:retry"
    assert caller.post(path, RETRY | {"expected_revision": "1"}).status == 409
    caller.post(f"/v1/tasks/{task_id}:cancel", {"reason": "r"})
    before = caller.get(f"/v1/tasks/{task_id}").data
    body = RETRY | {"expected_revision": before["revision"]}
    assert api.caller(["tasks:read", "tasks:cancel"]).post(path, body).status == 403
    assert api.caller(queues=["other"]).post(path, body).status == 404
    for field in body:
        absent = caller.post(path, {name: value for name, value in body.items() if name != field})
        assert (absent.status, absent.pointer) == (400, f"/{field}")
    made = caller.post(path, body)
    assert made.status == 201
    assert made.data["task"]["id"] != task_id
    assert caller.get(f"/v1/tasks/{task_id}").data["state"] == before["state"]
    assert caller.post(path, body).status == 409


def test_a_waiting_task_is_moved(caller: Caller, queue_id: str) -> None:
    assert queue_id
    task_id = submit(caller)
    path = f"/v1/tasks/{task_id}:reschedule"
    body = {"expected_revision": "1", "reason": "urgent"}
    assert caller.post(path, body).status == 400
    assert caller.post(path, body | {"available_at": "tomorrow"}).pointer == "/available_at"
    moved = caller.post(path, body | {"priority": 9})
    assert (moved.status, moved.data["task"]["revision"]) == (200, "2")
    assert caller.get(f"/v1/tasks/{task_id}").data["priority"] == 9
    assert caller.post(path, body | {"priority": 1}).status == 409
