"""The examples' own tests pass and leave nothing of a definition uncovered."""

import re
from pathlib import Path

from click.testing import CliRunner

from engine.commands import test as run_tests

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_covered_by_its_tests() -> None:
    result = CliRunner().invoke(run_tests, [str(EXAMPLES), "--min-coverage", "100"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^\d{2,} tests, 0 failed$", result.output, re.MULTILINE)
    tested = {path.name.replace(".test", "") for path in EXAMPLES.rglob("*.test.yaml")}
    assert tested == {path.name for path in EXAMPLES.rglob("*.yaml") if not path.name.endswith(".test.yaml")}
