"""Many claimers, finishers and submitters at once on a server: no error reaches anybody, and the books are exact.

`ORBIT_CONTENTION_SECONDS` makes it long (two minutes in a full run).
"""

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from orbit.database import ConnectionLimits, Database
from pulse.claim import Assignment, Demand, claim
from pulse.states import ErrorClass, RecoverySafety
from pulse.store.counters import usage_read
from pulse.waker import keys_wake
from tests.support.pulse import Pulse

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("ORBIT_CONTENTION_SECONDS", "3"))
CLAIMERS, FINISHERS, SUBMITTERS, WAKERS = 16, 16, 4, 2
MAX_CONCURRENCY = 40
# Submitters hold off from there on: a heap that only grows would leave claimers and finishers less to fight about.
BACKLOG = 2_000


class Crowd:
    """Threads that do one thing each, again and again, until they are told to stop or one of them fails."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, count: int, work: Callable[[], object]) -> None:
        """Start threads that repeat `work`."""
        started = [threading.Thread(target=self._repeat, args=(work,)) for _ in range(count)]
        self._threads.extend(started)
        for thread in started:
            thread.start()

    def _repeat(self, work: Callable[[], object]) -> None:
        try:
            while not self.is_over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  (the test tells of it)
            self.errors.append(error)
            self.is_over.set()

    def run(self, seconds: float) -> None:
        """Let them work for a while, then wait for each to finish what it does."""
        self.is_over.wait(seconds)
        self.is_over.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def crowded(database_url: str) -> Iterator[Pulse]:
    """A task layer with a connection for every thread."""
    threads = CLAIMERS + FINISHERS + SUBMITTERS + WAKERS
    with closing(Database.open(database_url, ConnectionLimits(pool_size=threads))) as opened:
        yield Pulse(opened)


def _fields(*, is_keyed: bool) -> dict[str, Any]:
    """Make up what a task has beside its queue: some have keys, where keys are wanted."""
    fields: dict[str, Any] = {"priority": random.randrange(10)}
    if is_keyed and random.random() < 0.6:
        fields["concurrency_keys"] = tuple(random.sample("abcdef", random.randint(1, 3)))
    if is_keyed and random.random() < 0.3:
        fields["fairness_key"] = random.choice("xy")
    return fields


@pytest.mark.databases("mariadb", "mysql")
@pytest.mark.parametrize("is_keyed", [False, True], ids=["plain", "keyed"])
def test_claims_results_and_submissions_at_once_lose_and_double_nothing(crowded: Pulse, *, is_keyed: bool) -> None:
    pulse, crowd = crowded, Crowd()
    queue_id = pulse.queue(max_concurrency=MAX_CONCURRENCY, rate_per_second=100_000, max_unfinished_tasks=100_000)
    running: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
    finished, most = [0] * FINISHERS, [0]
    accepted: list[bytes] = []
    pulse.submit()
    seat = pulse.seat(4, safety=RecoverySafety.REPLAY_SAFE)

    def submit() -> None:
        if len(accepted) - sum(finished) > BACKLOG:
            crowd.is_over.wait(0.02)
            return
        answers = pulse.submit_all(*(pulse.submit_item(**_fields(is_keyed=is_keyed)) for _ in range(8)))
        accepted.extend(answer.subject_id for answer in answers if not isinstance(answer, Exception))

    def work() -> None:
        assignments = list(pulse.database.transaction(lambda tx: claim(tx, Demand([seat], {}))).assignments)
        if not assignments:
            # As a dispatcher does that found no room: claims that hurry would only hold back the results.
            crowd.is_over.wait(0.02)
            return
        for assignment, outcome in zip(assignments, pulse.start_all(assignments), strict=True):
            assert outcome.granted, outcome
            running.put(assignment)
        active = pulse.database.transaction(lambda tx: usage_read(tx, [queue_id]))[queue_id].active
        most[0] = max(most[0], active)

    numbers, mine = iter(range(FINISHERS)), threading.local()

    def finish() -> None:
        if not hasattr(mine, "number"):
            mine.number = next(numbers)
        try:
            assignment = running.get(timeout=0.05)
        except queue.Empty:
            return
        if random.random() < 0.1:
            pulse.fail(assignment, ErrorClass.NON_RETRYABLE)
        else:
            pulse.succeed(assignment)
        finished[mine.number] += 1

    began = time.monotonic()
    crowd.add(WAKERS, lambda: keys_wake(pulse.database, pulse) or crowd.is_over.wait(0.02))
    crowd.add(SUBMITTERS, submit)
    crowd.add(CLAIMERS, work)
    crowd.add(FINISHERS, finish)
    crowd.run(SECONDS)
    done = sum(finished)
    deadlocks, seconds = pulse.database.counts["deadlocks"], time.monotonic() - began
    print(f"{done} tasks finished, {len(accepted)} accepted, {deadlocks} deadlocks in {seconds:.1f} s")  # noqa: T201
    assert crowd.errors == []
    assert done > 0
    assert 0 < most[0] <= MAX_CONCURRENCY
    assert pulse.drifts() == []
    unfinished = pulse.read(queue_id).unfinished_tasks
    assert unfinished == len(accepted) + 1 - done
    assert pulse.usage(queue_id).active == running.qsize()
