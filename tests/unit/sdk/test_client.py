"""The HTTP client against a scripted server: what it sends, how it reads, and that it never sends twice."""

from __future__ import annotations

import json
import socket

import pytest

import orbit
from orbit.sdk.client import Client
from orbit.sdk.errors import APIError, ConnectionFailed, OutcomeUnknown, parse_retry_after
from orbit.sdk.models import (
    ConfigureQueueRequest,
    CreateQueueRequest,
    QueueResult,
    StartInstance,
    SubmitTask,
)
from orbit.sdk.type_models import Retry
from tests.unit.sdk.scripted_server import CUT, Script

QUEUE = {
    "id": "1" * 32, "namespace_id": "3" * 32, "name": "images", "paused": False, "max_concurrency": 8,
    "rate_per_second": 100, "max_unfinished_tasks": 100_000, "unfinished_tasks": "18446744073709551615",
    "revision": "1", "colour": "a field of tomorrow",
}  # fmt: skip
CREATE = CreateQueueRequest(name="images", max_concurrency=8, rate_per_second=100)


def test_r018_create_queue_gives_a_typed_result(script: Script, client: Client) -> None:
    script.success({"deduplicated": True, "queue": QUEUE}, status=201)
    result = client.create_queue("queue-images-v1", CREATE)
    assert isinstance(result, QueueResult)
    assert result.deduplicated is True
    assert result.queue.name == "images"
    (seen,) = script.seen
    assert (seen.method, seen.path) == ("POST", "/v1/queues")
    assert seen.headers["Idempotency-Key"] == "queue-images-v1"
    assert seen.headers["Authorization"] == "Bearer key.secret"
    assert seen.headers["Content-Type"] == "application/json"
    assert json.loads(seen.body) == {"name": "images", "max_concurrency": 8, "rate_per_second": 100}


def test_r022_counters_are_ints_and_missing_fields_are_empty(script: Script, client: Client) -> None:
    script.success(QUEUE)
    script.success({"id": "1" * 32, "max_unfinished_tasks": None})
    assert client.get_queue("1" * 32).unfinished_tasks == 2**64 - 1
    old = client.get_queue("1" * 32)
    assert (old.max_unfinished_tasks, old.unfinished_tasks, old.name, old.revision) == (0, 0, "", 0)


def test_r041_configure_queue_gives_the_same_type_and_sends_all_fields(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "queue": QUEUE})
    request = ConfigureQueueRequest(
        expected_revision=7, reason="quiet", paused=False, max_concurrency=2, rate_per_second=1, max_unfinished_tasks=9
    )
    assert isinstance(client.configure_queue("1" * 32, "control-1", request), QueueResult)
    assert script.seen[0].path == f"/v1/queues/{'1' * 32}:configure"
    assert json.loads(script.seen[0].body) == {
        "expected_revision": "7", "reason": "quiet", "paused": False, "max_concurrency": 2, "rate_per_second": 1,
        "max_unfinished_tasks": 9,
    }  # fmt: skip


def test_r071_a_full_queue_is_an_error_with_code_status_and_retry_after(script: Script, client: Client) -> None:
    script.refusal(429, "QUEUE_FULL", {"Retry-After": "1"}, details={"pointer": "/queue"})
    with pytest.raises(orbit.APIError) as caught:
        client.submit_task("k", SubmitTask(queue="q", type="t", version=1))
    error = caught.value
    assert (error.code, error.status, error.retry_after) == ("QUEUE_FULL", 429, 1.0)
    assert (error.request_id, error.message, error.details) == ("e" * 32, "no", {"pointer": "/queue"})
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1), ("", 0), ("abc", 0), ("-1", 0), ("1.5", 0), ("3600", 3600), ("3601", 0), ("9" * 400, 0), ("²", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0), (None, 0), (" 2 ", 2),
    ],
)  # fmt: skip
def test_r072_retry_after_is_whole_seconds_up_to_an_hour(value: str | None, seconds: int) -> None:
    assert parse_retry_after(value) == seconds


@pytest.mark.requirement("R042")
def test_r073_a_write_without_an_answer_is_not_sent_again(script: Script, client: Client) -> None:
    script.answers.append(CUT)
    with pytest.raises(orbit.OutcomeUnknown, match="'queue-images-v1'") as caught:
        client.create_queue("queue-images-v1", CREATE)
    assert caught.value.key == "queue-images-v1"
    assert len(script.seen) == 1


def test_r073_a_stale_connection_is_no_reason_to_send_twice(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "queue": QUEUE})
    script.answers.append(CUT)
    client.create_queue("first", CREATE)
    with pytest.raises(OutcomeUnknown):
        client.create_queue("second", CREATE)
    assert [seen.headers["Idempotency-Key"] for seen in script.seen] == ["first", "second"]


@pytest.mark.parametrize("status", [502, 504, 200])
def test_an_answer_that_is_not_orbits_leaves_a_write_unknown(script: Script, client: Client, status: int) -> None:
    script.answers.append((status, b"<html>gateway</html>", {}))
    with pytest.raises(OutcomeUnknown):
        client.submit_task("k", SubmitTask(queue="q", type="t", version=1))
    with pytest.raises(APIError) as caught:
        client.get_task("1" * 32)
    assert caught.value.status == status


