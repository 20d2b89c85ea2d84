"""A schema-driven fuzzer against the whole API: no request makes a fault, no answer departs from the document."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks
from schemathesis.core.result import Ok

from api.server import Node
from orbit.database import Database
from tests.support.http import Api

EXAMPLES = 12


@pytest.fixture
def node(database: Database) -> Iterator[Node]:
    made = Node(database, name="fuzzed")
    yield made
    made.stop()


@pytest.mark.databases("sqlite")
def test_no_request_makes_a_fault(database: Database, node: Node) -> None:
    caller = Api(database, node.operations, node.authenticator).caller()
    caller.post("/v1/queues", {"name": "images", "max_concurrency": 8, "rate_per_second": 100})
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app=node.application)
    fuzzed: set[str] = set()
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found.err()
        operation = found.ok()

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def send(case: Any) -> None:
            case.call_and_validate(
                headers={"Authorization": f"Bearer {caller.token}"},
                checks=[
                    checks.not_a_server_error,
                    checks.status_code_conformance,
                    checks.content_type_conformance,
                    checks.response_schema_conformance,
                ],
            )

        send()
        fuzzed.add(f"{operation.method.upper()} {operation.path}")
    # The fuzzer leaves out the document itself.
    assert {f"{each.method} {each.path}" for each in node.operations} - fuzzed == {"GET /openapi.json"}
