"""The database is away, frozen, or has closed idle connections: callers get 503, nothing is lost, the node goes on."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pymysql
import pytest

from migrations.upgrade import upgrade
from orbit.sdk.models import ConfigureQueueRequest, CreateQueueRequest
from tests.support.fleet import Crew, Fleet, fleet, submit_many, task_of
from tests.support.servers import PASSWORD, USER, Kind, Server, ServerMissingError, server_start, server_stop
from tests.support.waiting import wait_until

# A frozen server is noticed by the read time-out; the answer comes within that and a margin for a slow machine.
ANSWER_SECONDS_MAX = 60.0
BACK_SECONDS_MAX = 90.0
IDLE_SECONDS = 5
AT_ONCE_SECONDS_MAX = 10.0  # less than any time-out, and more than a slow machine needs

pytestmark = pytest.mark.timeout(600)


class PrivateServer:
    """A database server of this test's own, with one migrated database, that can go away and come back."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self._folder = folder / "server"
        self.server: Server = server_start(kind, self._folder)
        self.run("CREATE DATABASE orbit CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        self.url = f"{self.server.url}orbit"
        upgrade(self.url)

    def run(self, statement: str) -> tuple[tuple[Any, ...], ...]:
        """Run a statement as an operator would."""
        with closing(
            pymysql.connect(
                host="127.0.0.1",
                port=self.server.port,
                user=USER,
                password=PASSWORD,
                ssl_disabled=True,
                autocommit=True,
            )
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    def kill(self) -> None:
        """End it as a power cut would."""
        server_stop(self.server.pid, at_once=True)

    def come_back(self) -> None:
        """Start it on the same data and port."""
        self.server = server_start(self.server.kind, self._folder, port=self.server.port)

    def signal(self, number: int) -> None:
        """Freeze it or let it go on."""
        os.kill(self.server.pid, number)

    def connections(self) -> int:
        """Count the connections of nodes."""
        rows = self.run("SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'orbit'")
        return int(rows[0][0])


@pytest.fixture(params=[Kind.MARIADB, Kind.MYSQL], ids=str)
def private(request: pytest.FixtureRequest, short_folder: Path) -> Iterator[PrivateServer]:
    """A private server, once a kind."""
    try:
        made = PrivateServer(request.param, short_folder)
    except ServerMissingError as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.kill()


@contextmanager
def caller(installed: Fleet, url: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {installed.token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=ANSWER_SECONDS_MAX, trust_env=False) as client:
        yield client


def assert_unavailable(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "UNAVAILABLE"
    assert int(answer.headers["Retry-After"]) >= 1


def submit(client: httpx.Client, key: str, **params: Any) -> httpx.Response:
    body = {"queue": "main", "type": "work.safe", "version": 1, "params": params}
    return client.post("/v1/tasks", json=body, headers={"Idempotency-Key": key})


def assert_refuses_while_away(client: httpx.Client) -> None:
    """Read, write and readiness say 503 in time; the process itself is well."""
    assert client.get("/healthz").status_code == 200
    with ThreadPoolExecutor(3) as callers:
        asked: list[Callable[[], httpx.Response]] = [
            lambda: client.get("/v1/queues"),
            lambda: submit(client, "during"),
            lambda: client.get("/readyz"),
        ]
        for answer in callers.map(lambda ask: ask(), asked):
            assert_unavailable(answer)
    assert client.get("/healthz").status_code == 200


@pytest.mark.requirement("c105")
def test_c105_an_outage_while_tasks_run(private: PrivateServer, short_folder: Path) -> None:
    go = short_folder / "go"
    with fleet(short_folder, private.url) as installed:
        node = installed.node()
        worker = installed.worker(node, Crew(capacity=8))
        with caller(installed, node.url) as client:
            running = submit_many(
                installed.client(node),
                [task_of("work.manual" if n % 2 else "work.safe", until=str(go)) for n in range(6)],
                prefix="running",
            )
            installed.wait_begun(6)
            private.kill()
            assert_refuses_while_away(client)
            go.touch()
            wait_until(lambda: len(installed.lines()) == 12, what="the handlers' ends, while the database is away")
            private.come_back()
            wait_until(lambda: submit(client, "after").is_success, BACK_SECONDS_MAX, what="the node's return")
            assert wait_until(lambda: client.get("/readyz").status_code == 200, BACK_SECONDS_MAX)
            sdk = installed.client(node)
            for task_id in running:
                assert sdk.result(task_id, timeout_seconds=BACK_SECONDS_MAX).state == "SUCCEEDED"
            # What was refused left nothing behind, so the same key is a new request.
            assert submit(client, "during").status_code == 201
        assert node.is_running
        assert worker.is_running
        wait_until(lambda: installed.task_states() == {"SUCCEEDED": 8}, BACK_SECONDS_MAX, what="the end of all tasks")
        assert len(installed.begun()) == 8, "no handler ran twice"
        assert {row.state for row in installed.attempts() if row.started_at} == {"SUCCEEDED"}
        assert installed.drifts() == []


def test_a_frozen_database_is_answered_in_time(private: PrivateServer, short_folder: Path) -> None:
    with fleet(short_folder, private.url) as installed:
        node = installed.node()
        installed.worker(node, Crew(capacity=8))
        with caller(installed, node.url) as client:
            running = submit(client, "before", seconds=1.0).json()["data"]["task"]["id"]
            installed.wait_begun(1)
            private.signal(signal.SIGSTOP)
            try:
                assert_refuses_while_away(client)
            finally:
                private.signal(signal.SIGCONT)
            wait_until(lambda: submit(client, "after").is_success, BACK_SECONDS_MAX, what="the node's return")
            sdk = installed.client(node)
            assert sdk.result(running, timeout_seconds=BACK_SECONDS_MAX).state == "SUCCEEDED"
        wait_until(lambda: set(installed.task_states()) == {"SUCCEEDED"}, BACK_SECONDS_MAX, what="the end of all tasks")
        assert len({line.task_id for line in installed.begun()}) == len(installed.begun())
        assert installed.drifts() == []


@pytest.mark.requirement("c105")
def test_c105_connections_that_the_server_closed_cost_no_request(private: PrivateServer, short_folder: Path) -> None:
    go = short_folder / "go"
    private.run(f"SET GLOBAL wait_timeout = {IDLE_SECONDS}")
    with fleet(short_folder, private.url) as installed:
        node = installed.node()
        installed.worker(node, Crew(capacity=8))
        with caller(installed, node.url) as client:
            assert submit(client, "running", until=str(go)).status_code == 201
            installed.wait_begun(1)
            # Fill both pools; the probes of an idle node use one connection at a time.
            with ThreadPoolExecutor(16) as callers:
                answers = list(callers.map(lambda _: client.get("/v1/queues").status_code, range(64)))
            assert set(answers) == {200}
            most = private.connections()
            assert most > 4
            wait_until(lambda: private.connections() < most - 2, what="the server's closing of idle connections")
            go.touch()
            assert submit(client, "task").status_code == 201
            content = {"name": "other", "max_concurrency": 1, "rate_per_second": 1}
            answer = client.post("/v1/queues", json=content, headers={"Idempotency-Key": "queue"})
            assert answer.status_code == 201, answer.text
        wait_until(lambda: installed.task_states() == {"SUCCEEDED": 2}, what="both results")
        assert node.errors() == []
        assert "UNAVAILABLE" not in node.text()


@pytest.mark.databases("mariadb", "mysql")
@pytest.mark.requirement("c103")
def test_c103_another_node_sees_a_task_and_a_limit_at_once(database_url: str, short_folder: Path) -> None:
    with fleet(short_folder, database_url) as installed:
        nodes = [installed.node(), installed.node()]
        here, there = (installed.client(node) for node in nodes)
        installed.worker(nodes[1], Crew(capacity=4))
        queue = next(iter(here.list_queues()))
        first = here.submit_task("first", task_of()).task.id
        assert there.result(first, timeout_seconds=60.0).state == "SUCCEEDED"

        # A long poll at one node for a task that ends through the other.
        go = short_folder / "go"
        slow = here.submit_task("slow", task_of(until=str(go))).task.id
        wait_until(lambda: there.get_task(slow).state == "RUNNING", what="the Start, seen at the other node")
        seen: list[float] = []

        def watch() -> None:
            assert here.result(slow, timeout_seconds=60.0).state == "SUCCEEDED"
            seen.append(time.monotonic())

        watcher = threading.Thread(target=watch)
        watcher.start()
        go.touch()
        wait_until(lambda: len([line for line in installed.lines() if line.event == "end"]) == 2)
        ended = time.monotonic()
        watcher.join()
        assert seen[0] - ended < AT_ONCE_SECONDS_MAX

        # A pause at one node holds at the other from the moment of its answer.
        settings = {"max_concurrency": 5, "rate_per_second": 50, "max_unfinished_tasks": 500}
        request = ConfigureQueueRequest(expected_revision=queue.revision, reason="test", paused=True, **settings)
        configured = here.configure_queue(queue.id, "pause", request).queue
        assert there.get_queue(queue.id) == here.get_queue(queue.id)
        held = there.submit_task("held", task_of()).task.id
        with pytest.raises(TimeoutError):
            there.result(held, timeout_seconds=1.5)
        again = ConfigureQueueRequest(expected_revision=configured.revision, reason="test", paused=False, **settings)
        here.configure_queue(queue.id, "resume", again)
        resumed = time.monotonic()
        wait_until(lambda: len(installed.begun()) == 3, what="the held task's Start")
        assert time.monotonic() - resumed < AT_ONCE_SECONDS_MAX
        assert here.create_queue(
            "more", CreateQueueRequest(name="b", max_concurrency=1, rate_per_second=1)
        ).queue.id in {found.id for found in there.list_queues()}
