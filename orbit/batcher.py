"""Group commit: while one transaction is in flight the next batch gathers.

There are no timers, so an idle system pays no added latency: the first item starts a batch of one, and whatever arrives
meanwhile is the next batch. Each caller gets its own outcome, after COMMIT. One bad item fails alone: an error that
is not retryable splits the batch in halves, down to the one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import gevent
from gevent.event import Event

from orbit.errors import OrbitError, Unavailable
from orbit.logs import get_logger

ItemT = TypeVar("ItemT")
OutcomeT = TypeVar("OutcomeT")

ITEMS_MAX = 256
BYTES_MAX = 1024 * 1024
WAITING_MAX = 20_000

_log = get_logger(__name__)


class _Call(Generic[OutcomeT]):
    """One caller's items on their way: it sleeps once, however many there are, until the last one is settled."""

    __slots__ = ("_left", "_settled", "outcomes")

    def __init__(self, count: int) -> None:
        self.outcomes: list[OutcomeT | BaseException | None] = [None] * count
        self._left = count
        self._settled = Event()

    def settle(self, index: int, outcome: OutcomeT | BaseException) -> None:
        self.outcomes[index] = outcome
        self._left -= 1
        if self._left == 0:
            self._settled.set()

    def wait(self) -> list[OutcomeT]:
        if self._left:
            self._settled.wait()
        for outcome in self.outcomes:
            if isinstance(outcome, _Failed):
                raise outcome.error
        return cast("list[OutcomeT]", self.outcomes)


class _Failed(BaseException):
    """Marks an item whose batch raised, apart from outcomes that are errors themselves."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


_Entry = tuple[ItemT, "_Call[OutcomeT]", int]


class Batcher(Generic[ItemT, OutcomeT]):
    """One hot operation's queue in this process.

    `run` gets a batch and returns one outcome for each item, in order, after its COMMIT. `size` says how many bytes an
    item adds to a batch. Up to `lanes` batches are in flight at once.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[ItemT]], Sequence[OutcomeT]],
        *,
        size: Callable[[ItemT], int] | None = None,
        lanes: int = 1,
    ) -> None:
        self.name = name
        self.batches = 0
        self.items = 0
        self._run = run
        self._size = size
        self._waiting: deque[_Entry[ItemT, OutcomeT]] = deque()
        self._arrived = Event()
        self._stopping = False
        self._loops = [gevent.spawn(self._loop) for _ in range(lanes)]

    def submit(self, item: ItemT) -> OutcomeT:
        """Add one item and wait for its outcome; raises what the run of its batch raised for it."""
        return self.submit_many((item,))[0]

    def submit_many(self, items: Sequence[ItemT]) -> list[OutcomeT]:
        """Add several items at once and wait for all their outcomes; the first error is raised.

        Raises Unavailable if the queue is full or this process is shutting down.
        """
        if self._stopping or len(self._waiting) + len(items) > WAITING_MAX:
            message = "this node is shutting down" if self._stopping else f"too many operations wait for {self.name}"
            raise Unavailable(message)
        call: _Call[OutcomeT] = _Call(len(items))
        self._waiting.extend((item, call, index) for index, item in enumerate(items))
        self._arrived.set()
        return call.wait()

    def stop(self) -> None:
        """Finish what waits, then end. A greenlet inside a database call is waited for, never killed."""
        self._stopping = True
        self._arrived.set()
        gevent.joinall(self._loops)

    def _loop(self) -> None:
        while True:
            if not self._waiting:
                if self._stopping:
                    return
                self._arrived.clear()
                self._arrived.wait()
                continue
            batch = self._gather()
            self.batches += 1
            self.items += len(batch)
            self._settle(batch)

    def _gather(self) -> list[_Entry[ItemT, OutcomeT]]:
        batch: list[_Entry[ItemT, OutcomeT]] = []
        room = BYTES_MAX
        while self._waiting and len(batch) < ITEMS_MAX:
            cost = 0 if self._size is None else self._size(self._waiting[0][0])
            if batch and cost > room:
                break
            room -= cost
            batch.append(self._waiting.popleft())
        return batch

    def _settle(self, batch: Sequence[_Entry[ItemT, OutcomeT]]) -> None:
        try:
            outcomes = self._run([item for item, _, _ in batch])
        except Exception as error:  # noqa: BLE001  (every caller must get an answer, whatever went wrong)
            if len(batch) == 1 or (isinstance(error, OrbitError) and error.retryable):
                failed = _Failed(error)
                for _, call, index in batch:
                    call.settle(index, failed)
                return
            extra = {"batcher": self.name, "items": len(batch), "error": type(error).__name__}
            _log.warning("batch.split", extra=extra)
            middle = len(batch) // 2
            self._settle(batch[:middle])
            self._settle(batch[middle:])
            return
        for (_, call, index), outcome in zip(batch, outcomes, strict=True):
            call.settle(index, outcome)
