"""What operators do to instances over HTTP: with scope, reason, key and revision."""

from typing import Any

import pytest
from sqlalchemy import update

from api.server import Node
from engine.tables import instance, step
from orbit.database import Database, Transaction
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


@pytest.mark.requirement("R224")
def test_r223_an_instance_is_paused_and_resumed(caller: Caller, api: Api, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}"
    body: dict[str, Any] = {"reason": "the bank is away"}
    for verb in ("pause", "resume"):
        assert api.caller(["instances:read", "instances:start"]).post(f"{path}:{verb}", body).status == 403
        assert api.caller(namespace="other").post(f"{path}:{verb}", body).status == 404
        assert caller.post(f"{path}:{verb}", {}).pointer == "/reason"
        assert caller.post(f"{path}:{verb}", body | {"expected_revision": "99"}).code == "STATE_CONFLICT"
    paused = caller.post(f"{path}:pause", body, key="k")
    assert (paused.status, paused.data["instance"]["control"]) == (200, "PAUSED")
    assert caller.post(f"{path}:pause", body, key="k").data["deduplicated"] is True
    seen = caller.get(path).data
    assert (seen["control"], seen["pause"]["reason"]) == ("PAUSED", "the bank is away")
    (step_seen, _) = caller.get(f"{path}/steps").data
    task = caller.get(f"/v1/tasks/{step_seen['task_id']}").data
    assert (task["state"], task["wait_reason"]) == ("WAITING", "HELD")
    assert "the bank is away" in caller.get(f"{path}:explain").data["summary"]
    resumed = caller.post(f"{path}:resume", body | {"expected_revision": seen["revision"]})
    assert (resumed.status, resumed.data["instance"]["control"]) == (200, "ACTIVE")
    assert caller.get(path).data["pause"] is None
    assert caller.get(f"/v1/tasks/{step_seen['task_id']}").data["wait_reason"] != "HELD"
    assert [each["operation"] for each in caller.get("/v1/audit").data[:2]] == ["instance.resume", "instance.pause"]


@pytest.fixture
def held_id(database: Database, instance_id: str) -> str:
    """An instance whose first step has failed; how it got there is told elsewhere."""
    identifier = bytes.fromhex(instance_id)
    error = '{"code": "BROKEN", "message": "broken"}'

    def hold(tx: Transaction) -> None:
        failed = {"state": "FAILED", "error": error, "finished_at": 1, "due_at": None, "timeout_at": None}
        tx.expect(update(step).where(step.c.instance_id == identifier).values(**failed), count=1)
        needs = {"state": "NEEDS_RECOVERY", "error": error, "due_at": None, "revision": 2}
        tx.expect(update(instance).where(instance.c.id == identifier).values(**needs), count=1)

    database.transaction(hold)
    return instance_id


@pytest.mark.requirement("R141")
def test_r225_an_instance_is_recovered(caller: Caller, api: Api, held_id: str) -> None:
    path = f"/v1/instances/{held_id}:recover"
    body: dict[str, Any] = {
        "action": "COMPLETE", "step": "a", "expected_revision": "2", "evidence": {"ticket": 7}, "reason": "seen",
    }  # fmt: skip
    assert api.caller(["instances:control"]).post(path, body).status == 403
    assert api.caller(namespace="other").post(path, body).status == 404
    for name in ("action", "expected_revision", "evidence", "reason"):
        absent = caller.post(path, {key: value for key, value in body.items() if key != name})
        assert (absent.status, absent.pointer) == (400, f"/{name}")
    assert caller.post(path, body | {"action": "MAYBE"}).pointer == "/action"
    assert caller.post(path, body | {"action": "RETRY", "output": 1}).pointer == "/output"
    unknown = caller.post(path, body | {"step": "nope"})
    assert (unknown.status, unknown.pointer) == (400, "/step")
    large = caller.post(path, body | {"evidence": "x" * 16 * 1024})
    assert (large.status, large.pointer) == (413, "/evidence")
    stale = caller.post(path, body | {"expected_revision": "1"})
    assert (stale.status, stale.json["error"]["details"]["current_revision"]) == (409, "2")
    dry = caller.post(path, body | {"output": {"ref": 1}, "dry_run": True}, key="k")
    assert (dry.status, dry.data["dry_run"], dry.data["after"]["step"]["state"]) == (200, True, "SUCCEEDED")
    assert caller.get(f"/v1/instances/{held_id}").data["state"] == "NEEDS_RECOVERY"
    done = caller.post(path, body | {"output": {"ref": 1}}, key="k")
    assert (done.status, done.data["instance"]["state"], done.data["before"]["step"]["state"]) == (
        200, "RUNNING", "FAILED",
    )  # fmt: skip
    assert caller.post(path, body | {"output": {"ref": 1}}, key="k").data["deduplicated"] is True
    finished = caller.post(path, body | {"expected_revision": done.data["instance"]["revision"]})
    assert (finished.status, finished.code) == (409, "STATE_CONFLICT")
    states = {each["id"]: each["state"] for each in caller.get(f"/v1/instances/{held_id}/steps").data}
    assert states == {"a": "SUCCEEDED", "b": "RUNNING"}
    (kept,) = caller.get(f"/v1/instances/{held_id}/recoveries").data
    assert (kept["action"], kept["evidence"], kept["reason"]) == ("COMPLETE", {"ticket": 7}, "seen")
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["before"]["state"], newest["after"]["state"]) == (
        "instance.recover", "NEEDS_RECOVERY", "RUNNING",
    )  # fmt: skip


