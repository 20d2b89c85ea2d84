"""`orbit server` as a process: it starts or says why not, drains on SIGTERM, and several of them share a port."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, make_url, text

from orbit.sdk.errors import APIError
from orbit.sdk.models import SubmitTask
from orbit.sdk.settings import Connection
from orbit.sdk.worker import Worker
from tests.process.worker.cutting_proxy import CuttingProxy
from tests.support.processes import (
    END_SECONDS_MAX,
    QUEUE,
    NodeProcess,
    clean_environment,
    credentials_make,
    descendants,
    node_process,
    orbit_command,
    wait_gone,
)
from tests.support.waiting import wait_until

TASK = SubmitTask(queue=QUEUE, type="echo", version=1, params={"a": 1})


@pytest.fixture
def credentials(database_url: str, short_folder: Path) -> Path:
    return credentials_make(database_url, short_folder)


@pytest.fixture
def node(database_url: str, credentials: Path, short_folder: Path) -> Iterator[NodeProcess]:
    with node_process(database_url, credentials, short_folder) as running:
        yield running


def scraped(url: str) -> str:
    """Read a node's metrics."""
    return httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text


def run_server(database_url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        orbit_command("server", "--port", "0", *arguments),
        env=clean_environment({"ORBIT_DATABASE_URL": database_url}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.databases("sqlite", "mysql")
def test_sigterm_drains_what_is_under_way_and_keeps_what_was_accepted(
    node: NodeProcess, database_url: str, credentials: Path, short_folder: Path
) -> None:
    with node.client as client:
        task = client.submit_task("k", TASK).task
        answers: list[str] = []
        waiting = threading.Thread(target=lambda: answers.append(client.get_task(task.id, wait_seconds=30).state))
        waiting.start()
        # The caller that waits, and the scrape itself.
        wait_until(lambda: re.search(r'^orbit_process_requests{pid="\d+"} 2\.0$', scraped(node.url), re.MULTILINE))
        assert node.terminate() == 0
        waiting.join()
    assert answers == ["WAITING"]
    with node_process(database_url, credentials, short_folder) as again, again.client as client:
        assert client.submit_task("k", TASK).deduplicated
        assert client.get_task(task.id).state == "WAITING"
    assert "Traceback" not in node.log.read_text()


@pytest.mark.databases("sqlite", "mysql")
@pytest.mark.requirement("R088")
def test_r088_a_node_refuses_a_schema_that_it_does_not_know(blank_database_url: str, database_url: str) -> None:
    done = run_server(blank_database_url)
    assert done.returncode != 0
    assert "orbit db upgrade" in done.stderr
    engine = create_engine(database_url)
    with engine.begin() as connection:
        before = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    try:
        done = run_server(database_url)
        assert done.returncode != 0
        assert "9999" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": before})
        engine.dispose()


@pytest.mark.databases("sqlite")
def test_an_embedded_database_serves_one_process(node: NodeProcess, database_url: str) -> None:
    second = run_server(database_url)
    assert (second.returncode, "in use by another process" in second.stderr) == (3, True)
    several = run_server(database_url, "--processes", "2")
    assert (several.returncode, "MySQL or MariaDB" in several.stderr) == (1, True)
    assert httpx.get(f"{node.url}/readyz", trust_env=False, timeout=60).status_code == 200


def test_a_database_that_is_away_at_the_start_is_said_in_one_line() -> None:
    done = run_server("mysql+pymysql://nobody:secret-word@127.0.0.1:1/none")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "secret-word" not in done.stderr + done.stdout


def test_a_wrong_setting_is_named(short_folder: Path) -> None:
    file = short_folder / "settings.yaml"
    file.write_text("prot: 8080\n")
    done = run_server("sqlite://", "--settings", str(file))
    assert (done.returncode, "prot" in done.stderr) == (1, True)


@pytest.mark.databases("mysql")
def test_several_processes_share_a_port_and_one_that_dies_is_replaced(
    database_url: str, credentials: Path, short_folder: Path
) -> None:
    command = orbit_command("server", "--port", "0", "--processes", "2")
    log = short_folder / "supervisor.log"
    with log.open("wb") as file:
        supervisor = subprocess.Popen(
            command,
            env=clean_environment({"ORBIT_DATABASE_URL": database_url}),
            stdout=subprocess.PIPE,
            stderr=file,
        )
    assert supervisor.stdout is not None
    try:
        lines = [supervisor.stdout.readline().decode().strip() for _ in range(2)]
        assert lines[0] == lines[1], log.read_text()
        url = lines[0].removeprefix("listening on ")
        children = descendants(supervisor.pid)
        assert len(children) == 2
        os.kill(children[0], signal.SIGKILL)
        assert supervisor.stdout.readline().decode().strip() == lines[0]
        with NodeProcess(supervisor, url, credentials, log).client as client:
            for number in range(10):
                client.submit_task(f"k{number}", TASK)
        for name in ("orbit_http_requests_total", "orbit_tasks_unfinished 10.0"):
            wait_until(lambda name=name: name in scraped(url))  # type: ignore[misc]
        children = descendants(supervisor.pid)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(END_SECONDS_MAX) == 0, log.read_text()
        for pid in children:
            wait_gone(pid)
    finally:
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()
        supervisor.stdout.close()


@pytest.mark.databases("mysql")
@pytest.mark.requirement("R002")
def test_a_database_that_goes_away_gives_503_and_when_it_is_back_the_node_goes_on(
    database_url: str, credentials: Path, short_folder: Path
) -> None:
    url = make_url(database_url)
    proxy = CuttingProxy(url.port or 0)
    try:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        with (
            node_process(through, credentials, short_folder) as node,
            node.client as client,
            httpx.Client(base_url=node.url, trust_env=False, timeout=60) as http,
        ):
            task = client.submit_task("k", TASK).task
            proxy.refusing = True
            proxy.cut()
            with pytest.raises(APIError) as refused:
                client.get_task(task.id)
            assert (refused.value.status, refused.value.code) == (503, "UNAVAILABLE")
            assert refused.value.retry_after == 1
            ready = http.get("/readyz")
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
            assert http.get("/healthz").status_code == 200
            assert "orbit_database_errors_total" in http.get("/metrics").text
            proxy.refusing = False
            wait_until(lambda: http.get("/readyz").status_code == 200)
            assert client.get_task(task.id).state == "WAITING"
            assert client.submit_task("k", TASK).deduplicated
            worker = Worker(queues=[QUEUE], connection=Connection(node.url, client_token(node)))
            worker.task("echo@1", recovery="REPLAY_SAFE")(lambda params, _context: params)
            worker.start()
            assert client.result(task.id, timeout_seconds=60).output == {"a": 1}
            assert worker.drain()
            assert node.terminate() == 0
    finally:
        proxy.close()


def client_token(node: NodeProcess) -> str:
    """Read the token of the credentials file."""
    return str(json.loads(node.credentials.read_text())["token"])
