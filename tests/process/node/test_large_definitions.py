"""A node goes on answering while somebody publishes the largest definition that is legal, and asks for its difference.

No span has a bound, as other tests slow this one down: an answer that had to wait for the whole work took most of the
time that the work took, and one that was let in between took little of it.
"""

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from time import monotonic
from urllib.parse import urlsplit

import pytest

from definitions.compiler import compile_definition
from definitions.limits import SOURCE_BYTES_MAX, STEPS_MAX
from tests.support.fleet import fleet
from tests.support.largest import Pinger, largest

TRIES = 3
PART_MAX = 0.35  # in fact it is about 0.1, and 0.6 where the loop compiles


def longest_part(url: str, work: Callable[[], object]) -> float:
    """Do some work on a node and return the longest wait of others meanwhile, as a part of the time that it took."""
    with Pinger(url) as pinger:
        begun = monotonic()
        work()
        seconds = monotonic() - begun
    return max(pinger.spans, default=seconds) / seconds


def test_the_largest_definition_is_legal() -> None:
    text = largest("large")
    graph = compile_definition(text).graph
    assert graph is not None
    assert len(graph.nodes) == STEPS_MAX
    assert 0.99 * SOURCE_BYTES_MAX < len(text) <= SOURCE_BYTES_MAX


@pytest.mark.databases("sqlite", "mysql")
def test_nobody_waits_for_a_large_definition_that_is_another_s(short_folder: Path, database_url: str) -> None:
    with fleet(short_folder, database_url) as made:
        node = made.node()
        parts = urlsplit(node.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        headers = {"Authorization": f"Bearer {made.token}", "Content-Type": "application/json"}

        def ask(method: str, path: str, wanted: int, source: str | None = None) -> None:
            body = None if source is None else json.dumps({"source": source})
            connection.request(method, path, body, headers | {"Idempotency-Key": token_hex(8)} if body else headers)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == wanted, content[:500]

        def publish(version: int) -> None:
            ask("POST", "/v1/workflows", 201, largest("large", version))

        publish(1)
        versions = iter(range(2, 2 + TRIES))
        assert min(longest_part(node.url, lambda: publish(next(versions))) for _ in range(TRIES)) < PART_MAX
        compare = "/v1/workflows/large:diff?from=1&to=2"
        assert min(longest_part(node.url, lambda: ask("GET", compare, 200)) for _ in range(TRIES)) < PART_MAX
        connection.close()
        assert node.errors() == []
