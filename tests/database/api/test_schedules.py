"""Schedules over HTTP: what must be said, what is refused where, rights, audit, previews, instances."""

import json
from itertools import product
from typing import Any

import pytest

from api.server import Node
from orbit.access import Scope
from orbit.clock import SECOND, Micros, from_rfc3339, to_rfc3339
from orbit.database import Database
from tests.support.http import Api, Caller
from tests.support.pulse import Pulse

QUEUE = {"name": "main", "max_concurrency": 8, "rate_per_second": 100}
TASK = {"queue": "main", "type": "echo", "version": 1}
HOURLY: dict[str, Any] = {
    "name": "hourly",
    "every_seconds": 3600,
    "misfire": {"policy": "SKIP"},
    "overlap": {"policy": "ALLOW"},
    "task": TASK,
}
NIGHTLY = {**HOURLY, "name": "nightly", "every_seconds": None, "cron": "30 2 * * *", "timezone": "America/New_York"}
FLOW = """
orbit: weave/1
workflow: flow
version: 1
timeout: 1h
input: {type: object, required: [n], properties: {n: {type: integer}, secret: {type: string}}}
redact: [/input/secret]
defaults: {queue: main, start_within: 1m}
steps:
  - {id: a, task: do.a@1}
"""


@pytest.fixture
def caller(api: Api) -> Caller:
    made = api.caller()
    made.post("/v1/queues", QUEUE)
    return made


def create(caller: Caller, **fields: Any) -> Any:
    got = caller.post("/v1/schedules", HOURLY | fields)
    assert got.status == 201, got.json
    return got.data["schedule"]


def run(node: Node) -> None:
    while node.pulse.firer.run_once() == 0.0:
        pass


def move_to(database: Database, at: Micros) -> None:
    now = database.transaction(lambda tx: tx.now())
    database.clock.advance(seconds_forward=(at - now) / SECOND)


def firings(caller: Caller, schedule: Any, query: str = "") -> Any:
    return caller.get(f"/v1/schedules/{schedule['id']}/firings{query}").data


def test_r153_policies_and_their_bounds_must_be_said(caller: Caller) -> None:
    bounded = {"policy": "CATCH_UP", "max_count": 5, "max_age_seconds": 60, "rate_per_second": 1}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"misfire": None}, "/misfire"),
        ({"overlap": None}, "/overlap"),
        ({"misfire": {}}, "/misfire/policy"),
        ({"misfire": {"policy": "ALL"}}, "/misfire/policy"),
        *(({"misfire": {**bounded, name: None}}, f"/misfire/{name}") for name in bounded if name != "policy"),
        ({"misfire": {**bounded, "max_count": 101}}, "/misfire/max_count"),
        ({"misfire": {**bounded, "policy": "SKIP"}}, "/misfire/max_count"),
        ({"overlap": {"policy": "QUEUE"}}, "/overlap/max_backlog"),
        ({"overlap": {"policy": "SKIP", "max_backlog": 1}}, "/overlap/max_backlog"),
        ({"task": None}, "/task"),
        ({"workflow": {"workflow": "flow"}}, "/task"),
        ({"every_seconds": None}, "/cron"),
        ({"every_seconds": 0.5}, "/every_seconds"),
        ({"cron": "* * * * *", "timezone": "UTC"}, "/cron"),
        ({"every_seconds": None, "cron": "0 0 30 2 *", "timezone": "UTC"}, "/cron"),
        ({"every_seconds": None, "cron": "0 0 * * *"}, "/timezone"),
        ({"starts_at": "tomorrow"}, "/starts_at"),
        ({"ends_at": "2001-01-01T00:00:00Z"}, "/ends_at"),
        (
            {"task": {**TASK, "retry": {"backoff_seconds": 9, "backoff_seconds_max": 1}}},
            "/task/retry/backoff_seconds_max",
        ),
        ({"task": {**TASK, "params": {"card": "[redacted]"}}}, "/task/params"),
        ({"color": "red"}, "/color"),
    ]
    for fields, pointer in wrong:
        got = caller.post("/v1/schedules", HOURLY | fields)
        assert (got.status, got.pointer) == (400, pointer), (fields, got.json)
    assert caller.post("/v1/schedules", HOURLY | {"task": {**TASK, "queue": "none"}}).status == 404
    large = caller.post("/v1/schedules", HOURLY | {"task": {**TASK, "params": "x" * 65_536}})
    assert (large.status, large.pointer) == (413, "/task/params")
    assert caller.get("/v1/schedules").data == []


