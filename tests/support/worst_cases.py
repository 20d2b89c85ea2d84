"""Worst cases of a definition in simulation, counted by hand and held against what publishing has proven of it.

Every task takes as long as it may, runs on when it is asked to stop, uses all its attempts, and leaves as much behind
as it can. A value counts as the largest one that may be kept; history and errors count as they were written.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.json import encode

from definitions.graph import ChildSpec, ForeachSpec, Graph, SetSpec, SignalSpec, TaskSpec
from definitions.limits import VALUE_BYTES_MAX
from engine.command import SubmitTask
from engine.flow import Flow, is_undoing
from engine.instance import Failure
from engine.playing import Answer, Outcomes, OwnRun, Refusal, Script
from engine.simulator import Simulation
from engine.states import StepReason, StepState
from engine.stimulus import Outcome
from orbit.clock import SECOND
from pulse import limits as pulse_limits

# Numbers, states and names in the row of a task, an attempt, a step, a value or an advance, with what a table adds.
ROW_BYTES = 512
# How many of the largest values each kind of step keeps itself; a foreach its list, its results, and these one by one.
_VALUES: dict[type[object], int] = {SetSpec: 1, SignalSpec: 1, ForeachSpec: 3}
PLENTY = "x" * 3_900  # an error's message, about as long as Pulse keeps it
Graphs = Mapping[tuple[str, int], Graph]


def attempts_of(spec: TaskSpec) -> tuple[int, int]:
    """Count, as Pulse does, in how many attempts of a task a handler can fail, and in how many it can put it off."""
    return spec.retry.attempts_max + pulse_limits.LOST_MAX - 1, pulse_limits.DEFERRALS_MAX


@dataclass(slots=True)
class Used:
    """What one instance has used, with its children."""

    graph: Graph
    above: "Used | None" = None
    simulation: Simulation | None = None
    below: list["Used"] = field(default_factory=list)
    tasks: int = 0
    attempts: int = 0
    rounds: int = 0
    concurrent_tasks: int = 0
    stored_bytes: int = 0
    under_way: list[float] = field(default_factory=list)  # when each task ends

    def count(self, spec: TaskSpec, *, is_round: bool, ends_at: float, now: float) -> None:
        """Count a task here and in every parent."""
        failing, put_off = attempts_of(spec)
        each = ROW_BYTES + pulse_limits.PROGRESS_BYTES_MAX
        late = pulse_limits.OUTPUT_BYTES_MAX  # what reports too late is kept as evidence
        left = failing * (each + late + 2 * pulse_limits.ERROR_BYTES_MAX) + put_off * each
        level: Used | None = self
        while level is not None:
            level.tasks += 1
            level.rounds += is_round
            level.attempts += failing + put_off
            level.stored_bytes += 3 * ROW_BYTES + pulse_limits.PARAMS_BYTES_MAX + pulse_limits.OUTPUT_BYTES_MAX + left
            while level.under_way and level.under_way[0] <= now + 1e-6:
                heapq.heappop(level.under_way)
            heapq.heappush(level.under_way, ends_at)
            level.concurrent_tasks = max(level.concurrent_tasks, len(level.under_way))
            level = level.above


@dataclass(slots=True)
class WorstCase:
    """One run of a definition whose tasks answer in turn what `kinds` says.

    0 is a full queue, 1 a poll that is done, 2 a failure, anything else a late success. What undoes never fails: a
    person would have to decide about that, and what people do is outside of the bounds.
    """

    graphs: Graphs
    kinds: Sequence[int]
    signals: Sequence[float] = ()
    answered: int = 0
    refused: int = 0

    def run(self, graph: Graph, flags: list[bool]) -> tuple[Used, Outcomes]:
        """Run a definition; give what it has used and how it came out."""
        used = Used(graph)
        simulation = Simulation(Flow(graph), self._script(used), input_value={"flags": flags})
        self._prepare(used, simulation)
        outcomes = simulation.run()
        _count_kept(used, outcomes)
        return used, outcomes

    def _prepare(self, used: Used, simulation: Simulation) -> None:
        used.simulation = simulation
        for at_seconds in self.signals:
            simulation.signal_at(at_seconds, "go", 1)

    def _script(self, used: Used) -> Script:
        return lambda command: self._answer(used, command)

    def _answer(self, used: Used, command: SubmitTask) -> Answer | Refusal | OwnRun:
        spec = command.spec
        if isinstance(spec, ChildSpec):
            return self._child(used, spec)
        kind = self.kinds[(self.answered + self.refused) % len(self.kinds)]
        undoes = is_undoing(command.step)
        if kind == 0 and self.refused % 5 != 4 and not undoes:
            self.refused += 1
            return Refusal(Failure("QUEUE_FULL", "full"))
        self.answered += 1
        longest = spec.timeout_seconds + spec.attempt_timeout_seconds
        assert used.simulation is not None
        now = used.simulation.now / SECOND
        is_round = any(node.id == command.step.split("[")[0] and node.kind == "POLL" for node in used.graph.nodes)
        used.count(spec, is_round=is_round, ends_at=now + longest, now=now)
        if kind == 2 and not undoes:
            error = Failure("X", PLENTY)
            return Answer(Outcome.FAILED, error=error, after_seconds=longest, ignores_cancel=True)
        return Answer(output={"done": kind == 1}, after_seconds=longest, ignores_cancel=True)

    def _child(self, used: Used, spec: ChildSpec) -> OwnRun:
        inner = Used(self.graphs[spec.workflow, spec.version], above=used)
        used.below.append(inner)
        return OwnRun(Flow(inner.graph), lambda _: self._script(inner), lambda made: self._prepare(inner, made))


def _count_kept(used: Used, outcomes: Outcomes) -> None:
    """Count what an instance and its children have left in the tables of workflows."""
    kept = ROW_BYTES + 2 * VALUE_BYTES_MAX  # the instance itself, with its input and its output
    values = {node.id: _VALUES.get(type(node.spec), 0) for node in used.graph.nodes}
    for step in (*outcomes.instance.steps.values(), *outcomes.settled.values()):
        name = step.id.split("[")[0]
        kept += ROW_BYTES + len(encode([step.error, step.log, step.items]))
        own = values.get(name, 0) if step.state is not StepState.SKIPPED else 0
        is_given = step.reason is StepReason.HANDLED and step.state is StepState.SUCCEEDED  # a handler's `value`
        kept += VALUE_BYTES_MAX * (own + is_given)
    advances = {line.at_seconds for line in outcomes.trace}
    kept += sum(len(encode(line.entry)) for line in outcomes.trace) + len(advances) * ROW_BYTES // 8
    for child, inner in zip(outcomes.children, used.below, strict=True):
        _count_kept(inner, child.outcomes)
    level: Used | None = used
    while level is not None:
        level.stored_bytes += kept
        level = level.above


def violations(used: Used, outcomes: Outcomes) -> list[str]:
    """Say which of the proven bounds an instance or one of its children has passed."""
    proven = used.graph.bounds
    active_seconds = max((line.at_seconds for line in outcomes.trace), default=0.0)
    counted = {
        "tasks": used.tasks,
        "attempts": used.attempts,
        "rounds": used.rounds,
        "concurrent_tasks": used.concurrent_tasks,
        "stored_bytes": used.stored_bytes,
        "active_seconds": active_seconds - 1e-6,
    }
    found = [
        f"{used.graph.workflow}: {value} {name}, {getattr(proven, name)} proven"
        for name, value in counted.items()
        if value > getattr(proven, name)
    ]
    for child, inner in zip(outcomes.children, used.below, strict=True):
        found += violations(inner, child.outcomes)
    return found
