"""Several nodes on one database: nothing lost, nothing run twice, no limit passed, every counter equal its recount."""

import os
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from orbit import Client
from orbit.clock import SECOND
from orbit.database import Database
from orbit.sdk.models import ConfigureQueueRequest, StartInstance
from pulse.limits import ASSIGN_MICROS
from pulse.states import TaskState
from pulse.tables import queue_usage, task
from tests.support.fleet import Crew, Fleet, fleet, submit_many, task_of
from tests.support.waiting import wait_until

TASKS = 2_000
INSTANCES = 100
END_SECONDS_MAX = 200.0
TRIES = 10  # of what a slow machine may be too slow for

pytestmark = pytest.mark.timeout(600)
WINDOWS = 30 if os.environ.get("ORBIT_SOAK") else 12  # of a second, in the test of the rate
FIVE_STEPS = """
orbit: weave/1
workflow: five
version: 1
input: {type: object, required: [number], properties: {number: {type: integer}}}
timeout: 1h
defaults: {queue: main, start_within: 10m}
steps:
  - {id: first, task: work.safe@1, input: {number: "${ input.number }"}}
  - id: both
    parallel:
      join: all
      branches:
        left:
          - {id: left, task: work.safe@1, input: {number: "${ input.number }"}}
        right:
          - {id: right, task: work.manual@1, input: {number: "${ input.number }"}}
  - {id: fourth, task: work.manual@1, input: {number: "${ steps.left.output.number }"}}
  - {id: fifth, task: work.safe@1, input: {number: "${ steps.fourth.output.number }"}}
output: {number: "${ steps.fifth.output.number }"}
"""


def usage(database: Database) -> Any:
    """Read the only queue's permits and window."""
    return database.transaction(lambda tx: tx.row(select(queue_usage)))


def run_twice(installed: Fleet) -> list[str]:
    """Name the tasks that began more than once."""
    return [task_id for task_id, count in Counter(line.task_id for line in installed.begun()).items() if count > 1]


@pytest.mark.databases("mariadb", "mysql")
@pytest.mark.requirement("R002")
def test_two_nodes_lose_nothing_and_run_nothing_twice(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url) as installed:
        nodes = [installed.node(), installed.node()]
        for number in range(3):
            installed.worker(nodes[number % 2], Crew(capacity=32))
        installed.wait_manned(3)
        clients = [installed.client(node) for node in nodes]
        clients[0].publish_workflow(FIVE_STEPS)

        def start(number: int) -> str:
            request = StartInstance(workflow="five", input={"number": number})
            return clients[number % 2].start_instance(f"five-{number}", request).instance.id

        with ThreadPoolExecutor(8) as callers:
            instances = list(callers.map(start, range(INSTANCES)))
        half = TASKS // 2
        ids = [
            task_id
            for client, first in zip(clients, (0, half), strict=True)
            for task_id in submit_many(client, [task_of(number=first + n) for n in range(half)], prefix=f"bulk-{first}")
        ]
        for number, instance_id in enumerate(instances):
            # Asked at the other node than the one that took it.
            ended = clients[1 - number % 2].instance_result(instance_id, timeout_seconds=END_SECONDS_MAX)
            assert (ended.state, ended.output) == ("SUCCEEDED", {"number": number})
        wait_until(lambda: set(installed.task_states()) == {"SUCCEEDED"}, END_SECONDS_MAX, what="the end of all tasks")
        assert [node.errors() for node in nodes] == [[], []]
        assert [node.stop() for node in nodes] == [0, 0]

        assert installed.task_states() == {"SUCCEEDED": TASKS + 5 * INSTANCES}
        assert run_twice(installed) == []
        assert set(ids) < {line.task_id for line in installed.begun()}
        assert len(installed.begun()) == TASKS + 5 * INSTANCES
        assert len({line.pid for line in installed.begun()}) == 3, "every worker had its share"
        assert installed.drifts() == []


