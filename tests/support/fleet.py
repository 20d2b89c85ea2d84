"""An installation of Orbit for tests that kill and stop parts of it: nodes and recording workers over one database.

Whatever still runs at the end is killed: a test that wants an orderly end asks for it and looks at it.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from api.bootstrap import Wanted, bootstrap_to_file
from orbit import Client
from orbit.database import Database
from orbit.sdk.models import SubmitTask
from orbit.store.tenancy import NamespaceName
from pulse.queues import QueueSettings
from pulse.store.recount import Drift, drifts_find
from pulse.tables import attempt, session, task
from tests.support.ports import port_take
from tests.support.recording import RECORD_FILE, RECORD_SECONDS, RECORD_TYPES, Line, lines_read
from tests.support.running import NodeProcess, OrbitProcess
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until

BATCH = 32
OPEN_STATES = frozenset({"WAITING", "LEASED", "RUNNING"})


@dataclass(frozen=True)
class AttemptRow:
    """An attempt as the database has it."""

    id: str
    task_id: str
    number: int
    state: str
    started_at: int | None


@dataclass(frozen=True)
class Crew:
    """What a worker process is: its task types (empty: all), its room, how long it drains and each handler lasts."""

    types: Sequence[str] = ()
    capacity: int = 8
    drain_seconds: float = 30.0
    seconds: float = 0.0
    queue: str = "main"


@dataclass
class Fleet:
    """One installation; its processes are made by `node` and `worker`."""

    folder: Path
    database_url: str
    credentials: Path
    record: Path
    processes: list[OrbitProcess] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    def node(self, *, port: int = 0, environment: Mapping[str, str] | None = None) -> NodeProcess:
        """Start a node and wait until it listens; a `port` is for one that takes another's place."""
        port = port or port_take()
        started = NodeProcess(self.folder, self.database_url, port=port, environment=environment)
        self.processes.append(started)
        return started

    def worker(self, node: NodeProcess, crew: Crew | None = None) -> OrbitProcess:
        """Start a recording worker that connects to a node."""
        crew = crew or Crew()
        number = len(list(self.folder.glob("worker-*.log"))) + 1
        arguments = ["worker", "tests.support.recording:worker", "--capacity", str(crew.capacity)]
        arguments += ["--drain-seconds", str(crew.drain_seconds), "--queue", crew.queue]
        environment = {
            "ORBIT_URL": node.url,
            "ORBIT_CREDENTIALS_FILE": str(self.credentials),
            RECORD_FILE: str(self.record),
            RECORD_TYPES: ",".join(crew.types),
            RECORD_SECONDS: str(crew.seconds),
        }
        started = OrbitProcess(arguments, environment, self.folder / f"worker-{number}.log")
        self.processes.append(started)
        return started

    def wait_manned(self, count: int) -> None:
        """Wait until so many workers are connected, to whichever node of a database that is not embedded."""
        query = select(session.c.id).where(session.c.disconnected_at.is_(None))
        with self.opened() as database:
            wait_until(lambda: len(database.transaction(lambda tx: tx.rows(query))) >= count, what=f"{count} workers")

    def client(self, node: NodeProcess) -> Client:
        """Return a client of a node."""
        made = Client(node.url, self.token, timeout_seconds=60.0)
        self.clients.append(made)
        return made

    @property
    def token(self) -> str:
        """The credential's secret."""
        return str(json.loads(self.credentials.read_text())["token"])

    def lines(self) -> list[Line]:
        """What the workers recorded so far."""
        return lines_read(self.record)

    def begun(self) -> list[Line]:
        """The executions that began so far."""
        return [line for line in self.lines() if line.event == "begin"]

    def wait_begun(self, count: int, timeout: float = WAIT_SECONDS_MAX) -> list[Line]:
        """Wait until so many executions have begun."""
        wait_until(lambda: len(self.begun()) >= count, timeout, what=f"{count} executions")
        return self.begun()

    @contextmanager
    def opened(self) -> Iterator[Database]:
        """Open the database beside the nodes; an embedded one only after they have ended."""
        with closing(Database.open(self.database_url)) as database:
            yield database

    def attempts(self) -> list[AttemptRow]:
        """Read every attempt, in order of start."""
        columns = (attempt.c.id, attempt.c.task_id, attempt.c.number, attempt.c.state, attempt.c.started_at)
        with self.opened() as database:
            rows: list[Any] = list(database.transaction(lambda tx: tx.rows(select(*columns))))
        made = [AttemptRow(bytes(row[0]).hex(), bytes(row[1]).hex(), row[2], row[3], row[4]) for row in rows]
        return sorted(made, key=lambda row: row.started_at or 0)

    def task_states(self) -> dict[str, int]:
        """Count the tasks of each state."""
        with self.opened() as database:
            rows: list[Any] = list(database.transaction(lambda tx: tx.rows(select(task.c.state))))
        return dict(Counter(row[0] for row in rows))

    def open_tasks(self) -> int:
        """Count the tasks that something will still happen to by itself."""
        return sum(count for state, count in self.task_states().items() if state in OPEN_STATES)

    def drifts(self) -> list[Drift]:
        """Recount every counter."""
        with self.opened() as database:
            return database.transaction(drifts_find, is_snapshot=True)

    def kill_all(self) -> None:
        """End everything that still runs."""
        for client in self.clients:
            client.close()
        for process in self.processes:
            if process.is_running:
                process.signal(signal.SIGCONT)
                process.kill()


@contextmanager
def fleet(
    folder: Path,
    database_url: str,
    *,
    max_concurrency: int = 1_000,
    rate_per_second: int = 100_000,
    max_unfinished_tasks: int = 100_000,
) -> Iterator[Fleet]:
    """Give an installation on a migrated, empty database, with a queue `main` and a credential for everything."""
    credentials = folder / "credentials.json"
    settings = QueueSettings(
        paused=False,
        max_concurrency=max_concurrency,
        rate_per_second=rate_per_second,
        max_unfinished_tasks=max_unfinished_tasks,
    )
    with closing(Database.open(database_url)) as database:
        wanted = Wanted(NamespaceName("tests", "default", "test"), "main", settings, worker_access=True)
        bootstrap_to_file(database, wanted, credentials)
    made = Fleet(folder, database_url, credentials, folder / "record.jsonl")
    try:
        yield made
    finally:
        made.kill_all()


def submit_many(client: Client, requests: Sequence[SubmitTask], *, prefix: str) -> list[str]:
    """Submit tasks in batches, all of which are accepted; return their ids in order."""
    keyed = [(f"{prefix}-{number}", request) for number, request in enumerate(requests)]
    ids = []
    for first in range(0, len(keyed), BATCH):
        for item in client.submit_tasks(keyed[first : first + BATCH]).items:
            assert item.data is not None, item.error
            ids.append(item.data.task.id)
    return ids


def task_of(task_type: str = "work.safe", *, queue: str = "main", **params: Any) -> SubmitTask:
    """Return a task of the recording worker."""
    return SubmitTask(queue=queue, type=task_type, version=1, params=params)
