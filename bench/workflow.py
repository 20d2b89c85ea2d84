"""W2: workflow instances from their start over HTTP to their recorded end, on one node process and a durable database.

    python -m bench.workflow [--instances 2000] [--rounds N] [--database-url URL]

Each instance is a task, a branch, two parallel tasks, their join and a final task. Everything else is as in
`bench.pipeline`; what is measured and how stands in `bench/README.md`.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from sqlalchemy import make_url

from bench.mood import Rates
from bench.stage import CAPACITY, Link, Stage, stage
from bench.waiting_instances import waiting_copies
from orbit.clock import to_rfc3339

STEPS = 5
WARM_UP = 5
WORKFLOW = """
orbit: weave/1
workflow: bench
version: 1
input: {type: object, required: [amount], properties: {amount: {type: number}}}
defaults: {queue: bench, start_within: 1h}
steps:
  - id: first
    task: weigh@1
    input: {amount: "${ input.amount }"}
    output: {type: object, required: [risk], properties: {risk: {type: number}}}
  - id: route
    branch:
      - when: steps.first.output.risk > 0.8
        steps: [{id: hold, wait: {for: 1d}}]
      - else: []
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: left, task: noop@1}]
        right: [{id: right, task: noop@1}]
  - id: last
    task: noop@1
    input: {risk: "${ steps.first.output.risk }"}
output: {risk: "${ steps.first.output.risk }"}
"""
WAITING = """
orbit: weave/1
workflow: waits
version: 1
steps:
  - id: long
    wait: {for: 30d}
"""


def main() -> None:
    """Read the command line, set everything up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", help="an empty or Orbit's own database; MySQL of its own if not given")
    parser.add_argument("--instances", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=32, help="connections that start instances at once")
    parser.add_argument("--samples", type=int, default=100, help="instances, one at a time, for the latency")
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="tasks that the worker runs at once")
    parser.add_argument("--rounds", type=int, default=1, help="how often the rates are measured; medians are printed")
    parser.add_argument("--open", type=int, nargs="*", default=[1_000, 200_000], help="waiting instances meanwhile")
    options = parser.parse_args()
    with stage(options.database_url, capacity=options.capacity, definitions=(WORKFLOW, WAITING)) as found:
        measure(found, options)


def measure(found: Stage, options: argparse.Namespace) -> None:
    """Run all parts and print their figures."""
    link = found.link
    others = Others(found.worker, database_pid(found.database_url))
    one_at_a_time(found, options.samples)
    rates = Rates("instances/s")
    for _ in range(options.rounds):
        end_to_end(found, others, options, rates)
        apart(found, others, options, rates)
    rates.summary()
    costs = []
    for wanted in options.open:
        seed = link.call("POST", "/v1/instances", {"workflow": "waits"})["instance"]["id"]
        waiting_copies(found.database_url, seed, wanted)
        print(f"open instances         {wanted}")
        costs.append(end_to_end(found, others, options, Rates("instances/s")))
    if len(costs) > 1:
        print(f"cost, most to fewest   {costs[-1] / costs[0]:.2f} (node CPU for an instance)")
    print(f"node resident, after   {link.resident_mib():.0f} MiB")


@dataclass(frozen=True)
class Others:
    """The processes beside the node; a database on another machine has none here."""

    worker: int
    database: int | None

    def cpu_seconds(self) -> dict[str, float]:
        """Read how much CPU time each has used."""
        return {"worker": cpu_seconds(self.worker), "database": cpu_seconds(self.database) if self.database else 0.0}


def database_pid(database_url: str) -> int | None:
    """Find the server's process, if it runs on this machine and we may look."""
    url = make_url(database_url)
    connection = pymysql.connect(
        host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", ssl_disabled=True
    )
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@datadir, @@pid_file")
        ((folder, name),) = cursor.fetchall()
    try:
        return int((Path(folder) / name).read_text())
    except OSError:
        return None


