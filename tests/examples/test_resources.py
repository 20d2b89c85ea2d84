"""The resources example against a real node: the seed's five lines."""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.process.worker.cutting_proxy import CuttingProxy
from tests.support.declared import ROOT
from tests.support.processes import clean_environment, credentials_make, node_process

LINES = [
    r"backpressure=QUEUE_FULL http=429",
    r"duplicate=true rejected_request_retried=true",
    r"task=([0-9a-f]{32}) state=SUCCEEDED attempts=1",
    r"task=([0-9a-f]{32}) state=SUCCEEDED attempts=1",
    r"unfinished=0 rate_per_second=1 worker_drained=true",
]


def run_example(environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "resources" / "main.py")],
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.requirement("R001", "R081", "R083")
def test_r082_the_example_prints_the_seeds_five_lines_each_time(database_url: str, short_folder: Path) -> None:
    credentials = credentials_make(database_url, short_folder)
    seen: list[str] = []
    with node_process(database_url, credentials, short_folder) as node:
        for _ in range(2):
            done = run_example(node.environment)
            assert (done.returncode, done.stderr) == (0, "")
            lines = done.stdout.splitlines()
            assert len(lines) == len(LINES)
            for line, pattern in zip(lines, LINES, strict=True):
                match = re.fullmatch(pattern, line)
                assert match is not None, line
                seen += match.groups()
        assert len(set(seen)) == 4
        with node.client as client:
            assert len([queue for queue in client.list_queues() if queue.name.startswith("resources-")]) == 2
            assert [client.get_task(task_id).state for task_id in seen] == ["SUCCEEDED"] * 4


@pytest.mark.requirement("R084")
def test_r080_a_missing_setting_or_server_ends_it_with_one_line(short_folder: Path) -> None:
    unset = run_example({})
    assert unset.returncode != 0
    assert len(unset.stderr.splitlines()) == 1
    assert "ORBIT_URL" in unset.stderr
    away = run_example({"ORBIT_URL": "http://127.0.0.1:1", "ORBIT_TOKEN": "0" * 32 + ".x"})
    assert away.returncode != 0
    assert len(away.stderr.splitlines()) == 1


class AnswerCutter(CuttingProxy):
    """Lets the second submission through to the node and cuts the connection instead of passing its answer on."""

    submissions = 0

    def _pump(self, source: socket.socket, sink: socket.socket, ends: list[int], to_client: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not to_client:
                    self.submissions += data.count(b"POST /v1/tasks ")
                elif self.submissions == 2:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            ends[0] += 1
            if ends[0] == 2:
                source.close()
                sink.close()


def test_r085_an_unknown_outcome_ends_it_and_makes_no_second_task(database_url: str, short_folder: Path) -> None:
    credentials = credentials_make(database_url, short_folder)
    with node_process(database_url, credentials, short_folder) as node:
        proxy = AnswerCutter(urlsplit(node.environment["ORBIT_URL"]).port or 0)
        done = run_example(node.environment | {"ORBIT_URL": f"http://127.0.0.1:{proxy.port}"})
        proxy.close()
        assert proxy.submissions == 2
        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1
        with node.client as client:
            (queue,) = [queue for queue in client.list_queues() if queue.name.startswith("resources-")]
            assert queue.unfinished_tasks == 2
            key = f"{queue.name}-task-2"
            assert key in done.stderr
            # The key that it names is the one to send again, and there is one task under it.
            assert len(list(client.list_tasks(queue=queue.name))) == 2
