"""The worker's threads: few for tiny work, all for work that blocks."""

from __future__ import annotations

import threading
import time

from orbit.sdk.pool import TICK_SECONDS, HandlerPool
from tests.support.waiting import wait_until


def names_of(pool_size: int, count: int, *, seconds: float) -> tuple[set[str], float]:
    """Run `count` items that take so long; return the threads that ran them, and how long it took."""
    seen: set[str] = set()
    done = threading.Semaphore(0)
    pause = threading.Event()

    def run(_item: int) -> None:
        seen.add(threading.current_thread().name)
        if seconds:
            pause.wait(seconds)
        done.release()

    pool: HandlerPool[int] = HandlerPool(size=pool_size, run=run, leave=lambda: None, name="p")
    begun = time.monotonic()
    pool.submit(range(count))
    while pool.backlog:
        pause.wait(TICK_SECONDS)
        pool.tick()
    for _ in range(count):
        assert done.acquire(timeout=10)
    took = time.monotonic() - begun
    pool.stop(1.0)
    return seen, took


def test_tiny_items_share_few_threads() -> None:
    seen, _ = names_of(64, 64, seconds=0)
    assert len(seen) < 32


def test_blocking_items_all_run_at_once() -> None:
    seen, took = names_of(16, 16, seconds=0.5)
    assert len(seen) == 16
    assert took < 3


def test_the_size_is_never_passed() -> None:
    seen, _ = names_of(3, 12, seconds=0.05)
    assert len(seen) == 3


def test_an_item_that_was_not_begun_can_be_withdrawn_and_a_begun_one_not() -> None:
    begun = threading.Event()
    go_on = threading.Event()
    ran: list[str] = []

    def run(item: str) -> None:
        begun.set()
        go_on.wait(10)
        ran.append(item)

    pool: HandlerPool[str] = HandlerPool(size=1, run=run, leave=lambda: None, name="p")
    pool.submit(["first", "second"])
    assert begun.wait(5)
    assert pool.withdraw("second") is True
    assert pool.withdraw("first") is False
    go_on.set()
    wait_until(lambda: ran)
    pool.stop(5.0)
    assert ran == ["first"]


def test_threads_end_with_the_pool_and_say_so() -> None:
    left: list[str] = []
    pool: HandlerPool[int] = HandlerPool(
        size=2, run=lambda _: None, leave=lambda: left.append(threading.current_thread().name), name="leaving"
    )
    pool.submit([1, 2])
    wait_until(lambda: pool.backlog == 0)
    pool.stop(5.0)
    assert left
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("leaving")]