def cpu_seconds(pid: int) -> float:
    """Read a process's CPU time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_at_a_time(found: Stage, samples: int) -> None:
    """Start one instance at a time on the idle system; measure to its recorded end, by the database's clock."""
    link, first = found.link, time.monotonic()
    millis = []
    seen = []
    for sample in range(samples + WARM_UP):
        began = time.monotonic()
        answer = link.call("POST", "/v1/instances", {"workflow": "bench", "input": {"amount": 90}})["instance"]
        instance = _ended(link, answer["id"])
        if sample >= WARM_UP:  # the first ones warm caches up
            seen.append((time.monotonic() - began) * 1e3)
            millis.append(_micros(instance, "finished_at") - _micros(instance, "started_at"))
    recorded, felt = sorted(each / 1e3 for each in millis), sorted(seen)
    print(f"one instance, idle     p50 {statistics.median(recorded):.1f} ms, p99 {_p99(recorded):.1f} ms "
          f"from its start to its recorded end ({samples} samples)")  # fmt: skip
    print(f"  as its client saw    p50 {statistics.median(felt):.1f} ms, p99 {_p99(felt):.1f} ms "
          f"{found.moods.since(first)}")  # fmt: skip


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, round(len(ordered) * 0.99) - 1)]


def _ended(link: Link, identifier: str) -> Any:
    while True:
        instance = link.call("GET", f"/v1/instances/{identifier}?wait_seconds=30")
        if instance["finished_at"] is not None:
            return instance


def _micros(instance: Any, name: str) -> float:
    seconds, _, fraction = instance[name].removesuffix("Z").partition(".")
    return time.mktime(time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")) * 1e6 + int(fraction.ljust(6, "0"))


def end_to_end(found: Stage, others: Others, options: argparse.Namespace, rates: Rates) -> float:
    """Start instances while the worker works; measure to the last end. Return the node's CPU microseconds for one."""
    link = found.link
    before = link.counters() | others.cpu_seconds()
    since = to_rfc3339(int(time.time() * 1e6))
    began = time.monotonic()
    start(found, options, "both")
    wait_ended(link, since)
    seconds, mood = time.monotonic() - began, found.moods.since(began)
    after = link.counters() | others.cpu_seconds()
    count = options.instances
    spent = {name: after[name] - before[name] for name in after}
    more = f", {count * STEPS / seconds:.0f} steps/s ({count} instances, {seconds:.1f} s)"
    rates.add("end to end", count / seconds, mood, more)
    print(f"per step               {spent['transactions'] / count / STEPS:.3f} transactions, "
          f"{spent['statements'] / count / STEPS:.2f} statements")  # fmt: skip
    cost = float(spent["cpu"] / count * 1e6)
    print(f"per instance           {cost:.0f} us of node CPU, {spent['database'] / count * 1e6:.0f} of the database's, "
          f"{spent['worker'] / count * 1e6:.0f} of the worker's")  # fmt: skip
    return cost


def apart(found: Stage, others: Others, options: argparse.Namespace, rates: Rates) -> None:
    """Start instances while the queue is paused, then let them run to their ends."""
    link = found.link
    link.pause(paused=True)
    since = to_rfc3339(int(time.time() * 1e6))
    began = time.monotonic()
    seconds = start(found, options, "apart")
    rates.add("start, nothing else", options.instances / seconds, found.moods.since(began))
    before = link.counters() | others.cpu_seconds()
    began = time.monotonic()
    link.pause(paused=False)
    wait_ended(link, since)
    seconds, mood = time.monotonic() - began, found.moods.since(began)
    after = link.counters() | others.cpu_seconds()
    spent = {name: (after[name] - before[name]) / options.instances * 1e6 for name in after}
    rates.add("drain, nothing else", options.instances / seconds, mood)
    print(f"per instance           {spent['cpu']:.0f} us of node CPU, {spent['database']:.0f} of the database's, "
          f"{spent['worker']:.0f} of the worker's")  # fmt: skip


def wait_ended(link: Link, since: str) -> None:
    """Wait until every instance that was started since then has ended, all of them well."""
    listed = f"/v1/instances?workflow=bench&created_after={since}&limit=1&state="
    while True:
        link.wait_drained()
        if not link.call("GET", listed + "RUNNING"):
            break
    if link.call("GET", listed + "NEEDS_RECOVERY") or link.call("GET", listed + "FAILED"):
        sys.exit("an instance has failed")


def start(found: Stage, options: argparse.Namespace, prefix: str) -> float:
    """Run the starter to its end and return the seconds that it measured."""
    return found.send("bench.starter", options.instances, options.clients, prefix)


if __name__ == "__main__":
    main()
