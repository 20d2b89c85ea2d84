"""Reviews, retries and moves by the client against a scripted server: what it sends and what it reads."""

import json

import pytest

from orbit import Client, RescheduleTask, RetryTask, ReviewTask
from orbit.sdk.errors import APIError
from tests.unit.sdk.scripted_server import Script

ID, NEW = "1" * 32, "2" * 32


def sent(script: Script) -> tuple[str, str, object]:
    """Say what the last request was: path, key and body."""
    seen = script.seen[-1]
    return seen.path, seen.headers["Idempotency-Key"], json.loads(seen.body)


def test_a_review_carries_verdict_evidence_and_the_output_even_if_that_is_null(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "task": {"id": ID, "state": "SUCCEEDED", "revision": "5"}})
    plain = ReviewTask(
        expected_revision=4, verdict="SUCCEEDED", evidence={"seen": 1}, reason="seen at the bank", output=None
    )
    done = client.review_task(ID, "k", plain)
    assert (done.task.state, done.task.revision) == ("SUCCEEDED", 5)
    body = {"expected_revision": "4", "verdict": "SUCCEEDED", "evidence": {"seen": 1}, "reason": "seen at the bank"}
    assert sent(script) == (f"/v1/tasks/{ID}:review", "k", body | {"output": None})


def test_a_retry_returns_the_new_task(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "task": {"id": NEW, "state": "WAITING", "revision": "1"}}, status=201)
    request = RetryTask(expected_revision=4, evidence=["T-7"], reason="repaired", safety_statement="nothing was sent")
    assert client.retry_task(ID, "k", request).task.id == NEW
    body = {"expected_revision": "4", "evidence": ["T-7"], "reason": "repaired", "safety_statement": "nothing was sent"}
    assert sent(script) == (f"/v1/tasks/{ID}:retry", "k", body)


def test_a_move_sends_only_what_changes_and_a_lost_race_is_told(script: Script, client: Client) -> None:
    script.success({"deduplicated": True, "task": {"id": ID, "state": "WAITING", "revision": "2"}})
    script.refusal(409, "STATE_CONFLICT", details={"current_revision": "3"})
    request = RescheduleTask(expected_revision=1, reason="urgent", priority=9)
    assert client.reschedule_task(ID, "k", request).deduplicated
    assert sent(script) == (
        f"/v1/tasks/{ID}:reschedule", "k", {"expected_revision": "1", "reason": "urgent", "priority": 9}
    )  # fmt: skip
    with pytest.raises(APIError) as refused:
        client.reschedule_task(ID, "k2", request)
    assert refused.value.details["current_revision"] == "3"
