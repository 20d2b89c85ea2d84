"""Private MariaDB and MySQL servers: own data folder, own ports, loopback only, no service of the system touched.

An initialised data folder is kept in the cache and copied for each server. Servers start with a session time zone that
is not UTC and with the default isolation, so that code which relies on either is caught.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import pymysql

from tests.support.ports import port_take
from tests.support.waiting import wait_until

USER = PASSWORD = "orbit"
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
_START_ATTEMPTS_MAX = 3


class Kind(StrEnum):
    """The database servers that we test on."""

    MARIADB = "mariadb"  # a package of the system
    MYSQL = "mysql"  # unpacked into the cache by get_mysql.sh


class ServerMissingError(Exception):
    """The server's program is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its process, its data folder and how to reach it."""

    kind: Kind
    pid: int
    port: int
    folder: str

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the server, without a database."""
        return f"mysql+pymysql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/"

    def save(self, path: Path) -> None:
        """Write the server down for another process, in one step."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)))
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Server":
        """Read what `save` wrote."""
        return cls(**{**(values := json.loads(path.read_text())), "kind": Kind(values["kind"])})


def cache_folder() -> Path:
    """Return the folder that all clones of one user share: `ORBIT_CACHE`, or `orbit` in the user's cache folder."""
    named = os.environ.get("ORBIT_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orbit"


def server_start(kind: Kind, folder: Path, *, durable: bool = False, port: int = 0) -> Server:
    """Start a server whose state is all under `folder`; a folder that has data already is used again.

    With `durable` every commit is flushed to disk, as in production. A `port` is for a server that comes back; without
    one any free port is taken. Raises ServerMissingError, or RuntimeError with the end of the server's own log.
    """
    data = folder / "data"
    if not data.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(_template(kind)), str(data)], check=True)
    log = folder / "error.log"
    for attempt in range(1, _START_ATTEMPTS_MAX + 1):
        chosen = port or port_take()
        process = _launch(kind, folder, ["--datadir", str(data), f"--port={chosen}", *_options(durable=durable)])
        if _is_up(process, chosen):
            # Whoever waits for it reaps it by pid; without this Popen would warn that it was left running.
            process.returncode = 0
            return Server(kind, process.pid, chosen, str(folder))
        # Somebody else's process may have taken the port between our look and the server's.
        if attempt == _START_ATTEMPTS_MAX:
            break
    message = f"{kind} did not start:\n{log.read_text()[-3000:]}"
    raise RuntimeError(message)


def server_stop(pid: int, *, at_once: bool) -> None:
    """End a server that we started; `at_once` is for one whose data is thrown away, otherwise it closes its files."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if at_once else signal.SIGTERM)
    wait_until(lambda: _has_ended(pid), STOP_SECONDS_MAX, what=f"the end of server process {pid}")


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # not our child: look it up instead
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie whose parent has not reaped it yet has ended as well.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _launch(kind: Kind, folder: Path, arguments: list[str]) -> "subprocess.Popen[bytes]":
    # MariaDB removes what looks like a temporary table from its folder when it starts: in a shared one, others' too.
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    command = [
        *_program(kind),
        *arguments,
        f"--socket={folder / 'sock'}",
        f"--pid-file={folder / 'pid'}",
        f"--tmpdir={temporary}",
        f"--log-error={folder / 'error.log'}",
    ]
    # Its own session: an interrupt typed at the terminal reaches pytest, which ends it in order.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _is_up(process: "subprocess.Popen[bytes]", port: int) -> bool:
    def answers() -> bool:
        if process.poll() is not None:
            return True
        with contextlib.suppress(pymysql.err.OperationalError):
            pymysql.connect(host="127.0.0.1", port=port, user=USER, password=PASSWORD, ssl_disabled=True).close()
            return True
        return False

    wait_until(answers, START_SECONDS_MAX, what="the start of a database server")
    return process.poll() is None


def _program(kind: Kind) -> list[str]:
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    if kind is Kind.MYSQL:
        path = cache_folder() / "mysql" / "mysqld"
        if not path.exists():
            message = f"MySQL is not unpacked in {path.parent}: `make databases` gets it"
            raise ServerMissingError(message)
        # No X plugin (it would open a second port) and no TLS.
        return [str(path), *as_root, "--mysqlx=OFF", "--tls-version=", "--innodb-redo-log-capacity=128M"]
    found = shutil.which("mariadbd", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        message = "MariaDB's server is not installed: `make databases` gets it"
        raise ServerMissingError(message)
    return [found, "--no-defaults", *as_root, "--innodb-log-file-size=96M"]


def _options(*, durable: bool) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--character-set-server=utf8mb4",
        "--collation-server=utf8mb4_bin",
        "--default-time-zone=+05:45",
        "--max-connections=500",
        f"--innodb-buffer-pool-size={'512M' if durable else '128M'}",
        f"--innodb-flush-log-at-trx-commit={1 if durable else 2}",
        f"--innodb-doublewrite={'ON' if durable else 'OFF'}",
    ]


def _template(kind: Kind) -> Path:
    """Return an initialised data folder of this very server version, with our user in it; make it if need be."""
    program = _program(kind)
    version = subprocess.run([program[0], "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(version + " ".join([*program, *_options(durable=False)]).encode()).hexdigest()[:12]
    template = cache_folder() / "templates" / f"{kind}-{digest}"
    with locked(cache_folder() / f"template-{kind}.lock"):
        if not template.exists():
            _template_make(kind, program, template)
    return template


def _template_make(kind: Kind, program: list[str], template: Path) -> None:
    work = template.with_name(f"{template.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    data = work / "data"
    if kind is Kind.MYSQL:
        subprocess.run(
            [*program, "--initialize-insecure", f"--datadir={data}", f"--log-error={work / 'error.log'}"], check=True
        )
    else:
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        normal = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", *as_root, f"--datadir={data}", *normal],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    users = work / "users.sql"
    users.write_text(
        f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
    )
    port = port_take()
    process = _launch(
        kind, work, ["--datadir", str(data), f"--port={port}", f"--init-file={users}", *_options(durable=False)]
    )
    if not _is_up(process, port):
        message = f"{kind} could not be initialised:\n{(work / 'error.log').read_text()[-3000:]}"
        raise RuntimeError(message)
    process.terminate()
    process.wait(STOP_SECONDS_MAX)
    data.rename(template)
    shutil.rmtree(work)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
