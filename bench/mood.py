"""How quick the processors were during a measurement: what a million additions cost, twice a second, meanwhile.

A shared machine's processors change their speed within seconds, by a factor of two and more, so a figure says little
without its mood. The additions are timed by the CPU time of the thread that makes them, so that waiting for a processor
doesn't count. They run in a process of their own and cost less than a hundredth of a processor; measurements read what
it wrote.
"""

import contextlib
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
ADDITIONS = 100_000
REST_SECONDS = 0.5


@dataclass(frozen=True)
class Mood:
    """Milliseconds of CPU time for a million additions: the median of some samples, and the worst."""

    median: float
    worst: float

    def __str__(self) -> str:
        """Write it beside a figure."""
        return f"[mood {self.median:.0f}, worst {self.worst:.0f}]"


class Moods:
    """The moods of the machine so far, by the clock that `time.monotonic` reads in every process."""

    def __init__(self, samples: Path) -> None:
        self._samples = samples

    def since(self, began: float) -> Mood:
        """Tell the mood since an instant; of less than a rest of the yardstick the sample before counts too."""
        lines = [line.split() for line in self._samples.read_text().splitlines(keepends=True) if line.endswith("\n")]
        millis = [float(value) for at, value in lines if float(at) >= began - REST_SECONDS] or [float(lines[-1][1])]
        return Mood(statistics.median(millis), max(millis))


@contextlib.contextmanager
def moods_kept(folder: Path) -> Iterator[Moods]:
    """Keep samples in a file of this folder until the block ends."""
    samples = folder / "mood"
    with (
        samples.open("wb") as file,
        subprocess.Popen([sys.executable, "-m", "bench.mood"], stdin=subprocess.PIPE, stdout=file, cwd=ROOT),
    ):
        wait_until(lambda: b"\n" in samples.read_bytes(), 30, what="the first sample of the processors")
        yield Moods(samples)


class Rates:
    """How much was done in a second in each phase, round by round, with the mood of each."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._seen: dict[str, list[tuple[float, Mood]]] = {}

    def add(self, phase: str, rate: float, mood: Mood, more: str = "") -> None:
        """Print a phase's rate and keep it."""
        self._seen.setdefault(phase, []).append((rate, mood))
        print(f"{phase:22} {rate:.0f} {self._unit}{more} {mood}", flush=True)

    def summary(self) -> None:
        """Print for each phase that had rounds the median (of an even number the lower one) and the best."""
        for phase, seen in self._seen.items():
            rounds = sorted(seen, key=lambda each: each[0])
            (median, its_mood), (best, best_mood) = rounds[(len(rounds) - 1) // 2], rounds[-1]
            if len(rounds) > 1:
                print(f"{phase:22} median {median:.0f} {self._unit} {its_mood}, best {best:.0f} {best_mood} "
                      f"({len(rounds)} rounds)")  # fmt: skip


def sample() -> float:
    """Measure once: milliseconds for a million additions."""
    begun = time.thread_time()
    total = 0
    for number in range(ADDITIONS):
        total += number
    return (time.thread_time() - begun) * 1e9 / ADDITIONS


def main() -> None:
    """Print instants and samples until whoever asked for them closes the standard input."""
    while True:
        millis = sample()
        print(time.monotonic(), millis, flush=True)
        if select.select([sys.stdin], [], [], REST_SECONDS)[0]:
            return


if __name__ == "__main__":
    main()
