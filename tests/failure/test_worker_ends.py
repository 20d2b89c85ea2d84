"""Workers that fall silent, stop in order, are killed or cut off: the real SDK against real nodes."""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from orbit.clock import SECOND
from tests.support.fleet import Crew, Fleet, fleet, submit_many, task_of
from tests.support.running import STOP_SECONDS_MAX, NodeProcess
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until

LEASE_SECONDS = 30.0
AFTER_LEASE_SECONDS_MAX = LEASE_SECONDS + 120.0

pytestmark = pytest.mark.timeout(600)


@contextmanager
def silent_worker(installed: Fleet, node: NodeProcess, *, capacity: int) -> Iterator[ClientConnection]:
    """Connect a worker that says hello and then only lives: the library answers the transport's pings by itself."""
    headers = {"Authorization": f"Bearer {installed.token}"}
    url = node.url.replace("http", "ws", 1) + "/v1/workers/connect"
    hello = {
        "type": "hello",
        "protocol": 1,
        "worker": "silent",
        "queues": ["main"],
        "handlers": [{"type": "work.safe", "versions": [1], "recovery": "REPLAY_SAFE"}],
        "capacity": capacity,
    }
    protocols = [Subprotocol("orbit.worker.v1")]
    with connect(url, additional_headers=headers, subprotocols=protocols, proxy=None) as socket:
        socket.send(json.dumps(hello))
        assert json.loads(socket.recv(timeout=WAIT_SECONDS_MAX))["type"] == "welcome"
        yield socket


def assigned_to(socket: ClientConnection) -> list[str]:
    """Read what a silent worker was given so far; the heartbeat keeps it looking healthy meanwhile."""
    socket.send('{"type": "ping"}')
    given: list[str] = []
    while (message := json.loads(socket.recv(timeout=WAIT_SECONDS_MAX)))["type"] != "pong":
        if message["type"] == "assign":
            given += [item["task_id"] for item in message["tasks"]]
    return given