def test_a_batch_names_every_key_that_is_in_doubt(script: Script, client: Client) -> None:
    script.answers.append(CUT)
    task = SubmitTask(queue="q", type="t", version=1)
    with pytest.raises(OutcomeUnknown, match="'a', 'b'") as caught:
        client.submit_tasks([("a", task), ("b", task)])
    assert caught.value.keys == ("a", "b")
    assert "Idempotency-Key" not in script.seen[0].headers
    assert [item["idempotency_key"] for item in json.loads(script.seen[0].body)["items"]] == ["a", "b"]


def test_a_batch_tells_each_item_apart(script: Script, client: Client) -> None:
    receipt = {"deduplicated": False, "task": {"id": "2" * 32, "state": "WAITING", "revision": "1"}}
    refusal = {"code": "QUEUE_FULL", "message": "full"}
    script.success({"items": [{"index": 0, "status": 201, "data": receipt},
                              {"index": 1, "status": 429, "error": refusal}]})  # fmt: skip
    task = SubmitTask(queue="q", type="t", version=1)
    first, second = client.submit_tasks([("a", task), ("b", task)]).items
    assert first.data is not None
    assert first.data.task.revision == 1
    assert second.error is not None
    assert (second.status, second.error.code, second.data) == (429, "QUEUE_FULL", None)


def test_nothing_sent_is_not_an_unknown_outcome() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", "key.secret") as client:
        with pytest.raises(ConnectionFailed) as caught:
            client.create_queue("k", CREATE)
        assert not isinstance(caught.value, OutcomeUnknown)


def test_a_request_leaves_out_what_was_not_given_but_keeps_null_params() -> None:
    full = SubmitTask(queue="q", type="t", version=2, params=None, retry=Retry(max_attempts=5), labels={"a": "b"})
    assert full.content() == {
        "queue": "q", "type": "t", "version": 2, "params": None, "retry": {"max_attempts": 5}, "labels": {"a": "b"},
    }  # fmt: skip
    assert SubmitTask(queue="q", type="t", version=2).content() == {"queue": "q", "type": "t", "version": 2}
    assert StartInstance(workflow="w", input={"x": 2**70}).body() == b'{"workflow":"w","input":{"x":%d}}' % 2**70


@pytest.mark.parametrize("params", [float("nan"), {1, 2}, "\ud800", object()])
def test_params_that_are_not_json_are_refused_before_sending(script: Script, client: Client, params: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        client.submit_task("k", SubmitTask(queue="q", type="t", version=1, params=params))
    assert script.seen == []


def test_lists_follow_the_cursor_and_stop(script: Script, client: Client) -> None:
    script.success([QUEUE, QUEUE], next_cursor="c1")
    script.success([QUEUE])
    assert len(list(client.list_queues(limit=2))) == 3
    assert [seen.path for seen in script.seen] == ["/v1/queues?limit=2", "/v1/queues?limit=2&cursor=c1"]


def test_result_waits_by_long_polls_and_outlives_broken_reads(script: Script, client: Client) -> None:
    script.success({"id": "2" * 32, "state": "RUNNING", "revision": "3"})
    script.answers.append(CUT)
    script.refusal(503, "UNAVAILABLE", {"Retry-After": "1"})
    script.success({"id": "2" * 32, "state": "SUCCEEDED", "revision": "4", "output": {"queue": None}})
    task = client.result("2" * 32, timeout_seconds=60)
    assert (task.state, task.output) == ("SUCCEEDED", {"queue": None})
    assert "after_revision" not in script.seen[0].path
    assert "after_revision=3" in script.seen[1].path


def test_result_gives_up_when_its_time_is_over(script: Script, client: Client) -> None:
    script.success({"id": "2" * 32, "state": "WAITING", "revision": "1"})
    with pytest.raises(TimeoutError, match="WAITING"):
        client.result("2" * 32, timeout_seconds=0)


def test_result_does_not_hide_a_refusal(script: Script, client: Client) -> None:
    script.refusal(404, "NOT_FOUND")
    with pytest.raises(APIError, match="NOT_FOUND"):
        client.result("2" * 32)


def test_publishing_the_same_text_is_the_same_command(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "workflow": "payout", "version": 3}, status=201)
    assert client.publish_workflow("workflow: payout\n").version == 3
    client.publish_workflow("workflow: payout\n")
    keys = {seen.headers["Idempotency-Key"] for seen in script.seen}
    assert len(keys) == 1
    assert script.seen[0].headers["Content-Type"] == "application/yaml"
    assert script.seen[0].body == b"workflow: payout\n"


def test_ids_cannot_leave_their_place_in_the_path(script: Script, client: Client) -> None:
    script.refusal(404, "NOT_FOUND")
    with pytest.raises(APIError):
        client.get_task("../queues?x=1")
    assert script.seen[0].path == "/v1/tasks/..%2Fqueues%3Fx%3D1"
