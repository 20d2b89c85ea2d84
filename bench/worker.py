"""The worker of the benchmarks: handlers that do nothing, and one that says when it was reached.

Started by `bench.pipeline` as a process of its own; `BENCH_CAPACITY` is how many tasks it runs at once.
"""

import os
import sys
import time
from typing import Any

from orbit import TaskContext, Worker

worker = Worker(queues=["bench"], capacity=int(os.environ.get("BENCH_CAPACITY", "256")))


@worker.task("noop@1", recovery="REPLAY_SAFE")
def noop(_params: Any, _context: TaskContext) -> None:
    """Do nothing."""


@worker.task("weigh@1", recovery="REPLAY_SAFE")
def weigh(params: Any, _context: TaskContext) -> dict[str, float]:
    """Return what the branch of the workflow decides by."""
    return {"risk": params["amount"] / 1000}


@worker.task("stamp@1", recovery="REPLAY_SAFE")
def stamp(_params: Any, _context: TaskContext) -> int:
    """Return this machine's clock, in nanoseconds, as the first thing that is done."""
    return time.time_ns()


if __name__ == "__main__":
    sys.exit(0 if worker.run() else 1)
