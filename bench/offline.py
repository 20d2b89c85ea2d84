"""W0: what a developer waits for without a server: the command line, checking definitions, evaluating an expression.

    python -m bench.offline [--runs 9]

Each command is a process of its own, so everything is cold; what is printed is the median of wall-clock and of
processor time. On a machine that others use too, run it with a real-time priority (`chrt -r 10`).
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def large(steps: int) -> str:
    """Write a definition of so many steps, no two of them alike."""
    return HEAD + "".join(STEP % {"number": number, "before": number - 1} for number in range(1, steps))


def command(*arguments: str, runs: int) -> tuple[float, float]:
    """Run the command line so often; return the medians of wall-clock and processor time in milliseconds."""
    walls, processor = [], []
    for _ in range(runs):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        whole = [sys.executable, "-m", "orbit", *arguments]
        subprocess.run(whole, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(1_000 * (time.perf_counter() - begun))
        processor.append(1_000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return statistics.median(walls), statistics.median(processor)


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
    print(f"load average {Path('/proc/loadavg').read_text(encoding='ascii').split()[0]}, median of {runs} runs")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.yaml"
        file.write_text(large(STEPS), encoding="utf-8")
        start = command("--version", runs=runs)
        print(f"start-up                 {start[0]:6.0f} ms, {start[1]:4.0f} ms of processor time")
        for name, path in (("check the demo", DEMO), (f"check {STEPS} steps", file)):
            wall, processor = command("check", str(path), runs=runs)
            print(
                f"{name:24} {wall:6.0f} ms, {processor:4.0f} ms of processor time, {wall - start[0]:4.0f} ms after it"
            )
    print(f"one evaluation           {evaluation_micros(runs):6.2f} µs with 1 000 rows bound")


if __name__ == "__main__":
    main()