def test_a_schedule_reads_as_it_was_written(caller: Caller) -> None:
    task = {
        **TASK, "params": {"n": 1}, "params_version": "2", "priority": 7, "attempt_timeout_seconds": 9.0,
        "start_within_seconds": 60.0, "deadline_seconds": 600.0, "business_key": "b", "concurrency_keys": ["c"],
        "fairness_key": "f", "labels": {"team": "red"},
        "retry": {"max_attempts": 2, "backoff_seconds": 1.0, "backoff_seconds_max": None},
    }  # fmt: skip
    bounds = {"policy": "CATCH_UP", "max_count": 5, "max_age_seconds": 60.0, "rate_per_second": 0.5}
    made = create(
        caller,
        task=task,
        misfire=bounds,
        overlap={"policy": "QUEUE", "max_backlog": 3},
        anchor_at="2026-01-01T00:00:00Z",
    )
    read = caller.get(f"/v1/schedules/{made['id']}").data
    assert read == made
    said = read["configuration"]
    assert (said["task"], said["misfire"], said["overlap"]) == (task, bounds, {"policy": "QUEUE", "max_backlog": 3})
    assert (said["every_seconds"], said["anchor_at"]) == (3600.0, "2026-01-01T00:00:00.000000Z")
    assert (read["state"], read["revision"], read["backlog"], read["latest"]) == ("ACTIVE", "1", 0, None)
    again = caller.post(f"/v1/schedules/{made['id']}:configure", {**said, "expected_revision": "1", "reason": "same"})
    assert again.status == 200
    assert again.data["schedule"]["configuration"] == said


def test_creating_again_gives_the_first_receipt(caller: Caller) -> None:
    first = caller.post("/v1/schedules", HOURLY, key="one")
    again = caller.post("/v1/schedules", HOURLY, key="one")
    assert (first.status, again.status, again.data["deduplicated"]) == (201, 200, True)
    assert again.data["schedule"] == first.data["schedule"]
    assert caller.post("/v1/schedules", HOURLY | {"paused": True}, key="one").code == "IDEMPOTENCY_CONFLICT"
    assert caller.post("/v1/schedules", HOURLY, key=None).status == 400
    assert len(caller.get("/v1/schedules").data) == 1


@pytest.mark.requirement("R111", "R095", "R149")
def test_r131_a_firing_and_its_task_lead_to_each_other(caller: Caller, node: Node, database: Database) -> None:
    made = create(caller)
    run(node)
    (fired,) = firings(caller, made)
    task = caller.get(f"/v1/tasks/{fired['task_id']}").data
    assert task["source"] == {"kind": "SCHEDULE", "id": made["id"], "scheduled_at": fired["scheduled_at"]}
    assert [each["id"] for each in caller.get(f"/v1/tasks?source=schedule:{made['id']}").data] == [task["id"]]
    assert (fired["state"], fired["count"], fired["schedule_revision"], fired["instance_id"]) == ("FIRED", 1, "1", None)
    assert fired["scheduled_at"] == fired["last_at"] == made["configuration"]["anchor_at"]
    assert caller.get(f"/v1/schedules/{made['id']}").data["latest"] == {"kind": "TASK", "id": task["id"]}
    for number in range(1, 4):
        move_to(database, from_rfc3339(fired["scheduled_at"]) + number * 3600 * SECOND + SECOND)
        run(node)
    page = caller.get(f"/v1/schedules/{made['id']}/firings?limit=3")
    rest = firings(caller, made, f"?limit=3&cursor={page.json['next_cursor']}")
    assert [*(each["id"] for each in page.data), *(each["id"] for each in rest)] == [
        each["id"] for each in firings(caller, made)
    ]
    assert firings(caller, made, "?state=SKIPPED") == []
    assert caller.get(f"/v1/schedules/{made['id']}/firings?state=ODD").status == 400
    assert caller.get(f"/v1/schedules/{made['id']}/firings?cursor=abc").status == 400


