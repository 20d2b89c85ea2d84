"""What is the same for every request: the envelope, authentication, strict bodies, refusals without inner detail."""

import re
import time

import pytest

from api.calls import Operation
from api.envelope import INTERNAL_MESSAGE
from orbit.database import Database
from orbit.jsontext import Json
from orbit.store import tenancy
from tests.support.http import Api, Caller

QUEUE = {"name": "images", "max_concurrency": 8, "rate_per_second": 100}


def test_every_refused_credential_gets_the_same_body(api: Api, caller: Caller, database: Database) -> None:
    identifier, _, secret = caller.token.partition(".")
    revoked = api.caller()
    database.transaction(lambda tx: tenancy.credential_revoke(tx, revoked.credential_id))
    gone = api.caller(namespace="gone")
    namespace_id = api.namespace("gone").id
    database.transaction(lambda tx: tenancy.namespace_disable(tx, namespace_id))
    headers = [
        {},
        {"Authorization": ""},
        {"Authorization": "Basic YTpi"},
        {"Authorization": f"Bearer {identifier}"},
        {"Authorization": f"Bearer {identifier}.{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}"},
        {"Authorization": f"Bearer {'0' * 32}.{secret}"},
        {"Authorization": f"Bearer {identifier}.{secret}x"},
        {"Authorization": f"Bearer {revoked.token}"},
        {"Authorization": f"Bearer {gone.token}"},
    ]
    answers = [api.request("GET", "/v1/queues", headers=each) for each in headers]
    assert {answer.status for answer in answers} == {401}
    assert len({str(answer.json["error"]) for answer in answers}) == 1
    assert caller.get("/v1/queues").status == 200


@pytest.mark.requirement("R181")
def test_a_revoked_credential_is_refused_when_the_cached_second_is_over(
    api: Api, caller: Caller, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller.get("/v1/queues").status == 200
    database.transaction(lambda tx: tenancy.credential_revoke(tx, caller.credential_id))
    later = time.monotonic() + 1.0
    monkeypatch.setattr("api.authentication.time.monotonic", lambda: later)
    assert caller.get("/v1/queues").status == 401


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b'{"name":"a","name":"b","max_concurrency":1,"rate_per_second":1}', "twice"),
        (b'{"name":"a","max_concurrency":NaN,"rate_per_second":1}', "NaN"),
        (b'{"name":"a","max_concurrency":Infinity,"rate_per_second":1}', "Infinity"),
        (b'{"name":"\\ud800","max_concurrency":1,"rate_per_second":1}', "surrogate"),
        (b'{"name":"\xff","max_concurrency":1,"rate_per_second":1}', "UTF-8"),
        (b'{"name":"a","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "deep"),
        (b'{"name":"a","x":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}", "deep"),
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xef\xbb\xbf{}", "JSON"),
    ],
)
def test_a_body_that_is_not_strict_json_is_refused(caller: Caller, raw: bytes, word: str) -> None:
    got = caller.post("/v1/queues", raw=raw)
    assert (got.status, got.code) == (400, "INVALID_REQUEST")
    assert word in got.json["error"]["message"]


@pytest.mark.parametrize("raw", [b"[]", b"null", b'"x"', b"1"])
def test_a_body_that_is_no_object_is_refused(caller: Caller, raw: bytes) -> None:
    got = caller.post("/v1/queues", raw=raw)
    assert (got.status, got.code, got.pointer) == (400, "INVALID_REQUEST", "")


def test_pointers_are_escaped(caller: Caller) -> None:
    assert caller.post("/v1/queues", QUEUE | {"a/b~c": 1}).pointer == "/a~1b~0c"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "two words"}, "the field 'name': expected a text of the form [A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"),
        ({"max_concurrency": "8"}, "the field 'max_concurrency': expected int, got str"),
    ],
)
def test_the_message_alone_says_which_field_is_wrong_and_how(caller: Caller, wrong: Json, words: str) -> None:
    assert caller.post("/v1/queues", QUEUE | wrong).json["error"]["message"] == words


def test_json_that_is_none_is_said_to_be_so_once(caller: Caller) -> None:
    got = caller.post("/v1/queues", raw=b'{"name": images}')
    assert got.json["error"]["message"] == "the body is not valid JSON: expecting value at line 1 column 10"


def test_paths_and_methods_that_do_not_exist(api: Api, caller: Caller) -> None:
    got = caller.get("/v1/nothing")
    assert (got.status, got.code) == (404, "NOT_FOUND")
    got = api.request("PUT", "/v1/queues", headers={"Authorization": f"Bearer {caller.token}"})
    assert (got.status, got.code) == (405, "METHOD_NOT_ALLOWED")
    assert set(got.headers["allow"].split(", ")) >= {"GET", "POST"}
    assert got.headers["allow"] in got.json["error"]["message"]
    assert api.request("PUT", "/v1/queues", headers={}).status == 401


def test_a_fault_is_answered_without_inner_detail(database: Database) -> None:
    def fail(_call: object) -> object:
        raise RuntimeError("secret detail")

    api = Api(database, [Operation("GET", "/v1/fault", "Fail", fail, None)])  # type: ignore[arg-type]
    got = api.request("GET", "/v1/fault", headers={})
    assert (got.status, got.json["error"]) == (500, {"code": "INTERNAL", "message": INTERNAL_MESSAGE})


def test_every_request_has_an_id_of_its_own(caller: Caller) -> None:
    ids = [caller.get("/v1/queues").json["request_id"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"[0-9a-f]{32}", each) for each in ids)


def test_no_namespace_header_is_heeded(api: Api, caller: Caller) -> None:
    caller.post("/v1/queues", QUEUE)
    other = api.caller(namespace="other")
    headers = {"Authorization": f"Bearer {other.token}", "X-Namespace": api.namespace().id.hex()}
    assert api.request("GET", "/v1/queues", headers=headers).data == []
