"""W1: tasks from submission over HTTP to their recorded result, on one node process and a durable database.

    python -m bench.pipeline [--tasks 20000] [--rounds N] [--limits ROUNDS] [--database-url URL]

Without a URL it starts a MySQL of its own that flushes every commit (MariaDB if MySQL can't be had). What is measured
and how stands in `bench/README.md`.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

from bench.limits import limits_set
from bench.mood import Mood, Rates
from bench.stage import CAPACITY, Stage, stage


def main() -> None:
    """Read the command line, set everything up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", help="an empty or Orbit's own database; MySQL of its own if not given")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=16, help="connections that submit at once")
    parser.add_argument("--samples", type=int, default=100, help="tasks, one at a time, for the pick-up latency")
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="tasks that the worker runs at once")
    parser.add_argument("--rounds", type=int, default=1, help="how often the rates are measured; medians are printed")
    parser.add_argument("--limits", type=int, default=0, metavar="ROUNDS", help="compare with all limits in force")
    options = parser.parse_args()
    with stage(options.database_url, capacity=options.capacity) as found:
        pick_up(found, options.samples)
        rates = Rates("tasks/s")
        for _ in range(options.rounds):
            end_to_end(found, options, rates)
            apart(found, options, rates)
        rates.summary()
        if options.limits:
            limited(found, options)
        print(f"node resident, after   {found.link.resident_mib():.0f} MiB")


def pick_up(found: Stage, samples: int) -> None:
    """Submit one task at a time into the idle system; measure to the handler's first line."""
    link, began, millis = found.link, time.monotonic(), []
    body = {"queue": "bench", "type": "stamp", "version": 1, "params": None}
    for sample in range(samples + 5):
        sent = time.time_ns()
        task_id = link.call("POST", "/v1/tasks", body)["task"]["id"]
        task = link.call("GET", f"/v1/tasks/{task_id}?wait_seconds=30")
        if sample >= 5:  # noqa: PLR2004  (the first ones warm caches up)
            millis.append((task["output"] - sent) / 1e6)
    millis.sort()
    p99 = millis[min(len(millis) - 1, round(len(millis) * 0.99) - 1)]
    print(f"pick-up, idle          p50 {statistics.median(millis):.1f} ms, p99 {p99:.1f} ms ({samples} samples) "
          f"{found.moods.since(began)}")  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run from the first request to the last recorded result: its seconds, and what a task cost the node."""

    seconds: float
    mood: Mood
    transactions: float
    statements: float
    cpu_micros: float


def run(found: Stage, options: argparse.Namespace, prefix: str, *, limited: bool = False) -> Run:
    """Submit while the worker works; measure to the last recorded result."""
    link, tasks = found.link, options.tasks
    before = link.counters()
    began = time.monotonic()
    submit(found, options, prefix, limited=limited)
    link.wait_drained()
    seconds, mood = time.monotonic() - began, found.moods.since(began)
    after = link.counters()
    spent = {name: (after[name] - before[name]) / tasks for name in after}
    return Run(seconds, mood, spent["transactions"], spent["statements"], spent["cpu"] * 1e6)


def end_to_end(found: Stage, options: argparse.Namespace, rates: Rates) -> None:
    """Print what a run reaches and costs."""
    done = run(found, options, "both")
    more = f" ({options.tasks} tasks, {done.seconds:.1f} s)"
    rates.add("end to end", options.tasks / done.seconds, done.mood, more)
    print(f"per task               {done.transactions:.3f} transactions, "
          f"{done.statements:.2f} statements, {done.cpu_micros:.0f} us of node CPU")  # fmt: skip


def limited(found: Stage, options: argparse.Namespace) -> None:
    """Compare runs in turn without and with every limit in force, none of which is ever reached."""
    limits_set(found.link)
    plain: list[Run] = []
    bound: list[Run] = []
    for round_ in range(options.limits):
        plain.append(run(found, options, f"plain-{round_}"))
        bound.append(run(found, options, f"bound-{round_}", limited=True))
    rates = [options.tasks / statistics.median(each.seconds for each in runs) for runs in (plain, bound)]
    costs = [statistics.median(each.cpu_micros for each in runs) for runs in (plain, bound)]
    moods = [_usual(runs) for runs in (plain, bound)]
    print(f"all limits in force    {rates[1]:.0f} tasks/s {moods[1]} against {rates[0]:.0f} {moods[0]}: "
          f"ratio {rates[1] / rates[0]:.2f}")  # fmt: skip
    print(f"node CPU, limits       {costs[1]:.0f} us a task against {costs[0]:.0f}: ratio {costs[1] / costs[0]:.2f}")


def _usual(runs: list[Run]) -> Mood:
    """Return the median mood of runs, and their worst."""
    return Mood(statistics.median(each.mood.median for each in runs), max(each.mood.worst for each in runs))


def apart(found: Stage, options: argparse.Namespace, rates: Rates) -> None:
    """Submit to a paused queue, then let it drain."""
    link = found.link
    link.pause(paused=True)
    began = time.monotonic()
    seconds = submit(found, options, "apart")
    rates.add("submit, nothing else", options.tasks / seconds, found.moods.since(began))
    began = time.monotonic()
    link.pause(paused=False)
    link.wait_drained()
    rates.add("drain, nothing else", options.tasks / (time.monotonic() - began), found.moods.since(began))


def submit(found: Stage, options: argparse.Namespace, prefix: str, *, limited: bool = False) -> float:
    """Run the submitter to its end and return the seconds that it measured."""
    module = "bench.limited_submitter" if limited else "bench.submitter"
    return found.send(module, options.tasks, options.clients, prefix)


if __name__ == "__main__":
    main()
