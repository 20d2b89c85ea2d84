"""Batches over HTTP: previewed, created, watched, stopped; only by whom the operation itself would be allowed."""

import pytest

from api.server import Node
from tests.support.http import Api, Caller

SINCE = "2020-01-01T00:00:00Z"
CANCEL = {"operation": "task.cancel", "tasks": {"queue": "images", "created_after": SINCE}, "reason": "a wrong run"}


@pytest.fixture
def task_ids(caller: Caller) -> list[str]:
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    task = {"queue": "images", "type": "echo", "version": 1}
    return [str(caller.post("/v1/tasks", task).data["task"]["id"]) for _ in range(3)]


def test_a_batch_is_previewed_and_carried_out(caller: Caller, node: Node, task_ids: list[str]) -> None:
    preview = caller.post("/v1/batches:preview", {key: CANCEL[key] for key in ("operation", "tasks")}, key=None).data
    assert (preview["count"], preview["by_state"]) == (3, {"WAITING": 3})
    assert [task["id"] for task in preview["first"]] == task_ids
    created = caller.post("/v1/batches", CANCEL | {"rate_per_second": 1000}, key="k")
    assert (created.status, created.data["batch"]["items"]["pending"]) == (201, 3)
    assert caller.post("/v1/batches", CANCEL | {"rate_per_second": 1000}, key="k").data["deduplicated"] is True
    while node.pulse.batches.run_once() == 0.0:
        pass
    path = f"/v1/batches/{created.data['batch']['id']}"
    assert (caller.get(path).data["state"], caller.get(path).data["items"]["done"]) == ("DONE", 3)
    items = caller.get(f"{path}/items?limit=2")
    assert [item["subject_id"] for item in items.json["data"]] == task_ids[:2]
    rest = caller.get(f"{path}/items?limit=2&cursor={items.json['next_cursor']}")
    assert [item["outcome"]["task"]["state"] for item in rest.json["data"]] == ["CANCELLED"]
    assert caller.get(f"{path}/items?state=REFUSED").json["data"] == []
    assert [batch["id"] for batch in caller.get("/v1/batches").json["data"]] == [created.data["batch"]["id"]]
    records = caller.get("/v1/audit").json["data"]
    assert [record["operation"] for record in records[:4]] == ["task.cancel"] * 3 + ["batch.create"]
    assert {record["request_id"] for record in records[:4]} == {created.json["request_id"]}


def test_what_a_decision_needs_is_asked_for(caller: Caller, task_ids: list[str]) -> None:
    review = CANCEL | {"operation": "task.review"}
    assert caller.post("/v1/batches", review).pointer == "/evidence"
    assert caller.post("/v1/batches", review | {"evidence": 1}).pointer == "/verdict"
    assert caller.post("/v1/batches", review | {"evidence": 1, "verdict": "RETRY"}).pointer == "/safety_statement"
    retry = CANCEL | {"operation": "task.retry", "evidence": 1}
    assert caller.post("/v1/batches", retry).pointer == "/safety_statement"
    assert caller.post("/v1/batches", CANCEL | {"verdict": "FAILED"}).pointer == "/verdict"
    assert caller.post("/v1/batches", CANCEL | {"tasks": {}}).pointer == "/tasks"
    assert caller.post("/v1/batches", CANCEL | {"tasks": {"queue": "images"}}).pointer == "/tasks/created_after"
    both = {"ids": task_ids, "queue": "images"}
    assert caller.post("/v1/batches", CANCEL | {"tasks": both}).pointer == "/tasks/ids"
    assert caller.post("/v1/batches", CANCEL | {"tasks": {"source": "x", "created_after": SINCE}}).pointer == (
        "/tasks/source"
    )
    settled = review | {"evidence": 1, "verdict": "FAILED"}
    assert caller.post("/v1/batches", settled).status == 400, "nothing is under review"


def test_a_batch_needs_the_right_of_its_operation_and_stays_in_range(
    api: Api, caller: Caller, node: Node, task_ids: list[str]
) -> None:
    canceller = api.caller({"tasks:cancel"}, queues={"images"})
    elsewhere = api.caller({"tasks:cancel", "tasks:recover"}, queues={"other"})
    named = CANCEL | {"tasks": {"ids": task_ids}}
    assert api.caller({"tasks:read"}).post("/v1/batches", named).status == 403
    retry = named | {"operation": "task.retry", "evidence": 1, "safety_statement": "none"}
    assert canceller.post("/v1/batches", retry).status == 403
    assert elsewhere.post("/v1/batches", CANCEL).status == 404
    assert elsewhere.post("/v1/batches", named).status == 400, "none of them is in range"
    created = canceller.post("/v1/batches", named | {"rate_per_second": 1}).data["batch"]
    path = f"/v1/batches/{created['id']}"
    assert (elsewhere.get(path).status, elsewhere.post(f"{path}:stop", {"reason": "x"}).status) == (404, 404)
    assert elsewhere.get("/v1/batches").json["data"] == []
    node.pulse.batches.run_once()
    stopped = canceller.post(f"{path}:stop", {"reason": "enough"}, key="s").data["batch"]
    assert (stopped["state"], stopped["items"]["done"], stopped["items"]["stopped"]) == ("STOPPED", 1, 2)
    assert canceller.post(f"{path}:stop", {"reason": "enough"}, key="s").data["deduplicated"] is True
    assert caller.post(f"{path}:stop", {"reason": "again"}).code == "STATE_CONFLICT"
