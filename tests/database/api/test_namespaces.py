"""A namespace's own limits over HTTP: of running instances, and of what its definitions may use."""

from typing import Any

from api.server import Node
from definitions.bound_limits import CEILINGS, DEFAULTS
from tests.support.http import Api, Caller, Got

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
    defaults = {"bounds": DEFAULTS.values(), "bounds_set": []}
    assert (done.status, done.data["namespace"]) == (200, {"max_running": 2, "running": 0, "revision": "1", **defaults})
    assert caller.post(path, body, key="k").data["deduplicated"] is True

    def start(name: str) -> Any:
        return caller.post("/v1/instances", {"workflow": name})

    first, second = start("one"), start("two")
    assert (first.status, second.status) == (201, 201)
    assert (start("one").code, start("two").code) == ("TOO_MANY_RUNNING", "TOO_MANY_RUNNING")
    assert caller.get("/v1/namespace").data == {"max_running": 2, "running": 2, "revision": "1", **defaults}
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


TASKS = """\
orbit: weave/1
workflow: {name}
version: {version}
defaults: {{queue: main}}
steps: [{{id: a, task: t.a@1}}, {{id: b, task: t.a@1}}]
"""
PARENT = "orbit: weave/1\nworkflow: parent\nversion: {version}\nsteps: [{{id: c, workflow: two}}]\n"


def sent(caller: Caller, text: str, path: str = "/v1/workflows", *, name: str = "two", version: int = 1) -> Got:
    raw = text.format(name=name, version=version).encode()
    return caller.post(path, raw=raw, headers={"Content-Type": "application/yaml"})


def messages(got: Got) -> list[str]:
    return [each["message"] for each in got.json["error"]["details"]["findings"]]


def test_a_namespace_limits_what_one_instance_of_what_it_publishes_may_use(caller: Caller, api: Api) -> None:
    path = "/v1/namespace:configure"
    assert sent(caller, TASKS).status == 201
    bounds = {"max_tasks": 1, "max_active_seconds": 86_400}
    body = {"bounds": bounds, "expected_revision": "0", "reason": "small"}
    done = caller.post(path, body).data["namespace"]
    assert done["bounds"] == DEFAULTS.values() | bounds
    assert done["bounds_set"] == ["max_tasks", "max_active_seconds"]

    refused = sent(caller, TASKS, version=2)
    assert (refused.status, refused.code) == (422, "DEFINITION_INVALID")
    said = "one instance could use 2 tasks (`max_tasks` of the namespace is 1)"
    assert messages(refused) == [said]
    checked = sent(caller, TASKS, "/v1/workflows:check", version=2).data
    assert (checked["valid"], [each["message"] for each in checked["findings"]]) == (False, [said])
    assert messages(sent(caller, PARENT)) == [said], "what a child may use is part of what its parent may"
    other = api.caller(namespace="other")
    assert sent(other, TASKS, version=2).status == 201

    again = sent(caller, TASKS + "\n", version=1)
    assert again.code == "DEFINITION_INVALID", "another text"
    same = sent(caller, TASKS, version=1)
    assert (same.status, same.data["deduplicated"], same.data["bounds"]["tasks"]) == (200, True, 2)
    assert caller.post("/v1/instances", {"workflow": "two"}).status == 201, "published before the limit"

    raised = {"bounds": {"max_tasks": 2}, "expected_revision": "1", "reason": "two, then"}
    assert caller.post(path, raised).data["namespace"]["bounds_set"] == ["max_tasks"]
    assert sent(caller, TASKS, version=2).status == 201
    assert sent(caller, PARENT).status == 201
    entry = caller.get("/v1/audit").data
    changes = [(each["before"], each["after"]) for each in entry if each["operation"] == "namespace.configure"]
    assert changes[0] == (
        {"max_running": None, "bounds": bounds, "revision": "1"},
        {"max_running": None, "bounds": {"max_tasks": 2}, "revision": "2"},
    )


def test_no_namespace_passes_a_ceiling(caller: Caller) -> None:
    for name, ceiling in CEILINGS.values().items():
        body = {"expected_revision": "0", "reason": "more", "bounds": {name: ceiling + 1}}
        got = caller.post("/v1/namespace:configure", body)
        assert (got.status, got.code, got.pointer) == (400, "INVALID_REQUEST", f"/bounds/{name}")
        assert caller.post("/v1/namespace:configure", body | {"bounds": {name: 0}}).pointer == f"/bounds/{name}"
    body = {"expected_revision": "0", "reason": "all of it", "bounds": CEILINGS.values()}
    assert caller.post("/v1/namespace:configure", body).data["namespace"]["bounds"] == CEILINGS.values()
    unknown = caller.post("/v1/namespace:configure", body | {"bounds": {"max_taks": 1}})
    assert (unknown.code, unknown.pointer) == ("UNKNOWN_FIELD", "/bounds/max_taks")
