"""Write `docs/states.md` from the transition tables of both layers; with `--check`, only say whether it is true."""

import argparse
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from engine.states import CONTROL_MOVES, INSTANCE_MOVES, STEP_MOVES
from pulse.states import FIRING_MOVES, SCHEDULE_MOVES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "states.md"

StateT = TypeVar("StateT", bound=StrEnum)

_HEAD = """\
# States and moves

What an instance and its steps can become, drawn from the tables in `engine/states.py` by
`python -m tools.state_diagrams`. Each advance checks every move against them: one that does not stand here is a bug and
holds the instance with ENGINE_ERROR. What each state means stands beside it there.
"""
_INSTANCE = """\
What stops an instance goes through ENDING, and through COMPENSATING if what it did is undone. Only a success that the
flow reaches by itself is direct.
"""
_CONTROL = "Beside its state: whether an operator lets it go on.\n"
_STEP = "A step that is PENDING has no row. FAILED is left by an error handler or a person's decision only.\n"

_SCHEDULE = """\
Of `pulse/states.py`, as is the next. A schedule may be created PAUSED; STOPPED has lost the right to what it makes.
"""
_FIRING = "A firing is recorded as FIRED, SKIPPED or REFUSED at once, unless it has to wait for the one before.\n"


def diagram(moves: Mapping[StateT, frozenset[StateT]]) -> str:
    """Draw a table as a Mermaid state diagram: the first state is where it begins, those without moves end it."""
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {next(iter(moves))}"]
    for state, targets in moves.items():
        lines += [f"  {state} --> {target}" for target in sorted(targets)] or [f"  {state} --> [*]"]
    return "\n".join([*lines, "```\n"])


def page() -> str:
    """Return what the page should be."""
    parts = [
        f"## Instance\n\n{_INSTANCE}\n{diagram(INSTANCE_MOVES)}",
        f"## Control\n\n{_CONTROL}\n{diagram(CONTROL_MOVES)}",
        f"## Step\n\n{_STEP}\n{diagram(STEP_MOVES)}",
        f"## Schedule\n\n{_SCHEDULE}\n{diagram(SCHEDULE_MOVES)}",
        f"## Firing\n\n{_FIRING}\n{diagram(FIRING_MOVES)}",
    ]
    return "\n".join([_HEAD, *parts])


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the page is out of date")
    if parser.parse_args().check:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
