"""Workflows and instances over HTTP: published once, checked in full, started once, seen by their namespace."""

from typing import Any

import pytest

from api.server import Node
from tests.support.http import Api, Caller

YAML = """\
orbit: weave/1
workflow: greet
version: 1
title: Say hello
input: {type: object, required: [name], properties: {name: {type: string}}}
timeout: 1h
defaults: {queue: images, start_within: 1h}
steps:
  - id: hello
    task: mail.send@1
    input: {to: "${ input.name }"}
output: {name: "${ input.name }"}
"""


def publish(caller: Caller, text: str = YAML, *, key: str = "") -> Any:
    return caller.post("/v1/workflows", raw=text.encode(), key=key, headers={"Content-Type": "application/yaml"})


@pytest.fixture
def published(caller: Caller) -> Caller:
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    assert publish(caller).status == 201
    return caller


def test_r222_a_version_is_published_once_whatever_the_key(caller: Caller) -> None:
    first = publish(caller, key="one")
    assert (first.status, first.data["workflow"], first.data["version"]) == (201, "greet", 1)
    assert first.data["bounds"]["tasks"] == 1
    for key in ("one", "two"):
        again = publish(caller, key=key)
        assert (again.status, again.data["deduplicated"], again.data["digest"]) == (200, True, first.data["digest"])
    as_json = caller.post("/v1/workflows", {"source": YAML}, key="one")
    assert (as_json.status, as_json.data["deduplicated"]) == (200, True)
    changed = publish(caller, YAML.replace("Say hello", "Say goodbye"), key="three")
    assert (changed.status, changed.code) == (409, "VERSION_CONFLICT")
    assert changed.json["error"]["details"]["first_difference"]["line"] == 4
    assert publish(caller, YAML.replace("version: 1", "version: 2"), key="one").code == "IDEMPOTENCY_CONFLICT"
    assert publish(caller, YAML.replace("version: 1", "version: 2")).status == 201
    assert [each["version"] for each in caller.get("/v1/workflows/greet/versions").data] == [2, 1]
    (listed,) = caller.get("/v1/workflows").data
    assert (listed["workflow"], listed["default_version"]) == ("greet", 2)


def test_a_bad_definition_gets_all_its_findings(caller: Caller) -> None:
    bad = YAML.replace("mail.send@1", "mail.send").replace("timeout: 1h", "timeout: soon").replace("input.name", "nope")
    got = publish(caller, bad)
    assert (got.status, got.code) == (422, "DEFINITION_INVALID")
    findings = got.json["error"]["details"]["findings"]
    assert len(findings) >= 3
    assert all(finding["line"] >= 1 and finding["column"] >= 1 for finding in findings)
    checked = caller.post("/v1/workflows:check", {"source": bad}, key=None)
    assert (checked.status, checked.data["valid"], checked.data["findings"]) == (200, False, findings)
    good = caller.post("/v1/workflows:check", {"source": YAML}, key=None)
    assert (good.data["valid"], good.data["findings"]) == (True, [])
    assert caller.get("/v1/workflows").data == []


def test_a_version_shows_its_text_its_graph_and_its_bounds(published: Caller) -> None:
    path = "/v1/workflows/greet/versions"
    assert published.get(f"{path}/1").data["source"] == YAML
    assert [node["id"] for node in published.get(f"{path}/1/graph").data["nodes"]] == ["hello"]
    assert published.get(f"{path}/1/bounds").data["tasks"] == 1
    for missing in (f"{path}/2", f"{path}/x", f"{path}/0", f"{path}/99999999999", "/v1/workflows/no/versions/1"):
        assert published.get(missing).status == 404


def test_a_versions_graph_is_drawn(published: Caller) -> None:
    path = "/v1/workflows/greet/versions/1/graph"
    picture = published.get(f"{path}?format=svg")
    assert (picture.status, picture.headers["content-type"]) == (200, "image/svg+xml")
    assert picture.body.startswith(b"<svg ")
    assert b"mail.send@1 on images" in picture.body
    assert "default-src 'none'" in picture.headers["content-security-policy"]
    text = published.get(f"{path}?format=mermaid")
    assert (text.status, text.body.splitlines()[0]) == (200, b"flowchart TD")
    assert published.get(f"{path}?format=json").data == published.get(path).data
    assert published.get(f"{path}?format=png").status == 400
    for form in ("svg", "mermaid"):
        assert published.get(f"/v1/workflows/greet/versions/2/graph?format={form}").status == 404


