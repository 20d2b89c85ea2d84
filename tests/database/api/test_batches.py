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


YAML = """\
orbit: weave/1
workflow: pay
version: 1
timeout: 1h
defaults: {queue: images, start_within: 1h}
steps:
  - {id: a, task: do.a@1}
"""


def test_a_batch_may_be_about_instances(caller: Caller, api: Api, node: Node, task_ids: list[str]) -> None:
    caller.post("/v1/workflows", raw=YAML.encode(), headers={"Content-Type": "application/yaml"})
    started = [caller.post("/v1/instances", {"workflow": "pay"}).data["instance"]["id"] for _ in range(3)]
    body = {"operation": "instance.pause", "instances": {"workflow": "pay"}, "reason": "the bank is away"}
    preview = caller.post("/v1/batches:preview", {name: body[name] for name in ("operation", "instances")}, key=None)
    assert (preview.data["count"], preview.data["by_state"]) == (3, {"RUNNING": 3})
    assert [each["id"] for each in preview.data["first"]] == started
    assert api.caller(["tasks:cancel"]).post("/v1/batches", body).status == 403
    assert api.caller(queues=["other"]).post("/v1/batches", body).pointer is None
    created = caller.post("/v1/batches", body | {"rate_per_second": 1000})
    assert (created.status, created.data["batch"]["items"]["pending"]) == (201, 3)
    while node.pulse.batches.run_once() == 0.0:
        pass
    assert {caller.get(f"/v1/instances/{each}").data["control"] for each in started} == {"PAUSED"}
    stopped = caller.post(f"/v1/batches/{created.data['batch']['id']}:stop", {"reason": "late"})
    assert stopped.status == 409


def test_what_a_batch_of_instances_needs_is_asked_for(caller: Caller, task_ids: list[str]) -> None:
    body = {"operation": "instance.migrate", "instances": {"workflow": "pay"}, "reason": "new"}
    assert caller.post("/v1/batches", body).pointer == "/version"
    assert caller.post("/v1/batches", body | {"operation": "instance.pause", "version": 2}).pointer == "/version"
    recover = body | {"operation": "instance.recover"}
    assert caller.post("/v1/batches", recover).pointer == "/action"
    assert caller.post("/v1/batches", recover | {"action": "RETRY"}).pointer == "/evidence"
    assert caller.post("/v1/batches", recover | {"action": "RETRY", "evidence": 1, "output": 2}).pointer == "/output"
    assert caller.post("/v1/batches", body | {"version": 2, "instances": {}}).pointer == "/instances"
    assert caller.post("/v1/batches", body | {"version": 2, "tasks": {}}).pointer == "/instances"
    assert caller.post("/v1/batches", CANCEL | {"instances": {"workflow": "pay"}}).pointer == "/tasks"
    named = {"ids": ["0" * 32], "workflow": "pay"}
    assert caller.post("/v1/batches", body | {"version": 2, "instances": named}).pointer == "/instances/ids"
    pause = body | {"operation": "instance.pause", "instances": {"label": "team=a"}}
    assert caller.post("/v1/batches", pause).json["error"]["message"] == "nothing is selected"
    assert caller.post("/v1/batches", pause | {"instances": {"label": "team"}}).pointer == "/instances/label"
    assert caller.post("/v1/batches", pause | {"compensate": True}).pointer == "/compensate"
