"""Connections that are kept open while nobody uses them, and who gets one next.

SQLAlchemy's own pool makes a `Connection` and its records anew each time, which costs a transaction of one statement a
fifth of its processor time. Here the `Connection` itself is kept. Whoever has waited longest gets the next one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

from orbit.errors import Unavailable

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


class Connections:
    """At most `size` connections of an engine. One that was taken is given back, or dropped if it is not sound."""

    def __init__(self, engine: Engine, *, size: int, wait_seconds: float) -> None:
        self.engine = engine
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._size = self._room = size
        self._idle: list[Connection] = []
        # Each gets a connection, or None: the right to open one.
        self._waiting: deque[queue.SimpleQueue[Connection | None]] = deque()

    @property
    def taken_count(self) -> int:
        """Say how many are in use."""
        return self._size - self._room - len(self._idle)

    def take(self) -> Connection:
        """Return a connection, opened if none is idle; raise Unavailable if none comes free in time."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            is_room = self._room > 0
            if is_room:
                self._room -= 1
            else:
                mine: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
                self._waiting.append(mine)
        return self._open() if is_room else self._wait(mine)

    def give(self, connection: Connection) -> None:
        """Give a connection back that is ready for its next transaction."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(connection)
            else:
                self._idle.append(connection)

    def drop(self, connection: Connection) -> None:
        """Throw a connection away of which nobody can say where it stands."""
        try:
            connection.invalidate()
            connection.close()
        finally:
            self._make_room()

    def drop_idle(self) -> None:
        """Throw away what is idle, as when the server has gone: it took all connections along."""
        for connection in self._take_idle():
            self.drop(connection)

    def close(self) -> None:
        """Close what is idle; for the end, when nothing is taken."""
        for connection in self._take_idle():
            connection.close()
        self.engine.dispose()

    def _take_idle(self) -> list[Connection]:
        with self._lock:
            idle, self._idle = self._idle, []
        return idle

    def _open(self) -> Connection:
        try:
            return self.engine.connect()
        except BaseException:
            self._make_room()
            raise

    def _make_room(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(None)
            else:
                self._room += 1

    def _wait(self, mine: queue.SimpleQueue[Connection | None]) -> Connection:
        try:
            given = mine.get(timeout=self._wait_seconds)
        except BaseException as error:
            self._leave(mine)
            if isinstance(error, queue.Empty):
                raise Unavailable("no database connection is free") from None
            raise
        return self._open() if given is None else given

    def _leave(self, mine: queue.SimpleQueue[Connection | None]) -> None:
        """Stop waiting; what was given at that very moment goes on to the next."""
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return
        given = mine.get_nowait()
        if given is None:
            self._make_room()
        else:
            self.give(given)
