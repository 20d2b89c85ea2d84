"""Workers against a real node: the documents' examples, an `orbit worker` process and its signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orbit
from orbit.sdk.models import CreateQueueRequest, SubmitTask
from orbit.sdk.settings import from_environment
from tests.support.declared import ROOT
from tests.support.processes import (
    END_SECONDS_MAX,
    NodeProcess,
    clean_environment,
    credentials_make,
    node_process,
    orbit_command,
    python_process,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def node(database_url: str, tmp_path: Path) -> Iterator[NodeProcess]:
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node:
        yield node


@pytest.fixture
def client(node: NodeProcess) -> Iterator[orbit.Client]:
    with node.client as client:
        limits = CreateQueueRequest(name="greetings", max_concurrency=50, rate_per_second=1_000)
        client.create_queue("queue-greetings", limits)
        yield client


def example(page: str, name: str) -> str:
    """Return a program that a document shows."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_r227_the_thirty_line_client_runs_a_task(node: NodeProcess, client: orbit.Client, tmp_path: Path) -> None:
    program = example("worker-protocol.md", "thirty-lines")
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) <= 35
    assert "import orbit" not in program
    receipt = client.submit_task(
        "greet-1", SubmitTask(queue="greetings", type="greet", version=1, params={"name": "Ada"})
    )
    token = from_environment(node.environment).token
    path = tmp_path / "thirty_lines.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path)],
        env=clean_environment({"ORBIT_URL": node.url, "ORBIT_TOKEN": token, "QUEUE": "greetings"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{receipt.task.id} SUCCEEDED\n"
    assert client.get_task(receipt.task.id).output == {"greeting": "Hello, Ada"}


@pytest.mark.requirement("R075")
def test_r042_the_loop_that_sends_again_settles_on_one_task(client: orbit.Client) -> None:
    scope: dict[str, Any] = {}
    exec(compile(example("sending-again.md", "loop"), "sending-again.md", "exec"), scope)  # noqa: S102  # our own page
    task = SubmitTask(queue="greetings", type="greet", version=1, params={"name": "Bob"})
    first = scope["submit_until"](client, "greet-2", task, seconds=60)
    again = scope["submit_until"](client, "greet-2", task, seconds=60)
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert first.task.id == again.task.id
    with pytest.raises(orbit.APIError, match="IDEMPOTENCY_CONFLICT"):
        scope["submit_until"](client, "greet-2", SubmitTask(queue="greetings", type="greet", version=2), seconds=60)


WORKER = """
import sys, threading
from pathlib import Path
from orbit import Worker

worker = Worker(queues=["greetings"], capacity=4, name="signalled")

@worker.task("nap@1", recovery="REPLAY_SAFE")
def nap(params, context):
    Path(params["mark"]).touch()
    threading.Event().wait(params["seconds"])
    return "rested"
"""


def test_r169_sigterm_lets_work_end_within_its_time_and_exits_0(
    node: NodeProcess, client: orbit.Client, tmp_path: Path
) -> None:
    (tmp_path / "napping.py").write_text(WORKER)
    marks = [tmp_path / "short", tmp_path / "long"]
    receipts = [
        client.submit_task(
            f"nap-{mark.name}",
            SubmitTask(queue="greetings", type="nap", version=1, params={"mark": str(mark), "seconds": seconds}),
        )
        for mark, seconds in zip(marks, (1.0, 600.0), strict=True)
    ]
    arguments = orbit_command("worker", "napping:worker", "--drain-seconds", "5")[2:]
    environment = node.environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with python_process(arguments, environment, tmp_path / "worker.log") as process:
        wait_until(lambda: all(mark.exists() for mark in marks))
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS_MAX) == 0, (tmp_path / "worker.log").read_text()
    assert client.result(receipts[0].task.id, timeout_seconds=60).state == "SUCCEEDED"
    returned = client.get_task(receipts[1].task.id)
    assert returned.state == "WAITING"
    assert [attempt.state for attempt in client.task_attempts(returned.id)] == ["RETURNED"]


def test_a_worker_with_a_wrong_credential_ends_with_one_line(node: NodeProcess, tmp_path: Path) -> None:
    (tmp_path / "napping.py").write_text(WORKER)
    done = subprocess.run(
        orbit_command("worker", "napping:worker"),
        env=clean_environment(
            {"ORBIT_URL": node.url, "ORBIT_TOKEN": "0" * 32 + "." + "x" * 43}
            | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "UNAUTHENTICATED" in done.stderr
    assert "Traceback" not in done.stderr