def workers_shown(installed: Fleet, node: NodeProcess) -> dict[str, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {installed.token}"}
    answer = httpx.get(f"{node.url}/v1/workers", headers=headers, timeout=WAIT_SECONDS_MAX, trust_env=False)
    return {worker["worker"]: worker for worker in answer.json()["data"]}


@pytest.mark.databases("sqlite", "mysql")
@pytest.mark.requirement("R165")
def test_c059_a_worker_that_never_answers_loses_its_assignments(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url) as installed:
        node = installed.node()
        client = installed.client(node)
        installed.worker(node, Crew(types=["work.safe"], capacity=8))
        wait_until(lambda: len(workers_shown(installed, node)) == 1, what="the worker")
        with silent_worker(installed, node, capacity=5) as silent:
            wait_until(lambda: len(workers_shown(installed, node)) == 2, what="both workers")
            given: list[str] = []
            ids = submit_many(client, [task_of() for _ in range(10)], prefix="first")
            for task_id in ids:
                given += assigned_to(silent)
                task = client.result(task_id, timeout_seconds=60.0)
                assert (task.state, task.attempts, task.attempts_failed, task.attempts_lost) == ("SUCCEEDED", 1, 0, 0)
            given += assigned_to(silent)
            assert 1 <= len(given) <= 5
            for task_id in given:
                assert [row.state for row in client.task_attempts(task_id)] == ["ABANDONED", "SUCCEEDED"]
            shown = workers_shown(installed, node)
            assert shown.pop("silent")["is_unresponsive"] is True
            assert [worker["is_unresponsive"] for worker in shown.values()] == [False]

            # From now on it gets nothing, though it lives and has room.
            later = submit_many(client, [task_of() for _ in range(10)], prefix="second")
            assert {client.result(task_id, timeout_seconds=60.0).state for task_id in later} == {"SUCCEEDED"}
            assert assigned_to(silent) == []
        assert len(installed.begun()) == 20


@pytest.mark.databases("mysql")
@pytest.mark.requirement("R169")
def test_c061_an_orderly_stop_hands_over_at_once(database_url: str, short_folder: Path) -> None:
    go = short_folder / "go"
    with fleet(short_folder, database_url) as installed:
        node = installed.node()
        leaving = installed.worker(node, Crew(capacity=2, drain_seconds=5.0))
        client = installed.client(node)
        short = client.submit_task("short", task_of("work.manual", seconds=2.0)).task.id
        long = client.submit_task("long", task_of("work.safe", until=str(go))).task.id
        installed.wait_begun(2)
        staying = installed.worker(node, Crew(capacity=8))
        wait_until(lambda: len(workers_shown(installed, node)) == 2, what="the second worker")
        leaving.process.terminate()
        # From then on it hands back what a node that has not heard of it may still give it.
        wait_until(lambda: "draining" in leaving.text(), what="the drain")
        drained_at_ns = time.monotonic_ns()
        during = client.submit_task("during", task_of()).task.id
        assert client.result(during, timeout_seconds=60.0).state == "SUCCEEDED"
        assert client.result(short, timeout_seconds=60.0).state == "SUCCEEDED"
        again = wait_until(lambda: [line for line in installed.begun() if line.task_id == long][1:])
        first = next(line for line in installed.begun() if line.task_id == long)
        assert (again[0].at_ns - drained_at_ns) / 1e9 < LEASE_SECONDS
        go.touch()
        assert client.result(long, timeout_seconds=60.0).state == "SUCCEEDED"
        assert leaving.process.wait(STOP_SECONDS_MAX) == 0

        ran_by = {line.task_id: line.pid for line in installed.begun()}
        assert ran_by == {
            short: leaving.process.pid, during: staying.process.pid, long: staying.process.pid
        }  # fmt: skip
        told = next(line for line in installed.lines() if line.event == "end" and line.attempt_id == first.attempt_id)
        assert told.reason == "DRAINING"
        assert [row.state for row in client.task_attempts(long)] == ["RETURNED", "SUCCEEDED"]
        assert len(client.task_attempts(short)) == 1
        assert installed.drifts() == []


@pytest.mark.databases("mysql")
@pytest.mark.requirement("c061")
def test_c067_a_kill_of_everything_is_recovered_after_the_lease(database_url: str, short_folder: Path) -> None:
    go = short_folder / "go"
    with fleet(short_folder, database_url) as installed:
        node = installed.node()
        workers = [installed.worker(node, Crew(capacity=10)) for _ in range(2)]
        client = installed.client(node)
        types = ["work.manual" if number % 4 == 0 else "work.safe" for number in range(20)]
        ids = submit_many(client, [task_of(name, until=str(go)) for name in types], prefix="task")
        installed.wait_begun(20)
        for process in [*workers, node]:
            process.kill()
        go.touch()

        node = installed.node()
        installed.worker(node, Crew(capacity=32))
        client = installed.client(node)
        for task_id, name in zip(ids, types, strict=True):
            if name == "work.safe":
                assert client.result(task_id, timeout_seconds=AFTER_LEASE_SECONDS_MAX).state == "SUCCEEDED"
                assert [row.state for row in client.task_attempts(task_id)] == ["LOST", "SUCCEEDED"]
        wait_until(lambda: installed.task_states() == {"SUCCEEDED": 15, "NEEDS_REVIEW": 5}, what="the manual ones")
        executions = Counter(line.type for line in installed.begun())
        assert executions == {"work.safe": 30, "work.manual": 5}
        assert installed.drifts() == []
        assert node.errors() == []


@pytest.mark.databases("mysql")
@pytest.mark.requirement("R166")
def test_r168_a_worker_that_is_cut_off_stops_before_another_begins(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url) as installed:
        nodes = [installed.node(), installed.node()]
        cut_off = installed.worker(nodes[0], Crew(capacity=4))
        client = installed.client(nodes[1])
        task_id = client.submit_task("long", task_of(seconds=70.0)).task.id
        installed.wait_begun(1)
        other = installed.worker(nodes[1], Crew(capacity=4))
        # A frozen node is a network that swallows everything: no reset, no close.
        nodes[0].signal(signal.SIGSTOP)
        begun = installed.wait_begun(2, AFTER_LEASE_SECONDS_MAX)
        stopped = wait_until(lambda: [line for line in installed.lines() if line.event == "end"])
        assert [line.pid for line in begun] == [cut_off.process.pid, other.process.pid]
        assert (stopped[0].pid, stopped[0].reason) == (cut_off.process.pid, "LEASE_LOST")
        assert stopped[0].at_ns < begun[1].at_ns
        states = [(row.number, row.state) for row in client.task_attempts(task_id)]
        assert states == [(1, "LOST"), (2, "RUNNING")]
        leased = [row.started_at or 0 for row in installed.attempts()]
        assert leased[1] - leased[0] >= LEASE_SECONDS * SECOND * 0.9


@pytest.mark.databases("sqlite", "mysql")
def test_a_stopped_node_drains_and_loses_no_task(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url) as installed:
        node = installed.node()
        worker = installed.worker(node, Crew(capacity=8))
        client = installed.client(node)
        ids = submit_many(client, [task_of("work.manual", seconds=0.2) for _ in range(160)], prefix="task")
        installed.wait_begun(8)
        assert node.stop() == 0
        assert node.errors() == []
        assert len(installed.begun()) < 160, "the stop came in the middle"
        node = installed.node(port=node.port)
        client = installed.client(node)
        for task_id in ids:
            assert client.result(task_id, timeout_seconds=120.0).state == "SUCCEEDED"
        assert worker.is_running
        assert Counter(line.task_id for line in installed.begun()) == dict.fromkeys(ids, 1)
        assert node.stop() == 0
        assert installed.task_states() == {"SUCCEEDED": 160}
        assert installed.drifts() == []