def test_an_instance_is_forked(caller: Caller, api: Api, node: Node, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}:fork"
    body: dict[str, Any] = {"step": "a", "reason": "once more"}
    assert api.caller(["instances:start", "instances:read"]).post(path, body).status == 403
    assert api.caller(["instances:recover", "instances:read"]).post(path, body).status == 403
    assert api.caller(queues=["other"]).post(path, body).status == 404
    assert caller.post(path, body).status == 409, "it runs"
    caller.post(f"/v1/instances/{instance_id}:cancel", {"reason": "not wanted"})
    node.runner.run_once()
    assert caller.post(path, body | {"step": "z"}).pointer == "/step"
    dry = caller.post(path, body | {"dry_run": True})
    assert (dry.status, dry.data["instance"], dry.data["again"]) == (200, None, ["a", "b"])
    made = caller.post(path, body, key="k")
    assert (made.status, made.data["forked_from"], made.data["copied"]) == (201, instance_id, [])
    assert caller.post(path, body, key="k").data == made.data | {"deduplicated": True}
    fork = caller.get(f"/v1/instances/{made.data['instance']['id']}").data
    assert (fork["state"], fork["forked_from"]) == ("RUNNING", instance_id)
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["subject_id"]) == ("instance.fork", instance_id)


def test_an_instance_is_migrated(caller: Caller, api: Api, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}:migrate"
    body: dict[str, Any] = {"version": 2, "reason": "the new one"}
    assert caller.post(path, body).status == 404
    for number, change in ((2, ("do.b@1", "do.c@1")), (3, ("do.a@1", "do.c@1"))):
        text = YAML.replace("version: 1", f"version: {number}").replace(*change)
        caller.post("/v1/workflows", raw=text.encode(), headers={"Content-Type": "application/yaml"})
    assert api.caller(["instances:read"]).post(path, body).status == 403
    refused = caller.post(path, body | {"version": 3})
    assert (refused.status, refused.json["error"]["code"]) == (409, "STATE_CONFLICT")
    assert [reason["step"] for reason in refused.json["error"]["details"]["reasons"]] == ["a"]
    assert caller.post(path, body | {"dry_run": True}).data["dry_run"] is True
    done = caller.post(path, body | {"expected_revision": "1"})
    assert (done.status, done.data["from_version"], done.data["to_version"]) == (200, 1, 2)
    assert caller.get(f"/v1/instances/{instance_id}").data["version"] == 2


def test_an_instances_graph_shows_its_states(caller: Caller, api: Api, instance_id: str) -> None:
    path = f"/v1/instances/{instance_id}/graph"
    assert caller.get(path).data["states"] == {"a": "RUNNING", "b": "PENDING"}
    drawn = caller.get(path + "?format=svg")
    assert (drawn.status, drawn.headers["content-type"]) == (200, "image/svg+xml")
    assert b"RUNNING</text>" in drawn.body
    assert b"class n0 RUNNING" in caller.get(path + "?format=mermaid").body
    assert api.caller(queues=["other"]).get(path).status == 404
    assert caller.get(path + "?format=png").status == 400


def test_who_has_a_queue_range_sees_what_runs_within(caller: Caller, api: Api, instance_id: str) -> None:
    inside, outside = api.caller(queues=["main"]), api.caller(queues=["other"])
    for path in ("", "/steps", "/history", ":explain", "/graph"):
        assert inside.get(f"/v1/instances/{instance_id}{path}").status == 200, path
        assert outside.get(f"/v1/instances/{instance_id}{path}").status == 404, path
    assert [each["id"] for each in inside.get("/v1/instances").data] == [instance_id]
    assert outside.get("/v1/instances").data == []


def test_instances_are_listed_by_control(caller: Caller, instance_id: str) -> None:
    assert caller.get("/v1/instances?workflow=pay&control=PAUSED").data == []
    caller.post(f"/v1/instances/{instance_id}:pause", {"reason": "wait"})
    assert [each["id"] for each in caller.get("/v1/instances?workflow=pay&control=PAUSED").data] == [instance_id]
    assert caller.get("/v1/instances?workflow=pay&control=ACTIVE").data == []
