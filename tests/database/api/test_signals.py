"""Signals and the rules of starts over HTTP: scopes, ranges, receipts, refusals."""

from typing import Any

import pytest

from api.server import Node
from tests.support.http import Api, Caller

YAML = """\
orbit: weave/1
workflow: approval
version: 1
business_key_policy: RETURN_RUNNING
max_running: 2
timeout: 1d
defaults: {queue: main, start_within: 1h}
steps:
  - {id: first, wait: {signal: decided, timeout: 1h, payload: {type: object, required: [by]}}}
  - {id: pay, task: do.a@1}
"""
ANN: dict[str, Any] = {"name": "decided", "payload": {"by": "ann"}}


@pytest.fixture
def published(caller: Caller) -> None:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    made = caller.post("/v1/workflows", raw=YAML.encode(), headers={"Content-Type": "application/yaml"})
    assert made.status == 201


def start(caller: Caller, **more: Any) -> Any:
    return caller.post("/v1/instances", {"workflow": "approval", "business_key": "E-1", **more})


@pytest.mark.usefixtures("published")
def test_a_signal_is_sent_listed_and_taken(caller: Caller, api: Api, node: Node) -> None:
    path = f"/v1/instances/{start(caller).data['instance']['id']}"
    assert api.caller(["instances:read", "instances:control"]).post(f"{path}:signal", ANN).status == 403
    assert api.caller(namespace="other").post(f"{path}:signal", ANN).status == 404
    assert api.caller(queues=["other"]).post(f"{path}:signal", ANN).status == 404
    assert caller.post("/v1/instances/xyz:signal", ANN).status == 404
    assert caller.post(f"{path}:signal", {}).pointer == "/name"
    assert caller.post(f"{path}:signal", ANN | {"ttl_seconds": 0}).pointer == "/ttl_seconds"
    assert caller.post(f"{path}:signal", ANN | {"name": "a b"}).pointer == "/name"
    assert caller.post(f"{path}:signal", ANN | {"name": "decidet"}).pointer == "/name"
    assert caller.post(f"{path}:signal", ANN | {"payload": {}}).pointer == "/payload"
    assert caller.post(f"{path}:signal", ANN, key=None).status == 400
    sent = api.caller(["instances:signal"]).post(f"{path}:signal", ANN, key="k")
    assert (sent.status, sent.data["deduplicated"], sent.data["signal"]["signal_id"]) == (201, False, "k")
    again = caller.post(f"{path}:signal", ANN, key="k")
    assert (again.status, again.data) == (200, sent.data | {"deduplicated": True})
    assert caller.post(f"{path}:signal", ANN | {"payload": {"by": "bob"}}, key="k").code == "IDEMPOTENCY_CONFLICT"
    other = caller.post(f"{path}:signal", ANN | {"payload": {"by": "bob"}, "signal_id": "k"})
    assert other.code == "IDEMPOTENCY_CONFLICT", "what its sender calls it counts, under any key"
    (kept,) = caller.get(f"{path}/signals").data
    assert (kept["state"], kept["payload"], kept["step"]) == ("KEPT", {"by": "ann"}, None)
    assert node.runner.run_once() == 1
    (taken,) = caller.get(f"{path}/signals").data
    assert (taken["state"], taken["step"]) == ("TAKEN", "first")
    assert caller.get(f"{path}:explain").data["waits_for"][0]["kind"] == "TASK"
    kinds = [each["type"] for each in caller.get("/v1/events").data]
    assert "instance.signalled" in kinds
    assert caller.get("/v1/audit").data[0]["operation"] == "signal.send"


@pytest.mark.usefixtures("published")
def test_a_signal_by_business_key_waits_for_its_instance(caller: Caller, api: Api) -> None:
    body = ANN | {"workflow": "approval", "business_key": "E-1", "signal_id": "mail-1"}
    assert api.caller(["instances:read"]).post("/v1/signals", body).status == 403
    assert caller.post("/v1/signals", body | {"workflow": "nothing"}).status == 404
    assert caller.post("/v1/signals", ANN | {"workflow": "approval"}).pointer == "/business_key"
    sent = caller.post("/v1/signals", body)
    assert (sent.status, sent.data["signal"]["instance_id"]) == (201, None)
    assert caller.post("/v1/signals", body).data["signal"]["id"] == sent.data["signal"]["id"]
    listed = caller.get("/v1/signals?workflow=approval&business_key=E-1").data
    assert [each["signal_id"] for each in listed] == ["mail-1"]
    assert caller.get("/v1/signals?workflow=approval").status == 400
    path = f"/v1/instances/{start(caller).data['instance']['id']}"
    assert {each["id"]: each["state"] for each in caller.get(f"{path}/steps").data}["first"] == "SUCCEEDED"
    assert caller.get("/v1/signals?workflow=approval&business_key=E-1").data == []
    assert caller.post(f"{path}:cancel", {"reason": "over"}).status == 200


@pytest.mark.usefixtures("published")
def test_a_start_obeys_the_rules_of_its_version(caller: Caller) -> None:
    first = start(caller, signal=ANN, labels={"team": "red"}, pause_at=["pay"])
    assert first.status == 201
    path = f"/v1/instances/{first.data['instance']['id']}"
    assert caller.get(path).data["control"] == "PAUSED"
    again = start(caller)
    assert (again.status, again.data["existing"], again.data["instance"]["id"]) == (
        200, True, first.data["instance"]["id"],
    )  # fmt: skip
    missing = caller.post("/v1/instances", {"workflow": "approval"})
    assert (missing.status, missing.pointer) == (400, "/business_key")
    assert start(caller, business_key="E-2").status == 201
    full = start(caller, business_key="E-3")
    assert (full.status, full.code, full.headers["retry-after"]) == (429, "TOO_MANY_RUNNING", "1")
    assert start(caller, business_key="E-4", pause_at=["nothing"]).pointer == "/pause_at/0"
    assert start(caller, business_key="E-4", signal={"name": "nothing"}).pointer == "/signal/name"
    assert [each["business_key"] for each in caller.get("/v1/instances?label=team=red").data] == ["E-1"]
    assert [each["business_key"] for each in caller.get("/v1/instances?control=PAUSED&state=RUNNING").data] == ["E-1"]
    for query in ("control=PAUSED", "control=STOPPED&state=RUNNING", "label=team", "label==red"):
        assert caller.get(f"/v1/instances?{query}").status == 400


@pytest.mark.usefixtures("published")
def test_a_key_in_use_is_a_conflict_that_names_the_instance(caller: Caller) -> None:
    strict = YAML.replace("RETURN_RUNNING", "REJECT_RUNNING").replace("version: 1", "version: 2")
    caller.post("/v1/workflows", raw=strict.encode(), headers={"Content-Type": "application/yaml"})
    first = start(caller)
    refused = start(caller)
    assert (refused.status, refused.code) == (409, "BUSINESS_KEY_IN_USE")
    assert refused.json["error"]["details"]["instance_id"] == first.data["instance"]["id"]
