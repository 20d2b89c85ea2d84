"""The queue API, to the letter of its first version."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import func, select

from api.bodies import body_read
from api.models.queues import CreateQueue
from orbit.database import Database, Transaction
from orbit.jsontext import dumps, parse
from orbit.store import tenancy
from orbit.store.receipts import receipt_id
from orbit.tables import audit, event, receipt
from pulse.tables import queue
from tests.support.http import Api, Caller

SEED_CREATE = b'{"name":"images","max_concurrency":8,"rate_per_second":100}'
SEED_CONFIGURE = (
    b'{"expected_revision":"1","reason":"limit background traffic","paused":false,"max_concurrency":2,'
    b'"rate_per_second":1,"max_unfinished_tasks":100}'
)
BAD_NUMBERS = [0, -1, 8.5, 8.0, "8", True, None]


def create(caller: Caller, name: str = "images", **changes: Any) -> dict[str, Any]:
    got = caller.post("/v1/queues", {"name": name, "max_concurrency": 8, "rate_per_second": 100} | changes)
    assert got.status == 201, got.json
    made: dict[str, Any] = got.data["queue"]
    return made


def configuration(**changes: Any) -> dict[str, Any]:
    return parse(SEED_CONFIGURE) | changes  # type: ignore[no-any-return]


def count(database: Database, table: Any) -> int:
    return database.transaction(lambda tx: int(tx.rows(select(func.count()).select_from(table))[0][0]))


def without_request_id(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "request_id"}


@pytest.mark.requirement("R013", "R014")
def test_r012_the_first_creation_answers_the_seeds_block_and_its_replay_the_same_queue(caller: Caller) -> None:
    first = caller.post("/v1/queues", raw=SEED_CREATE, key="queue-images-v1")
    assert first.status == 201
    assert list(first.data) == ["deduplicated", "queue"]
    made = first.data["queue"]
    assert list(made) == [
        "id", "namespace_id", "name", "paused", "max_concurrency", "rate_per_second", "max_unfinished_tasks",
        "unfinished_tasks", "revision",
    ]  # fmt: skip
    assert re.fullmatch(r"[0-9a-f]{32}", made["id"])
    assert re.fullmatch(r"[0-9a-f]{32}", made["namespace_id"])
    expected = {"name": "images", "paused": False, "max_concurrency": 8, "rate_per_second": 100}
    expected |= {"max_unfinished_tasks": 100_000, "unfinished_tasks": "0", "revision": "1"}
    assert {name: made[name] for name in expected} == expected
    assert first.data["deduplicated"] is False
    again = caller.post("/v1/queues", raw=SEED_CREATE, key="queue-images-v1")
    assert again.status == 200
    assert again.data == {"deduplicated": True, "queue": made}


@pytest.mark.requirement("R004")
def test_r003_creating_needs_the_scope_and_the_range_of_all_queues(api: Api, database: Database) -> None:
    for scopes, queues in ((["queues:read"], None), (["queues:manage"], ["a"])):
        for name in ("a", "b"):
            body = {"name": name, "max_concurrency": 1, "rate_per_second": 1}
            got = api.caller(scopes, queues=queues).post("/v1/queues", body)
            assert (got.status, got.code) == (403, "FORBIDDEN")
    assert count(database, queue) == count(database, receipt) == count(database, audit) == 0


def test_r005_the_frame_of_a_request_is_the_same_for_all_operations(api: Api, caller: Caller) -> None:
    posts = [operation for operation in api.operations if operation.method == "POST"]
    assert len(posts) >= 2
    for operation in posts:
        path = re.sub(r"\{\w+\}", "0" * 32, operation.path)
        anonymous = api.request("POST", path, body=b"{}", headers={"Content-Type": "application/json"})
        assert (anonymous.status, anonymous.code) == (401, "UNAUTHENTICATED")
        assert anonymous.headers["www-authenticate"] == "Bearer"
        text = caller.post(path, raw=b"{}", headers={"Content-Type": "text/plain"})
        assert (text.status, text.code) == (415, "UNSUPPORTED_MEDIA_TYPE")
        large = caller.post(path, raw=b'{"a":"' + b"x" * 600_000 + b'"}')
        assert (large.status, large.code) == (413, "PAYLOAD_TOO_LARGE")
        unknown = caller.post(path, {"no_such_field": 1})
        assert (unknown.status, unknown.code, unknown.pointer) == (400, "UNKNOWN_FIELD", "/no_such_field")


@pytest.mark.parametrize("key", [None, "", "x" * 129, "tab\there", "é"])
def test_r005_a_key_is_one_to_128_printable_ascii_characters(caller: Caller, key: str | None) -> None:
    headers = {} if key is None else {"Idempotency-Key": key}
    got = caller.post("/v1/queues", raw=SEED_CREATE, key=None, headers=headers)
    assert (got.status, got.code) == (400, "INVALID_REQUEST")
    assert "Idempotency-Key" in got.json["error"]["message"]


@pytest.mark.parametrize("name", ["a", "A9_.:-", "x" * 128])
def test_r006_names_that_are_allowed(caller: Caller, name: str) -> None:
    assert create(caller, name)["name"] == name


@pytest.mark.parametrize("name", ["", "x" * 129, "-a", ".a", "a b", "é", "a/b", "a\n", None, 1])
def test_r006_names_that_are_not(caller: Caller, name: Any) -> None:
    got = caller.post("/v1/queues", {"name": name, "max_concurrency": 1, "rate_per_second": 1})
    assert (got.status, got.code, got.pointer) == (400, "INVALID_REQUEST", "/name")


@pytest.mark.requirement("R016")
def test_r007_a_name_is_unique_in_its_namespace_and_exact(api: Api, caller: Caller) -> None:
    create(caller, "images")
    got = caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    assert (got.status, got.code) == (409, "STATE_CONFLICT")
    create(caller, "Images")
    create(api.caller(namespace="other"), "images")
    assert [each["name"] for each in caller.get("/v1/queues").data] == ["Images", "images"]


@pytest.mark.requirement("R009")
@pytest.mark.parametrize(("field", "maximum"), [("max_concurrency", 100_000), ("rate_per_second", 1_000_000)])
def test_r008_required_numbers_are_whole_and_in_range(caller: Caller, field: str, maximum: int) -> None:
    body = {"name": "images", "max_concurrency": 8, "rate_per_second": 100}
    for value in [*BAD_NUMBERS, maximum + 1, 10**30]:
        got = caller.post("/v1/queues", body | {field: value})
        assert (got.status, got.code, got.pointer) == (400, "INVALID_REQUEST", f"/{field}"), value
    absent = caller.post("/v1/queues", {name: value for name, value in body.items() if name != field})
    assert (absent.status, absent.pointer) == (400, f"/{field}")
    for value in (1, maximum):
        assert create(caller, f"q{value}", **{field: value})[field] == value


def test_r010_the_backlog_limit_is_optional_and_zero_means_the_default(caller: Caller) -> None:
    assert create(caller, "absent")["max_unfinished_tasks"] == 100_000
    assert create(caller, "zero", max_unfinished_tasks=0)["max_unfinished_tasks"] == 100_000
    assert create(caller, "null", max_unfinished_tasks=None)["max_unfinished_tasks"] == 100_000
    assert create(caller, "given", max_unfinished_tasks=1_000_000)["max_unfinished_tasks"] == 1_000_000
    for value in (1_000_001, -1, 1.5, "1", False):
        body = {"name": "bad", "max_concurrency": 8, "rate_per_second": 100, "max_unfinished_tasks": value}
        got = caller.post("/v1/queues", body)
        assert (got.status, got.pointer) == (400, "/max_unfinished_tasks"), value


@pytest.mark.requirement("R038")
def test_r015_a_key_with_another_meaning_is_a_conflict(caller: Caller) -> None:
    made = caller.post("/v1/queues", raw=SEED_CREATE, key="k").data["queue"]
    got = caller.post("/v1/queues", {"name": "images", "max_concurrency": 9, "rate_per_second": 100}, key="k")
    assert (got.status, got.code) == (409, "IDEMPOTENCY_CONFLICT")
    path = f"/v1/queues/{made['id']}:configure"
    assert caller.post(path, configuration(), key="k").status == 200
    got = caller.post(path, configuration(reason="another"), key="k")
    assert (got.status, got.code) == (409, "IDEMPOTENCY_CONFLICT")
    assert caller.get(f"/v1/queues/{made['id']}").data["revision"] == "2"


class Crash(Exception):
    pass


@contextmanager
def crash_before_commit(database: Database) -> Iterator[None]:
    """Fail every transaction at its very end, after all its statements."""

    def fail(_connection: object) -> None:
        raise Crash

    engines = {each.engine for each in database._connections.values()}  # noqa: SLF001  (the crash point of this test)
    for engine in engines:
        sqlalchemy_event.listen(engine, "commit", fail)
    try:
        yield
    finally:
        for engine in engines:
            sqlalchemy_event.remove(engine, "commit", fail)


@pytest.mark.requirement("R036")
def test_r017_what_is_made_its_receipt_its_audit_and_its_event_are_one_transaction(
    api: Api, caller: Caller, database: Database
) -> None:
    caller.get("/v1/queues")  # the credential is looked up and cached before the crash
    tables = (queue, receipt, audit, event)
    with crash_before_commit(database):
        assert caller.post("/v1/queues", raw=SEED_CREATE, key="k").status == 500
    assert [count(database, table) for table in tables] == [0, 0, 0, 0]
    made = caller.post("/v1/queues", raw=SEED_CREATE, key="k").data["queue"]
    assert [count(database, table) for table in tables] == [1, 1, 1, 1]
    caller.get("/v1/queues")
    with crash_before_commit(database):
        got = api.request(
            "POST",
            f"/v1/queues/{made['id']}:configure",
            body=SEED_CONFIGURE,
            headers={"Authorization": f"Bearer {caller.token}", "Content-Type": "application/json",
                     "Idempotency-Key": "c"},
        )  # fmt: skip
        assert got.status == 500
    assert caller.get(f"/v1/queues/{made['id']}").data == made
    assert [count(database, table) for table in tables] == [1, 1, 1, 1]
    assert caller.post(f"/v1/queues/{made['id']}:configure", raw=SEED_CONFIGURE, key="c").status == 200
    assert [count(database, table) for table in tables] == [1, 2, 2, 2]
    (found,) = caller.get("/v1/events?type=queue.configured").data
    assert (found["subject_id"], found["subject_revision"]) == (made["id"], "2")


@pytest.mark.requirement("R020", "R021", "R028")
def test_r019_reading_and_configuring_need_scope_and_range(api: Api, caller: Caller) -> None:
    ids = {name: create(caller, name)["id"] for name in ("a", "b")}
    foreign = create(api.caller(namespace="other"), "c")["id"]
    narrow = api.caller(queues=["a"])
    got = narrow.get(f"/v1/queues/{ids['a']}")
    assert (got.status, got.data["name"]) == (200, "a")
    assert narrow.post(f"/v1/queues/{ids['a']}:configure", raw=SEED_CONFIGURE).status == 200
    missing = narrow.get(f"/v1/queues/{'0' * 32}")
    assert (missing.status, missing.code) == (404, "NOT_FOUND")
    for other in (ids["b"], foreign, "not-an-id"):
        hidden = narrow.get(f"/v1/queues/{other}")
        assert hidden.status == 404
        assert without_request_id(hidden.json) == without_request_id(missing.json)
        assert narrow.post(f"/v1/queues/{other}:configure", raw=SEED_CONFIGURE).status == 404
    assert [each["name"] for each in narrow.get("/v1/queues").data] == ["a"]
    unread = api.caller(["queues:manage"])
    assert unread.get(f"/v1/queues/{ids['a']}").code == "FORBIDDEN"
    reader = api.caller(["queues:read"])
    assert reader.post(f"/v1/queues/{ids['a']}:configure", raw=SEED_CONFIGURE).code == "FORBIDDEN"


@pytest.mark.parametrize("value", [1, "0", "01", "-1", "1.0", "", str(2**64), "1\n", None])
def test_r030_the_expected_revision_is_a_non_zero_uint64_in_decimal(caller: Caller, value: Any) -> None:
    path = f"/v1/queues/{create(caller)['id']}:configure"
    got = caller.post(path, configuration(expected_revision=value))
    assert (got.status, got.pointer) == (400, "/expected_revision")


def test_r031_the_reason_is_not_blank_has_1024_characters_and_is_kept(caller: Caller) -> None:
    path = f"/v1/queues/{create(caller)['id']}:configure"
    for bad in ("", "  ", "\n\t", "💾" * 1025, None):
        got = caller.post(path, configuration(reason=bad))
        assert (got.status, got.pointer) == (400, "/reason")
    assert caller.post(path, configuration(reason="💾" * 1024)).status == 200
    newest = caller.get("/v1/audit").data[0]
    assert (newest["operation"], newest["reason"]) == ("queue.configure", "💾" * 1024)
    assert (newest["before"]["max_concurrency"], newest["after"]["max_concurrency"]) == (8, 2)
    assert newest["actor"] == caller.credential_id.hex()


@pytest.mark.requirement("R033", "R034")
def test_r032_configuring_has_no_defaults(caller: Caller) -> None:
    path = f"/v1/queues/{create(caller)['id']}:configure"
    for field in configuration():
        rest = {name: value for name, value in configuration().items() if name != field}
        got = caller.post(path, rest)
        assert (got.status, got.pointer) == (400, f"/{field}")
        assert caller.post(path, configuration(**{field: None})).pointer == f"/{field}"
    for paused in (0, "false", 1):
        assert caller.post(path, configuration(paused=paused)).pointer == "/paused"
    for field, maximum in (
        ("max_concurrency", 100_000),
        ("rate_per_second", 1_000_000),
        ("max_unfinished_tasks", 1_000_000),
    ):
        for value in [*BAD_NUMBERS, maximum + 1]:
            assert caller.post(path, configuration(**{field: value})).pointer == f"/{field}", value
    assert caller.post(path, configuration(max_unfinished_tasks=1)).status == 200


@pytest.mark.requirement("R029", "R037", "R039")
def test_r035_configuring_answers_like_creating_and_a_replay_answers_its_own_snapshot(caller: Caller) -> None:
    made = create(caller)
    path = f"/v1/queues/{made['id']}:configure"
    first = caller.post(path, raw=SEED_CONFIGURE, key="one")
    assert (first.status, first.data["queue"]["revision"]) == (200, "2")
    assert list(first.data["queue"]) == list(made)
    assert [first.data["queue"][name] for name in ("id", "name", "namespace_id")] == [
        made[name] for name in ("id", "name", "namespace_id")
    ]
    second = caller.post(path, configuration(expected_revision="2", paused=True, max_concurrency=7), key="two")
    assert second.data["queue"]["revision"] == "3"
    replay = caller.post(path, raw=SEED_CONFIGURE, key="one")
    assert (replay.status, replay.data) == (200, first.data | {"deduplicated": True})
    assert caller.get(f"/v1/queues/{made['id']}").data == second.data["queue"]
    stale = caller.post(path, configuration(expected_revision="2"), key="three")
    assert (stale.status, stale.code) == (409, "STATE_CONFLICT")
    assert stale.json["error"]["details"] == {"current_revision": "3"}


def test_r040_rights_are_checked_anew_on_every_replay(api: Api, caller: Caller, database: Database) -> None:
    queue_id = create(caller)["id"]
    manager = api.caller(["queues:manage", "queues:read"])
    path = f"/v1/queues/{queue_id}:configure"
    assert manager.post(path, raw=SEED_CONFIGURE, key="k").status == 200
    for scopes, queues, status in ((["queues:read"], None, 403), (["queues:manage"], ["other"], 404)):
        database.transaction(
            lambda tx, scopes=scopes, queues=queues: tenancy.credential_change(  # type: ignore[misc]
                tx, manager.credential_id, scopes=scopes, queues=queues
            )
        )
        api.authenticator.forget()
        assert manager.post(path, raw=SEED_CONFIGURE, key="k").status == status


def test_r089_fields_left_out_stay_out_of_the_digest(caller: Caller) -> None:
    stored = "e9b15e40fd564380798380e599967d58a13fbe534065d793db06ee715f782fe7"
    assert body_read(SEED_CREATE, CreateQueue).meaning.hex() == stored
    body = {"name": "images", "max_concurrency": 8, "rate_per_second": 100}
    assert caller.post("/v1/queues", body, key="k").status == 201
    for unset in (0, None):
        assert caller.post("/v1/queues", body | {"max_unfinished_tasks": unset}, key="k").status == 200
    explicit = caller.post("/v1/queues", body | {"max_unfinished_tasks": 100_000}, key="k")
    assert explicit.code == "IDEMPOTENCY_CONFLICT"


def test_r090_an_old_receipt_is_replayed_as_it_was(api: Api, caller: Caller, database: Database) -> None:
    made = caller.post("/v1/queues", raw=SEED_CREATE, key="k").data["queue"]
    old = {name: value for name, value in made.items() if not name.endswith("_tasks")}
    identifier = receipt_id(api.namespace().id, "queue.create", "", "k")

    def age(tx: Transaction) -> None:
        content = b'{"queue":' + dumps(old) + b"}"
        tx.expect(receipt.update().where(receipt.c.id == identifier).values(answer=content), count=1)

    database.transaction(age)
    headers = {"Authorization": f"Bearer {caller.token}", "Content-Type": "application/json", "Idempotency-Key": "k"}
    # Sent past the check against the document, which describes today's receipts.
    result = api.client.simulate_post("/v1/queues", body=SEED_CREATE, headers=headers)
    assert (result.status_code, result.json["data"]) == (200, {"deduplicated": True, "queue": old})


def test_queues_are_listed_page_by_page(caller: Caller) -> None:
    names = [f"q{number}" for number in range(5)]
    for name in names:
        create(caller, name)
    seen: list[str] = []
    cursor = ""
    while True:
        got = caller.get(f"/v1/queues?limit=2{cursor}")
        seen += [each["name"] for each in got.data]
        if got.json["next_cursor"] is None:
            break
        cursor = f"&cursor={got.json['next_cursor']}"
    assert seen == names
    for bad in ("limit=0", "limit=201", "limit=x", "cursor=%21%21", "cursor=WzFd", "nope=1", "limit=1&limit=2"):
        assert caller.get(f"/v1/queues?{bad}").status == 400
