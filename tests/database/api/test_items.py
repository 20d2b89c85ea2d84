"""Items of a foreach over HTTP: in pages, with their steps' names, which recovery takes."""

import pytest

from tests.support.http import Api, Caller

YAML = """\
orbit: weave/1
workflow: many
version: 1
input: {type: object, required: [names], properties: {names: {type: array, items: {type: string}}}}
timeout: 1h
defaults: {queue: main, start_within: 1h}
steps:
  - id: each
    foreach:
      items: input.names
      max_items: 5
      concurrency: 3
      steps: [{id: greet, task: do.greet@1, input: {name: "${ item }"}}]
"""


@pytest.fixture
def instance_id(caller: Caller) -> str:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    published = caller.post("/v1/workflows", raw=YAML.encode(), headers={"Content-Type": "application/yaml"})
    assert published.status == 201
    body = {"workflow": "many", "input": {"names": ["Ada", "Bob", "Cy", "Di"]}}
    return str(caller.post("/v1/instances", body).data["instance"]["id"])


def test_items_are_listed_in_pages(caller: Caller, api: Api, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}"
    (step,) = caller.get(f"{path}/steps").data
    assert (step["id"], step["state"], step["reason"]) == ("each", "WAITING", "ITEMS")
    assert step["items"] == {"count": 4, "begun": 3, "ended": 0, "under_way": 3}
    first = caller.get(f"{path}/steps/each/items?limit=2")
    assert [item["index"] for item in first.data] == [0, 1]
    rest = caller.get(f"{path}/steps/each/items?limit=2&cursor={first.json['next_cursor']}")
    assert [(item["index"], item["result"]) for item in rest.data] == [(2, None)]
    assert rest.json["next_cursor"] is None
    (greet,) = rest.data[0]["steps"]
    assert (greet["id"], greet["state"]) == ("greet[2]", "RUNNING")
    task = caller.get(f"/v1/tasks/{greet['task_id']}").data
    assert (task["source"]["step"], task["params"]) == ("greet[2]", {"name": "Cy"})
    assert caller.get(f"{path}/steps/greet/items").status == 404
    assert caller.get(f"{path}/steps/each/items?cursor=x").status == 400
    assert api.caller(namespace="other").get(f"{path}/steps/each/items").status == 404
    assert api.caller(["instances:start"]).get(f"{path}/steps/each/items").status == 403


def test_a_step_of_an_item_is_named_in_a_recovery(caller: Caller, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}"
    revision = caller.get(path).data["revision"]
    body = {"action": "RETRY", "reason": "r", "evidence": {"a": 1}, "expected_revision": revision}
    running = caller.post(f"{path}:recover", body | {"step": "greet[1]"})
    assert (running.status, "greet[1] is RUNNING" in running.json["error"]["message"]) == (409, True)
    later = caller.post(f"{path}:recover", body | {"step": "greet[3]"})
    assert "no step of an item that is under way" in later.json["error"]["message"]
    for unknown in ("greet[01]", "greet[x]", "each[1]", "greet", "greet[1"):
        refused = caller.post(f"{path}:recover", body | {"step": unknown})
        assert (refused.status, refused.pointer) == (400, "/step"), unknown
