"""Hold a database server for one test run, and end it when the run is over, however it ends.

`python -m tests.support.guard KIND FOLDER OWNER_PID` starts the server, writes FOLDER/server.json, then waits for the
owner's end, its own SIGTERM or the server's death. A test process that is killed can't clean up after itself; this one
can.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.servers import Kind, Server, ServerMissingError, server_start, server_stop
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 150


def guard_spawn(kind: Kind, folder: Path, owner_pid: int) -> Server:
    """Start a guard for a server and wait until the server is up. Raises RuntimeError with what the guard said."""
    folder.mkdir(parents=True)
    state, failed, output = folder / "server.json", folder / "failed", folder / "guard.log"
    with output.open("wb") as file:
        # It detaches itself, so this ends at once: a guard is nobody's child, least of all that of one test worker.
        subprocess.run(
            [sys.executable, "-m", "tests.support.guard", kind, str(folder), str(owner_pid)],
            cwd=ROOT,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    wait_until(lambda: state.exists() or failed.exists(), START_SECONDS_MAX, what=f"the start of a private {kind}")
    if not state.exists():
        message = f"no private {kind}: {output.read_text().strip()}"
        shutil.rmtree(folder)
        raise RuntimeError(message)
    return Server.load(state)


def guards_stop(run_folder: Path) -> None:
    """End every guard, and with it every server, that a run started under this folder."""
    for path in run_folder.glob("*/guard.pid"):
        pid = int(path.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda path=path: not path.exists(), 60, what=f"the end of guard {pid}")  # type: ignore[misc]
    shutil.rmtree(run_folder, ignore_errors=True)


def main(kind: Kind, folder: Path, owner_pid: int) -> None:
    """Start the server, wait for a reason to end it, end it and remove its data."""
    if os.fork():
        os._exit(0)
    (folder / "guard.pid").write_text(str(os.getpid()))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server = server_start(kind, folder)
    except (ServerMissingError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(error, flush=True)
        (folder / "failed").touch()
        return
    try:
        server.save(folder / "server.json")
        with contextlib.suppress(ProcessLookupError):  # the owner is gone already
            watched = [wake_read, os.pidfd_open(owner_pid), os.pidfd_open(server.pid)]
            select.select(watched, [], [])
    finally:
        server_stop(server.pid, at_once=True)
        # Last: whoever waits for our end looks for guard.pid in this folder.
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Kind(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
