"""Wait until an instance has changed: the long poll behind `after_revision`.

A change made by this process wakes its waiters after COMMIT. Changes by other nodes are seen by one shared read of the
revisions of all instances that are waited for, at most every 250 ms however many callers wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import gevent
from gevent.event import Event

from engine.store.instances import instance_revisions
from orbit.database import Database
from orbit.errors import Unavailable

PROBE_SECONDS = 0.25
WAIT_SECONDS_MAX = 30.0


class Watch:
    """One caller's interest in an instance, registered before its first read, so that no change falls between."""

    __slots__ = ("_changed", "awaits_end", "revision")

    def __init__(self, *, awaits_end: bool) -> None:
        self.awaits_end = awaits_end
        self.revision = 0
        self._changed = Event()

    def wait(self, seen_revision: int, seconds: float) -> bool:
        """Wait until the instance may have a later revision than the one that was seen; False when the time is over."""
        self.revision = seen_revision
        is_woken = self._changed.wait(min(max(seconds, 0.0), WAIT_SECONDS_MAX))
        self._changed.clear()
        return is_woken

    def wake(self) -> None:
        """Let the caller read again."""
        self._changed.set()


class Watchers:
    """All callers of this process that wait for an instance."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watches: dict[bytes, set[Watch]] = {}
        self._prober: gevent.Greenlet[[], None] | None = None
        self._stopping = Event()

    def instances_changed(self, ids: Sequence[bytes]) -> None:
        """Wake those who wait for these instances; called after COMMIT."""
        for identifier in ids:
            for watch in self._watches.get(identifier, ()):
                watch.wake()

    def instances_moved(self, ids: Sequence[bytes]) -> None:
        """Wake those who wait for any change of these instances, none of which has ended; called after COMMIT."""
        for identifier in ids:
            for watch in self._watches.get(identifier, ()):
                if not watch.awaits_end:
                    watch.wake()

    @contextmanager
    def watch(self, instance_id: bytes, *, awaits_end: bool = False) -> Iterator[Watch]:
        """Register an interest in an instance for as long as the block runs."""
        watch = Watch(awaits_end=awaits_end)
        self._watches.setdefault(instance_id, set()).add(watch)
        if self._prober is None or self._prober.dead:
            self._prober = gevent.spawn(self._probe)
        try:
            yield watch
        finally:
            watches = self._watches[instance_id]
            watches.discard(watch)
            if not watches:
                del self._watches[instance_id]

    @property
    def is_stopping(self) -> bool:
        """Tell whether nobody should wait any longer."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Let all who wait go."""
        self._stopping.set()
        for watch in self._all():
            watch.wake()
        if self._prober is not None:
            self._prober.join()

    def _all(self) -> Iterator[Watch]:
        return (watch for watches in list(self._watches.values()) for watch in list(watches))

    def _probe(self) -> None:
        """Read the revisions while anybody waits."""
        while self._watches and not self._stopping.is_set():
            started = time.monotonic()
            try:
                revisions = self._database.transaction(partial(instance_revisions, ids=list(self._watches)))
            except Unavailable:
                revisions = {}
            for identifier, revision in revisions.items():
                for watch in self._watches.get(identifier, ()):
                    if revision > watch.revision:
                        watch.wake()
            self._stopping.wait(max(PROBE_SECONDS - (time.monotonic() - started), 0.01))
