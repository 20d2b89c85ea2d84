"""Tasks over HTTP: accepted once, refused without a trace, seen only by those who may."""

from typing import Any

import gevent
import pytest
from sqlalchemy import func, select, update

from api.server import Node
from orbit.clock import to_rfc3339
from orbit.database import Database
from orbit.jsontext import dumps
from orbit.tables import event, receipt
from pulse.tables import task
from tests.support.http import Api, Caller, Got
from tests.support.waiting import wait_until

TASK = {"queue": "images", "type": "echo", "version": 1, "params": {"a": 1}}
FULL = "queue unfinished task limit reached; retry later using the original identity"


def make_queue(caller: Caller, name: str = "images", **changes: Any) -> dict[str, Any]:
    got = caller.post("/v1/queues", {"name": name, "max_concurrency": 8, "rate_per_second": 100} | changes)
    made: dict[str, Any] = got.data["queue"]
    return made


def count(database: Database, table: Any) -> int:
    return database.transaction(lambda tx: int(tx.rows(select(func.count()).select_from(table))[0][0]))


def in_seconds(database: Database, seconds: float) -> str:
    return to_rfc3339(database.transaction(lambda tx: tx.now()) + round(seconds * 1_000_000))


def submit(caller: Caller, **changes: Any) -> Got:
    return caller.post("/v1/tasks", TASK | changes)


@pytest.mark.requirement("R124", "R131")
def test_r125_a_task_is_accepted_and_reads_back_as_it_was_sent(caller: Caller, database: Database) -> None:
    make_queue(caller)
    available_at = in_seconds(database, 60)
    sent = {
        **TASK,
        "params_version": "3",
        "available_at": available_at,
        "priority": 7,
        "business_key": "order 💾 你",
        "labels": {"team": "ops"},
        "attempt_timeout_seconds": 1.5,
        "retry": {"max_attempts": 5, "backoff_seconds": 0.5},
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    }
    got = caller.post("/v1/tasks", sent)
    assert (got.status, got.data["deduplicated"], got.data["task"]["state"]) == (201, False, "WAITING")
    read = caller.get(f"/v1/tasks/{got.data['task']['id']}").data
    assert {name: read[name] for name in sent if name not in {"retry", "available_at"}} == {
        name: value for name, value in sent.items() if name not in {"retry", "available_at"}
    }
    assert read["retry"] == {"max_attempts": 5, "backoff_seconds": 0.5, "backoff_seconds_max": 300}
    assert (read["available_at"], read["wait_reason"]) == (available_at, "DELAYED")
    assert read["source"] == {"kind": "API", "id": None}
    missing = submit(caller, queue="nowhere")
    assert (missing.status, missing.code) == (404, "NOT_FOUND")


def test_params_are_stored_as_the_bytes_that_were_sent(caller: Caller, database: Database) -> None:
    make_queue(caller)
    params = b'{ "big" : 123456789012345678901234567890, "f": 1.0, "e":1e2, "s":"\\u00e9 \xc3\xa9" ,"n":null}'
    raw = b'{"queue":"images","type":"echo","version":1,"params": ' + params + b" }"
    assert caller.post("/v1/tasks", raw=raw).status == 201
    assert database.transaction(lambda tx: tx.rows(select(task.c.params))[0][0]) == params


@pytest.mark.requirement("R115", "R130")
def test_r014_the_same_key_and_meaning_is_one_task(caller: Caller, api: Api) -> None:
    make_queue(caller)
    first = caller.post("/v1/tasks", TASK, key="k")
    again = caller.post("/v1/tasks", TASK, key="k")
    assert (first.status, again.status, again.data["deduplicated"]) == (201, 200, True)
    assert again.data["task"] == first.data["task"]
    assert again.data["current"] == {"state": "WAITING", "revision": "1"}
    assert caller.post("/v1/tasks", TASK | {"params": {"a": 1.0}}, key="k").code == "IDEMPOTENCY_CONFLICT"
    assert caller.post("/v1/tasks", TASK | {"priority": 4}, key="k").code == "IDEMPOTENCY_CONFLICT"
    assert caller.post("/v1/tasks", TASK | {"priority": None, "retry": None}, key="k").status == 200
    assert caller.post("/v1/tasks", TASK, key="K").status == 201
    other = api.caller(namespace="other")
    make_queue(other)
    assert other.post("/v1/tasks", TASK, key="k").status == 201


