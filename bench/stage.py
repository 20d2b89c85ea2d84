"""What a benchmark runs on: a durable database, one node, a queue, a worker, and a client that reads its figures.

What is measured on it is another module's. Without a URL it starts a MySQL of its own that flushes every commit
(MariaDB if MySQL can't be had); the node is a process of its own and always has an empty namespace.
"""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
from sqlalchemy import make_url

from api.bootstrap import Wanted, bootstrap_to_file
from bench.mood import Moods, moods_kept
from migrations.upgrade import upgrade
from orbit.database import Database
from orbit.store.tenancy import NamespaceName
from pulse.queues import QueueSettings
from tests.support.servers import Kind, ServerMissingError, server_start, server_stop
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
LIMITS = QueueSettings(paused=False, max_concurrency=100_000, rate_per_second=1_000_000, max_unfinished_tasks=1_000_000)
SECONDS_MAX = 600
SETTLE_SECONDS = 2.5
CAPACITY = 2_048  # for handlers that do nothing: with less the worker's room is what is measured


@dataclass
class Link:
    """A client of the node on one kept connection, and the node's process."""

    url: str
    token: str
    queue_id: str
    pid: int

    def __post_init__(self) -> None:
        """Connect."""
        parts = urlsplit(self.url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call an operation and return the data of its answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        content = json.loads(self._http.getresponse().read())
        if "error" in content:
            sys.exit(f"{method} {path}: {content['error']}")
        return content["data"]

    def counters(self) -> dict[str, float]:
        """Read the node's counters and CPU time once its watchdog has taken them over."""
        wait_a_moment(SETTLE_SECONDS)
        self._http.request("GET", "/metrics")
        lines = self._http.getresponse().read().decode().splitlines()
        read = {name: float(value) for name, _, value in (line.partition(" ") for line in lines if line[0] != "#")}
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return {
            "transactions": read["orbit_database_transactions_total"],
            "statements": read["orbit_database_statements_total"],
            "cpu": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        }

    def resident_mib(self) -> float:
        """Return the node's resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def pause(self, *, paused: bool) -> None:
        """Pause or resume the queue."""
        now = self.call("GET", f"/v1/queues/{self.queue_id}")
        names = ("max_concurrency", "rate_per_second", "max_unfinished_tasks")
        body = {name: now[name] for name in names} | {"paused": paused, "reason": "bench"}
        self.call("POST", f"/v1/queues/{self.queue_id}:configure", body | {"expected_revision": now["revision"]})

    def wait_drained(self) -> None:
        """Wait until no task of the queue is unfinished."""
        wait_until(lambda: self._unfinished() == 0, SECONDS_MAX, what="the last result")

    def _unfinished(self) -> int:
        return int(self.call("GET", f"/v1/queues/{self.queue_id}")["unfinished_tasks"])


def wait_a_moment(seconds: float) -> None:
    """Let the system come to rest."""
    ends_at = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= ends_at, seconds + 5)


@dataclass(frozen=True)
class Stage:
    """What a benchmark runs on; `worker` is a process id, `environment` tells other processes where the node is."""

    link: Link
    moods: Moods
    environment: dict[str, str]
    database_url: str
    worker: int

    def send(self, module: str, count: int, clients: int, prefix: str) -> float:
        """Run a module of `bench.sending` to its end and return the seconds that it measured."""
        done = subprocess.run(
            [sys.executable, "-m", module, str(count), str(clients), prefix],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | self.environment,
        )
        seconds = float(done.stdout)
        assert 0 < seconds < SECONDS_MAX
        return seconds


@contextlib.contextmanager
def stage(database_url: str | None, *, capacity: int, definitions: Sequence[str] = ()) -> Iterator[Stage]:
    """Set everything up, publish the definitions, print the machine's figures at rest; take it down at the end."""
    folder = Path(tempfile.mkdtemp(prefix="orbit-bench-"))
    try:
        with contextlib.ExitStack() as stack:
            moods = stack.enter_context(moods_kept(folder))
            url = database_url or stack.enter_context(own_database(folder))
            link, environment = stack.enter_context(_node(folder, url))
            for text in definitions:
                link.call("POST", "/v1/workflows", {"source": text})
            _print_at_rest(link, moods, url)
            worker = stack.enter_context(
                process(
                    [str(ROOT / "bench" / "worker.py")],
                    folder / "worker.log",
                    environment | {"BENCH_CAPACITY": str(capacity)},
                )
            )
            wait_until(lambda: link.call("GET", "/v1/workers"), 60, what="the worker's connection")
            yield Stage(link, moods, environment, url, worker.pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _node(folder: Path, database_url: str) -> Iterator[tuple[Link, dict[str, str]]]:
    """Run a node with a namespace of its own and the queue `bench`; give a client and how others reach it."""
    upgrade(database_url)
    credentials = folder / "credentials.json"
    name = NamespaceName(f"bench-{secrets.token_hex(4)}", "default", "bench")
    with contextlib.closing(Database.open(database_url)) as database:
        token = bootstrap_to_file(database, Wanted(name, "bench", LIMITS, worker_access=True), credentials).token.text()
    with node_process(folder, database_url) as (node, node_url):
        link = Link(node_url, token, "", node.pid)
        link.queue_id = next(queue["id"] for queue in link.call("GET", "/v1/queues") if queue["name"] == "bench")
        yield link, {"ORBIT_URL": node_url, "ORBIT_CREDENTIALS_FILE": str(credentials)}


def _print_at_rest(link: Link, moods: Moods, database_url: str) -> None:
    began = time.monotonic()
    wait_a_moment(SETTLE_SECONDS)
    print(f"processors             {moods.since(began)} (ms for a million additions)")
    print(f"load average           {os.getloadavg()[0]:.2f}")
    print(f"bare round trip        {bare_round_trip_micros(database_url):.0f} us (median of `select 1`, PyMySQL alone)")
    print(f"node resident, idle    {link.resident_mib():.0f} MiB")


def bare_round_trip_micros(database_url: str) -> float:
    """Measure this machine's yardstick: one empty statement there and back, by which runs can be compared."""
    url = make_url(database_url)
    connection = pymysql.connect(
        host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", ssl_disabled=True
    )
    spans: list[float] = []
    with connection, connection.cursor() as cursor:
        for _ in range(500):
            begun = time.perf_counter()
            cursor.execute("select 1")
            cursor.fetchall()
            spans.append(time.perf_counter() - begun)
    return statistics.median(spans) * 1e6


@contextlib.contextmanager
def own_database(folder: Path) -> Iterator[str]:
    """Run a durable server and give the URL of an empty database on it."""
    try:
        server = server_start(Kind.MYSQL, folder / "mysql", durable=True)
    except ServerMissingError as error:
        print(f"MYSQL IS MISSING, MEASURING ON MARIADB: {error}", file=sys.stderr)
        server = server_start(Kind.MARIADB, folder / "mariadb", durable=True)
    try:
        url = make_url(server.url)
        with contextlib.closing(
            pymysql.connect(host=url.host, port=url.port or 0, user=url.username, password=str(url.password))
        ) as connection:
            connection.cursor().execute("CREATE DATABASE bench CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        print(f"database               {server.kind}, every commit flushed")
        yield url.set(database="bench").render_as_string(hide_password=False)
    finally:
        server_stop(server.pid, at_once=True)


@contextlib.contextmanager
def node_process(folder: Path, database_url: str) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """Run one node on a free port; give its process and address."""
    environment = {"ORBIT_DATABASE_URL": database_url, "ORBIT_LOG_LEVEL": "WARNING"}
    arguments = [str(ROOT / "orbit" / "__main__.py"), "server", "--port", "0"]
    with process(arguments, folder / "node.log", environment, pipe=True) as node:
        assert node.stdout is not None
        line = node.stdout.readline().decode().strip()
        if not line.startswith("listening on "):
            sys.exit((folder / "node.log").read_text()[-3000:])
        yield node, line.removeprefix("listening on ")


@contextlib.contextmanager
def process(
    arguments: list[str], log: Path, environment: dict[str, str], *, pipe: bool = False
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a Python process until the block ends."""
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=subprocess.PIPE if pipe else file,
            stderr=file,
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(30)
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