@pytest.mark.databases("mysql")
@pytest.mark.requirement("c061", "R002")
def test_a_killed_workers_tasks_run_again_only_where_that_is_safe(database_url: str, short_folder: Path) -> None:
    go = short_folder / "go"
    with fleet(short_folder, database_url) as installed:
        nodes = [installed.node(), installed.node()]
        client = installed.client(nodes[1])
        victim = installed.worker(nodes[0], Crew(capacity=12))
        names = ["work.safe", "work.manual"] * 3
        submit_many(client, [task_of(name, until=str(go)) for name in names], prefix="long")
        installed.wait_begun(6)
        for node in nodes:
            installed.worker(node, Crew(capacity=6))
        submit_many(client, [task_of(names[n % 2], seconds=0.05) for n in range(400)], prefix="quick")
        installed.wait_begun(100)
        victim.kill()
        go.touch()

        wait_until(lambda: not installed.open_tasks(), END_SECONDS_MAX, what="the end of all that can end")
        begun = Counter(line.task_id for line in installed.begun())
        lost = {row.task_id for row in installed.attempts() if row.state == "LOST"}
        safe = {task_id for task_id in lost if client.get_task(task_id).type == "work.safe"}
        manual = lost - safe
        assert len(safe) >= 3
        assert len(manual) >= 3
        # The kill may come between a granted Start and the handler's first line: lost, though it had not begun.
        assert {begun[task_id] for task_id in safe} <= {1, 2}
        assert sum(begun[task_id] == 2 for task_id in safe) >= 3
        assert {begun[task_id] for task_id in begun.keys() - safe} == {1}
        assert installed.task_states() == {"SUCCEEDED": 406 - len(manual), "NEEDS_REVIEW": len(manual)}
        assert {client.get_task(task_id).state for task_id in manual} == {"NEEDS_REVIEW"}
        assert installed.drifts() == []
        assert [node.errors() for node in nodes] == [[], []]


@pytest.mark.databases("mariadb", "mysql")
@pytest.mark.requirement("R002")
def test_r045_max_concurrency_holds_over_all_nodes(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url, max_concurrency=3) as installed, installed.opened() as database:
        nodes = [installed.node(), installed.node()]
        for number in range(4):
            installed.worker(nodes[number % 2], Crew(capacity=10))
        installed.wait_manned(4)
        submit_many(installed.client(nodes[0]), [task_of(seconds=0.05) for _ in range(200)], prefix="r045")
        samples: list[int] = []

        def sampled() -> bool:
            samples.append(usage(database).active)
            return len(installed.lines()) == 400

        wait_until(sampled, END_SECONDS_MAX, what="200 executions")
        wait_until(lambda: set(installed.task_states()) == {"SUCCEEDED"}, what="the last results")
        assert len(samples) > 10
        assert max(samples) == 3
        at_once = most = 0
        for line in sorted(installed.lines(), key=lambda line: (line.at_ns, line.event == "begin")):
            at_once += 1 if line.event == "begin" else -1
            most = max(most, at_once)
        assert 1 < most <= 3
        assert run_twice(installed) == []
        assert installed.drifts() == []


@pytest.mark.soak
@pytest.mark.databases("mysql")
@pytest.mark.requirement("R002")
def test_r047_no_window_grants_more_starts_than_the_rate(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url, rate_per_second=10) as installed, installed.opened() as database:
        nodes = [installed.node() for _ in range(3)]
        for number in range(5):
            installed.worker(nodes[number % 3], Crew(capacity=10))
        submit_many(installed.client(nodes[0]), [task_of() for _ in range(10 * WINDOWS)], prefix="r047")
        windows: dict[int, int] = {}

        def sampled() -> bool:
            row = usage(database)
            windows[row.window_started_at] = max(windows.get(row.window_started_at, 0), row.window_used)
            return len(installed.begun()) == 10 * WINDOWS

        wait_until(sampled, END_SECONDS_MAX, what="all executions")
        windows.pop(0, None)
        # A slow sampler sees not every window, and not each one's end.
        assert windows
        assert max(windows.values()) <= 10
        opened = sorted(windows)
        assert min(after - before for before, after in pairwise(opened)) >= SECOND
        # The same from the attempts alone, so that no window between two samples escapes.
        starts = [row.started_at for row in installed.attempts() if row.started_at is not None]
        assert len(starts) == 10 * WINDOWS
        counted = windows_of(starts)
        print(f"{len(counted)} windows, at most {max(counted.values())} Starts in one")  # noqa: T201
        assert max(counted.values()) <= 10
        assert len(counted) >= WINDOWS
        assert run_twice(installed) == []


