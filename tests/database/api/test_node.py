"""The node's own resources, the OpenAPI document, and a database that goes away."""

from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from api.bodies import pointer_of
from api.models.fields import Request
from api.server import Node
from orbit.database import Database
from orbit.errors import Unavailable
from tests.support.http import Api, Caller


def test_the_document_describes_what_is_served_and_nothing_else(api: Api, node: Node) -> None:
    got = api.request("GET", "/openapi.json", headers={})
    assert got.status == 200
    document = got.json
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(operation.method, operation.path) for operation in node.operations}
    names = [method["operationId"] for methods in document["paths"].values() for method in methods.values()]
    assert len(names) == len(set(names))
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert "\\A" not in str(schema), name


def test_every_request_schema_refuses_what_the_server_refuses(api: Api) -> None:
    """The document's schemas and the validating models are one source: they agree on unknown and missing fields."""
    components = api.document["components"]
    models: list[type[Request]] = [operation.request for operation in api.operations if operation.request is not None]
    assert models
    for model in models:
        schema = components["schemas"][model.__name__] | {"components": components}
        validator = Draft202012Validator(schema)
        assert not validator.is_valid({"no_such_field": 1})
        required = [field.encode_name for field in msgspec.structs.fields(model) if field.required]
        assert sorted(schema["required"]) == sorted(required)


def test_every_operation_that_changes_asks_for_a_key_and_a_scope(node: Node) -> None:
    open_to_all = {operation.path for operation in node.operations if operation.scope is None}
    assert open_to_all == {"/healthz", "/readyz", "/metrics", "/openapi.json"}
    posts = {operation.path: operation.keyed for operation in node.operations if operation.method == "POST"}
    # A batch of tasks has a key for each item, in the body; checking and previewing change nothing; the token of a
    # delivery says which one is meant.
    assert {path for path, keyed in posts.items() if not keyed} == {
        "/v1/batches:preview",
        "/v1/schedules:preview",
        *(f"/v1/subscriptions/{{subscription_id}}:{what}" for what in ("ack", "extend", "pull", "replay")),
        "/v1/tasks:batch",
        "/v1/workflows:check",
    }


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        (None, ""),
        ("$", ""),
        ("$.a", "/a"),
        ("$.a[0].b", "/a/0/b"),
        ("$.labels[...]", "/labels"),
        ("key` in `$.labels", "/labels"),
    ],
)
def test_paths_become_pointers(path: str | None, pointer: str) -> None:
    assert pointer_of(path) == pointer


def test_health_and_readiness(api: Api, node: Node) -> None:
    assert api.request("GET", "/healthz", headers={}).data == {"status": "ok"}
    assert api.request("GET", "/readyz", headers={}).status == 200
    node.state.draining = True
    got = api.request("GET", "/readyz", headers={})
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "UNAVAILABLE", "1")
    assert api.request("GET", "/healthz", headers={}).status == 200


@pytest.mark.requirement("R189")
def test_r192_metrics_name_what_operators_look_for_and_no_secret(api: Api, caller: Caller, node: Node) -> None:
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    caller.post("/v1/tasks", {"queue": "images", "type": "echo", "version": 1})
    node.watchdog.run_once()
    text = api.request("GET", "/metrics", headers={}).body.decode()
    for name in (
        "orbit_tasks_unfinished 1.0", "orbit_permits_active", "orbit_task_start_delay_seconds", "orbit_task_retries",
        "orbit_attempts_lost", "orbit_database_transactions_total", "orbit_database_retries",
        "orbit_database_deadlocks", "orbit_database_errors", 'orbit_batches_total{operation="submit"} 1.0',
        "orbit_workers_connected", "orbit_hub_delay_seconds", "orbit_process_resident_bytes", "orbit_process_requests",
    ):  # fmt: skip
        assert name in text, name
    assert caller.token.partition(".")[2] not in text
    assert "images" not in text


def test_a_database_that_is_away_gives_503_and_comes_back(
    api: Api, caller: Caller, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller.get("/v1/queues").status == 200

    def away(*_arguments: Any, **_options: Any) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(database, "transaction", away)
        for got in (caller.get("/v1/queues"), caller.post("/v1/queues", {"name": "a", "max_concurrency": 1,
                                                                         "rate_per_second": 1})):  # fmt: skip
            assert (got.status, got.code, got.headers["retry-after"]) == (503, "UNAVAILABLE", "1")
        assert "orbit_database_errors" in api.request("GET", "/metrics", headers={}).body.decode()
    assert caller.get("/v1/queues").status == 200
