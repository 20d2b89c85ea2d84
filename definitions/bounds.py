"""The proven maxima of one instance, and how those of its parts add up.

Time is active time: pauses, open reviews, manual recovery and migration are outside and come on top. The arithmetic
follows the structure: a sequence adds, a choice takes the larger, parallel branches take the longest and add their
tasks. Everything is finite because every step kind has a bound of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from definitions import joins
from definitions.joins import Needs
from definitions.limits import (
    ATTEMPTS_LOST_MAX,
    BACKOFF_SECONDS_MAX,
    DEFERRALS_MAX,
    ERROR_BYTES_MAX,
    PROGRESS_BYTES_MAX,
    VALUE_BYTES_MAX,
)

# What a node leaves behind beside its values: its row and its history, rounded up.
RECORD_BYTES = 4 * 1024
# What an attempt leaves behind: its row with its last progress; and, where it did not only put its task off, its error,
# its report's, and an output that came too late and is kept as evidence.
DEFERRAL_BYTES = 1024 + PROGRESS_BYTES_MAX
ATTEMPT_BYTES = DEFERRAL_BYTES + 2 * ERROR_BYTES_MAX + VALUE_BYTES_MAX


class Bounds(Struct, frozen=True):
    """What one instance can use at most."""

    tasks: int = 0
    attempts: int = 0
    rounds: int = 0
    concurrent_tasks: int = 0
    stored_bytes: int = 0
    active_seconds: float = 0.0
    # Tasks of branches that lost their join: they may still run beside whatever comes next. Part of the above.
    lingering_tasks: int = 0


NOTHING = Bounds()


def sequence(parts: Iterable[Bounds]) -> Bounds:
    """Return the bounds of parts that run one after the other."""
    total = NOTHING
    for part in parts:
        total = Bounds(
            tasks=total.tasks + part.tasks,
            attempts=total.attempts + part.attempts,
            rounds=total.rounds + part.rounds,
            concurrent_tasks=max(total.concurrent_tasks, total.lingering_tasks + part.concurrent_tasks),
            stored_bytes=total.stored_bytes + part.stored_bytes,
            active_seconds=total.active_seconds + part.active_seconds,
            lingering_tasks=total.lingering_tasks + part.lingering_tasks,
        )
    return total


def choice(parts: Iterable[Bounds]) -> Bounds:
    """Return the bounds of parts of which exactly one runs."""
    total = NOTHING
    for part in parts:
        total = Bounds(
            tasks=max(total.tasks, part.tasks),
            attempts=max(total.attempts, part.attempts),
            rounds=max(total.rounds, part.rounds),
            concurrent_tasks=max(total.concurrent_tasks, part.concurrent_tasks),
            stored_bytes=max(total.stored_bytes, part.stored_bytes),
            active_seconds=max(total.active_seconds, part.active_seconds),
            lingering_tasks=max(total.lingering_tasks, part.lingering_tasks),
        )
    return total


def parallel(lanes: Mapping[str, Bounds], needs: Needs, *, enough: int | None = None) -> Bounds:
    """Return the bounds of lanes that run side by side, in the order of what they need.

    `enough` is how many of them must be done for the flow to go on while the others may still run.
    """
    together = sequence(lanes.values())
    lingering = together.lingering_tasks
    if enough is not None:
        at_its_end = sorted(part.concurrent_tasks - part.lingering_tasks for part in lanes.values())
        lingering = sum(part.concurrent_tasks for part in lanes.values()) - sum(at_its_end[:enough])
    alone = joins.widest(needs, {name: part.concurrent_tasks - part.lingering_tasks for name, part in lanes.items()})
    return replace(
        together,
        concurrent_tasks=alone + together.lingering_tasks,
        active_seconds=joins.longest(needs, {name: part.active_seconds for name, part in lanes.items()}),
        lingering_tasks=min(lingering, alone + together.lingering_tasks),
    )


def backoff_seconds_total(attempts_max: int, backoff_seconds: float, backoff_seconds_max: float) -> float:
    """Return the longest sum of the gaps between `attempts_max` attempts, each the double of the one before."""
    total = 0.0
    gap = min(backoff_seconds, backoff_seconds_max)
    for gap_index in range(attempts_max - 1):
        if gap >= backoff_seconds_max:
            return total + (attempts_max - 1 - gap_index) * backoff_seconds_max
        total += gap
        gap = min(gap * 2, backoff_seconds_max)
    return total


def executions_total(attempts_max: int) -> int:
    """Return how many attempts of one task can take their full time: its own and those that the platform may lose."""
    return attempts_max + ATTEMPTS_LOST_MAX - 1


def attempts_total(attempts_max: int) -> int:
    """Return in how many attempts of one task a handler can run: those, and the ones that it puts off."""
    return executions_total(attempts_max) + DEFERRALS_MAX


def task(*, attempts_max: int, start_within_seconds: float, timeout_seconds: float, overrun_seconds: float) -> Bounds:
    """Return the bounds of one task.

    A full queue may keep it from being submitted for `start_within_seconds`; then its deadline counts; an attempt that
    is under way at the deadline is told to stop and may take the rest of its own time, `overrun_seconds`.
    """
    return Bounds(
        tasks=1,
        attempts=attempts_total(attempts_max),
        concurrent_tasks=1,
        stored_bytes=2 * VALUE_BYTES_MAX
        + RECORD_BYTES
        + executions_total(attempts_max) * ATTEMPT_BYTES
        + DEFERRALS_MAX * DEFERRAL_BYTES,
        active_seconds=start_within_seconds + timeout_seconds + overrun_seconds,
    )


def retried(part: Bounds, retries: Iterable[tuple[int, float]]) -> Bounds:
    """Return the bounds of a step that may be done again: so many times, after a first gap of so many seconds."""
    again: list[Bounds] = []
    for retries_max, backoff_seconds in retries:
        gaps = backoff_seconds_total(retries_max + 1, backoff_seconds, BACKOFF_SECONDS_MAX)
        again += [part] * retries_max + [wait(gaps)]
    return sequence([part, *again])


class Rounds(Struct, frozen=True):
    """The rhythm of a poll: how many rounds, and the gap between them with its factor and cap."""

    rounds_max: int
    every_seconds: float
    backoff: float
    every_seconds_max: float

    def gap_seconds_total(self) -> float:
        """Return the sum of all gaps."""
        total = 0.0
        gap = self.every_seconds
        for gap_index in range(self.rounds_max - 1):
            if self.backoff == 1.0 or gap >= self.every_seconds_max:
                return total + (self.rounds_max - 1 - gap_index) * min(gap, self.every_seconds_max)
            total += gap
            gap *= self.backoff
        return total


def poll(round_bounds: Bounds, rounds: Rounds, *, timeout_seconds: float) -> Bounds:
    """Return the bounds of a poll: it ends by its rounds or by its time-out, after the round then under way."""
    count = rounds.rounds_max
    by_rounds = count * round_bounds.active_seconds + rounds.gap_seconds_total()
    return Bounds(
        tasks=count,
        attempts=count * round_bounds.attempts,
        rounds=count,
        concurrent_tasks=1,
        stored_bytes=count * round_bounds.stored_bytes,
        active_seconds=min(by_rounds, timeout_seconds + round_bounds.active_seconds),
    )


def child(inner: Bounds) -> Bounds:
    """Return the bounds of a child instance; a time-out of its step can only shorten it."""
    return sequence([inner, record()])


def foreach(item: Bounds, *, items_max: int, concurrency: int, retries: int = 0) -> Bounds:
    """Return the bounds of steps that run for each item, so many items at once, and of the lists that go in and out.

    An item begins as soon as one before it has ended, so after `n` times the longest item `n * concurrency` are done.
    Each retry begins anew only the items that were under way, and each of the tries rounds up once more.
    """
    at_once = min(items_max, concurrency)
    runs = items_max + retries * at_once
    return Bounds(
        tasks=runs * item.tasks,
        attempts=runs * item.attempts,
        rounds=runs * item.rounds,
        concurrent_tasks=at_once * item.concurrent_tasks,
        # The list, the list of results, and the results one by one, which are together no larger than their list.
        stored_bytes=runs * (item.stored_bytes + RECORD_BYTES) + 3 * VALUE_BYTES_MAX + RECORD_BYTES,
        active_seconds=(ceil(runs / at_once) + retries) * item.active_seconds,
    )


def times(part: Bounds, count: int) -> Bounds:
    """Return the bounds of a part that runs so many times, one after the other."""
    return Bounds(
        tasks=count * part.tasks,
        attempts=count * part.attempts,
        rounds=count * part.rounds,
        concurrent_tasks=part.concurrent_tasks,
        stored_bytes=count * part.stored_bytes,
        active_seconds=count * part.active_seconds,
        lingering_tasks=part.lingering_tasks,
    )


def value() -> Bounds:
    """Return the bounds of a step that stores one value."""
    return Bounds(stored_bytes=VALUE_BYTES_MAX + RECORD_BYTES)


def record() -> Bounds:
    """Return the bounds of a step that stores nothing but that it happened."""
    return Bounds(stored_bytes=RECORD_BYTES)


def wait(seconds: float) -> Bounds:
    """Return the bounds of a wait."""
    return Bounds(stored_bytes=RECORD_BYTES, active_seconds=seconds)


def signal(timeout_seconds: float) -> Bounds:
    """Return the bounds of a wait for a signal, whose payload is stored."""
    return Bounds(stored_bytes=VALUE_BYTES_MAX + RECORD_BYTES, active_seconds=timeout_seconds)
