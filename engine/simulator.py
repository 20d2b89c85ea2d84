"""Run a workflow in virtual time, with answers from a script: the server's own `advance`, no database, no server.

The simulator plays Pulse's part: it takes tasks or refuses them, ends them when the script says, or when asked to stop.
Time jumps to the next thing that happens. The same graph, input and script always give the same trace.

A child is answered like a task, or runs by its own definition: then it is a simulation of its own on the same clock,
and the two tell each other what `kinship` says that instances tell. Who has the earliest thing to do moves next.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from msgspec.structs import replace

from definitions.graph import ChildSpec
from engine import forking, migration
from engine.advance import advance
from engine.command import CancelTask, Commands, SubmitTask
from engine.effects import EFFECTS, EFFECTS_SEEN, Effect, in_order, parted_past, past_slot
from engine.flow import Flow
from engine.instance import INPUT, OUTPUT, SIGNALS, Failure, Instance, Signal, Step
from engine.items import parted
from engine.kinship import Kin, Parent, Told, child_instance, command_of, told_down, told_up
from engine.pausing import PAUSABLE
from engine.playing import NEVER, Answer, ChildOutcomes, Happening, Line, Outcomes, OwnRun, Playing, Refusal, Script
from engine.recovery import refusal
from engine.scope import ValuesNeeded
from engine.states import INSTANCE_TERMINAL, Control, InstanceState, StepState
from engine.stimulus import (
    CancelRequested,
    ChildQuiet,
    Forked,
    GateQuiet,
    Instructed,
    LateSuccess,
    Migrated,
    Outcome,
    PauseRequested,
    Recovered,
    ResumeRequested,
    ReviewClosed,
    ReviewOpened,
    SignalReceived,
    Started,
    Stimulus,
    SubmissionRefused,
    TaskEnded,
)
from orbit.clock import SECOND, Micros, seconds
from orbit.jsontext import Json

__all__ = ["NEVER", "Answer", "ChildOutcomes", "Line", "Outcomes", "OwnRun", "Refusal", "Script", "Simulation"]


@dataclass(frozen=True, slots=True)
class _Migration:
    """Somebody lets the instance go on with another version, if it has begun nothing that differs."""

    flow: Flow
    reason: str


# What an operator, or a parent, asks for, beside an operator's cancel, which fits every state.
Command = Recovered | PauseRequested | ResumeRequested | _Migration | Instructed
# What is applied while an instance is paused.
_THROUGH = CancelRequested | ChildQuiet | GateQuiet

ADVANCES_MAX = 200_000
_GOES_ON = "the script goes on"
SIGNAL_LIVES_SECONDS = 7 * 86_400.0


class Simulation:
    """One instance in virtual time. `observe` may be set: it is shown the instance after each advance."""

    def __init__(self, flow: Flow, script: Script, *, input_value: Json = None, started_at: Micros = 0) -> None:
        self.observe: Callable[[Instance], None] = lambda _instance: None
        self.resumes_after_seconds: float | None = 0.0  # how soon somebody resumes it at a breakpoint; None is never
        self._flow = flow
        self.name = ""  # of a child, in the family: the steps that lead to it, each with a slash
        self.script = script
        self._now = started_at
        self._order = 0
        self._happenings: list[Happening] = []
        self._tasks: dict[tuple[str, int], Playing] = {}
        self._outputs: dict[str, Json] = {INPUT: input_value}
        self._settled: dict[str, Step] = {}
        self._past: dict[str, tuple[Step, ...]] = {}
        self._effects: dict[str, Effect] = {}
        self._aside: list[Stimulus] = []
        self._signals: list[Signal] = []
        self._signals_sent = 0
        self._trace: list[Line] = []
        self.lines = count()  # numbers the lines of the trace; of one family together
        self._advances = 0
        self.above: tuple[Kin, Simulation] | None = None
        self._children: dict[tuple[str, int], Simulation] = {}
        self._first: Stimulus = Started()
        deadline_at = started_at + seconds(flow.graph.timeout_seconds)
        self.instance = Instance(bytes(16), InstanceState.RUNNING, 0, started_at, deadline_at)

    def cancel_at(self, seconds_from_start: float, reason: str, *, compensate: bool = False) -> None:
        """Let somebody cancel the instance at that time, undoing first what it did if so said."""
        cancel = CancelRequested(reason, compensate=compensate)
        self.happen(self.instance.started_at + seconds(seconds_from_start), cancel)

    def pause_at(self, seconds_from_start: float, reason: str) -> None:
        """Let somebody pause the instance at that time; what is waiting for workers is played as if it ran."""
        self.happen(self.instance.started_at + seconds(seconds_from_start), PauseRequested(0, reason))

    def resume_at(self, seconds_from_start: float, reason: str) -> None:
        """Let somebody resume the instance at that time."""
        self.happen(self.instance.started_at + seconds(seconds_from_start), ResumeRequested(reason))

    def migrate_at(self, seconds_from_start: float, flow: Flow, reason: str) -> None:
        """Let somebody migrate the instance to another version at that time; where it can't be, nothing changes."""
        self.happen(self.instance.started_at + seconds(seconds_from_start), _Migration(flow, reason))

    def fork(self, step: str, script: Script, *, flow: Flow | None = None, reason: str = "") -> Simulation | None:
        """Begin a new instance at a step of this one, as it is now, perhaps with another version.

        None where a server would refuse it; what an effect that is repeated means is a person's to say.
        """
        version = flow or self._flow
        if step not in self._flow.own_steps or forking.refusal(self._flow, self.instance, step) is not None:
            return None
        kept = forking.kept_steps(self._flow, self.instance, step)
        if forking.obstacles(self._flow, version, kept):
            return None
        made = Simulation(version, script, input_value=self._outputs[INPUT], started_at=self._now)
        made.instance = replace(made.instance, steps=kept)
        made._outputs |= {slot: self._outputs[slot] for slot in kept if slot in self._outputs}
        made._first = Forked(step, self.instance.id.hex(), self._flow.graph.version, reason)
        return made

    def recover_at(self, seconds_from_start: float, decision: Recovered) -> None:
        """Let somebody decide at that time; a decision that does not fit then changes nothing."""
        self.happen(self.instance.started_at + seconds(seconds_from_start), decision)

    def late_success_at(self, seconds_from_start: float, step: str, round_number: int) -> None:
        """Let a worker report at that time that a task did its work although it had ended otherwise."""
        self.happen(self.instance.started_at + seconds(seconds_from_start), LateSuccess(step, round_number))

    def signal_at(
        self, seconds_from_start: float, name: str, payload: Json, *, lives_seconds: float = SIGNAL_LIVES_SECONDS
    ) -> None:
        """Let a signal be stored at that time; one at no time later than the start is there before the first step."""
        self._signals_sent += 1
        at = self.instance.started_at + seconds(seconds_from_start)
        said = f"signal-{self._signals_sent}"
        signal = Signal(said.encode().ljust(16, b".")[:16], name, said, payload, at, at + seconds(lives_seconds))
        if seconds_from_start <= 0:
            self._signals.append(signal)
        else:
            self.happen(at, SignalReceived(name), signal=signal)

    @property
    def flow(self) -> Flow:
        """Give the version on which the instance is."""
        return self._flow

    @property
    def now(self) -> Micros:
        """Tell the instant to which the simulation has come."""
        return self._now

    def run(self) -> Outcomes:
        """Run until the instance has ended or only a person can move it, and so have its children."""
        self._advance([self._first])
        while True:
            due = [(at, place, each) for place, each in enumerate(self.family()) if (at := each.due()) is not None]
            if not due:
                return self.ended()
            at, _, mover = min(due, key=lambda entry: entry[:2])
            mover.move(at)

    def family(self) -> Iterator[Simulation]:
        """Give all children that run by their own definitions, and this instance behind them.

        At one instant they move in this order, so that a parent hears all that its children then have to say at once.
        """
        for child in self._children.values():
            yield from child.family()
        yield self

    def due(self) -> Micros | None:
        """Say when this instance has something to do; one that has ended, when a late success comes."""
        if self.instance.state in INSTANCE_TERMINAL:
            return min((each.at for each in self._happenings if isinstance(each.stimulus, LateSuccess)), default=None)
        due = (self.instance.due_at, self._next_happening())
        return min((instant for instant in due if instant is not None), default=None)

    def move(self, at: Micros) -> None:
        """Do what there is to do at an instant."""
        self._now = max(self._now, at)
        if self.instance.state in INSTANCE_TERMINAL:
            due = sorted(each for each in self._happenings if each.at <= self._now)
            self._happenings = [each for each in self._happenings if each.at > self._now]
            self._advance([each.stimulus for each in due if isinstance(each.stimulus, LateSuccess)])
            return
        self._advance(self._due_stimuli())
        self._release()

    def ended(self) -> Outcomes:
        """Tell how it has ended."""
        children = tuple(
            ChildOutcomes(step, number, child.flow, child.script, child.ended())
            for (step, number), child in self._children.items()
        )
        output = self._outputs.get(OUTPUT)
        unfinished = frozenset(self._tasks)
        return Outcomes(self.instance, output, tuple(self._trace), unfinished, self._settled, children)

    def _next_happening(self) -> Micros | None:
        return self._happenings[0].at if self._happenings else None

    def _due_stimuli(self) -> list[Stimulus]:
        due: list[Stimulus] = []
        while self._happenings and self._happenings[0].at <= self._now:
            if isinstance(self._happenings[0].stimulus, Command) and due:
                break  # a command is judged by the state that it meets, so it has an advance of its own
            happening = heapq.heappop(self._happenings)
            stimulus = happening.stimulus
            if happening.signal is not None:
                self._signals.append(happening.signal)
            if isinstance(stimulus, Command):
                fitting = self._fitting(stimulus)
                if fitting is None:
                    continue
                return [fitting]
            if not happening.is_repeated and not self._follow(stimulus):
                continue
            if self.instance.control is Control.ACTIVE or isinstance(stimulus, _THROUGH):
                due.append(stimulus)
            else:
                self._aside.append(stimulus)
                if self.instance.control is Control.PAUSING:
                    due += self._quiet(stimulus)
        return due

    def _quiet(self, stimulus: Stimulus) -> list[Stimulus]:
        """Say what has become quiet with something that a pause keeps aside."""
        quiet: list[Stimulus] = []
        if isinstance(stimulus, TaskEnded) and self.instance.pause is not None:
            quiet.append(ChildQuiet(stimulus.step, stimulus.round, self.instance.pause.paused_at))
        if not self._running():
            quiet.append(GateQuiet())
        return quiet

    def _running(self) -> int:
        tasks = self._tasks.values()
        return sum(not task.is_child and task.held_since is None and not task.is_reviewed for task in tasks)

    def _fitting(self, command: Command) -> Stimulus | None:
        """Do the shell's part of a command; None if a server would refuse it."""
        match command:
            case _Migration():
                return self._migrated(command)
            case Instructed():
                assert self.above is not None, "only a parent instructs"
                parent = self.above[1]
                return command_of(command, self.instance, lambda: parent.instance, self._running)
            case PauseRequested():
                return replace(command, in_flight=self._running()) if self.instance.state in PAUSABLE else None
            case Recovered():
                if refusal(self._flow, self.instance, command) is not None:
                    return None
                step = None if command.step is None else self.instance.steps[command.step]
                is_reviewed = step is not None and step.state is StepState.NEEDS_REVIEW
                if step is not None and is_reviewed and self._tasks.pop((step.id, step.round), None) is None:
                    return None  # its task has ended, which a pause has kept aside
        return command

    def _migrated(self, wanted: _Migration) -> Migrated | None:
        if wanted.flow is self._flow or migration.refusal(self.instance) is not None:
            return None
        judged = migration.judge(self._flow, wanted.flow, self.instance, self._now)
        if judged.obstacles:
            return None
        stimulus = migration.stimulus_of(self._flow, wanted.flow, self.instance, judged)
        self._flow = wanted.flow
        return replace(stimulus, reason=wanted.reason)

    def _release(self) -> None:
        """Let what a pause has kept aside happen now, in its old order, and what it has held begin."""
        if self.instance.control is not Control.ACTIVE:
            return
        for stimulus in self._aside:
            self.happen(self._now, stimulus, is_repeated=True)
        self._aside.clear()
        for (step, number), task in self._tasks.items():
            if task.held_since is not None:
                task.deadline_at += self._now - task.held_since
                task.held_since = None
                self._play(step, number, task)

    def _follow(self, stimulus: Stimulus) -> bool:
        """Note what becomes of a task; False for one that has ended: what was cancelled does not end a second time."""
        match stimulus:
            case TaskEnded():
                task = self._tasks.pop((stimulus.step, stimulus.round), None)
                if task is None:
                    return False
                self._outputs[stimulus.step] = task.answer.output if stimulus.outcome is Outcome.SUCCEEDED else None
            case ReviewOpened() | ReviewClosed():
                task = self._tasks.get((stimulus.step, stimulus.round))
                if task is None:
                    return False
                task.is_reviewed = isinstance(stimulus, ReviewOpened)
            case LateSuccess():
                return (stimulus.step, stimulus.round) not in self._tasks  # of one that has not ended nothing is late
        return True

    def _advance(self, stimuli: list[Stimulus]) -> None:
        before = self.instance
        self._advance_until_quiet(stimuli)
        if self.above is not None:
            kin, parent = self.above
            for told in told_up(kin, before, self.instance, self._flow):
                parent.hear(told, self)

    def _advance_until_quiet(self, stimuli: list[Stimulus]) -> None:
        wanted: str | None = None
        while True:
            self._advances += 1
            assert self._advances <= ADVANCES_MAX, "the simulation does not end"
            commands = self._step(stimuli)
            for cancel in commands.cancels:
                self._cancel(cancel)
            if self._children:
                self._instruct(commands)
            wanted = wanted or commands.pause
            stimuli = [refused for command in commands.submits if (refused := self._submit(command)) is not None]
            if not stimuli and wanted is not None:
                stimuli, wanted = [PauseRequested(self._running(), wanted)], None
                if self.resumes_after_seconds is not None:
                    self.happen(self._now + seconds(self.resumes_after_seconds), ResumeRequested(_GOES_ON))
            self.observe(self.instance)
            if not stimuli:
                return

    def _step(self, stimuli: list[Stimulus]) -> Commands:
        values: dict[str, Json] = {}
        while True:
            try:
                after, commands = advance(self._flow, replace(self.instance, values=values), stimuli, self._now)
            except ValuesNeeded as needed:
                values |= {slot: self._value(slot) for slot in needed.slots}
            else:
                break
        self.instance = after
        if commands.takes:
            self._signals = list(after.values[SIGNALS])
        for slot in commands.reset - (commands.values or {}).keys():
            self._outputs.pop(slot, None)
        self._outputs |= commands.values or {}
        self._settled |= {step.id: step for item in commands.settled for step in item.steps}
        self._past |= {past_slot(item.foreach, item.index): item.steps for item in commands.settled}
        self._effects |= {effect.step: effect for effect in commands.effects}
        for undone in commands.undone:
            self._effects.pop(undone)
        elapsed = (self._now - after.started_at) / SECOND
        self._trace.extend(Line(elapsed, entry, next(self.lines)) for entry in commands.history)
        return commands

    def _value(self, slot: str) -> Any:
        if slot == SIGNALS:
            return tuple(self._signals)
        if slot == EFFECTS:
            return in_order(tuple(self._effects.values()))[:EFFECTS_SEEN]
        return self._past.get(slot, ()) if parted_past(slot) else self._outputs[slot]

    def _submit(self, command: SubmitTask) -> SubmissionRefused | None:
        answer = self.script(command)
        is_child = isinstance(command.spec, ChildSpec)
        if isinstance(answer, OwnRun):
            self._bear(command, answer)
            return None
        if isinstance(answer, Refusal):
            # A child is a row of the parent's own transaction: no queue can be full for it.
            return SubmissionRefused(command.step, command.round, answer.error, answer.retryable and not is_child)
        self._answered(command, answer)
        return None

    def _answered(self, command: SubmitTask, answer: Answer) -> None:
        """Let a task, or a child that is answered for, begin as soon as nothing is paused."""
        self._link(command.step)
        is_child = isinstance(command.spec, ChildSpec)
        task = Playing(answer, command.deadline_at, is_child)
        self._tasks[command.step, command.round] = task
        if self.instance.control is Control.ACTIVE:
            self._play(command.step, command.round, task)
        else:
            task.held_since = self._now

    def _link(self, identifier: str) -> bytes:
        """Write in a step that it has a task, or a child; return the id."""
        step = _with_task(self.instance.steps[identifier])
        self.instance = replace(self.instance, steps={**self.instance.steps, identifier: step})
        assert step.task_id is not None, "it has just got one"
        return step.task_id

    def _play(self, step: str, number: int, task: Playing) -> None:
        """Let a task begin: from now on its answer happens."""
        answer, starts_at = task.answer, self._now
        if answer.reviewed_after_seconds is not None:
            opened_at = self._now + seconds(answer.after_seconds)
            self.happen(opened_at, ReviewOpened(step, number, answer.error))
            if answer.reviewed_after_seconds == NEVER:
                task.review_closes_at = opened_at
                return
            starts_at = opened_at + seconds(answer.reviewed_after_seconds)
            self.happen(starts_at, ReviewClosed(step, number))
        ends_at = starts_at + seconds(answer.after_seconds)
        ended = TaskEnded(step, number, answer.outcome, answer.error)
        is_bound = answer.reviewed_after_seconds is None and not answer.ignores_cancel and not task.is_child
        if ends_at > task.deadline_at and is_bound:
            ends_at = task.deadline_at
            error = Failure("DEADLINE_EXCEEDED", "the task's deadline has passed")
            ended = TaskEnded(step, number, Outcome.FAILED, error)
        task.review_closes_at = starts_at
        self.happen(ends_at, ended)
        if answer.repeated_after_seconds is not None:
            self.happen(ends_at + seconds(answer.repeated_after_seconds), ended, is_repeated=True)
        if answer.succeeds_late_after_seconds is not None:
            self.happen(ends_at + seconds(answer.succeeds_late_after_seconds), LateSuccess(step, number))

    def _bear(self, command: SubmitTask, own: OwnRun) -> None:
        """Begin a child that runs by its own definition, at this very instant."""
        child = self._child(command, own)
        identifier = self._link(command.step)
        child.above = (self._kin(command), self)
        child.instance = child_instance(_child_spec(command), self.instance, identifier=identifier, now=self._now)
        child.happen(self._now, Started())
        self._tasks[command.step, command.round] = Playing(Answer(), command.deadline_at, is_child=True)
        self._children[command.step, command.round] = child

    def _kin(self, command: SubmitTask) -> Kin:
        spec = _child_spec(command)
        return Kin(Parent(self.instance.id, command.step, command.round), spec.workflow, spec.version)

    def _child(self, command: SubmitTask, own: OwnRun) -> Simulation:
        """Make the simulation of a child; nothing of it has begun."""
        name = f"{self.name}{command.step}/"
        child = Simulation(own.flow, own.script(name), input_value=command.params, started_at=self._now)
        child.name, child.lines = name, self.lines
        own.prepare(child)
        return child

    def _instruct(self, commands: Commands) -> None:
        """Tell the children that run what they are told."""
        for child_id, instructed in told_down(self.instance, commands.cancels, commands.instructions):
            for child in self._children.values():
                if child.instance.id == child_id:
                    child.happen(self._now, instructed)

    def hear(self, told: Told, child: Simulation) -> None:
        """Let what a child tells happen to this instance, now."""
        if isinstance(told, TaskEnded):
            output = child.ended().output
            task = self._tasks.get((told.step, told.round))
            if task is not None:
                task.answer = Answer(told.outcome, output, told.error)
        self.happen(child.now, told)

    def _cancel(self, command: CancelTask) -> None:
        if (command.step, command.round) in self._children:
            return  # it has been instructed, and ends in its own way
        task = self._tasks.get((command.step, command.round))
        if task is not None and task.held_since is not None:
            self.happen(self._now, TaskEnded(command.step, command.round, Outcome.CANCELLED))
        elif task is not None and not task.answer.ignores_cancel:
            # A task under review keeps the wish to cancel until a person has settled it.
            at = max(self._now, task.review_closes_at)
            self.happen(at, TaskEnded(command.step, command.round, Outcome.CANCELLED))

    def happen(
        self, at: Micros, stimulus: Stimulus | Command, *, is_repeated: bool = False, signal: Signal | None = None
    ) -> None:
        """Let something happen to the instance at an instant that has not passed."""
        self._order += 1
        heapq.heappush(self._happenings, Happening(at, self._order, stimulus, is_repeated, signal))


def _child_spec(command: SubmitTask) -> ChildSpec:
    assert isinstance(command.spec, ChildSpec), f"step {command.step} starts no child"
    return command.spec


def _with_task(step: Step) -> Step:
    """Give a step a task id made of its name and round, where the server would mint one."""
    name, index = parted(step.id) or (step.id, 0)
    number = step.round if not index else f"{index}:{step.round}"
    return replace(step, task_id=f"{name[:10]}:{number}".encode().ljust(16, b".")[:16])
