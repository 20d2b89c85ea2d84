"""W0: what a developer waits for without a server: the command line, checking definitions, evaluating an expression.

    python -m bench.offline [--runs 9]

Each command is a process of its own, so everything is cold but Python's bytecode, which an installation has and which
is written here by a first run that is not counted. The commands are run in turn, so that a machine that others use too
is slow for all of them alike; what is printed are medians. The span "after it" is that after the start-up, which is
`orbit --version`.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.mood import moods_kept
from definitions.expression import compile_expression

STEPS = 500
DEMO = Path(__file__).parents[1] / "examples" / "payout" / "payout.yaml"
HEAD = """\
orbit: weave/1
workflow: large
version: 1
input: {type: object, required: [amount, name], properties: {amount: {type: number}, name: {type: string}}}
timeout: 10d
defaults: {queue: q}
steps:
- {id: s0, task: t.a@1}
"""
STEP = """\
- id: s%(number)d
  task: t.a%(number)d@1
  when: input.amount > %(number)d.5 && input.name != "n%(number)d"
  input: {a: "${ input.name }-%(number)d", b: "${ default(steps.s%(before)d.output.ref, %(number)d) }"}
"""


# One check in a process that has loaded what it needs; it tells its milliseconds.
ALONE = """
import sys, time
from orbit.cli.program import run
from definitions import bound_limits, commands, compiler
begun = time.perf_counter()
run(["check", sys.argv[1]])
print(1_000 * (time.perf_counter() - begun), file=sys.stderr)
"""


class Spans(NamedTuple):
    """Milliseconds of wall-clock and of processor time."""

    wall: float
    processor: float


def large(steps: int) -> str:
    """Write a definition of so many steps, no two of them alike."""
    return HEAD + "".join(STEP % {"number": number, "before": number - 1} for number in range(1, steps))


def command(arguments: list[str], bytecode: Path) -> Spans:
    """Run the command line once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "orbit", *arguments],
        stdout=subprocess.DEVNULL,
        env=environment | {"PYTHONPYCACHEPREFIX": str(bytecode)},
        check=True,
    )
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spans(1_000 * wall, 1_000 * processor)


def measure(commands: dict[str, list[str]], bytecode: Path, *, runs: int) -> dict[str, list[Spans]]:
    """Run all commands in turn, so often each."""
    for arguments in commands.values():
        command(arguments, bytecode)
    rounds = [{name: command(arguments, bytecode) for name, arguments in commands.items()} for _ in range(runs)]
    return {name: [each[name] for each in rounds] for name in commands}


def alone_millis(file: Path, *, runs: int) -> float:
    """Check a file for the first time in a process that is already loaded; return the median."""
    told = [
        subprocess.run([sys.executable, "-c", ALONE, str(file)], capture_output=True, text=True, check=True).stderr
        for _ in range(runs)
    ]
    return statistics.median(float(text) for text in told)


def evaluation_micros(runs: int) -> float:
    """Evaluate a condition with 1 000 rows bound; return the median over batches of 1 000, in microseconds."""
    expression = compile_expression('steps.query.output.status == "DONE" && input.amount > 100')
    rows = [{"id": number, "text": "x" * 20} for number in range(1_000)]
    scope = {
        "input": {"amount": 150.0},
        "steps": {"query": {"output": {"status": "DONE"}}, "rows": {"output": rows}},
    }
    spans = []
    for _ in range(10 * runs):
        begun = time.perf_counter()
        for _ in range(1_000):
            expression.evaluate(scope)
        spans.append(1_000 * (time.perf_counter() - begun))
    return statistics.median(spans)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    print(f"load average {Path('/proc/loadavg').read_text(encoding='ascii').split()[0]}, medians of {runs} runs, in ms")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, moods_kept(Path(folder)) as moods:
        file = Path(folder) / "large.yaml"
        file.write_text(large(STEPS), encoding="utf-8")
        commands = {
            "start-up": ["--version"],
            "check --help": ["check", "--help"],
            "check the demo": ["check", str(DEMO)],
            f"check {STEPS} steps": ["check", str(file)],
        }
        spans = measure(commands, Path(folder) / "bytecode", runs=runs)
        alone = {path.stem: alone_millis(path, runs=runs) for path in (DEMO, file)}
        print(f"processors        {moods.since(begun)} (ms for a million additions)")
    print(f"{'':18}{'wall-clock':>11}{'after it':>10}{'processor':>11}{'after it':>10}")
    for name, found in spans.items():
        wall, processor = (statistics.median(each[place] for each in found) for place in (0, 1))
        # Compared round by round: what slows the machine down for a while slows down both.
        pairs = list(zip(found, spans["start-up"], strict=True))
        later = [statistics.median(own[place] - start[place] for own, start in pairs) for place in (0, 1)]
        print(f"{name:18}{wall:11.0f}{later[0]:10.0f}{processor:11.0f}{later[1]:10.0f}")
    print("once loaded       " + ", ".join(f"{name} {millis:.0f}" for name, millis in alone.items()))
    print(f"one evaluation {evaluation_micros(runs):.2f} µs with 1 000 rows bound")


if __name__ == "__main__":
    main()
