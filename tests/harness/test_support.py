"""The tests' own tools do what they promise: servers end with their run, databases are empty, leaks are found."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from orbit.database import Database
from orbit.store.tenancy import NamespaceName, namespace_ensure
from orbit.tables import application
from tests.support import leaks
from tests.support.declared import ROOT
from tests.support.guard import guards_stop
from tests.support.report import encodable
from tests.support.servers import Server
from tests.support.sessions import DatabaseKind, DatabaseSession
from tests.support.waiting import wait_until

OWNER = """
import os, sys
from pathlib import Path
from tests.support.guard import guard_spawn
from tests.support.servers import Kind
guard_spawn(Kind.MARIADB, Path(sys.argv[1]) / "mariadb", os.getpid())
print("up", flush=True)
sys.stdin.read()
"""


def start_owner(folder: Path) -> "tuple[subprocess.Popen[str], Server]":
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    return owner, Server.load(folder / "mariadb" / "server.json")


def end(owner: "subprocess.Popen[str]", number: int) -> None:
    owner.send_signal(number)
    owner.communicate()


def is_running(server: Server) -> bool:
    return Path(f"/proc/{server.pid}/exe").exists()


def test_a_server_ends_when_its_run_is_killed(short_folder: Path) -> None:
    owner, server = start_owner(short_folder)
    assert is_running(server)
    end(owner, signal.SIGKILL)
    wait_until(lambda: not is_running(server), 20, what="the end of the server")
    wait_until(lambda: not (short_folder / "mariadb").exists(), 20, what="the removal of its data")


def test_a_server_ends_with_its_run(short_folder: Path) -> None:
    owner, server = start_owner(short_folder)
    guards_stop(short_folder)
    assert not is_running(server)
    assert not short_folder.exists()
    end(owner, signal.SIGTERM)


def test_a_database_is_empty_for_each_test(
    available_session: DatabaseSession, database_kind: DatabaseKind, short_folder: Path
) -> None:
    for _ in range(2):
        with available_session.fresh_url(database_kind, short_folder) as url:
            opened, is_ours = available_session.fresh_database(database_kind, url)
            found = opened.transaction(lambda tx: tx.rows(application.select()))
            assert found == []
            opened.transaction(lambda tx: namespace_ensure(tx, NamespaceName("left", "behind", "here")))
            if is_ours:
                opened.close()


@pytest.mark.databases("mariadb", "mysql")
def test_a_server_session_is_not_in_utc(database: Database) -> None:
    """Code that leans on the session's time zone would be wrong by this much."""
    row = database.transaction(lambda tx: tx.row(text("SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())")))
    assert row is not None
    assert row[0] == 5 * 60 + 45


def test_a_left_thread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.1)
    before = leaks.threads()
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="left-behind")
    thread.start()
    with pytest.raises(AssertionError, match="left-behind"):
        leaks.settle("threads", lambda: leaks.threads() - before)
    leave.set()
    thread.join()


def test_a_left_greenlet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gevent = pytest.importorskip("gevent")
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.1)
    before = leaks.greenlets()
    left = gevent.spawn(gevent.get_hub().wait, gevent.get_hub().loop.timer(60))
    wait_until(lambda: bool(left))
    with pytest.raises(AssertionError, match="greenlets left behind"):
        leaks.settle("greenlets", lambda: leaks.greenlets() - before)
    left.kill()


def test_a_left_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.1)
    before = leaks.children()
    left = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with pytest.raises(AssertionError, match=str(left.pid)):
        leaks.settle("child processes", lambda: leaks.children() - before)
    left.communicate()
    leaks.settle("child processes", lambda: leaks.children() - before)


def test_waiting_names_what_did_not_come() -> None:
    with pytest.raises(AssertionError, match=r"the moon did not come true within 0\.01 s; last value: 0"):
        wait_until(lambda: 0, 0.01, what="the moon")


def test_a_report_can_always_be_sent() -> None:
    """A worker sends its reports as UTF-8; values of a failing test may hold anything."""
    report = {"longrepr": [("E \ud800", None, 3)], "when": "call", "nested": {"\udfff": ["fine ä"]}}
    sent = encodable(report)
    assert repr(sent).encode()
    assert sent == {"longrepr": [("E \\ud800", None, 3)], "when": "call", "nested": {"\\udfff": ["fine ä"]}}
