"""Orbit processes that a test may kill, stop and start again.

What they write is kept in a file; their end is the test's own business.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.declared import ROOT
from tests.support.processes import clean_environment
from tests.support.waiting import wait_until

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
_LISTENING = "listening on "


class OrbitProcess:
    """A running `orbit ...` process in a session of its own; what it writes goes to `log`."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(ROOT / "orbit" / "__main__.py"), *arguments],
                env=clean_environment(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self.process.poll() is None

    def text(self) -> str:
        """Read all that it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def errors(self) -> list[str]:
        """Return the lines in which it reports a fault of its own."""
        return [line for line in self.text().splitlines() if '"level": "ERROR"' in line or "raceback" in line]

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)

    def stop(self) -> int:
        """Ask it to drain and end; return its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS_MAX)


class NodeProcess(OrbitProcess):
    """A node that serves; `url` is its address. Start another with the same port to take its place."""

    def __init__(
        self, folder: Path, database_url: str, *, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        number = len(list(folder.glob("node-*.log"))) + 1
        variables = {"ORBIT_DATABASE_URL": database_url, "ORBIT_HOST": "127.0.0.1", **(environment or {})}
        super().__init__(["server", "--port", str(port)], variables, folder / f"node-{number}.log")
        self.name = f"node-{number}"
        try:
            wait_until(
                lambda: _LISTENING in self.text() or not self.is_running, START_SECONDS_MAX, what="a node's start"
            )
            assert self.is_running, f"the node ended:\n{self.text()[-3000:]}"
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        self.url = self.text().partition(_LISTENING)[2].split()[0]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.rpartition(":")[2])
