"""The entry point of the command line, both as `orbit` and as `python -m orbit`.

Its one surprising rule: it puts the folder that holds this very package first on the path, so that all six packages
come from one place, whatever the current folder or the environment offers under the same names.
"""

import gc
import sys
from pathlib import Path

# What a command loads and makes stays until it ends, so that looking for garbage in it is lost time: a quarter of that
# of a short command. What runs long, `orbit server` and `orbit worker`, sets its own.
_YOUNG_MAX = 100_000


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from orbit.cli.program import run  # noqa: PLC0415  (only after the path is set)

    gc.set_threshold(_YOUNG_MAX)
    code = run()
    gc.freeze()  # or Python looks at every object once more before it ends
    sys.exit(code)


if __name__ == "__main__":
    main()
