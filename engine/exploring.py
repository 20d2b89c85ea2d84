"""Run one workflow in every order in which its tasks can end, its timers fire and what comes from outside comes.

The script says what each task answers; when is up to the search: at each point anything that is outstanding may be
next. Each order is a run of the simulator from the start, and one that comes to a state where another has been is given
up there.

The surprising rule: time moves with timers only, so spans in the script order nothing. Bounds of running tasks and of
the instance fire only when nothing else is left; waits, gaps of polls and time-outs of signals fire at any point.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_field

import msgspec

from engine.command import SubmitTask
from engine.flow import Flow
from engine.kinship import told_up
from engine.playing import Answer, Happening, Outcomes, OwnRun, Playing, Script
from engine.simulator import Simulation
from engine.states import StepState
from engine.stimulus import ReviewClosed, ReviewOpened, Stimulus, TaskEnded
from orbit.clock import Micros, seconds
from orbit.jsontext import Json

# Chooses one of so many; the bytes say where, so that the same place is recognised.
Choice = Callable[[int, bytes], int]
Prepare = Callable[[Choice], "Ordered"]


class _SeenBefore(Exception):
    """The run has come to where another has been: all that follows is known."""


@dataclass(frozen=True, slots=True)
class Order:
    """One order that was run to its end: which step or timer came at each point where there was a choice."""

    outcomes: Outcomes
    events: tuple[str, ...]


@dataclass(slots=True)
class Search:
    """What a search has come to so far; `is_complete` once there is no order left."""

    run_count: int = 0
    merged_count: int = 0  # of these, runs that were given up at a state already seen
    is_complete: bool = False


class Ordered(Simulation):
    """A simulation in which a choice says what comes next."""

    def __init__(self, flow: Flow, script: Script, choice: Choice, *, input_value: Json = None) -> None:
        super().__init__(flow, script, input_value=input_value)
        self.events: list[str] = []
        self._choice = choice
        self._next: Happening | None = None

    def _bear(self, command: SubmitTask, own: OwnRun) -> None:
        """Play a child as a task that takes as long as the child does alone: only the orders of this workflow vary."""
        child = self._child(command, own)
        born = child.instance
        outcomes = Simulation.run(child)
        told = told_up(self._kin(command), born, outcomes.instance, child.flow)
        ended = next((each for each in told if isinstance(each, TaskEnded)), None)
        last = outcomes.trace[-1].at_seconds if outcomes.trace else 0.0
        if ended is not None:
            self._answered(command, Answer(ended.outcome, outcomes.output, ended.error, after_seconds=last))
            return
        self._link(command.step)
        self._tasks[command.step, command.round] = Playing(Answer(), command.deadline_at, is_child=True)
        for each in told:  # it waits for a person, and so does its step
            self.happen(self._now + seconds(last), each)

    def _next_happening(self) -> Micros | None:
        """Choose; a happening comes now, and None lets the next timer fire."""
        candidates = self._candidates()
        self._next = None
        if not candidates:
            return None
        index = self._choice(len(candidates), self._place()) if len(candidates) > 1 else 0
        self._next = candidates[index]
        if len(candidates) > 1:
            self.events.append("a timer" if self._next is None else _words(self._next))
        return None if self._next is None else self._now

    def _candidates(self) -> Sequence[Happening | None]:
        found: list[Happening | None] = []
        reviewed: set[tuple[str, int]] = set()
        is_outside_listed = False
        for each in sorted(self._happenings):
            match each.stimulus:
                case ReviewOpened(step=step, round=number) | ReviewClosed(step=step, round=number):
                    if (step, number) in self._tasks and (step, number) not in reviewed:
                        found.append(each)
                    reviewed.add((step, number))
                case TaskEnded(step=step, round=number):
                    is_open = (step, number) in self._tasks and (step, number) not in reviewed
                    if is_open or each.is_repeated:
                        found.append(each)
                case _ if not is_outside_listed:
                    # What people and other systems send keeps its own order.
                    found.append(each)
                    is_outside_listed = True
        waiting = (step for step in self.instance.steps.values() if step.state is StepState.WAITING)
        if self.instance.due_at is not None and any(self.instance.due_at in {s.due_at, s.timeout_at} for s in waiting):
            found.append(None)
        return found

    def _due_stimuli(self) -> list[Stimulus]:
        """Let what was chosen happen, and nothing else."""
        if self._next is None:
            return []
        others = [each for each in self._happenings if each is not self._next]
        self._happenings = [replace_field(self._next, at=self._now)]
        stimuli = super()._due_stimuli()
        self._happenings += others
        heapq.heapify(self._happenings)
        return stimuli

    def _place(self) -> bytes:
        """Write all that what follows depends on."""
        instance = self.instance
        steps = sorted(instance.steps.values(), key=lambda step: step.id)
        left = sorted((each.at - self._now, repr(each.stimulus), each.is_repeated) for each in self._happenings)
        state = (instance.state, instance.control, instance.ending_as, instance.due_at, instance.deadline_at)
        tasks = sorted((key, task.held_since, task.is_reviewed) for key, task in self._tasks.items())
        version = self._flow.graph.version
        return msgspec.json.encode((state, steps, left, tasks, self._now, len(self._signals), version))


def explore(prepare: Prepare, search: Search, *, runs_max: int) -> Iterator[Order]:
    """Run orders until all are known or so many were run; each that came to its end is given, with `search` kept.

    The last choices are varied first, as in any search by depth.
    """
    seen: set[bytes] = set()
    prefix: list[int] = []
    while search.run_count < runs_max:
        chosen: list[tuple[int, int]] = []

        def choose(count: int, place: bytes, prefix: list[int] = prefix, chosen: list[tuple[int, int]] = chosen) -> int:
            at = len(chosen)
            if at >= len(prefix):
                if place in seen:
                    raise _SeenBefore
                seen.add(place)
            index = prefix[at] if at < len(prefix) else 0
            chosen.append((index, count))
            return index

        search.run_count += 1
        simulation = prepare(choose)
        try:
            outcomes = simulation.run()
        except _SeenBefore:
            search.merged_count += 1
        else:
            yield Order(outcomes, tuple(simulation.events))
        while chosen and chosen[-1][0] + 1 >= chosen[-1][1]:
            chosen.pop()
        if not chosen:
            search.is_complete = True
            return
        prefix = [*(index for index, _ in chosen[:-1]), chosen[-1][0] + 1]


def _words(happening: Happening) -> str:
    match happening.stimulus:
        case TaskEnded(step=step, round=number, outcome=outcome):
            return f"{step} {outcome.value}" if number == 1 else f"{step} {outcome.value} (round {number})"
        case ReviewOpened(step=step):
            return f"{step} goes into review"
        case ReviewClosed(step=step):
            return f"{step} comes out of review"
        case stimulus:
            return type(stimulus).__name__
