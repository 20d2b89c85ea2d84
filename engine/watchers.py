"""Wait until an instance has changed: the long poll behind `after_revision`.

A change made by this process wakes its waiters after COMMIT. Changes by other nodes are seen by one shared read of the
revisions of all instances that are waited for, at most every 250 ms however many callers wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from engine.store.instances import instance_revisions
from orbit.database import Database
from orbit.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_SECONDS = 0.25
WAIT_SECONDS_MAX = 30.0


class _Waiter:
    __slots__ = ("after_revision", "changed")

    def __init__(self, after_revision: int) -> None:
        self.after_revision = after_revision
        self.changed = Event()


class Watchers:
    """All callers of this process that wait for an instance."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiters: dict[bytes, set[_Waiter]] = {}
        self._prober: gevent.Greenlet[[], None] | None = None
        self._stopping = Event()

    def instances_changed(self, ids: Sequence[bytes]) -> None:
        """Wake those who wait for these instances; called after COMMIT."""
        for identifier in ids:
            for waiter in self._waiters.get(identifier, ()):
                waiter.changed.set()

    def wait(self, instance_id: bytes, *, after_revision: int, seconds: float) -> None:
        """Return when the instance may have a later revision, or when the time is over; the caller reads it again."""
        waiter = _Waiter(after_revision)
        self._waiters.setdefault(instance_id, set()).add(waiter)
        if self._prober is None or self._prober.dead:
            self._prober = gevent.spawn(self._probe)
        try:
            waiter.changed.wait(min(max(seconds, 0.0), WAIT_SECONDS_MAX))
        finally:
            waiters = self._waiters[instance_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[instance_id]

    def stop(self) -> None:
        """Let all waiters go."""
        self._stopping.set()
        for waiter in self._all():
            waiter.changed.set()
        if self._prober is not None:
            self._prober.join()

    def _all(self) -> Iterator[_Waiter]:
        return (waiter for waiters in list(self._waiters.values()) for waiter in list(waiters))

    def _probe(self) -> None:
        """Run while anybody waits. The first read comes at once: the revision may have passed before the wait began."""
        while self._waiters and not self._stopping.is_set():
            started = time.monotonic()
            try:
                revisions = self._database.transaction(partial(instance_revisions, ids=list(self._waiters)))
            except Unavailable:
                revisions = {}
            for identifier, revision in revisions.items():
                for waiter in self._waiters.get(identifier, ()):
                    if revision > waiter.after_revision:
                        waiter.changed.set()
            self._stopping.wait(max(PROBE_SECONDS - (time.monotonic() - started), 0.01))
