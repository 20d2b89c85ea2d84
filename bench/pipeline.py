"""W1: tasks from submission over HTTP to their recorded result, on one node process and a durable database.

    python -m bench.pipeline [--tasks 20000] [--database-url mysql+pymysql://user:password@host/name]

Without a URL it starts a MySQL of its own that flushes every commit (MariaDB if MySQL can't be had). What is measured
and how stands in `bench/README.md`.
"""

import argparse
import statistics
import time

from bench.stage import Link, Stage, stage


def main() -> None:
    """Read the command line, set everything up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", help="an empty or Orbit's own database; MySQL of its own if not given")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=4, help="connections that submit at once")
    parser.add_argument("--samples", type=int, default=100, help="tasks, one at a time, for the pick-up latency")
    parser.add_argument("--capacity", type=int, default=256, help="tasks that the worker runs at once")
    options = parser.parse_args()
    with stage(options.database_url, capacity=options.capacity) as found:
        pick_up(found.link, options.samples)
        end_to_end(found, options)
        apart(found, options)
        print(f"node resident, after   {found.link.resident_mib():.0f} MiB")


def pick_up(link: Link, samples: int) -> None:
    """Submit one task at a time into the idle system; measure to the handler's first line."""
    millis = []
    body = {"queue": "bench", "type": "stamp", "version": 1, "params": None}
    for sample in range(samples + 5):
        sent = time.time_ns()
        task_id = link.call("POST", "/v1/tasks", body)["task"]["id"]
        task = link.call("GET", f"/v1/tasks/{task_id}?wait_seconds=30")
        if sample >= 5:  # noqa: PLR2004  (the first ones warm caches up)
            millis.append((task["output"] - sent) / 1e6)
    millis.sort()
    p99 = millis[min(len(millis) - 1, round(len(millis) * 0.99) - 1)]
    print(f"pick-up, idle          p50 {statistics.median(millis):.1f} ms, p99 {p99:.1f} ms ({samples} samples)")


def end_to_end(found: Stage, options: argparse.Namespace) -> None:
    """Submit while the worker works; measure to the last recorded result."""
    link = found.link
    before = link.counters()
    began = time.monotonic()
    submit(found, options, "both")
    link.wait_drained()
    seconds = time.monotonic() - began
    after = link.counters()
    tasks = options.tasks
    spent = {name: after[name] - before[name] for name in after}
    print(f"end to end             {tasks / seconds:.0f} tasks/s ({tasks} tasks, {seconds:.1f} s)")
    print(f"per task               {spent['transactions'] / tasks:.3f} transactions, "
          f"{spent['statements'] / tasks:.2f} statements, {spent['cpu'] / tasks * 1e6:.0f} us of node CPU")  # fmt: skip


def apart(found: Stage, options: argparse.Namespace) -> None:
    """Submit to a paused queue, then let it drain."""
    link = found.link
    link.pause(paused=True)
    seconds = submit(found, options, "apart")
    print(f"submit, nothing else   {options.tasks / seconds:.0f} tasks/s")
    began = time.monotonic()
    link.pause(paused=False)
    link.wait_drained()
    print(f"drain, nothing else    {options.tasks / (time.monotonic() - began):.0f} tasks/s")


def submit(found: Stage, options: argparse.Namespace, prefix: str) -> float:
    """Run the submitter to its end and return the seconds that it measured."""
    return found.send("bench.submitter", options.tasks, options.clients, prefix)


if __name__ == "__main__":
    main()