def test_arguments_that_differ_in_presence_or_null_are_different(caller: Caller) -> None:
    make_queue(caller)
    for first, second in (({"field": 1}, {}), ({}, {"field": 1}), ({"field": None}, {"field": 1, "x": None})):
        key = f"k{first}{second}"
        assert caller.post("/v1/tasks", TASK | {"params": first}, key=key).status == 201
        assert caller.post("/v1/tasks", TASK | {"params": second}, key=key).code == "IDEMPOTENCY_CONFLICT"


@pytest.mark.requirement("R067", "R068", "R069", "R074")
def test_r066_a_full_queue_refuses_with_the_seeds_block_and_leaves_nothing(caller: Caller, database: Database) -> None:
    queue = make_queue(caller, max_unfinished_tasks=1)
    first = caller.post("/v1/tasks", TASK, key="one").data["task"]
    before = [count(database, table) for table in (task, receipt, event)]
    got = caller.post("/v1/tasks", TASK, key="two")
    assert (got.status, got.headers["retry-after"]) == (429, "1")
    shown = got.body.decode().replace(got.json["request_id"], "4" * 32)
    assert shown == '{"request_id":"' + "4" * 32 + '","error":{"code":"QUEUE_FULL","message":"' + FULL + '"}}'
    assert [count(database, table) for table in (task, receipt, event)] == before
    replay = caller.post("/v1/tasks", TASK, key="one")
    assert (replay.status, replay.data["deduplicated"]) == (200, True)
    assert caller.get(f"/v1/queues/{queue['id']}").data["unfinished_tasks"] == "1"
    assert caller.post(f"/v1/tasks/{first['id']}:cancel", {"reason": "room"}).data["task"]["state"] == "CANCELLED"
    again = caller.post("/v1/tasks", TASK, key="two")
    assert (again.status, again.data["deduplicated"]) == (201, False)


@pytest.mark.requirement("R026")
def test_r027_receipts_keep_the_snapshot_of_their_moment(caller: Caller) -> None:
    body = {"name": "images", "max_concurrency": 8, "rate_per_second": 100}
    queue = caller.post("/v1/queues", body, key="q").data["queue"]
    for _ in range(3):
        submit(caller)
    assert caller.post("/v1/queues", body, key="q").data["queue"]["unfinished_tasks"] == "0"
    live = caller.get(f"/v1/queues/{queue['id']}").data
    assert (live["unfinished_tasks"], live["revision"]) == ("3", "1")


@pytest.mark.requirement("R120")
def test_r070_instants_that_have_passed_are_refused_for_new_requests_only(caller: Caller, database: Database) -> None:
    make_queue(caller)
    soon = in_seconds(database, 1)
    assert caller.post("/v1/tasks", TASK | {"start_deadline_at": soon}, key="k").status == 201
    database.clock.advance(seconds_forward=120)
    try:
        assert caller.post("/v1/tasks", TASK | {"start_deadline_at": soon}, key="k").status == 200
        for field in ("start_deadline_at", "deadline_at", "available_at"):
            got = submit(caller, **{field: soon})
            assert (got.status, got.pointer) == (400, f"/{field}")
    finally:
        database.clock.advance(seconds_forward=-120)
    both = submit(caller, available_at=in_seconds(database, 5), delay_seconds=1)
    assert (both.status, both.pointer) == (400, "/delay_seconds")


