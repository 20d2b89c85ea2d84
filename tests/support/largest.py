"""The largest definition that is legal, and a client that asks a node again and again while somebody works with it."""

import http.client
import threading
import time
from typing import Self
from urllib.parse import urlsplit

from definitions.limits import SOURCE_BYTES_MAX, STEPS_MAX

GAP_SECONDS = 0.005
_HEAD = """\
orbit: weave/1
workflow: %s
version: %d
input: {type: object, required: [amount, name], properties: {amount: {type: number}, name: {type: string}}}
timeout: 10d
defaults: {queue: %s}
steps:
- {id: s0, task: noop@1}
"""
_STEP = """\
- id: s%(number)d
  title: %(title)s
  task: noop@1
  when: input.amount > %(number)d.5 && input.name != "n%(number)d"
  input: {a: "${ input.name }-%(number)d", b: "${ default(steps.s%(before)d.output.ref, %(number)d) }", c: [%(number)d]}
"""


def largest(workflow: str, version: int = 1, *, queue: str = "main") -> str:
    """Write a definition of as many steps as there may be, as long as it may be; no two steps are alike."""

    def written(title: str) -> str:
        steps = ({"number": number, "before": number - 1, "title": title} for number in range(1, STEPS_MAX))
        return _HEAD % (workflow, version, queue) + "".join(_STEP % step for step in steps)

    return written("x" * ((SOURCE_BYTES_MAX - len(written(""))) // STEPS_MAX))


class Pinger:
    """Asks a node for its health on a connection of its own, and keeps in seconds how long each answer took."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self.spans: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._http.close()

    def _loop(self) -> None:
        while not self._ending.wait(GAP_SECONDS):
            begun = time.monotonic()
            self._http.request("GET", "/healthz")
            self._http.getresponse().read()
            self.spans.append(time.monotonic() - begun)
