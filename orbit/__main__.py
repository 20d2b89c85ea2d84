"""The entry point of the command line, both as `orbit` and as `python -m orbit`.

Its one surprising rule: it puts the folder that holds this very package first on the path, so that all six packages
come from one place, whatever the current folder or the environment offers under the same names.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from orbit.cli.program import run  # noqa: PLC0415  (only after the path is set)

    sys.exit(run())


if __name__ == "__main__":
    main()
