"""Versions over HTTP: publishing says what it means, people decide which version starts run, and by what right."""

import pytest

from tests.support.http import Api, Caller, Got

YAML = """\
orbit: weave/1
workflow: greet
version: 1
defaults: {queue: images}
steps:
  - {id: hello, task: mail.send@1}
  - {id: bye, task: mail.send@1}
"""
REASON = {"reason": "see ticket 7"}


def publish(caller: Caller, version: int, text: str = YAML) -> Got:
    raw = text.replace("version: 1", f"version: {version}").encode()
    return caller.post("/v1/workflows", raw=raw, headers={"Content-Type": "application/yaml"})


@pytest.fixture
def published(caller: Caller) -> Caller:
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    assert publish(caller, 1).status == 201
    return caller


def test_publishing_tells_the_verdict_and_what_deserves_a_look(caller: Caller) -> None:
    first = publish(caller, 2).data
    assert first["diff"] is None
    assert [warning["code"] for warning in first["warnings"]] == ["QUEUE_UNKNOWN"]
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    third = publish(caller, 3, YAML.replace("id: bye", "id: ciao")).data
    assert (third["diff"]["against"], third["diff"]["verdict"]) == (2, "needs-mapping")
    assert third["diff"]["mapping"] == {"bye": "ciao"}
    assert third["warnings"] == []
    lower = publish(caller, 1).data
    assert (lower["diff"]["against"], lower["diff"]["verdict"]) == (3, "needs-mapping")
    assert [warning["code"] for warning in lower["warnings"]] == ["NOT_DEFAULT"]
    assert publish(caller, 1).data["diff"] is None
    workflow = caller.get("/v1/workflows/greet").data
    assert (workflow["default_version"], workflow["default_pinned"], workflow["revision"]) == (3, False, "3")
    (listed,) = caller.get("/v1/workflows").data
    assert listed == {**workflow, "versions": 3, "highest_version": 3}
    compared = caller.get("/v1/workflows/greet:diff?from=3&to=2").data
    assert (compared["against"], compared["mapping"]) == (3, {"ciao": "bye"})
    assert caller.get("/v1/workflows/greet:diff?from=3").status == 400
    assert caller.get("/v1/workflows/greet:diff?from=3&to=9").status == 404
    assert caller.get("/v1/workflows/absent").status == 404


@pytest.mark.requirement("R222")
def test_deprecated_warns_and_retired_refuses(published: Caller) -> None:
    publish(published, 2)
    path = "/v1/workflows/greet/versions/2"
    done = published.post(f"{path}:deprecate", REASON, key="k")
    assert (done.status, done.data["version"]["state"], done.data["version"]["state_reason"]) == (
        200, "DEPRECATED", "see ticket 7"
    )  # fmt: skip
    assert published.post(f"{path}:deprecate", REASON, key="k").data["deduplicated"]
    started = published.post("/v1/instances", {"workflow": "greet"}, key="s")
    assert (started.status, started.data["instance"]["version"]) == (201, 2)
    assert started.data["warnings"] == [
        {"code": "VERSION_DEPRECATED", "message": "version 2 of greet is deprecated: see ticket 7"}
    ]
    assert published.post("/v1/instances", {"workflow": "greet"}, key="s").data["warnings"] == started.data["warnings"]
    assert "warnings" not in published.post("/v1/instances", {"workflow": "greet", "version": 1}).data
    retired = published.post(f"{path}:retire", REASON).data
    assert (retired["version"]["state"], retired["workflow"]["default_version"]) == ("RETIRED", 1)
    refused = published.post("/v1/instances", {"workflow": "greet", "version": 2})
    assert (refused.status, refused.code) == (409, "STATE_CONFLICT")
    assert refused.json["error"]["details"]["default_version"] == 1
    assert published.post("/v1/instances", {"workflow": "greet"}).data["instance"]["version"] == 1
    assert [each["state"] for each in published.get("/v1/workflows/greet/versions").data] == ["RETIRED", "ACTIVE"]
    assert published.post(f"{path}:deprecate", REASON).code == "STATE_CONFLICT"
    assert published.post(f"{path}:activate", REASON).data["workflow"]["default_version"] == 2
    assert published.get(f"/v1/instances/{started.data['instance']['id']}").data["state"] == "RUNNING"


def test_a_default_is_pinned_and_let_go(published: Caller) -> None:
    publish(published, 2)
    path = "/v1/workflows/greet:set-default"
    pinned = published.post(path, REASON | {"version": 1, "expected_revision": "2"}).data["workflow"]
    assert (pinned["default_version"], pinned["default_pinned"], pinned["revision"]) == (1, True, "3")
    stale = published.post(path, REASON | {"version": 2, "expected_revision": "2"})
    assert (stale.code, stale.json["error"]["details"]["current_revision"]) == ("STATE_CONFLICT", "3")
    assert published.post("/v1/workflows/greet/versions/1:retire", REASON).code == "STATE_CONFLICT"
    third = publish(published, 3).data
    assert (third["diff"]["against"], third["warnings"][0]["code"]) == (1, "NOT_DEFAULT")
    assert published.post("/v1/instances", {"workflow": "greet"}).data["instance"]["version"] == 1
    assert published.post(path, REASON).data["workflow"]["default_version"] == 3
    assert published.post(path, {"version": 1}).status == 400
    assert published.post(path, REASON | {"version": 9}).status == 404
    assert published.post("/v1/workflows/absent:set-default", REASON).status == 404
    audit = [each for each in published.get("/v1/audit").data if each["operation"] == "workflow.set_default"]
    assert [(each["reason"], each["before"]["default_version"]) for each in audit] == [
        ("see ticket 7", 1), ("see ticket 7", 2)
    ]  # fmt: skip


def test_versions_are_managed_by_right_and_within_range(published: Caller, api: Api) -> None:
    path = "/v1/workflows/greet/versions/1:deprecate"
    assert api.caller(["workflows:read", "workflows:publish"]).post(path, REASON).code == "FORBIDDEN"
    hidden = api.caller(queues=["other"]).post(path, REASON)
    foreign = api.caller(namespace="other").post(path, REASON)
    assert (hidden.status, foreign.status) == (404, 404)
    assert published.get("/v1/workflows/greet/versions/1").data["state"] == "ACTIVE"
    assert api.caller(queues=["images"]).post(path, REASON).status == 200
