"""What operators do to instances over HTTP: with scope, reason, key and revision."""

from typing import Any

import pytest

from api.server import Node
from tests.support.http import Api, Caller

YAML = """\
orbit: weave/1
workflow: pay
version: 1
input: {type: object}
timeout: 1h
defaults: {queue: main, start_within: 1h}
steps:
  - {id: a, task: do.a@1}
  - {id: b, task: do.b@1}
"""


@pytest.fixture
def instance_id(caller: Caller) -> str:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    published = caller.post("/v1/workflows", raw=YAML.encode(), headers={"Content-Type": "application/yaml"})
    assert published.status == 201
    return str(caller.post("/v1/instances", {"workflow": "pay"}).data["instance"]["id"])


def test_an_instance_is_cancelled(caller: Caller, api: Api, node: Node, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}:cancel"
    body: dict[str, Any] = {"reason": "not wanted"}
    assert api.caller(["instances:read", "instances:start"]).post(path, body).status == 403
    assert api.caller(namespace="other").post(path, body).status == 404
    assert api.caller(queues=["other"]).post(path, body).status == 404
    assert caller.post(path, {}).pointer == "/reason"
    assert caller.post(path, {"reason": " "}).pointer == "/reason"
    stale = caller.post(path, body | {"expected_revision": "99"})
    assert (stale.status, stale.json["error"]["details"]) == (409, {"state": "RUNNING", "current_revision": "1"})
    done = caller.post(path, body | {"expected_revision": "1"}, key="k")
    assert (done.status, done.data["instance"]["state"], done.data["instance"]["ending_as"]) == (
        200, "ENDING", "CANCELLED",
    )  # fmt: skip
    again = caller.post(path, body | {"expected_revision": "1"}, key="k")
    assert again.data == done.data | {"deduplicated": True}
    assert node.runner.run_once() == 1
    assert caller.get(f"/v1/instances/{instance_id}").data["state"] == "CANCELLED"
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["subject_id"], newest["reason"]) == (
        "instance.cancel", instance_id, "not wanted",
    )  # fmt: skip
