"""Concurrency keys over HTTP: named at submission, limited at a revision, and seen with who holds them."""

import pytest

from tests.support.http import Api, Caller

QUEUE = {"name": "images", "max_concurrency": 8, "rate_per_second": 9}
TASK = {"queue": "images", "type": "echo", "version": 1}


@pytest.mark.requirement("R092")
def test_r113_a_key_is_named_at_submission_and_limited_at_a_revision(caller: Caller) -> None:
    assert caller.post("/v1/queues", QUEUE).status == 201
    keys = ["supplier:acme/eu", "plant é"]
    made = caller.post("/v1/tasks", TASK | {"concurrency_keys": keys, "fairness_key": "acme"})
    assert made.status == 201
    task = caller.get(f"/v1/tasks/{made.data['task']['id']}").data
    assert (task["concurrency_keys"], task["fairness_key"]) == (keys, "acme")
    path = "/v1/concurrency-keys/supplier%3Aacme%2Feu"
    never = {"key": keys[0], "limit": 1, "own_limit": None, "active": "0", "waiting": "0", "held_by": []}
    assert caller.get(path).data == never | {"revision": "0"}
    body = {"expected_revision": "0", "reason": "agreed with acme", "limit": 3}
    done = caller.put(path, body)
    assert (done.status, done.data) == (200, never | {"limit": 3, "own_limit": 3, "revision": "1"})
    assert caller.put(path, body).data == done.data
    stale = caller.put(path, body | {"limit": 4})
    assert (stale.status, stale.json["error"]["details"]) == (409, {"current_revision": "1"})
    assert caller.put("/v1/concurrency-keys/supplier%3A%2A", body | {"limit": 5}).status == 200
    back = caller.put(path, {"expected_revision": "1", "reason": "over"})
    assert (back.data["limit"], back.data["own_limit"], back.data["revision"]) == (5, None, "2")
    assert caller.get("/v1/concurrency-keys/plant%20%C3%A9").data["limit"] == 1
    audit = [record for record in caller.get("/v1/audit").data if record["operation"] == "concurrency_key.configure"]
    assert {record["reason"] for record in audit} == {"agreed with acme", "over"}


def test_keys_need_their_scope_the_range_of_all_queues_and_their_form(api: Api, caller: Caller) -> None:
    path = "/v1/concurrency-keys/k"
    body = {"expected_revision": "0", "reason": "mine", "limit": 1}
    assert api.caller(["queues:read"]).put(path, body).status == 403
    assert api.caller(queues=["images"]).put(path, body).status == 403
    assert api.caller(queues=["images"]).get(path).status == 403
    for wrong in ({"limit": 0}, {"limit": 100_001}, {"reason": " "}, {"expected_revision": "x"}):
        refused = caller.put(path, body | wrong)
        assert (refused.status, refused.pointer) == (400, f"/{next(iter(wrong))}")
    assert caller.put("/v1/concurrency-keys/" + "k" * 129, body).status == 400
    assert caller.post("/v1/queues", QUEUE).status == 201
    for keys in (["a"] * 5, [""], ["ends in *"], ["k" * 129], "a", [1]):
        refused = caller.post("/v1/tasks", TASK | {"concurrency_keys": keys})
        assert refused.status == 400
        assert (refused.pointer or "").startswith("/concurrency_keys")
    assert caller.post("/v1/tasks", TASK | {"fairness_key": ""}).pointer == "/fairness_key"
    items = [TASK | {"idempotency_key": str(at), "concurrency_keys": ["a"] * (at + 4)} for at in range(2)]
    batch = caller.post("/v1/tasks:batch", {"items": items}).data["items"]
    assert [item["status"] for item in batch] == [201, 400]