@pytest.mark.requirement("R146")
def test_r185_changes_of_a_schedule_are_audited(caller: Caller) -> None:
    made = create(caller, paused=True)
    path = f"/v1/schedules/{made['id']}"
    assert (made["state"], made["next_at"]) == ("PAUSED", None)
    assert caller.post(f"{path}:resume", {"reason": "go"}).data["schedule"]["state"] == "ACTIVE"
    stale = caller.post(f"{path}:configure", HOURLY | {"expected_revision": "1", "reason": "faster"})
    assert (stale.status, stale.json["error"]["details"]["current_revision"]) == (409, "2")
    body = HOURLY | {"every_seconds": 60, "expected_revision": "2", "reason": "faster"}
    changed = caller.post(f"{path}:configure", body, key="faster").data["schedule"]
    assert (changed["revision"], changed["schedule_revision"]) == ("3", "3")
    assert caller.post(f"{path}:configure", body, key="faster").data["deduplicated"] is True
    assert caller.post(f"{path}:pause", {"reason": " "}).status == 400
    assert caller.post(f"{path}:pause", {"reason": "stop", "expected_revision": "2"}).status == 409
    assert (
        caller.post(f"{path}:pause", {"reason": "stop", "expected_revision": "3"}).data["schedule"]["revision"] == "4"
    )
    assert caller.post(f"{path}:pause", {"reason": "again"}).data["schedule"]["revision"] == "4"
    records = [each for each in caller.get("/v1/audit").data if each["subject_kind"] == "schedule"]
    told = [(each["operation"], each["reason"]) for each in records[::-1]]
    assert told == [
        ("schedule.create", None),
        ("schedule.resume", "go"),
        ("schedule.configure", "faster"),
        ("schedule.pause", "stop"),
    ]
    assert records[1]["before"]["configuration"]["every_seconds"] == 3600.0
    assert records[1]["after"]["configuration"]["every_seconds"] == 60.0
    assert {each["actor"] for each in records} == {caller.credential_id.hex()}
    events = caller.get(f"/v1/events?subject_id={made['id']}").data
    assert [each["type"] for each in events[::-1]] == [
        "schedule.created", "schedule.resumed", "schedule.configured", "schedule.paused",
    ]  # fmt: skip


@pytest.mark.requirement("R106")
def test_rights_are_asked_for_and_what_is_out_of_range_does_not_exist(api: Api, caller: Caller) -> None:
    made = create(caller)
    path = f"/v1/schedules/{made['id']}"
    reader = api.caller([Scope.SCHEDULES_READ])
    assert reader.get(path).status == 200
    for verb, body in (("pause", {"reason": "r"}), ("configure", HOURLY | {"expected_revision": "1", "reason": "r"})):
        assert reader.post(f"{path}:{verb}", body).status == 403
    assert reader.post("/v1/schedules", HOURLY).status == 403
    assert api.caller([Scope.SCHEDULES_MANAGE]).post("/v1/schedules", HOURLY).code == "FORBIDDEN"
    assert api.caller([Scope.TASKS_READ]).get(path).status == 403
    for stranger in (api.caller(queues=["other"]), api.caller(namespace="another")):
        assert stranger.get("/v1/schedules").data == []
        for got in (
            stranger.get(path),
            stranger.get(f"{path}/firings"),
            stranger.post(f"{path}:pause", {"reason": "r"}),
            stranger.post(f"{path}:resume", {"reason": "r"}),
            stranger.post(f"{path}:configure", HOURLY | {"expected_revision": "1", "reason": "r"}),
            stranger.post("/v1/schedules:preview", {"schedule_id": made["id"]}),
        ):
            assert (got.status, got.code) == (404, "NOT_FOUND")
        assert stranger.post("/v1/schedules", HOURLY).status == 404
    assert caller.get("/v1/schedules/odd").status == 404
    assert caller.get(path).data == made