def test_a_definition_may_name_only_queues_in_the_publishers_range(api: Api, caller: Caller) -> None:
    got = publish(api.caller(queues=["other"]))
    assert (got.status, got.json["error"]["details"]) == (404, {"step": "hello", "queue": "images"})
    assert publish(api.caller(queues=["images"])).status == 201
    assert publish(api.caller(["workflows:read"])).status == 403
    assert api.caller(namespace="other").get("/v1/workflows/greet/versions/1").status == 404


def test_publishing_takes_yaml_or_json_only(caller: Caller) -> None:
    got = caller.post("/v1/workflows", raw=YAML.encode(), headers={"Content-Type": "text/yaml"})
    assert (got.status, got.code) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert publish(caller, key="x" * 129).code == "INVALID_REQUEST"


@pytest.mark.requirement("R097")
def test_an_instance_is_started_once_and_runs_its_steps(published: Caller, node: Node) -> None:
    body = {"workflow": "greet", "input": {"name": "Ada 💾"}, "business_key": "b", "labels": {"a": "b"}}
    first = published.post("/v1/instances", body, key="k")
    assert (first.status, first.data["instance"]["state"]) == (201, "RUNNING")
    again = published.post("/v1/instances", body, key="k")
    assert (again.status, again.data["instance"]) == (200, first.data["instance"])
    assert again.data["current"]["state"] == "RUNNING"
    assert published.post("/v1/instances", body | {"input": {"name": "B"}}, key="k").code == "IDEMPOTENCY_CONFLICT"
    instance_id = first.data["instance"]["id"]
    read = published.get(f"/v1/instances/{instance_id}").data
    assert (read["input"], read["output"], read["version"]) == ({"name": "Ada 💾"}, None, 1)
    (step,) = published.get(f"/v1/instances/{instance_id}/steps").data
    assert (step["id"], step["state"]) == ("hello", "RUNNING")
    task = published.get(f"/v1/tasks/{step['task_id']}").data
    assert (task["source"]["kind"], task["source"]["id"]) == ("WORKFLOW", instance_id)
    assert (task["params"], task["source"]["step"]) == ({"to": "Ada 💾"}, "hello")
    assert [each["id"] for each in published.get(f"/v1/tasks?source=workflow:{instance_id}").data] == [task["id"]]
    assert published.get(f"/v1/instances/{instance_id}/history").data
    assert "hello" in published.get(f"/v1/instances/{instance_id}:explain").data["summary"]
    owned = published.post(f"/v1/tasks/{task['id']}:cancel", {"reason": "r"})
    assert (owned.status, owned.code) == (409, "OWNED_BY_WORKFLOW")
    assert [each["id"] for each in published.get("/v1/instances?business_key=b").data] == [instance_id]
    assert published.get("/v1/instances?state=FAILED").data == []
    assert node.runner.run_once() >= 0


def test_a_start_that_does_not_fit_is_refused(published: Caller) -> None:
    wrong = published.post("/v1/instances", {"workflow": "greet", "input": {"name": 5}})
    assert (wrong.status, wrong.pointer) == (400, "/input/name")
    assert published.post("/v1/instances", {"workflow": "greet"}).status == 400
    for body in ({"workflow": "nope"}, {"workflow": "greet", "version": 9, "input": {"name": "x"}}):
        assert published.post("/v1/instances", body).status == 404
    assert published.post("/v1/instances", {"workflow": "greet", "inputs": {}}).code == "UNKNOWN_FIELD"


def test_c155_an_instance_of_another_namespace_does_not_exist(published: Caller, api: Api) -> None:
    body = {"workflow": "greet", "input": {"name": "x"}}
    instance_id = published.post("/v1/instances", body).data["instance"]["id"]
    other = api.caller(namespace="other")
    missing = other.get(f"/v1/instances/{'0' * 32}")
    for path in ("", "/steps", "/history", ":explain"):
        hidden = other.get(f"/v1/instances/{instance_id}{path}")
        assert (hidden.status, hidden.json["error"]) == (404, missing.json["error"])
    assert other.get("/v1/instances").data == []
    assert other.get("/v1/events").data == []
