"""The threads of a worker: as many as its capacity, started as needed, kept.

Nothing a handler does blocks the connection. The surprising rule: a burst of tasks wakes one thread, not all. If the
backlog does not melt within a millisecond, `tick` wakes more, twice as many each time. So handlers of microseconds
share a thread without a hop between threads a task, and handlers that block still all run within milliseconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

TICK_SECONDS = 0.001
_MELTING = 8  # a backlog that would be gone within this many ticks needs no further thread


class HandlerPool(Generic[ItemT]):
    """Runs `run(item)` for each item on daemon threads, and `leave()` when a thread ends; neither may raise."""

    def __init__(self, *, size: int, run: Callable[[ItemT], None], leave: Callable[[], None], name: str) -> None:
        self._size = size
        self._run = run
        self._leave = leave
        self._name = name
        self._work: deque[ItemT] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._taken = 0
        self._taken_seen = 0
        self._ramp = 1
        self._stopping = False

    @property
    def backlog(self) -> int:
        """Count the items that no thread has begun."""
        return len(self._work)

    def submit(self, items: Sequence[ItemT]) -> None:
        """Queue items and see to it that one thread runs."""
        with self._changed:
            if not self._work:
                self._ramp = 1
                self._taken_seen = self._taken
            self._work.extend(items)
            self._wake(1)

    def tick(self) -> None:
        """Wake more threads if the backlog does not melt. Called about every `TICK_SECONDS` while there is one."""
        with self._changed:
            waiting = len(self._work)
            taken = self._taken - self._taken_seen
            self._taken_seen = self._taken
            if waiting == 0:
                self._ramp = 1
            elif taken * _MELTING < waiting:
                self._ramp = min(self._ramp * 2, self._size)
                self._wake(min(self._ramp, waiting))

    def withdraw(self, item: ItemT) -> bool:
        """Take back an item that no thread has begun; return whether that was so."""
        with self._changed:
            try:
                self._work.remove(item)
            except ValueError:
                return False
            return True

    def stop(self, timeout: float) -> None:
        """Let idle threads end and wait for them; a handler that still runs is left to itself (a daemon thread)."""
        with self._changed:
            self._stopping = True
            self._work.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout)
            if thread.is_alive():
                return

    def _wake(self, count: int) -> None:
        awake = min(count, self._idle)
        if awake:
            self._changed.notify(awake)
        for _ in range(min(count - awake, self._size - len(self._threads))):
            thread = threading.Thread(target=self._main, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _main(self) -> None:
        while True:
            with self._changed:
                while not self._work:
                    if self._stopping:
                        self._leave()
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                item = self._work.popleft()
                self._taken += 1
            self._run(item)
