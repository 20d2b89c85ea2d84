"""Wait for a task or instance to change: a signal within this process, and a re-read now and then for other nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeVar

from gevent.event import Event

_REREAD_SECONDS = 0.25

T = TypeVar("T")


class Changes:
    """Who waits for which id. Bounded by the number of requests that wait."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, set[Event]] = defaultdict(set)

    def announce(self, ids: Collection[bytes]) -> None:
        """Wake whoever waits for one of these."""
        if not self._waiting:
            return
        for identifier in ids:
            for event in self._waiting.get(identifier, ()):
                event.set()

    def wait_for(self, identifier: bytes, read: Callable[[], T], *, until: Callable[[T], bool], seconds: float) -> T:
        """Read again and again until `until` says so or the time is over; return the last reading.

        Reads after a change in this process at once, after one in another within 250 ms.
        """
        ends_at = time.monotonic() + seconds
        event = Event()
        self._waiting[identifier].add(event)
        try:
            while True:
                event.clear()
                value = read()
                left = ends_at - time.monotonic()
                if until(value) or left <= 0:
                    return value
                event.wait(min(left, _REREAD_SECONDS))
        finally:
            self._waiting[identifier].discard(event)
            if not self._waiting[identifier]:
                del self._waiting[identifier]
