"""`orbit demo`: every step is shown, and it ends 0 with the instance SUCCEEDED."""

import re
import subprocess

import pytest

from tests.support.processes import clean_environment, orbit_command

STEPS = ("validate", "route", "approval", "prepare", "reserve", "notify", "submit", "settle", "cool_down")


@pytest.mark.requirement("R217")
def test_r100_the_demo_runs_the_workflow_to_its_end(database_url: str, database_kind: str) -> None:
    arguments = [] if database_kind == "sqlite" else ["--database-url", database_url]
    done = subprocess.run(
        orbit_command("demo", *arguments),
        env=clean_environment({}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("STEP ") :]
    for step in STEPS:
        assert re.search(rf"^{step} +[A-Z]+ +SUCCEEDED", table, re.MULTILINE), step
    assert re.search(r"sent the signal approved", done.stdout)
    # It shows what it finds at each change of the instance: a round that ends at once may pass unseen.
    assert re.search(r"settle +POLL +(RUNNING|WAITING), round [123]", done.stdout)
    assert re.search(r"settle +POLL +SUCCEEDED, round 4", done.stdout)
    assert re.search(r"instance   [0-9a-f]{32} SUCCEEDED after", done.stdout)
