"""Subscriptions over HTTP: who may see which, what is refused, and what a consumer and an operator are told."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orbit.database import Database
from orbit.ids import new_id
from pulse.subscription_sweep import subscriptions_sweep
from tests.support.http import Api, Caller

PATH = "/v1/subscriptions"
QUEUE = {"name": "images", "max_concurrency": 8, "rate_per_second": 100}
TASK = {"queue": "images", "type": "echo", "version": 1, "params": {"text": "💾 你"}}
BOUNDS = {"visibility_seconds": 60, "max_deliveries": 2, "max_backlog": 5}
REASON = {"expected_revision": "1", "reason": "a test"}


def subscribe(caller: Caller, database: Database, **wish: object) -> str:
    """Subscribe, wait until it holds, and return the path."""
    made = caller.post(PATH, {"name": "mine", **wish})
    assert made.status == 201, made.json
    database.clock.advance(seconds_forward=5)
    return f"{PATH}/{made.data['subscription']['id']}"


def test_r194_a_subscription_is_made_read_listed_and_replaced(caller: Caller) -> None:
    made = caller.post(PATH, {"name": "mine", "event_types": ["task.*"]}, key="k")
    again = caller.post(PATH, {"name": "mine", "event_types": ["task.*"]}, key="k")
    assert (made.status, again.status, again.data["deduplicated"]) == (201, 200, True)
    first = made.data["subscription"]
    assert again.data["subscription"] == first
    assert (first["visibility_seconds"], first["max_deliveries"], first["max_backlog"]) == (30, 10, 10_000)
    assert (first["state"], first["backlog"], first["revision"], first["queues"]) == ("ACTIVE", "0", "1", None)
    assert first["effective_at"] > first["created_at"]
    path = f"{PATH}/{first['id']}"
    assert caller.get(path).data == first
    assert [each["name"] for each in caller.get(PATH).data] == ["mine"]
    changed = caller.post(f"{path}:configure", REASON | BOUNDS | {"event_types": ["queue.*"]})
    after = changed.data["subscription"]
    assert (after["event_types"], after["max_backlog"], after["revision"]) == (["queue.*"], 5, "2")
    stale = caller.post(f"{path}:configure", REASON | BOUNDS)
    assert (stale.code, stale.json["error"]["details"]) == ("STATE_CONFLICT", {"current_revision": "2"})
    assert caller.post(f"{path}:resume", REASON | {"expected_revision": "2"}).code == "STATE_CONFLICT"
    gone = caller.post(f"{path}:delete", REASON | {"expected_revision": "2"}, key="d")
    assert gone.data["subscription"]["state"] == "DELETED"
    assert caller.post(f"{path}:delete", REASON | {"expected_revision": "2"}, key="d").data["deduplicated"] is True
    assert (caller.get(path).status, caller.post(f"{path}:pull", {}).status, caller.get(PATH).data) == (404, 404, [])
    operations = {each["operation"]: each["reason"] for each in caller.get("/v1/audit").data}
    assert operations == {
        "subscription.create": None,
        "subscription.configure": "a test",
        "subscription.delete": "a test",
    }
    told = [each["type"] for each in caller.get("/v1/events?type=subscription.*").data]
    assert sorted(told) == ["subscription.configured", "subscription.created", "subscription.deleted"]


def test_c097_names_that_differ_in_case_are_two_subscriptions(caller: Caller) -> None:
    ids = {name: caller.post(PATH, {"name": name}).data["subscription"]["id"] for name in ("x", "X")}
    assert {each["name"]: each["id"] for each in caller.get(PATH).data} == ids
    first = caller.get(f"{PATH}?limit=1")
    rest = caller.get(f"{PATH}?limit=1&cursor={first.json['next_cursor']}")
    assert [first.data[0]["name"], rest.data[0]["name"]] == ["X", "x"]
    assert caller.post(PATH, {"name": "x"}).code == "STATE_CONFLICT"


def test_r194_a_consumer_pulls_acknowledges_extends_and_sees_what_was_parked(
    caller: Caller, database: Database
) -> None:
    assert caller.post("/v1/queues", QUEUE).status == 201
    path = subscribe(caller, database, event_types=["task.submitted"], max_deliveries=1)
    task_id = caller.post("/v1/tasks", TASK).data["task"]["id"]
    (pulled,) = caller.post(f"{path}:pull", {"max": 5}).data["deliveries"]
    assert (pulled["delivery_count"], pulled["is_last"]) == (1, True)
    event = pulled["event"]
    assert (event["type"], event["subject_id"], event["subject_revision"]) == ("task.submitted", task_id, "1")
    assert caller.post(f"{path}:pull", {"wait_seconds": 0}).data == {"deliveries": []}
    tokens = {"tokens": [pulled["token"]]}
    (kept,) = caller.post(f"{path}:extend", tokens | {"visibility_seconds": 90}).data["items"]
    assert (kept["outcome"], kept["visible_at"] > pulled["visible_at"]) == ("EXTENDED", True)
    (listed,) = caller.get(f"{path}/deliveries?state=LAST").data
    assert (listed["state"], listed["event"]["id"]) == ("LAST", event["id"])
    assert "token" not in listed
    database.clock.advance(seconds_forward=91)
    subscriptions_sweep(database)
    (parked,) = caller.get(f"{path}/deliveries").data
    assert (parked["state"], parked["delivery_count"], parked["event"]["id"]) == ("POISONED", 1, event["id"])
    shown = caller.get(path).data
    assert (shown["backlog"], shown["poisoned"]) == ("1", "1")
    assert caller.post(f"{path}:replay", {"event_ids": [event["id"]]}).data == {"replayed": 1, "has_more": False}
    assert caller.post(f"{path}:replay", {}).data == {"replayed": 0, "has_more": False}
    (again,) = caller.post(f"{path}:pull", {}).data["deliveries"]
    answers = caller.post(f"{path}:ack", {"tokens": [pulled["token"], again["token"]]}).data["items"]
    assert [each["outcome"] for each in answers] == ["STALE", "ACKED"]
    assert caller.post(f"{path}:ack", {"tokens": [again["token"]]}).data["items"][0]["outcome"] == "GONE"


@pytest.mark.requirement("R192")
def test_r094_an_overflow_is_shown_and_resumed_and_tasks_go_on(caller: Caller, database: Database) -> None:
    assert caller.post("/v1/queues", QUEUE).status == 201
    path = subscribe(caller, database, event_types=["task.submitted"], max_backlog=1)
    assert [caller.post("/v1/tasks", TASK).status for _ in range(2)] == [201, 201]
    database.clock.advance(seconds_forward=1)
    subscriptions_sweep(database)
    shown = caller.get(path).data
    assert (shown["state"], shown["backlog"], shown["stopped_at"] is not None) == ("OVERFLOWED", "2", True)
    (told,) = caller.get("/v1/events?type=subscription.overflowed").data
    assert told["subject_id"] == shown["id"]
    figures = metrics(caller)
    assert figures["orbit_deliveries_waiting", ""] == 2
    assert (figures["orbit_subscriptions", "OVERFLOWED"], figures["orbit_subscriptions", "ACTIVE"]) == (1, 0)
    assert caller.post("/v1/tasks", TASK).status == 201
    resumed = caller.post(f"{path}:resume", {"expected_revision": shown["revision"], "reason": "it is back"})
    after = resumed.data["subscription"]
    assert (after["state"], after["read_up_to"]) == ("RESUMING", shown["stopped_at"])


def metrics(caller: Caller) -> dict[tuple[str, str], float]:
    """Scrape, by name and state."""
    text = caller.get("/metrics").body.decode()
    return {
        (sample.name, sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"event_types": ["task.started"]}, "/event_types/0"),
        ({"event_types": []}, "/event_types"),
        ({"workflows": ["w"], "task_types": ["a"]}, "/workflows"),
        ({"visibility_seconds": 0.5}, "/visibility_seconds"),
        ({"max_deliveries": 0}, "/max_deliveries"),
        ({"max_backlog": 100_001}, "/max_backlog"),
        ({"name": " "}, "/name"),
    ],
)
@pytest.mark.databases("sqlite")
def test_r179_what_is_out_of_bounds_is_refused(caller: Caller, wrong: dict[str, object], pointer: str) -> None:
    refused = caller.post(PATH, {"name": "mine"} | wrong)
    assert (refused.status, refused.pointer) == (400, pointer)
    assert caller.get(PATH).data == []


@pytest.mark.databases("sqlite")
def test_r179_a_namespace_has_so_many_subscriptions_at_most(caller: Caller) -> None:
    assert {caller.post(PATH, {"name": f"s{number}"}).status for number in range(100)} == {201}
    assert caller.post(PATH, {"name": "one-more"}).code == "STATE_CONFLICT"


@pytest.mark.requirement("R106")
def test_c155_who_may_not_see_a_subscription_can_not_tell_that_there_is_one(
    api: Api, caller: Caller, database: Database
) -> None:
    for name in ("images", "mail"):
        assert caller.post("/v1/queues", QUEUE | {"name": name}).status == 201
    everything = subscribe(caller, database)
    images = subscribe(caller, database, name="images", queues=["images"])
    both = subscribe(caller, database, name="both", queues=["images", "mail"])
    near, foreign = api.caller(queues=["images"]), api.caller(namespace="other")
    missing = f"{PATH}/{new_id().hex()}"
    token = {"tokens": ["0" * 64]}
    for path in (everything, both, missing):
        assert near.get(path).status == 404
        for operation, body in (
            ("pull", {}), ("ack", token), ("extend", token | {"visibility_seconds": 1}), ("replay", {}),
            ("resume", REASON), ("delete", REASON), ("configure", REASON | BOUNDS | {"queues": ["images"]}),
        ):  # fmt: skip
            refused = near.post(f"{path}:{operation}", body)
            assert (refused.status, refused.json["error"]["message"]) == (404, "no such subscription")
        assert near.get(f"{path}/deliveries").status == 404
    assert foreign.get(images).status == 404
    assert foreign.get(PATH).data == []
    assert [each["name"] for each in near.get(PATH).data] == ["images"]
    assert near.post(f"{images}:pull", {}).status == 200
    # One's own range bounds what one may subscribe to.
    assert near.post(PATH, {"name": "near", "queues": ["mail"]}).status == 404
    assert near.post(PATH, {"name": "near", "queues": ["missing"]}).status == 404
    assert near.post(PATH, {"name": "near"}).status == 403
    assert near.post(PATH, {"name": "near", "queues": ["images"]}).status == 201
    reader = api.caller(["events:read"])
    assert reader.post(PATH, {"name": "r"}).code == "FORBIDDEN"
    assert reader.post(f"{images}:pull", {}).status == 200
    assert reader.post(f"{images}:replay", {}).code == "FORBIDDEN"
    assert api.caller(["tasks:read"]).get(PATH).code == "FORBIDDEN"


def test_params_are_in_no_event(caller: Caller, database: Database) -> None:
    path = subscribe(caller, database, event_types=["task_type.registered", "task.submitted"])
    assert caller.post("/v1/queues", QUEUE).status == 201
    content = {"expected_revision": "0", "reason": "cards", "recovery": "MANUAL", "redact": ["/params/card"]}
    assert caller.put("/v1/task-types/pay/1", content).status in {200, 201}
    task = {"queue": "images", "type": "pay", "version": 1, "params": {"card": "4111-PLANTED"}}
    assert caller.post("/v1/tasks", task).status == 201
    pulled = caller.post(f"{path}:pull", {})
    assert len(pulled.data["deliveries"]) == 2
    assert b"PLANTED" not in pulled.body
    assert b"PLANTED" not in caller.get("/v1/events").body


def test_r194_events_are_found_by_type_subject_and_time(caller: Caller) -> None:
    queue = caller.post("/v1/queues", QUEUE).data["queue"]
    task_id = caller.post("/v1/tasks", TASK).data["task"]["id"]
    assert [each["subject_id"] for each in caller.get("/v1/events?type=queue.created").data] == [queue["id"]]
    assert [each["subject_id"] for each in caller.get("/v1/events?type=task.*").data] == [task_id]
    (event,) = caller.get(f"/v1/events?subject_id={task_id}").data
    at = event["created_at"]
    assert [each["id"] for each in caller.get(f"/v1/events?created_after={at}").data] == [event["id"]]
    assert event["id"] not in [each["id"] for each in caller.get(f"/v1/events?created_before={at}").data]
