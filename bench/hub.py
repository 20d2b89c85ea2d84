"""W3: how long a node lets others wait while somebody works with the largest definition that is legal.

    python -m bench.hub [--database-url mysql+pymysql://user:password@host/name] [--rounds 10]

Meanwhile another connection asks `/healthz` every 5 ms and times each answer: it is late where the event loop was held.
The surroundings are those of `bench.pipeline`; what is measured and how stands in `bench/README.md`.
"""

import argparse
import http.client
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from bench.stage import Link, stage
from definitions.limits import STEPS_MAX
from tests.support.largest import Pinger, largest

REST_SECONDS = 5.0
HELD_MS = 50  # the longest that the loop may be held at a stretch


class Asker:
    """Calls operations on a connection of its own and counts the answers by their status, refusals too."""

    def __init__(self, link: Link) -> None:
        parts = urlsplit(link.url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port)
        self._token = link.token

    def ask(self, method: str, path: str, body: Any = None) -> int:
        """Call an operation, return its status."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        answer.read()
        return answer.status


def measure(url: str, name: str, work: Callable[[], Iterable[object]]) -> None:
    """Do some work, ping meanwhile, print."""
    with Pinger(url) as pinger:
        begun = time.perf_counter()
        found = Counter(work())
        seconds = time.perf_counter() - begun
    spans = sorted(1_000 * span for span in pinger.spans)
    median, most_of, nearly_all = (spans[int(part * (len(spans) - 1))] for part in (0.5, 0.99, 0.999))
    slow = sum(span > HELD_MS for span in spans)
    answers = ", ".join(f"{count} x {status}" for status, count in found.items())
    print(
        f"{name:24}{seconds:6.1f} s {len(spans):6} pings: median {median:5.1f}, 99 % {most_of:6.1f}, 99.9 % "
        f"{nearly_all:6.1f}, longest {spans[-1]:6.1f} ms, {slow} over {HELD_MS} ms  ({answers})",
        flush=True,
    )


def rest() -> list[str]:
    """Do nothing for a while."""
    threading.Event().wait(REST_SECONDS)
    return []


def main() -> None:
    """Set everything up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", help="an empty or Orbit's own database; MySQL of its own if not given")
    parser.add_argument("--rounds", type=int, default=10, help="how many definitions")
    options = parser.parse_args()
    rounds = range(options.rounds)
    texts = {
        (number, version): largest(f"w{number}", version, queue="bench") for number in rounds for version in (1, 2)
    }
    print(f"definition             {len(texts[0, 1])} bytes, {STEPS_MAX} steps")
    begun = time.monotonic()
    with stage(options.database_url, capacity=8) as found:
        asker = Asker(found.link)

        def each(method: str, path: str, body: Callable[[int], Any] | None = None) -> Callable[[], Iterable[object]]:
            return lambda: [asker.ask(method, path.format(number), body and body(number)) for number in rounds]

        works: dict[str, Callable[[], Iterable[object]]] = {
            "at rest": rest,
            "check": each("POST", "/v1/workflows:check", lambda number: {"source": texts[number, 1]}),
            "publish": each("POST", "/v1/workflows", lambda number: {"source": texts[number, 1]}),
            "publish a successor": each("POST", "/v1/workflows", lambda number: {"source": texts[number, 2]}),
            "publish something else": each(
                "POST", "/v1/workflows", lambda number: {"source": texts[number, 1].replace("10d", "9d")}
            ),
            "read a graph": each("GET", "/v1/workflows/w{}/versions/1/graph"),
            "draw a graph": each("GET", "/v1/workflows/w{}/versions/1/graph?format=svg"),
            "compare versions": each("GET", "/v1/workflows/w{}:diff?from=1&to=2"),
            "start an instance": each(
                "POST", "/v1/instances", lambda number: {"workflow": f"w{number}", "input": {"amount": 1, "name": "a"}}
            ),
            "afterwards": rest,
        }
        found.link.pause(paused=True)  # what is started stays before its first task
        for name, work in works.items():
            measure(found.link.url, name, work)
        print(f"processors since then   {found.moods.since(begun)}")


if __name__ == "__main__":
    main()
