"""The conversion example on a real node with its real worker: items in parallel, results in order, names for people."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import clean_environment, node_process, orbit_command, python_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "conversion"


def orbit(*arguments: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        orbit_command(*arguments),
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def environment(database_url: str, short_folder: Path) -> Iterator[dict[str, str]]:
    """A node with the queue of the example, and the example's worker."""
    credentials = short_folder / "credentials.json"
    orbit(
        *("bootstrap", "--application", "documents", "--namespace", "default", "--environment", "development"),
        *("--queue", "documents", "--worker-access", "--output", str(credentials)),
        environment={"ORBIT_DATABASE_URL": database_url},
    )
    with ExitStack() as stack:
        served = stack.enter_context(node_process(database_url, credentials, short_folder))
        command = orbit_command("worker", str(EXAMPLE / "worker.py") + ":worker")[2:]
        stack.enter_context(python_process(command, served.environment, short_folder / "worker.log"))
        yield served.environment


def test_a_folder_is_converted_by_a_real_worker(environment: dict[str, str]) -> None:
    orbit("publish", str(EXAMPLE / "conversion.yaml"), environment=environment)
    folder = json.dumps({"folder": "invoices"})
    instance_id = orbit("start", "conversion", "--input", folder, environment=environment).strip()
    watched = orbit("watch", instance_id, "--timeout", "120", environment=environment)
    assert '"pdf":"invoices.pdf (march.doc+april.pdf+may.odt+june.pdf)"' in watched
    assert re.search(r"^convert +FOREACH +SUCCEEDED 4 of 4", watched, re.MULTILINE)
    items = orbit("instance", "items", instance_id, "convert", environment=environment)
    assert re.search(r"^render\[0\] +TASK +SUCCEEDED", items, re.MULTILINE)
    assert re.search(r"^render\[1\] +TASK +SKIPPED \(WHEN\)", items, re.MULTILINE)
    assert re.search(r"^scan\[3\] +POLL +SUCCEEDED +2", items, re.MULTILINE)