BAD_FIELDS: list[tuple[str, Any]] = [
    ("queue", "a b"),
    ("queue", None),
    ("type", ""),
    ("type", "a/b"),
    ("version", 0),
    ("version", 1.0),
    ("version", 2**31),
    ("priority", 10),
    ("priority", -1),
    ("priority", True),
    ("delay_seconds", -1),
    ("delay_seconds", "1"),
    ("available_at", "2026-01-01"),
    ("available_at", "2026-13-01T00:00:00Z"),
    ("deadline_at", 5),
    ("attempt_timeout_seconds", 0),
    ("retry", []),
    ("business_key", ""),
    ("business_key", "x" * 129),
    ("labels", {"a": 1}),
    ("labels", {f"l{n}": "" for n in range(17)}),
    ("derived_from", "x"),
    ("derived_from", "0" * 32),
    ("traceparent", "00-x"),
    ("params_version", ""),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_r005_a_wrong_field_is_named(caller: Caller, field: str, value: Any) -> None:
    make_queue(caller)
    got = submit(caller, **{field: value})
    assert (got.status, got.code, got.pointer) == (400, "INVALID_REQUEST", f"/{field}")


@pytest.mark.parametrize(
    ("retry", "pointer"),
    [
        ({"max_attempts": 0}, "/retry/max_attempts"),
        ({"max_attempts": 10**9}, "/retry/max_attempts"),
        ({"backoff_seconds": 0}, "/retry/backoff_seconds"),
        ({"backoff_seconds": 10, "backoff_seconds_max": 1}, "/retry/backoff_seconds_max"),
        ({"nope": 1}, "/retry/nope"),
    ],
)
def test_r172_a_retry_policy_is_bounded(caller: Caller, retry: dict[str, Any], pointer: str) -> None:
    make_queue(caller)
    got = submit(caller, retry=retry)
    assert (got.status, got.pointer) == (400, pointer)


def test_r188_params_over_64_kib_are_refused_with_the_advice_to_pass_a_reference(caller: Caller) -> None:
    make_queue(caller)
    assert submit(caller, params="x" * (64 * 1024 - 2)).status == 201
    got = submit(caller, params="x" * (64 * 1024 - 1))
    assert (got.status, got.code, got.pointer) == (413, "PAYLOAD_TOO_LARGE", "/params")
    assert "reference" in got.json["error"]["message"]


@pytest.mark.requirement("R122")
def test_r121_a_batch_answers_for_each_item(caller: Caller) -> None:
    make_queue(caller)
    items = [TASK | {"idempotency_key": f"k{number}"} for number in range(32)]
    bad = [*items[:7], items[7] | {"priority": 10}, *items[8:]]
    got = caller.post("/v1/tasks:batch", {"items": bad}, key=None)
    assert got.status == 200
    assert [item["status"] for item in got.data["items"]] == [201] * 7 + [400] + [201] * 24
    refused = got.data["items"][7]
    assert (refused["index"], refused["error"]["code"]) == (7, "INVALID_REQUEST")
    assert refused["error"]["details"] == {"pointer": "/items/7/priority"}
    again = caller.post("/v1/tasks:batch", {"items": items}, key=None).data["items"]
    assert [item["data"]["deduplicated"] for item in again] == [True] * 7 + [False] + [True] * 24
    assert again[0]["data"]["current"]["state"] == "WAITING"
    alone = caller.post("/v1/tasks", TASK, key="k7")
    assert (alone.status, alone.data["task"]) == (200, again[7]["data"]["task"])
    too_many = caller.post("/v1/tasks:batch", {"items": [*items, TASK | {"idempotency_key": "x"}]}, key=None)
    assert (too_many.status, too_many.pointer) == (400, "/items")
    assert caller.post("/v1/tasks:batch", {"items": []}, key=None).pointer == "/items"


def test_a_batch_with_one_key_twice_makes_one_task(caller: Caller, database: Database) -> None:
    make_queue(caller)
    same = TASK | {"idempotency_key": "k"}
    got = caller.post("/v1/tasks:batch", {"items": [same, same, same | {"params": 2}]}, key=None).data["items"]
    assert [item["status"] for item in got] == [201, 200, 409]
    assert count(database, task) == 1


def test_r123_a_whole_batch_has_at_most_512_kib(caller: Caller) -> None:
    make_queue(caller)
    item = TASK | {"params": "", "idempotency_key": "k"}
    frame = len(dumps({"items": [item | {"idempotency_key": f"k{n}"} for n in range(9)]}))
    room = 512 * 1024 - frame
    sizes = [room // 9 + (1 if n < room % 9 else 0) for n in range(9)]
    items: list[dict[str, Any]] = [
        item | {"params": "x" * size, "idempotency_key": f"k{n}"} for n, size in enumerate(sizes)
    ]
    assert len(dumps({"items": items})) == 512 * 1024
    got = caller.post("/v1/tasks:batch", {"items": items}, key=None)
    assert [each["status"] for each in got.data["items"]] == [201] * 9
    items[0]["params"] += "x"
    assert caller.post("/v1/tasks:batch", {"items": items}, key=None).status == 413


def test_fifty_callers_with_one_key_make_one_task(caller: Caller, database: Database) -> None:
    make_queue(caller)
    calls = [gevent.spawn(caller.post, "/v1/tasks", TASK, key="k") for _ in range(50)]
    gevent.joinall(calls, raise_error=True)
    answers = [call.get() for call in calls]
    assert sorted(answer.status for answer in answers) == [200] * 49 + [201]
    assert len({answer.data["task"]["id"] for answer in answers}) == 1
    assert count(database, task) == 1


def test_ranges_and_scopes_hold_for_tasks(api: Api, caller: Caller) -> None:
    make_queue(caller, "a")
    make_queue(caller, "b")
    ids = {name: submit(caller, queue=name, business_key="k").data["task"]["id"] for name in ("a", "b")}
    narrow = api.caller(queues=["a"])
    missing = narrow.get(f"/v1/tasks/{'0' * 32}")
    for path in ("", "/attempts", "/events", ":explain"):
        assert narrow.get(f"/v1/tasks/{ids['a']}{path}").status == 200
        hidden = narrow.get(f"/v1/tasks/{ids['b']}{path}")
        assert (hidden.status, hidden.json["error"]) == (404, missing.json["error"])
        foreign = api.caller(namespace="other").get(f"/v1/tasks/{ids['a']}{path}")
        assert foreign.json["error"] == missing.json["error"]
    assert narrow.post(f"/v1/tasks/{ids['b']}:cancel", {"reason": "r"}).status == 404
    assert submit(narrow, queue="b").json["error"] == submit(narrow, queue="nowhere").json["error"]
    assert [each["id"] for each in narrow.get("/v1/tasks?business_key=k").data] == [ids["a"]]
    item = TASK | {"queue": "b", "idempotency_key": "k"}
    assert narrow.post("/v1/tasks:batch", {"items": [item]}, key=None).data["items"][0]["status"] == 404
    reader = api.caller(["tasks:read"])
    for got in (submit(reader, queue="a"), reader.post(f"/v1/tasks/{ids['a']}:cancel", {"reason": "r"})):
        assert (got.status, got.code) == (403, "FORBIDDEN")


@pytest.mark.requirement("R190")
def test_r112_tasks_are_listed_by_key_and_queue_with_a_stable_cursor(caller: Caller, database: Database) -> None:
    make_queue(caller)
    ids = [submit(caller, business_key="order").data["task"]["id"] for _ in range(5)]
    seen: list[str] = []
    path = "/v1/tasks?business_key=order&limit=2"
    cursor = ""
    while True:
        got = caller.get(path + cursor)
        seen += [each["id"] for each in got.data]
        submit(caller, business_key="order")  # newer rows don't disturb the pages
        if got.json["next_cursor"] is None:
            break
        cursor = f"&cursor={got.json['next_cursor']}"
    assert sorted(seen) == sorted(ids)
    since = in_seconds(database, -60).replace("+", "%2B")
    assert len(caller.get(f"/v1/tasks?queue=images&state=WAITING&created_after={since}").data) == 8
    assert caller.get(f"/v1/tasks?queue=images&state=RUNNING&created_after={since}").data == []
    assert caller.get("/v1/tasks?queue=nowhere").data == []
    for bad in ("", "?state=WAITING", "?queue=images&state=WAITING", "?queue=images&state=NO&created_after=" + since):
        assert caller.get(f"/v1/tasks{bad}").status == 400
    assert caller.get("/v1/tasks?source=workflow:" + "0" * 32).data == []
    assert caller.get("/v1/tasks?source=nothing").status == 400


@pytest.mark.requirement("R095")
def test_r190_tasks_are_found_by_each_filter_and_by_all_at_once(caller: Caller, database: Database) -> None:
    make_queue(caller)
    make_queue(caller, "mail")
    red, blue = {"team": "red", "tier": "1"}, {"team": "blue", "tier": "1"}
    first = submit(caller, labels=red, business_key="order").data["task"]["id"]
    second = submit(caller, labels=blue, queue="mail", type="send").data["task"]["id"]
    third = submit(caller, labels=red).data["task"]["id"]
    submit(caller)
    caller.post(f"/v1/tasks/{third}:cancel", {"reason": "r"})
    retry = {"expected_revision": "2", "reason": "r", "evidence": 1, "safety_statement": "it never ran"}
    successor = caller.post(f"/v1/tasks/{third}:retry", retry).data["task"]["id"]
    past, future = (in_seconds(database, seconds).replace("+", "%2B") for seconds in (-60, 60))

    def found(query: str) -> list[str]:
        return [each["id"] for each in caller.get(f"/v1/tasks?{query}").data]

    assert found("label=team%3Dred") == [successor, third, first], "a successor has the labels of its origin"
    assert found("label=tier%3D1") == [successor, third, second, first]
    assert found("label=team%3Dred&state=WAITING") == [successor, first]
    assert found("label=tier%3D1&queue=mail") == found("label=tier%3D1&type=send") == [second]
    assert found("label=team%3Dred&business_key=order") == [first]
    assert found("label=team%3Dblue&business_key=order") == []
    assert found(f"source=retry:{third}") == found(f"label=team%3Dred&source=retry:{third}") == [successor]
    assert found(f"source=verification:{third}") == found(f"source=retry:{first}") == []
    assert found(f"label=team%3Dred&created_after={future}") == found(f"label=team%3Dred&created_before={past}") == []
    everything = f"label=team%3Dred&queue=images&type=echo&state=WAITING&business_key=order&created_after={past}"
    assert found(f"{everything}&created_before={future}") == [first]
    assert found("label=team%3Dgreen") == found("label=red%3Dteam") == []
    for bad in ("team", "%3Dred", ""):
        refused = caller.get(f"/v1/tasks?label={bad}")
        assert (refused.status, refused.json["error"]["details"]["parameter"]) == (400, "label")
    selection = {"tasks": {"label": "team=red"}}
    preview = caller.post("/v1/batches:preview", {"operation": "task.cancel", **selection}).data
    assert [each["id"] for each in preview["first"]] == [first, successor]
    assert caller.post("/v1/batches:preview", {"operation": "task.cancel", "tasks": {"label": "x"}}).pointer == (
        "/tasks/label"
    )


def test_r190_a_list_by_label_has_a_stable_cursor(caller: Caller) -> None:
    make_queue(caller)
    ids = [submit(caller, labels={"n": "💾=1"}).data["task"]["id"] for _ in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        got = caller.get(f"/v1/tasks?label=n%3D%F0%9F%92%BE%3D1&limit=2{cursor}")
        seen += [each["id"] for each in got.data]
        submit(caller, labels={"n": "💾=1"})  # newer rows don't disturb the pages
        if got.json["next_cursor"] is None:
            break
        cursor = f"&cursor={got.json['next_cursor']}"
    assert seen == ids[::-1]


def test_r135_other_params_are_another_task_that_names_its_origin(caller: Caller, api: Api) -> None:
    make_queue(caller)
    first = submit(caller).data["task"]["id"]
    second = submit(caller, params={"a": 2}, derived_from=first).data["task"]["id"]
    assert caller.get(f"/v1/tasks/{second}").data["derived_from"] == first
    other = api.caller(namespace="other")
    make_queue(other)
    assert submit(other, derived_from=first).pointer == "/derived_from"


@pytest.mark.requirement("R185")
def test_r132_a_waiting_task_is_cancelled_at_once_with_audit_and_event(caller: Caller) -> None:
    make_queue(caller)
    task_id = submit(caller).data["task"]["id"]
    path = f"/v1/tasks/{task_id}:cancel"
    assert caller.post(path, {}).pointer == "/reason"
    got = caller.post(path, {"reason": "not needed"}, key="c")
    assert (got.status, got.data["task"]) == (200, {"id": task_id, "state": "CANCELLED", "cancel_requested": False})
    assert caller.post(path, {"reason": "not needed"}, key="c").data["deduplicated"] is True
    assert caller.get(f"/v1/tasks/{task_id}").data["state"] == "CANCELLED"
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["subject_id"], newest["reason"]) == ("task.cancel", task_id, "not needed")
    types = [each["type"] for each in caller.get(f"/v1/tasks/{task_id}/events").data]
    assert types == ["task.cancelled", "task.submitted"]


@pytest.mark.requirement("R165")
def test_r098_a_waiting_task_says_why(caller: Caller) -> None:
    queue = make_queue(caller)
    first, second = (submit(caller).data["task"]["id"] for _ in range(2))
    got = caller.get(f"/v1/tasks/{second}:explain").data
    assert (got["reason"], got["details"]["ahead_in_lane"]) == ("NO_COMPATIBLE_WORKER", "1")
    body = {"expected_revision": "1", "reason": "r", "paused": True, "max_concurrency": 8, "rate_per_second": 1}
    caller.post(f"/v1/queues/{queue['id']}:configure", body | {"max_unfinished_tasks": 9})
    assert caller.get(f"/v1/tasks/{first}").data["wait_reason"] == "QUEUE_PAUSED"
    caller.post(f"/v1/tasks/{first}:cancel", {"reason": "r"})
    assert caller.get(f"/v1/tasks/{first}:explain").data["reason"] is None


def is_waited_for(node: Node, task_id: str) -> bool:
    return bytes.fromhex(task_id) in node.pulse.changes._waiting  # noqa: SLF001  (nothing else tells of a waiter)


def test_a_reader_waits_until_the_task_changes(caller: Caller, node: Node, database: Database) -> None:
    make_queue(caller)
    task_id = submit(caller).data["task"]["id"]
    waiting = gevent.spawn(caller.get, f"/v1/tasks/{task_id}?wait_seconds=30")
    wait_until(lambda: is_waited_for(node, task_id))
    caller.post(f"/v1/tasks/{task_id}:cancel", {"reason": "r"})
    assert waiting.get(timeout=60).data["state"] == "CANCELLED"
    again = caller.get(f"/v1/tasks/{task_id}?wait_seconds=30&after_revision=1")
    assert again.data["revision"] == "2"
    other = submit(caller).data["task"]["id"]
    assert caller.get(f"/v1/tasks/{other}?wait_seconds=0.01&after_revision=1").data["state"] == "WAITING"
    # A change of another node makes no signal here: it is read.
    waiting = gevent.spawn(caller.get, f"/v1/tasks/{other}?wait_seconds=30&after_revision=1")
    wait_until(lambda: is_waited_for(node, other))
    statement = update(task).where(task.c.id == bytes.fromhex(other)).values(revision=2)
    database.transaction(lambda tx: tx.expect(statement, count=1))
    assert waiting.get(timeout=60).data["revision"] == "2"
    assert not node.state.draining
    for bad in ("wait_seconds=31", "wait_seconds=x", "after_revision=-1", f"after_revision={2**64}"):
        assert caller.get(f"/v1/tasks/{other}?{bad}").status == 400