@pytest.mark.requirement("R145")
def test_r150_a_preview_shows_the_old_rule_before_the_boundary_and_the_new_one_after(
    caller: Caller, database: Database
) -> None:
    now = database.transaction(lambda tx: tx.now())
    anchor = (now // SECOND + 60) * SECOND
    made = create(caller, every_seconds=120, anchor_at=to_rfc3339(anchor))
    boundary = anchor + 300 * SECOND

    def seconds(body: dict[str, Any]) -> list[tuple[float, str | None]]:
        found = caller.post("/v1/schedules:preview", {"count": 5} | body).data["points"]
        return [((from_rfc3339(p["scheduled_at"]) - anchor) / SECOND, p["schedule_revision"]) for p in found]

    change = {"every_seconds": 60, "anchor_at": to_rfc3339(anchor), "effective_at": to_rfc3339(boundary)}
    thought = seconds({"schedule_id": made["id"], **change})
    assert thought == [(0, "1"), (120, "1"), (240, "1"), (300, None), (360, None)]
    body = HOURLY | change | {"expected_revision": "1", "reason": "denser"}
    assert caller.post(f"/v1/schedules/{made['id']}:configure", body).status == 200
    assert seconds({"schedule_id": made["id"]}) == [(0, "1"), (120, "1"), (240, "1"), (300, "2"), (360, "2")]
    after = seconds({"schedule_id": made["id"], "after": to_rfc3339(boundary + SECOND), "count": 1})
    assert after == [(360, "2")]
    bounded = {"every_seconds": 60, "starts_at": to_rfc3339(anchor), "ends_at": to_rfc3339(anchor + 61 * SECOND)}
    assert seconds(bounded) == [(0, None), (60, None)]
    late = caller.post("/v1/schedules:preview", {"cron": "0 9 * * 1", "timezone": "Asia/Kathmandu", "count": 1}).data
    assert late["points"][0]["local"].endswith("T09:00:00")
    assert caller.post("/v1/schedules:preview", {}).pointer == "/cron"
    for zone, since in (("Asia/Tokyo", "0001-01-01T00:00:00Z"), ("America/New_York", "9999-12-31T23:59:59Z")):
        wide: dict[str, Any] = {
            "cron": "0 9 * * *",
            "timezone": zone,
            "schedule_id": made["id"],
            "after": since,
            "count": 3,
        }
        assert len(caller.post("/v1/schedules:preview", wide).data["points"]) == (3 if since < "1" else 0)
        odd = caller.post("/v1/schedules:preview", {"cron": "*/9 * * * *", "timezone": zone, "after": since})
        assert odd.status == (200 if since < "1" else 400)
    assert caller.post("/v1/schedules:preview", {"every_seconds": 60, "count": 201}).pointer == "/count"


def test_lists_go_by_state_and_page(caller: Caller) -> None:
    made = [create(caller, name=f"s{number}", paused=number % 2 == 0)["id"] for number in range(5)]
    first = caller.get("/v1/schedules?limit=3")
    rest = caller.get(f"/v1/schedules?limit=3&cursor={first.json['next_cursor']}").data
    assert [each["id"] for each in first.data + rest] == made[::-1]
    assert [each["id"] for each in caller.get("/v1/schedules?state=PAUSED").data] == [made[4], made[2], made[0]]
    assert caller.get("/v1/schedules?state=ODD").status == 400


def publish(caller: Caller) -> None:
    assert caller.post("/v1/workflows", {"source": FLOW}).status == 201


def test_a_schedule_starts_instances(api: Api, caller: Caller, node: Node, database: Database) -> None:
    publish(caller)
    target = {"workflow": "flow", "input": {"n": 1, "secret": "S3CR3T"}, "labels": {"team": "red"}}
    made = create(caller, task=None, workflow=target, overlap={"policy": "SKIP"})
    assert made["configuration"]["workflow"]["input"] == {"n": 1, "secret": "[redacted]"}
    assert "S3CR3T" not in json.dumps(caller.get("/v1/audit").data)
    run(node)
    (fired,) = firings(caller, made)
    assert (fired["state"], fired["task_id"]) == ("FIRED", None)
    instance = caller.get(f"/v1/instances/{fired['instance_id']}").data
    assert (instance["state"], instance["labels"]) == ("RUNNING", {"team": "red"})
    assert instance["started_by"] == f"schedule:{made['id']}"
    anchor = from_rfc3339(made["configuration"]["anchor_at"])
    move_to(database, anchor + 3601 * SECOND)
    run(node)
    assert [(each["state"], each["reason"]) for each in firings(caller, made)] == [
        ("SKIPPED", "OVERLAP"),
        ("FIRED", None),
    ]
    caller.post(f"/v1/instances/{instance['id']}:cancel", {"reason": "r"})
    node.runner.run_once()
    move_to(database, anchor + 7201 * SECOND)
    run(node)
    assert firings(caller, made)[0]["state"] == "FIRED"
    assert api.caller(queues=["main"]).get(f"/v1/schedules/{made['id']}").status == 404


def test_a_workflow_that_could_not_be_started_is_refused(api: Api, caller: Caller) -> None:
    publish(caller)
    body = HOURLY | {"task": None}
    assert caller.post("/v1/schedules", body | {"workflow": {"workflow": "none"}}).status == 404
    odd = caller.post("/v1/schedules", body | {"workflow": {"workflow": "flow", "input": {"n": "x"}}})
    assert (odd.status, odd.pointer) == (400, "/workflow/input/n")
    stranger = api.caller(namespace="another")
    assert stranger.post("/v1/schedules", body | {"workflow": {"workflow": "flow", "input": {"n": 1}}}).status == 404
    masked = caller.post(
        "/v1/schedules", body | {"workflow": {"workflow": "flow", "input": {"n": 1, "secret": "[redacted]"}}}
    )
    assert masked.pointer == "/workflow/input"


def test_a_workflow_that_is_retired_is_refused_at_the_firing(caller: Caller, node: Node) -> None:
    publish(caller)
    made = create(caller, task=None, workflow={"workflow": "flow", "input": {"n": 1}})
    retired = caller.post("/v1/workflows/flow/versions/1:retire", {"reason": "old"})
    assert retired.status == 200, retired.json
    run(node)
    (refused,) = firings(caller, made)
    assert (refused["state"], refused["error"]["code"]) == ("REFUSED", "STATE_CONFLICT")


def test_too_many_running_instances_keep_the_instant(caller: Caller, node: Node, database: Database) -> None:
    source = FLOW.replace("timeout: 1h", "timeout: 1d\nmax_running: 1")
    got = caller.post("/v1/workflows", {"source": source})
    assert got.status == 201, got.json
    made = create(caller, every_seconds=60, task=None, workflow={"workflow": "flow", "input": {"n": 1}})
    run(node)
    anchor = from_rfc3339(made["configuration"]["anchor_at"])
    move_to(database, anchor + 61 * SECOND)
    run(node)
    assert [each["state"] for each in firings(caller, made)] == ["FIRED"]
    assert caller.get(f"/v1/schedules/{made['id']}").data["next_at"] == to_rfc3339(anchor + 60 * SECOND)
    caller.post(f"/v1/instances/{firings(caller, made)[0]['instance_id']}:cancel", {"reason": "r"})
    node.runner.run_once()
    move_to(database, anchor + 63 * SECOND)
    run(node)
    assert [each["state"] for each in firings(caller, made)] == ["FIRED", "FIRED"]


def test_r143_a_flow_a_schedule_and_a_queue_are_paused_apart(caller: Caller, node: Node, database: Database) -> None:
    """All eight combinations: whether it fires depends on the schedule alone, what may start on the other two."""
    publish(caller)
    pulse = Pulse(database)
    queue = caller.get("/v1/queues").data[0]
    settings = {"max_concurrency": 8, "rate_per_second": 100, "max_unfinished_tasks": 1000, "reason": "r"}
    for number, paused in enumerate(product((False, True), repeat=3)):
        is_flow, is_schedule, is_queue = paused
        revision = caller.get(f"/v1/queues/{queue['id']}").data["revision"]
        body = settings | {"expected_revision": revision, "paused": is_queue}
        assert caller.post(f"/v1/queues/{queue['id']}:configure", body).status == 200
        target = {"workflow": "flow", "input": {"n": number}}
        made = create(caller, task=None, workflow=target, paused=is_schedule)
        run(node)
        fired = firings(caller, made)
        assert len(fired) == (0 if is_schedule else 1), paused
        if fired and is_flow:
            caller.post(f"/v1/instances/{fired[0]['instance_id']}:pause", {"reason": "r"})
        claimed = pulse.claim(type_="do.a")
        assert len(claimed) == (0 if any(paused) else 1), paused
        for assignment in claimed:
            pulse.release(assignment)
        if fired:
            caller.post(f"/v1/instances/{fired[0]['instance_id']}:cancel", {"reason": "r"})
            node.runner.run_once()


def test_changes_of_a_schedule_reach_subscriptions_to_its_queue(caller: Caller, database: Database) -> None:
    made = create(caller)
    wished = {"event_types": ["schedule.*"], "queues": ["main"]}
    path = f"/v1/subscriptions/{caller.post('/v1/subscriptions', {'name': 's', **wished}).data['subscription']['id']}"
    database.clock.advance(seconds_forward=5)
    caller.post(f"/v1/schedules/{made['id']}:pause", {"reason": "r"})
    (told,) = caller.post(f"{path}:pull", {}).data["deliveries"]
    assert (told["event"]["type"], told["event"]["subject_id"]) == ("schedule.paused", made["id"])
