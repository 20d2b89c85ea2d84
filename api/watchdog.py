"""Looks once a second how late the event loop comes back, and takes over what others count.

A hub that is late means that something blocked it: a native call, or too much pure Python at a stretch. The figure is
a metric, and a delay over the limit is logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.event import Event

from orbit.batcher import Batcher
from orbit.database import Database
from orbit.logs import get_logger
from orbit.metrics import Metrics

TICK_SECONDS = 0.1
LATE_SECONDS = 0.05
_SYNC_TICKS = 10

_log = get_logger(__name__)


class Watchdog:
    """One greenlet: `start`, `stop`."""

    def __init__(
        self,
        metrics: Metrics,
        database: Database,
        batchers: Callable[[], Iterable[Batcher[Any, Any]]],
        sample: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._database = database
        self._batchers = batchers
        self._sample = sample
        self._stopping = Event()
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """End the loop."""
        self._stopping.set()
        if self._greenlet is not None:
            self._greenlet.join()

    def run_once(self) -> None:
        """Take over the counts of database and batchers."""
        self._sample()
        self._metrics.sync_database(self._database.counts)
        for batcher in self._batchers():
            self._metrics.sync(self._metrics.batches, batcher.batches, label=batcher.name)
            self._metrics.sync(self._metrics.batch_items, batcher.items, label=batcher.name)

    def _loop(self) -> None:
        ticks = 0
        while True:
            began = time.monotonic()
            if self._stopping.wait(TICK_SECONDS):
                return
            late = max(0.0, time.monotonic() - began - TICK_SECONDS)
            self._metrics.hub_delay_seconds.observe(late)
            if late > LATE_SECONDS:
                _log.warning("hub.late", extra={"ms": round(late * 1000)})
            ticks += 1
            if ticks % _SYNC_TICKS == 0:
                self.run_once()
