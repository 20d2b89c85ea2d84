"""Several node processes behind one port: starts them, starts them again, and passes SIGTERM on.

It serves nothing and patches nothing. Each process listens for itself with SO_REUSEPORT, and the kernel spreads the
connections. The supervisor holds the port by a socket that never listens, so that port 0 means one port for all.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from api.installation import root_folder
from orbit.errors import InvalidRequest
from orbit.logs import get_logger
from orbit.settings import Settings

SHARED_PORT_OPTION = "--shared-port"
_LOOK_SECONDS = 1.0
_RESTART_SECONDS = 1.0
_STILLBORN_SECONDS = 10.0
_STILLBORN_MAX = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

# The node's own name would be the same for all: each process makes its own from its id.
_OPTIONS = frozenset({"host", "log_level", "drain_seconds", "tls_cert", "tls_key"})

_log = get_logger(__name__)


def arguments_of(settings: Settings) -> list[str]:
    """Write settings as the command line of one process; port and number of processes are the supervisor's."""
    given = {name: getattr(settings, name) for name in settings.__struct_fields__ if name not in {"port", "processes"}}
    return [
        part
        for name, value in given.items()
        if name in _OPTIONS and value != ""
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]


class Supervisor:
    """Keeps `settings.processes` nodes running until it is told to stop."""

    def __init__(self, settings: Settings, arguments: Sequence[str]) -> None:
        self._settings = settings
        self._arguments = list(arguments)
        self._children: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._stillborn = 0
        self._due: list[float] = []

    def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; return the exit code: 0 if every process ended in order.

        Raises InvalidRequest for an embedded database, which one process owns.
        """
        if self._settings.database_url.startswith("sqlite"):
            message = "an embedded database serves one process; several need MySQL or MariaDB"
            raise InvalidRequest(message)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        folder = Path(tempfile.mkdtemp(prefix="orbit-metrics-"))
        with socket.socket(socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET) as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((self._settings.host, self._settings.port))
            port = int(held.getsockname()[1])
            try:
                for _ in range(self._settings.processes):
                    self._spawn(port, folder)
                return self._watch(port, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _spawn(self, port: int, folder: Path) -> None:
        command = [sys.executable, "-P", str(root_folder() / "orbit" / "__main__.py"), "server", *self._arguments]
        child = subprocess.Popen(  # noqa: S603  (our own command)
            [*command, "--port", str(port), "--processes", "1", SHARED_PORT_OPTION],
            env=_environment(self._settings) | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
            # The blocked signals are inherited; a node must hear them. This process has one thread.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, []),  # noqa: PLW1509
        )
        self._children[child.pid] = (child, time.monotonic())

    def _watch(self, port: int, folder: Path) -> int:
        while True:
            received = signal.sigtimedwait(_SIGNALS, _LOOK_SECONDS)
            if received is not None and received.si_signo != signal.SIGCHLD:
                return self._stop()
            for pid, (child, since) in list(self._children.items()):
                if child.poll() is None:
                    continue
                del self._children[pid]
                _log.error("process.ended", extra={"pid": pid, "code": child.returncode})
                self._stillborn = self._stillborn + 1 if time.monotonic() - since < _STILLBORN_SECONDS else 0
                self._due.append(time.monotonic() + _RESTART_SECONDS)
            if self._stillborn >= _STILLBORN_MAX:
                _log.error("server.given_up", extra={"reason": "its processes end as soon as they start"})
                self._stop()
                return 1
            now = time.monotonic()
            for due in [moment for moment in self._due if moment <= now]:
                self._due.remove(due)
                self._spawn(port, folder)

    def _stop(self) -> int:
        for child, _ in self._children.values():
            child.terminate()
        codes = []
        deadline = time.monotonic() + self._settings.drain_seconds + 10
        for child, _ in self._children.values():
            try:
                codes.append(child.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                child.kill()
                codes.append(child.wait())
        return 0 if not any(codes) else 1


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a process. The database's URL may hold a password, so it is never an argument."""
    kept = {name: value for name, value in os.environ.items() if name not in {"ORBIT_PROCESSES", "ORBIT_PORT"}}
    return kept | {"ORBIT_DATABASE_URL": settings.database_url}
