"""Counts the requests that are being answered, up to their last byte, so that a draining node can wait for them.

A scrape shows the count too, and is itself one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gevent.event import Event
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

Application = Callable[..., Iterable[bytes]]


class InFlight:
    """The number of requests under way; `counted` wraps the application whose requests are meant."""

    def __init__(self) -> None:
        self.count = 0
        self._idle = Event()
        self._idle.set()

    def counted(self, application: Application) -> Application:
        """Return the application with its requests counted."""

        def run(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            self._enter()
            try:
                return _Answer(application(environ, start_response), self._leave)
            except BaseException:
                self._leave()
                raise

        return run

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no request is under way; return False if that took longer than `seconds`."""
        return bool(self._idle.wait(seconds))

    def _enter(self) -> None:
        self.count += 1
        self._idle.clear()

    def _leave(self) -> None:
        self.count -= 1
        if not self.count:
            self._idle.set()


class InFlightCollector(Collector):
    """The requests that the answering process has under way: callers that wait for a change are among them."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauge, labelled like the process's other figures."""
        family = GaugeMetricFamily(
            "orbit_process_requests", "Requests being answered, this one included", labels=["pid"]
        )
        family.add_metric([str(os.getpid())], self._in_flight.count)
        yield family


class _Answer:
    """An answer's body; the server closes it after the last byte, or when the client is gone."""

    def __init__(self, body: Iterable[bytes], leave: Callable[[], None]) -> None:
        self._body = body
        self._leave: Callable[[], None] | None = leave

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the body."""
        return iter(self._body)

    def __len__(self) -> int:
        """Return the number of parts, by which servers know that one part is all."""
        return len(self._body) if isinstance(self._body, list | tuple) else 2

    def close(self) -> None:
        """Count the request as answered, once."""
        leave, self._leave = self._leave, None
        if leave is not None:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
            leave()
