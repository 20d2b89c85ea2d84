"""The worker's threads: few for tiny work, all for work that blocks."""

from __future__ import annotations

import threading

from orbit.sdk.pool import TICK_SECONDS, HandlerPool
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until


def names_of(pool_size: int, count: int, *, together: int = 1) -> set[str]:
    """Run `count` items, each of which waits until `together` of them run; return the threads that ran them."""
    seen: set[str] = set()
    done = threading.Semaphore(0)
    pause = threading.Event()
    met = threading.Barrier(together)

    def run(_item: int) -> None:
        seen.add(threading.current_thread().name)
        met.wait(WAIT_SECONDS_MAX)
        done.release()

    pool: HandlerPool[int] = HandlerPool(size=pool_size, run=run, leave=lambda: None, name="p")
    pool.submit(range(count))
    while pool.backlog:
        pause.wait(TICK_SECONDS)
        pool.tick()
    for _ in range(count):
        assert done.acquire(timeout=WAIT_SECONDS_MAX)
    pool.stop(WAIT_SECONDS_MAX)
    return seen


def test_tiny_items_share_few_threads() -> None:
    # On a busy machine the first threads may not run for a while, and others are started: not each time.
    assert min(len(names_of(64, 64)) for _ in range(5)) < 32


def test_blocking_items_all_run_at_once() -> None:
    assert len(names_of(16, 16, together=16)) == 16


def test_the_size_is_never_passed() -> None:
    assert len(names_of(3, 12, together=3)) == 3


def test_an_item_that_was_not_begun_can_be_withdrawn_and_a_begun_one_not() -> None:
    begun = threading.Event()
    go_on = threading.Event()
    ran: list[str] = []

    def run(item: str) -> None:
        begun.set()
        go_on.wait(WAIT_SECONDS_MAX)
        ran.append(item)

    pool: HandlerPool[str] = HandlerPool(size=1, run=run, leave=lambda: None, name="p")
    pool.submit(["first", "second"])
    assert begun.wait(WAIT_SECONDS_MAX)
    assert pool.withdraw("second") is True
    assert pool.withdraw("first") is False
    go_on.set()
    wait_until(lambda: ran)
    pool.stop(WAIT_SECONDS_MAX)
    assert ran == ["first"]


def test_threads_end_with_the_pool_and_say_so() -> None:
    left: list[str] = []
    pool: HandlerPool[int] = HandlerPool(
        size=2, run=lambda _: None, leave=lambda: left.append(threading.current_thread().name), name="leaving"
    )
    pool.submit([1, 2])
    wait_until(lambda: pool.backlog == 0)
    pool.stop(WAIT_SECONDS_MAX)
    assert left
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("leaving")]
