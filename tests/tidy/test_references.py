"""Generated documents say what the code says."""

import subprocess
import sys

from tests.support.declared import ROOT
from tools import cli_reference


def test_the_command_line_reference_is_the_commands_own() -> None:
    """Written by a process of its own: a command that another test has called alone remembers how it was called."""
    code = "from tools.cli_reference import page; print(page(), end='')"
    written = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert cli_reference.PAGE.read_text(encoding="utf-8") == written, "run python -m tools.cli_reference"
