"""Group commit: what gathers into one batch, and whose trouble an error is."""

from collections.abc import Iterator, Sequence

import gevent
import pytest

from orbit.batcher import Batcher
from orbit.errors import OrbitError, Unavailable

BAD = -1


def turn() -> None:
    """Let everybody else have a turn."""
    gevent.spawn(int).join()


class Runs:
    """Runs batches of numbers, doubling each; notes what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.turns = 0
        self.error: Exception = ValueError("planted")

    def __call__(self, batch: Sequence[int]) -> list[int]:
        """Double each number, some turns of the loop later."""
        self.batches.append(list(batch))
        for _ in range(self.turns):
            turn()
        if BAD in batch:
            raise self.error
        return [2 * item for item in batch]


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def batcher(runs: Runs) -> Iterator[Batcher[int, int]]:
    made = Batcher("numbers", runs)
    yield made
    made.stop()


def submit_in(batcher: Batcher[int, int], item: int, *, turns: int) -> "gevent.Greenlet[[], int]":
    """Submit an item so many turns of the loop from now."""

    def work() -> int:
        for _ in range(turns):
            turn()
        return batcher.submit(item)

    return gevent.spawn(work)


def test_an_item_alone_is_a_batch_at_once(runs: Runs, batcher: Batcher[int, int]) -> None:
    calls = [submit_in(batcher, item, turns=10 * item) for item in (0, 1, 2)]
    gevent.joinall(calls)
    assert runs.batches == [[0], [1], [2]]
    assert [call.get() for call in calls] == [0, 2, 4]


def test_what_comes_while_a_batch_is_in_flight_is_the_next(runs: Runs, batcher: Batcher[int, int]) -> None:
    runs.turns = 20
    calls = [submit_in(batcher, item, turns=5 * item) for item in (0, 1, 2)]
    gevent.joinall(calls)
    assert runs.batches == [[0], [1, 2]]


def test_a_bad_item_fails_alone(runs: Runs, batcher: Batcher[int, int]) -> None:
    runs.turns = 20
    calls = [submit_in(batcher, item, turns=min(item + 1, 2)) for item in (0, 1, 2, 3)]
    bad = submit_in(batcher, BAD, turns=2)
    gevent.joinall([*calls, bad])
    assert [call.get() for call in calls] == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="planted"):
        bad.get()


def test_what_may_be_tried_again_fails_a_whole_batch(runs: Runs, batcher: Batcher[int, int]) -> None:
    runs.error = Unavailable("the database is away")
    with pytest.raises(OrbitError, match="away"):
        batcher.submit_many([1, BAD, 2])
    assert runs.batches == [[1, BAD, 2]]


def test_a_stop_finishes_what_waits_and_takes_nothing_more(runs: Runs, batcher: Batcher[int, int]) -> None:
    runs.turns = 20
    calls = [submit_in(batcher, item, turns=5 * item) for item in (0, 1)]
    for _ in range(8):
        turn()
    batcher.stop()
    assert ([call.get() for call in calls], runs.batches) == ([0, 2], [[0], [1]])
    with pytest.raises(Unavailable, match="shutting down"):
        batcher.submit(8)
