"""Generated documents say what the code says."""

from tools import cli_reference


def test_the_command_line_reference_is_the_commands_own() -> None:
    assert cli_reference.PAGE.read_text(encoding="utf-8") == cli_reference.page(), "run python -m tools.cli_reference"
