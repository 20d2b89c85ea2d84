"""Nodes and workers as processes of their own, with a credential that may do everything."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from api.bootstrap import Wanted, bootstrap_to_file
from orbit.database import Database
from orbit.sdk.client import Client
from orbit.store.tenancy import NamespaceName
from pulse.queues import QueueSettings
from tests.support.declared import ROOT
from tests.support.waiting import wait_until

MAIN = ROOT / "orbit" / "__main__.py"
END_SECONDS_MAX = 60
QUEUE = "main"
_SETTINGS = QueueSettings(paused=False, max_concurrency=100, rate_per_second=10_000, max_unfinished_tasks=100_000)


def orbit_command(*arguments: str) -> list[str]:
    """Write the command line of one of our commands."""
    return [sys.executable, "-P", str(MAIN), *arguments]


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")}
    return kept | {"PYTHONPATH": str(ROOT)} | dict(more)


def credentials_make(database_url: str, folder: Path) -> Path:
    """Make namespace, queue and a credential for everything; return its file."""
    path = folder / "credentials.json"
    wanted = Wanted(NamespaceName("tests", "default", "test"), QUEUE, _SETTINGS, worker_access=True)
    with closing(Database.open(database_url)) as database:
        bootstrap_to_file(database, wanted, path)
    return path


@dataclass
class NodeProcess:
    """A running `orbit server`."""

    process: "subprocess.Popen[bytes]"
    url: str
    credentials: Path
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client or worker needs to find it."""
        return {"ORBIT_URL": self.url, "ORBIT_CREDENTIALS_FILE": str(self.credentials)}

    @property
    def client(self) -> Client:
        """A client of it, to be closed."""
        connection = self.credentials.read_text()
        token = connection.partition('"token": "')[2].partition('"')[0]
        return Client(self.url, token, timeout_seconds=60.0)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS_MAX)


@contextmanager
def node_process(
    database_url: str, credentials: Path, folder: Path, *, arguments: Sequence[str] = ()
) -> Iterator[NodeProcess]:
    """Run a node on a free port until the block ends."""
    log = folder / "node.log"
    environment = clean_environment({"ORBIT_DATABASE_URL": database_url})
    with log.open("ab") as file:
        process = subprocess.Popen(
            orbit_command("server", "--port", "0", *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode().strip()
        assert line.startswith("listening on "), log.read_text()[-4000:]
        yield NodeProcess(process, line.removeprefix("listening on "), credentials, log)
    finally:
        end(process)
        process.stdout.close()


@contextmanager
def python_process(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a Python program until the block ends."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            env=clean_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process of ours, at the latest by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)
    if process.poll() is None:
        process.kill()
        process.wait()


def descendants(pid: int) -> list[int]:
    """List the direct children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def wait_gone(pid: int) -> None:
    """Wait until a process that is not ours has ended."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), END_SECONDS_MAX, what=f"the end of process {pid}")
