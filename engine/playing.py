"""What the simulator is told and what it tells: answers of a script, what is under way, how a run came out.

How they are played is `engine.simulator`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.command import Entry, SubmitTask
from engine.flow import Flow
from engine.instance import Failure, Instance, Signal, Step
from engine.stimulus import Outcome
from orbit.clock import Micros
from orbit.jsontext import Json

NEVER = math.inf  # how long a review takes that an operator has to end


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task answers: how it ends, with which output or error, how many seconds after its submission.

    `succeeds_late_after_seconds` lets a worker report a success that much later, although the task has ended otherwise.
    `reviewed_after_seconds` makes it go into review first and stay there that long, `NEVER` until an operator decides.
    `ignores_cancel` makes it run on to its own end when it is asked to stop. `repeated_after_seconds` makes its end be
    told a second time, that much later.
    """

    outcome: Outcome = Outcome.SUCCEEDED
    output: Json = None
    error: Failure | None = None
    after_seconds: float = 1.0
    reviewed_after_seconds: float | None = None
    ignores_cancel: bool = False
    repeated_after_seconds: float | None = None
    succeeds_late_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A child that runs by its own definition: its flow, its script, and what comes to it from outside.

    A script is made for each run, by the child's name in the family.
    """

    flow: Flow
    script: Callable[[str], Script]
    prepare: Callable[[Any], None]  # of its simulation


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Pulse answers instead of taking a task."""

    error: Failure
    retryable: bool = True


# The script: what happens to the task of a submission. It is asked once for each submission.
Script = Callable[[SubmitTask], Answer | Refusal | OwnRun]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the trace: the instant in seconds since the start, the entry, and its place in the whole family's."""

    at_seconds: float
    entry: Entry
    order: int = 0


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How a simulation ended: the last state, the instance's output, and everything that happened in order."""

    instance: Instance
    output: Json
    trace: tuple[Line, ...]
    unfinished_tasks: frozenset[tuple[str, int]]
    settled: Mapping[str, Step] = field(default_factory=dict)  # the steps of items that are done with
    children: tuple[ChildOutcomes, ...] = ()  # in the order in which they began

    def step(self, identifier: str) -> Step | None:
        """Give a step as it was last; None if it was never entered."""
        return self.instance.steps.get(identifier) or self.settled.get(identifier)


@dataclass(frozen=True, slots=True)
class ChildOutcomes:
    """How a child ended that ran by its own definition: of which step and round it was, and by which script."""

    step: str
    round: int
    flow: Flow
    script: Script
    outcomes: Outcomes


@dataclass(slots=True)
class Playing:
    """A task, or a child, which is played like one.

    `held_since` is given while the task waits behind the closed gate of a paused instance: nothing of it has happened,
    and its deadline stands still.
    """

    answer: Answer
    deadline_at: Micros
    is_child: bool
    held_since: Micros | None = None
    is_reviewed: bool = False
    review_closes_at: Micros = 0


@dataclass(order=True, slots=True)
class Happening:
    """Something that will be told to the instance, in the order of its instant and of its telling."""

    at: Micros
    order: int
    stimulus: Any = field(compare=False)  # of an instance, or a command that is made one when it is due
    is_repeated: bool = field(compare=False, default=False)
    signal: Signal | None = field(compare=False, default=None)
