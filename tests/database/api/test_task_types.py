"""Task types over HTTP: registered by PUT on a revision, audited, in force for the next submission."""

from typing import Any

import pytest

from tests.support.http import Api, Caller

PATH = "/v1/task-types/payout.submit/2"
AMOUNT = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}}
WISH: dict[str, Any] = {"expected_revision": "0", "reason": "agreed with the bank", "recovery": "MANUAL"}


@pytest.fixture
def queue(caller: Caller) -> str:
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    return "images"


def test_a_type_is_registered_read_listed_and_changed(caller: Caller) -> None:
    made = caller.put(PATH, WISH | {"params_schema": AMOUNT, "defaults": {"retry": {"max_attempts": 5}}})
    assert (made.status, made.data["deduplicated"]) == (201, False)
    shown = caller.get(PATH).data
    assert {key: shown[key] for key in made.data["task_type"]} == made.data["task_type"]
    assert (shown["type"], shown["version"], shown["params_schema"]) == ("payout.submit", 2, AMOUNT)
    assert shown["earlier"] == []
    again = caller.put(PATH, WISH | {"params_schema": AMOUNT, "defaults": {"retry": {"max_attempts": 5}}})
    assert (again.status, again.data["deduplicated"]) == (200, True)
    stale = caller.put(PATH, WISH)
    assert (stale.status, stale.json["error"]["details"]) == (409, {"current_revision": "1"})
    changed = caller.put(PATH, WISH | {"expected_revision": "1", "redact": ["/params/card"]})
    assert (changed.status, changed.data["task_type"]["revision"]) == (200, "2")
    assert [each["revision"] for each in caller.get(PATH).data["earlier"]] == ["1"]
    caller.put("/v1/task-types/payout.submit/10", WISH)
    listed = caller.get("/v1/task-types?limit=1").json
    assert [each["version"] for each in listed["data"]] == [2]
    rest = caller.get(f"/v1/task-types?cursor={listed['next_cursor']}").json["data"]
    assert [each["version"] for each in rest] == [10]
    record = caller.get("/v1/audit").json["data"][1]
    assert (record["operation"], record["reason"]) == ("task_type.put", WISH["reason"])
    assert caller.get("/v1/events?type=task_type.registered").json["data"][0]["data"] == {
        "type": "payout.submit",
        "version": 10,
    }


def test_what_is_wrong_is_pointed_at(caller: Caller) -> None:
    for field in WISH:
        absent = caller.put(PATH, {name: value for name, value in WISH.items() if name != field})
        assert (absent.status, absent.pointer) == (400, f"/{field}")
    assert caller.put(PATH, WISH | {"recovery": "SOMETIMES"}).pointer == "/recovery"
    assert caller.put(PATH, WISH | {"reason": " "}).pointer == "/reason"
    assert caller.put(PATH, WISH | {"verify_with": "a@1"}).pointer == "/verify_with"
    assert caller.put(PATH, WISH | {"params_schema": {"type": 7}}).pointer == "/params_schema/type"
    assert caller.put(PATH, WISH | {"params_schema": 7}).pointer == "/params_schema"
    assert caller.put(PATH, WISH | {"redact": ["/labels"]}).pointer == "/redact/0"
    assert caller.put(PATH, WISH | {"safety": 1}).code == "UNKNOWN_FIELD"
    assert caller.put("/v1/task-types/-bad/1", WISH).status == 400
    assert caller.put("/v1/task-types/good/x", WISH).status == 400
    assert (caller.get("/v1/task-types/good/x").status, caller.get(PATH).status) == (404, 404)


def test_rights(api: Api, caller: Caller) -> None:
    caller.put(PATH, WISH)
    assert api.caller({"task-types:read"}).put(PATH, WISH).status == 403
    assert api.caller({"task-types:manage"}, queues={"images"}).put(PATH, WISH).status == 403
    assert api.caller({"task-types:read"}, namespace="other").get(PATH).status == 404
    assert api.caller({"tasks:read"}).get(PATH).status == 403


@pytest.mark.requirement("R187")
def test_r126_a_submission_is_checked_and_masked_by_its_type(caller: Caller, queue: str) -> None:
    caller.put(PATH, WISH | {"params_schema": AMOUNT, "redact": ["/params/card"]})
    task = {"queue": queue, "type": "payout.submit", "version": 2}
    refused = caller.post("/v1/tasks", task | {"params": {"amount": "9"}})
    assert (refused.status, refused.pointer) == (400, "/params/amount")
    item = task | {"params": {}, "idempotency_key": "i"}
    batch = caller.post(
        "/v1/tasks:batch", {"items": [item | {"params": {"amount": 1}, "idempotency_key": "j"}, item]}, key=None
    ).data["items"]
    assert [entry["status"] for entry in batch] == [201, 400]
    assert batch[1]["error"]["details"]["pointer"] == "/items/1/params"
    task_id = caller.post("/v1/tasks", task | {"params": {"amount": 9, "card": "4111"}}).data["task"]["id"]
    shown = caller.get(f"/v1/tasks/{task_id}").data
    assert (shown["recovery"], shown["params"]) == ("MANUAL", {"amount": 9, "card": "[redacted]"})
    assert caller.get(f"/v1/tasks?queue={queue}").json["data"][0]["params"]["card"] == "[redacted]"
