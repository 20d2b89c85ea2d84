"""The regression tests of queues can be picked by what they are about."""

import subprocess
import sys

import pytest

from tests.support.declared import ROOT


@pytest.mark.parametrize("word", ["range", "replay", "conflict"])
def test_r023_the_queue_tests_are_selected_by_word(word: str) -> None:
    options = ["-p", "no:schemathesis", "--collect-only", "-q", "--databases", "sqlite", "-k", f"queue and {word}"]
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/database"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    selected = [line for line in collected.stdout.splitlines() if "::test_" in line]
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert selected
