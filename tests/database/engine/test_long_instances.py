"""An instance with a thousand items, and one with ten thousand rounds: the last advances cost what the first ones cost.

`ORBIT_SOAK=1` makes them that long; without it they are short. The figures are printed: run with `-s` to see them.
"""

import os
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from orbit.jsontext import Json
from tests.support.weave import Done, Handlers, Weave

IS_LONG = os.environ.get("ORBIT_SOAK") == "1"
ITEMS = 1_000 if IS_LONG else 120
ROUNDS = 10_000 if IS_LONG else 150
CONCURRENCY = 10
MARKS = (100, 1_000, 10_000) if IS_LONG else (50, ROUNDS)
LATEST = 30  # tasks before a mark whose advances are weighed

EACH = f"""
orbit: weave/1
workflow: many
version: 1
input: {{type: object, required: [numbers], properties: {{numbers: {{type: array, items: {{type: integer}}}}}}}}
timeout: 30d
defaults: {{queue: main, start_within: 10m, retry: {{max_attempts: 1}}}}
steps:
  - id: each
    foreach:
      items: input.numbers
      max_items: {ITEMS}
      concurrency: {CONCURRENCY}
      steps:
        - {{id: double, task: do.a@1, input: {{n: "${{ item }}"}}}}
        - {{id: store, task: do.b@1, input: {{n: "${{ steps.double.output }}"}}}}
      output: ${{ steps.double.output }}
output: {{last: "${{ steps.each.output[{ITEMS - 1}] }}", count: "${{ size(steps.each.output) }}"}}
"""
POLL = f"""
orbit: weave/1
workflow: poll
version: 1
input: {{type: object}}
timeout: 60d
defaults: {{queue: main, start_within: 10m, attempt_timeout: 1s, retry: {{max_attempts: 1}}}}
steps:
  - id: ask
    poll:
      task: ask.p@1
      input: {{n: "${{ round }}"}}
      done_when: output.n == {ROUNDS}
      every: 1s
      max_rounds: {ROUNDS}
      timeout: 30d
"""


@dataclass(frozen=True)
class Mark:
    """What an advance takes after so many tasks, and the most that the process has had so far."""

    seconds: float
    peak_bytes: float
    process_bytes: int


class Meter:
    """Runs an instance to its end; before each mark it weighs the memory of advances, else it measures their time."""

    def __init__(self, weave: Weave, marks: tuple[int, ...]) -> None:
        self.weave = weave
        self.seconds: list[float] = []
        self.peaks: list[int] = []
        self.marks: dict[int, Mark | None] = dict.fromkeys(marks)
        self.rows_max = 0
        self.tasks = 0

    def run(self, instance: bytes, handlers: Handlers, between: Callable[[], None] = lambda: None) -> None:
        while True:
            self._advance()
            worked = self.weave.work(handlers)
            self.tasks += worked
            if self.tasks in self.marks and self.marks[self.tasks] is None:
                self._mark()
            if not worked and self.weave.get(instance)["state"] != "RUNNING":
                return
            between()

    def _advance(self) -> None:
        self.weave.runner.due_in(0)
        if not any(mark - LATEST <= self.tasks <= mark for mark in self.marks):
            started = time.perf_counter()
            if self.weave.runner.run_once():
                self.seconds.append(time.perf_counter() - started)
            return
        tracemalloc.start()
        if self.weave.runner.run_once():
            self.peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        rows = self.weave.database.transaction(lambda tx: tx.row(text("SELECT COUNT(*) AS n FROM weave_step")))
        assert rows is not None
        self.rows_max = max(self.rows_max, rows.n)

    def _mark(self) -> None:
        """Note, and print, what the latest advances took, and what the whole process holds."""
        seconds, peak = statistics.median(self.seconds[-LATEST:]), statistics.median(self.peaks[-LATEST:])
        mark = Mark(seconds, peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        self.marks[self.tasks] = mark
        print(  # noqa: T201  (the figures are what this test is for)
            f"\nafter {self.tasks} tasks an advance takes {seconds * 1e3:.1f} ms and {peak / 1024:.0f} KiB, "
            f"at most {max(self.peaks) / 1024:.0f} KiB and {self.rows_max} step rows so far; "
            f"the process has had {mark.process_bytes / 2**20:.0f} MiB at most",
            flush=True,
        )

    def check_flat(self) -> None:
        """The last advances take what the first took, and nothing gathers in the process."""
        begun, *later = [mark for mark in self.marks.values() if mark is not None]
        assert len(later) == len(self.marks) - 1
        for mark in later:
            assert mark.peak_bytes < 1.2 * begun.peak_bytes + 16 * 1024
            assert mark.process_bytes < begun.process_bytes + 32 * 2**20
        quarter = len(self.seconds) // 4
        first, last = statistics.median(self.seconds[:quarter]), statistics.median(self.seconds[-quarter:])
        assert last < 2 * first + 0.01


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_advance_of_a_foreach_sees_the_items_under_way_only(weave: Weave) -> None:
    weave.publish(EACH)
    instance = weave.start("many", {"numbers": list(range(ITEMS))})
    meter = Meter(weave, (100, 2 * ITEMS))

    def double(_step: str, _round: int, params: Json) -> Done:
        return Done(params["n"] * 2)

    meter.run(instance, double)
    assert weave.get(instance)["output"] == {"last": 2 * (ITEMS - 1), "count": ITEMS}
    assert meter.rows_max <= 1 + 2 * CONCURRENCY
    meter.check_flat()
    # The last advance makes the whole list; it is bounded by the size of a value.
    assert max(meter.peaks) < 8 * 1024 * 1024


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_advance_of_a_poll_costs_the_same_in_every_round(weave: Weave) -> None:
    weave.publish(POLL)
    instance = weave.start("poll")
    meter = Meter(weave, MARKS)
    meter.run(
        instance,
        lambda _step, _round, params: Done({"n": params["n"]}),
        lambda: weave.database.clock.advance(seconds_forward=2),
    )
    assert weave.get(instance)["state"] == "SUCCEEDED"
    (step,) = weave.instances.instance_steps(weave.namespace_id, instance)
    assert step["rounds"]["counts"] == {"PROCESSING": ROUNDS - 1, "DONE": 1}
    assert len(step["rounds"]["first"]) + len(step["rounds"]["last"]) == 10
    assert meter.rows_max == 1
    meter.check_flat()
    assert max(meter.peaks) < 4 * 1024 * 1024
