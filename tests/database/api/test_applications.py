"""Application quotas over HTTP: read, replaced at a revision, audited, and seen only by their own application."""

from tests.support.http import Api, Caller


def test_r091_quotas_are_replaced_as_a_whole_at_the_revision_that_was_read(caller: Caller) -> None:
    (own,) = caller.get("/v1/applications").data
    path = f"/v1/applications/{own['id']}"
    assert own == caller.get(path).data
    assert (own["revision"], own["max_concurrency"], own["max_unfinished_tasks"]) == ("0", None, None)
    body = {"expected_revision": "0", "reason": "agreed with finance", "max_concurrency": 3, "max_unfinished_tasks": 1}
    made = caller.post(f"{path}:configure", body, key="k")
    assert (made.status, made.data["deduplicated"]) == (200, False)
    assert made.data["application"] == own | {"max_concurrency": 3, "max_unfinished_tasks": 1, "revision": "1"}
    assert caller.post(f"{path}:configure", body, key="k").data["deduplicated"] is True
    stale = caller.post(f"{path}:configure", body | {"max_concurrency": 4})
    assert (stale.status, stale.json["error"]["details"]) == (409, {"current_revision": "1"})
    assert caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 9}).status == 201
    task = {"queue": "images", "type": "echo", "version": 1}
    assert caller.post("/v1/tasks", task).status == 201
    full = caller.post("/v1/tasks", task)
    assert (full.status, full.code, full.headers["retry-after"]) == (429, "APPLICATION_QUOTA_EXCEEDED", "1")
    assert caller.get(path).data["unfinished_tasks"] == "1"
    free = caller.post(f"{path}:configure", {"expected_revision": "1", "reason": "peak is over"})
    assert (free.data["application"]["max_unfinished_tasks"], free.data["application"]["revision"]) == (None, "2")
    assert caller.post("/v1/tasks", task).status == 201
    audit = [record for record in caller.get("/v1/audit").data if record["operation"] == "application.configure"]
    assert {record["reason"] for record in audit} == {"agreed with finance", "peak is over"}


def test_quotas_need_their_scope_the_range_of_all_queues_and_the_own_application(api: Api, caller: Caller) -> None:
    (own,) = caller.get("/v1/applications").data
    path = f"/v1/applications/{own['id']}"
    body = {"expected_revision": "0", "reason": "mine"}
    assert api.caller(["queues:read"]).post(f"{path}:configure", body).status == 403
    assert api.caller(queues=["images"]).post(f"{path}:configure", body).status == 403
    assert api.caller(queues=["images"]).get(path).status == 403
    other = f"/v1/applications/{'0' * 32}"
    assert (caller.get(other).status, caller.post(f"{other}:configure", body).status) == (404, 404)
    for wrong in ({"max_concurrency": 0}, {"rate_per_second": 1_000_001}, {"max_unfinished_tasks": "1"}):
        refused = caller.post(f"{path}:configure", body | wrong)
        assert (refused.status, refused.pointer) == (400, f"/{next(iter(wrong))}")