@pytest.mark.soak
@pytest.mark.databases("mysql")
@pytest.mark.requirement("R055", "R002")
def test_r054_a_rate_lowered_while_workers_hold_leases_spends_no_attempt(database_url: str, short_folder: Path) -> None:
    """The machine may be slow: a try in which leases ran out before the rate was lowered shows nothing."""
    high, low = 30, 5
    with fleet(short_folder, database_url, rate_per_second=high) as installed, installed.opened() as database:
        nodes = [installed.node() for _ in range(3)]
        workers = [installed.worker(nodes[n % 3], Crew(types=["work.safe"], capacity=10)) for n in range(5)]
        client = installed.client(nodes[0])
        submit_many(client, [task_of() for _ in range(high)], prefix="warm")
        installed.wait_begun(high)
        for number in range(TRIES):
            wait_until(lambda: not installed.open_tasks(), END_SECONDS_MAX, what="the end of the last try")
            rate_set(client, high)
            # Stopped for a moment, so that the rate is lowered between their leases and their Starts.
            for worker in workers:
                worker.signal(signal.SIGSTOP)
            ids = submit_many(client, [task_of() for _ in range(high)], prefix=f"try-{number}")
            # Without a word from its worker a lease is over soon, and that worker gets no other.
            with suppress(AssertionError):
                wait_until(lambda: leased_count(database) == high, ASSIGN_MICROS / SECOND, what="a lease for each")
            rate_set(client, low)
            lowered_at = database.transaction(lambda tx: tx.now())
            was_in_time = leased_count(database) == high
            for worker in workers:
                worker.signal(signal.SIGCONT)
            wait_until(lambda: not installed.open_tasks(), END_SECONDS_MAX, what="the end of all tasks")
            own = [row for row in installed.attempts() if row.task_id in ids]
            if was_in_time and all(row.number == 1 for row in own):
                break
        else:
            pytest.fail("in none of the tries was the rate lowered while all leases stood")
        assert [row.state for row in own] == ["SUCCEEDED"] * high
        counted = windows_of([row.started_at or 0 for row in own])
        print(f"{high} leases at a rate lowered to {low}: windows of {list(counted.values())} Starts")  # noqa: T201
        assert max(counted.values()) <= low
        assert min(counted) >= lowered_at - SECOND
        assert installed.drifts() == []


def leased_count(database: Database) -> int:
    """Count the tasks that wait for their Start."""
    return len(database.transaction(lambda tx: tx.rows(select(task.c.id).where(task.c.state == TaskState.LEASED))))


def rate_set(client: Client, rate: int) -> None:
    """Set the rate of the only queue."""
    (queue,) = client.list_queues()
    change = ConfigureQueueRequest(
        expected_revision=queue.revision,
        reason="a test",
        paused=False,
        max_concurrency=queue.max_concurrency,
        rate_per_second=rate,
        max_unfinished_tasks=queue.max_unfinished_tasks,
    )
    client.configure_queue(queue.id, f"rate-{queue.revision}", change)


def windows_of(starts: Sequence[int]) -> Counter[int]:
    """Count Starts, in order, by windows: each opens with the first Start after the end of the one before."""
    counted: Counter[int] = Counter()
    window = -SECOND
    for started_at in starts:
        window = window if started_at < window + SECOND else started_at
        counted[window] += 1
    return counted


@pytest.mark.databases("mysql")
@pytest.mark.requirement("R002")
def test_r049_the_window_survives_the_node_that_opened_it(database_url: str, short_folder: Path) -> None:
    """The machine may be slow: a try whose second Start came later than a second after the first shows nothing."""
    with fleet(short_folder, database_url, rate_per_second=2) as installed, installed.opened() as database:
        second = installed.node()
        installed.worker(second, Crew(types=["work.other"]))
        port = 0
        for attempt in range(1, TRIES + 1):
            first = installed.node(port=port)
            port = first.port
            if attempt == 1:
                installed.worker(first, Crew(types=["work.safe"]))
            client = installed.client(second)
            installed.client(first).submit_task(f"first-{attempt}", task_of("work.safe"))
            installed.wait_begun(3 * attempt - 2)
            first.kill()
            opened = usage(database)
            submit_many(client, [task_of("work.other") for _ in range(2)], prefix=f"second-{attempt}")
            installed.wait_begun(3 * attempt)
            starts = [row.started_at or 0 for row in installed.attempts()][-3:]
            assert opened.window_started_at == starts[0]
            # Never three within a window, whichever node granted them.
            assert starts[2] - starts[0] >= SECOND
            if starts[1] - starts[0] < SECOND:
                assert usage(database).window_started_at == starts[2]
                return
        pytest.fail("in none of the tries did the second Start come within the first one's second")
