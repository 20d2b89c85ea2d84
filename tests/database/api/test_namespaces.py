"""A namespace's own limit of running instances over HTTP."""

from typing import Any

from api.server import Node
from tests.support.http import Api, Caller

YAML = """\
orbit: weave/1
workflow: {name}
version: 1
steps: [{{id: w, wait: {{for: 1h}}}}]
"""


def publish(caller: Caller, name: str) -> None:
    text = YAML.format(name=name).encode()
    assert caller.post("/v1/workflows", raw=text, headers={"Content-Type": "application/yaml"}).status == 201


def test_a_namespace_runs_no_more_than_its_limit_over_all_workflows(caller: Caller, api: Api, node: Node) -> None:
    path, body = "/v1/namespace:configure", {"max_running": 2, "expected_revision": "0", "reason": "a small database"}
    assert api.caller(["instances:read"]).post(path, body).status == 403
    assert api.caller(queues=["main"]).post(path, body).status == 403
    assert caller.post(path, body | {"max_running": 0}).pointer == "/max_running"
    assert caller.post(path, body | {"expected_revision": "3"}).code == "STATE_CONFLICT"
    for name in ("one", "two"):
        publish(caller, name)
    before = caller.post("/v1/instances", {"workflow": "one"})
    assert before.status == 201, "there is no limit yet"
    done = caller.post(path, body, key="k")
    assert (done.status, done.data["namespace"]) == (200, {"max_running": 2, "running": 0, "revision": "1"})
    assert caller.post(path, body, key="k").data["deduplicated"] is True

    def start(name: str) -> Any:
        return caller.post("/v1/instances", {"workflow": name})

    first, second = start("one"), start("two")
    assert (first.status, second.status) == (201, 201)
    assert (start("one").code, start("two").code) == ("TOO_MANY_RUNNING", "TOO_MANY_RUNNING")
    assert caller.get("/v1/namespace").data == {"max_running": 2, "running": 2, "revision": "1"}
    other = api.caller(namespace="other")
    publish(other, "one")
    assert other.post("/v1/instances", {"workflow": "one"}).status == 201
    for made in (first, before):
        cancel = f"/v1/instances/{made.data['instance']['id']}:cancel"
        assert caller.post(cancel, {"reason": "over"}).data["instance"]["state"] == "CANCELLED"
    assert caller.get("/v1/namespace").data["running"] == 1
    assert start("one").status == 201
    assert start("one").code == "TOO_MANY_RUNNING"
    lifted = caller.post(path, {"expected_revision": "1", "reason": "no more"})
    assert lifted.data["namespace"]["max_running"] is None
    assert start("one").status == 201
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["reason"]) == ("namespace.configure", "no more")
    assert node.runner.run_once() == 0
