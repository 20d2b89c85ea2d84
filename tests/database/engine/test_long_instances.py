"""An instance with a thousand items, and one with ten thousand rounds: the last advances cost what the first ones cost.

`ORBIT_SOAK=1` makes them that long; without it they are short. The figures are printed: run with `-s` to see them.
"""

import os
import statistics
import time
import tracemalloc
from collections.abc import Callable

import pytest
from sqlalchemy import text

from orbit.jsontext import Json
from tests.support.weave import Done, Handlers, Weave

IS_LONG = os.environ.get("ORBIT_SOAK") == "1"
ITEMS = 1_000 if IS_LONG else 120
ROUNDS = 10_000 if IS_LONG else 150
CONCURRENCY = 10

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


class Meter:
    """Runs an instance to its end and measures its advances in turns: the time of one, the memory of the next."""

    def __init__(self, weave: Weave) -> None:
        self.weave = weave
        self.seconds: list[float] = []
        self.peaks: list[int] = []
        self.rows_max = 0

    def run(self, instance: bytes, handlers: Handlers, between: Callable[[], None] = lambda: None) -> None:
        while self.weave.get(instance)["state"] == "RUNNING":
            self._advance()
            self.weave.work(handlers)
            between()

    def _advance(self) -> None:
        self.weave.runner.due_in(0)
        if len(self.seconds) <= len(self.peaks):
            started = time.perf_counter()
            if self.weave.runner.run_once():
                self.seconds.append(time.perf_counter() - started)
        else:
            tracemalloc.start()
            if self.weave.runner.run_once():
                self.peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        rows = self.weave.database.transaction(lambda tx: tx.row(text("SELECT COUNT(*) AS n FROM weave_step")))
        assert rows is not None
        self.rows_max = max(self.rows_max, rows.n)

    def figures(self, what: str) -> tuple[float, float]:
        """Print what was measured; give the median times of the first and the last quarter."""
        quarter = len(self.seconds) // 4
        first, last = statistics.median(self.seconds[:quarter]), statistics.median(self.seconds[-quarter:])
        print(  # noqa: T201  (the figures are what this test is for)
            f"\n{what}: {len(self.seconds + self.peaks)} advances, median {first * 1e3:.1f} ms in the first quarter, "
            f"{last * 1e3:.1f} ms in the last, at most {max(self.seconds) * 1e3:.0f} ms; "
            f"memory of an advance at most {max(self.peaks) / 1024:.0f} KiB, "
            f"median {statistics.median(self.peaks) / 1024:.0f} KiB; at most {self.rows_max} step rows"
        )
        return first, last


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_advance_of_a_foreach_sees_the_items_under_way_only(weave: Weave) -> None:
    weave.publish(EACH)
    instance = weave.start("many", {"numbers": list(range(ITEMS))})
    meter = Meter(weave)

    def double(_step: str, _round: int, params: Json) -> Done:
        return Done(params["n"] * 2)

    meter.run(instance, double)
    first, last = meter.figures(f"foreach of {ITEMS} items")
    assert weave.get(instance)["output"] == {"last": 2 * (ITEMS - 1), "count": ITEMS}
    assert meter.rows_max <= 1 + 2 * CONCURRENCY
    assert last < 2 * first + 0.01
    # The last advance makes the whole list; it is bounded by the size of a value.
    assert max(meter.peaks) < 8 * 1024 * 1024


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_advance_of_a_poll_costs_the_same_in_every_round(weave: Weave) -> None:
    weave.publish(POLL)
    instance = weave.start("poll")
    meter = Meter(weave)
    meter.run(
        instance,
        lambda _step, _round, params: Done({"n": params["n"]}),
        lambda: weave.database.clock.advance(seconds_forward=2),
    )
    first, last = meter.figures(f"poll of {ROUNDS} rounds")
    assert weave.get(instance)["state"] == "SUCCEEDED"
    (step,) = weave.instances.instance_steps(weave.namespace_id, instance)
    assert step["rounds"]["counts"] == {"PROCESSING": ROUNDS - 1, "DONE": 1}
    assert len(step["rounds"]["first"]) + len(step["rounds"]["last"]) == 10
    assert meter.rows_max == 1
    assert last < 2 * first + 0.01
    assert max(meter.peaks) < 4 * 1024 * 1024
