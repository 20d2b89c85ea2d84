"""The working copy of one advance: collects the new steps, the commands and the history, and checks every move.

Only `advance` and the modules that it calls see a draft; it starts from a state and is frozen into the next one. A move
that the transition tables do not have raises AssertionError, which the runner turns into ENGINE_ERROR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from definitions.graph import NodeKind
from engine.command import CancelTask, Commands, Entry, InstructChild, SettledItem, SubmitTask, TakeSignal
from engine.effects import EFFECTS, Effect, effects_of, in_order
from engine.flow import Flow, undone_step
from engine.instance import SIGNALS, Failure, Instance, Signal, Step
from engine.items import Item, own_name
from engine.states import (
    CONTROL_MOVES,
    INSTANCE_MOVES,
    INSTANCE_TERMINAL,
    STEP_MOVES,
    STEP_TERMINAL,
    STEP_UNFINISHED,
    Compensation,
    Control,
    Ending,
    InstanceState,
    StepReason,
    StepState,
)
from engine.stimulus import Instructed
from orbit.clock import Micros
from orbit.jsontext import Json

_ENDS_A_PAUSE = INSTANCE_TERMINAL | {InstanceState.ENDING}


class Draft:
    """One advance in the making."""

    def __init__(self, flow: Flow, instance: Instance, now: Micros) -> None:
        self.flow = flow
        self.now = now
        self.before = instance
        self.state = instance.state
        self.ending_as = instance.ending_as
        self.control = instance.control
        self.pause = instance.pause
        self.error = instance.error
        self.compensation = instance.compensation
        self.steps: dict[str, Step] = dict(instance.steps)
        self.values: dict[str, Json] = dict(instance.values)
        # Ids whose outgoing edges have to be looked at, and failures that nobody has dealt with yet, in order.
        self.decided: deque[str] = deque()
        self.failures: deque[Step] = deque()
        self.joins: dict[str, None] = {}  # those that have to be judged by the outcomes of their lanes
        self.blocks: dict[str, None] = {}  # faces of failed blocks that may have come to rest
        # Steps of items that are about to begin, and the item whose values expressions see at the moment.
        self.openings: deque[str] = deque()
        self.item: Item | None = None
        self.begun_items = 0
        self.arriving: frozenset[str] = frozenset()
        self._settled: list[SettledItem] = []
        self._effects: tuple[Effect, ...] = ()
        self._undone: list[str] = []
        self._reopened: dict[str, Step] = {}
        self._reset: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._submits: dict[str, SubmitTask] = {}
        self._cancels: list[CancelTask] = []
        self._takes: list[TakeSignal] = []
        self.pause_wanted: str | None = None
        self._instructions: list[InstructChild] = []
        self._kept: dict[str, Json] = {}
        self._history: list[Entry] = []

    # What is.

    def unfinished(self) -> list[Step]:
        """List the steps that are entered and not decided, in the graph's order: a stored state has no other."""
        order = self.flow.order
        found = [step for step in self.steps.values() if step.state in STEP_UNFINISHED]
        return sorted(found, key=lambda step: order[step.id]) if len(found) > 1 else found

    @property
    def is_complete(self) -> bool:
        """Tell whether every step of the graph is decided."""
        entered = len(self.steps)
        if self.flow.bodies:
            # Items that have failed may be left, where a join took the failure of their foreach as an outcome.
            entered = sum(self.flow.item_of(identifier) is None for identifier in self.steps)
        return entered == len(self.flow.own_steps) and all(step.state in STEP_TERMINAL for step in self.steps.values())

    def stand_at(self, identifier: str | None) -> None:
        """Let expressions see what a step sees: the item that it is a part of, if it is one."""
        self.item = None if identifier is None else self.flow.item_of(identifier)

    def failure_of(self, step: Step) -> Failure:
        """Give why a step has failed, as it may be told to others."""
        return self.flow.hiding.failure(step.id, step.failure)

    # What becomes.

    def record(self, kind: str, step: str | None = None, /, **data: Json) -> None:
        """Add a line to the history."""
        self._history.append(Entry(kind, step, data))

    def keep(self, slot: str, value: Json) -> None:
        """Store a value that no task holds."""
        self.values[slot] = value
        self._kept[slot] = value

    def move(self, state: InstanceState) -> None:
        """Change the instance's state by its table."""
        assert state in INSTANCE_MOVES[self.state], f"instance {self.state} -> {state}"
        self.state = state
        if self.control is not Control.ACTIVE and state in _ENDS_A_PAUSE:
            self.steer(Control.ACTIVE)
            self.record("instance.resumed", reason="the instance ends")

    def steer(self, control: Control) -> None:
        """Pause the instance or let it go on, by the table."""
        assert control in CONTROL_MOVES[self.control], f"control {self.control} -> {control}"
        self.control = control
        if control is Control.ACTIVE:
            self.pause = None

    def enter(self, identifier: str, state: StepState, **fields: Any) -> Step:
        """Make the row of a step that was PENDING."""
        assert identifier not in self.steps, f"step {identifier} entered twice"
        was = self._reopened.pop(identifier, None)
        known = StepState.PENDING if was is None else was.state
        assert state is known or state in STEP_MOVES[known], f"step {identifier} {known} -> {state}"
        if was is not None:
            # Its tasks count on: a late answer of an earlier one must not be taken for the new one's.
            fields["round"] = was.round + fields.get("round", 0)
            fields |= {"rounds_before": was.round, "retry_of": was.task_id or was.retry_of, "log": was.log}
            fields.setdefault("items", was.items)
            fields |= {"retries": was.retries, "doubts": was.doubts}
        elif fields.get("round") and self.flow.guards.faces:
            # In a block that is done once more, too: its face knows how far the rounds of its steps had come.
            around = (self.steps.get(face) for face in self.flow.faces_around(identifier))
            before = max((face.round for face in around if face is not None), default=0)
            fields |= {"round": before + fields["round"], "rounds_before": before}
        return self._put(Step(identifier, state, self.now, **fields))

    def reset(self, identifier: str) -> Step:
        """Forget a step of a block that is done once more: it is entered as if for the first time."""
        step = self.steps.pop(identifier)
        self._reset[identifier] = None
        self._changed.pop(identifier, None)
        self.values.pop(identifier, None)
        self._kept.pop(identifier, None)
        return step

    def reopen(self, step: Step) -> None:
        """Take a decided step, or one under review, back: it has to be entered again in this advance."""
        del self.steps[step.id]
        self._reopened[step.id] = step

    def is_reopened(self, identifier: str) -> bool:
        """Tell whether a step has been taken back and has to be entered again."""
        return identifier in self._reopened

    def reopened(self, identifier: str) -> Step | None:
        """Give what a step was before it was taken back in this advance."""
        return self._reopened.get(identifier)

    def change(self, step: Step, state: StepState | None = None, **fields: Any) -> Step:
        """Change an entered step, its state by its table."""
        if state is not None and state is not step.state:
            assert state in STEP_MOVES[step.state], f"step {step.id} {step.state} -> {state}"
            fields["state"] = state
        return self._put(replace(step, **fields))

    def decide(self, identifier: str, state: StepState, **fields: Any) -> Step:
        """End a step, entered or not; its outgoing edges are looked at next."""
        step = self.steps.get(identifier)
        error = fields.get("error")
        if error is not None and error.may_have_effect and (step is None or step.error != error):
            fields["doubts"] = 1 + (0 if step is None else step.doubts)
        if step is None:
            step = self.enter(identifier, state, finished_at=self.now, **fields)
        else:
            fields = {"due_at": None, "timeout_at": None, "review_at": None, "error": None, **fields}
            step = self.change(step, state, finished_at=self.now, **fields)
        self.decided.append(identifier)
        return step

    def succeed(self, identifier: str, **fields: Any) -> None:
        """End a step SUCCEEDED."""
        step = self.decide(identifier, StepState.SUCCEEDED, reason=None, **fields)
        self.record("step.succeeded", identifier, **({} if step.chosen is None else {"case": step.chosen}))

    def skip(self, identifier: str, reason: StepReason) -> None:
        """End a step SKIPPED."""
        self.decide(identifier, StepState.SKIPPED, reason=reason)
        self.record("step.skipped", identifier, reason=reason.value)

    def fail(self, identifier: str, error: Failure) -> None:
        """End a step FAILED; what that means for the instance is judged when the flow has settled."""
        self.failures.append(self.decide(identifier, StepState.FAILED, reason=None, error=error))
        self.record("step.failed", identifier, error=self.flow.hiding.failure(identifier, error).to_json())

    def cancelled(
        self, identifier: str, reason: StepReason = StepReason.INSTANCE_ENDED, *, error: Failure | None = None
    ) -> None:
        """End a step CANCELLED because the instance ends, or its branch has lost; `error` tells of an effect."""
        self.decide(identifier, StepState.CANCELLED, reason=reason, error=error)
        self.record("step.cancelled", identifier)

    def look_at(self, identifier: str) -> None:
        """Let the joins around a step be judged when the flow has settled."""
        self.joins |= dict.fromkeys(self.flow.lanes.concerned.get(identifier, ()))
        if self.flow.guards.faces:
            self.blocks |= dict.fromkeys(self.flow.faces_around(identifier))

    def stop(self, step: Step, reason: StepReason) -> None:
        """Stop an unfinished step: what waits is cancelled, what runs is asked to stop."""
        if step.task_id is not None and step.has_task:
            self.cancel_task(step, reason)
        else:
            # It waits, or its submission is of this very advance, or was refused and that is not applied yet.
            self._submits.pop(step.id, None)
            self.cancelled(step.id, reason)

    def settle_item(self, item: Item, identifiers: Iterable[str]) -> None:
        """Put the steps of an item that is done with out of the way."""
        steps = tuple(self.steps.pop(identifier) for identifier in identifiers if identifier in self.steps)
        for step in steps:
            self._changed.pop(step.id, None)
        self._settled.append(SettledItem(item.foreach, item.index, steps))
        if item.foreach in self.flow.undone_loops:
            self.add_effects(effects_of(self.flow, {step.id: step for step in steps}))

    def add_effects(self, effects: Iterable[Effect]) -> None:
        """Keep in mind what has to be undone of steps that are put away, if the instance undoes what it did."""
        new = tuple(effects)
        self._effects += new
        if EFFECTS in self.values:
            self.values[EFFECTS] = in_order((*self.values[EFFECTS], *new))

    def settle_undone(self, step: Step, item: Item) -> None:
        """Put a compensation that has ended where the step is that it has undone."""
        del self.steps[step.id]
        self._changed.pop(step.id, None)
        self._settled.append(SettledItem(own_name(step.id), item.index, (step,)))
        done = undone_step(step.id)
        self._undone.append(done)
        self.values[EFFECTS] = tuple(each for each in self.values[EFFECTS] if each.step != done)

    # What is asked of the shell.

    def submit(self, command: SubmitTask) -> None:
        """Ask for a task."""
        self._submits[command.step] = command

    def cancel_task(self, step: Step, reason: StepReason) -> None:
        """Ask the step's task to stop, once for each reason."""
        if step.reason is reason:
            return
        changed = self.change(step, reason=reason)
        self._ask_to_stop(changed, reason)
        self.record("step.cancel_requested", step.id, reason=reason.value)

    def _ask_to_stop(self, step: Step, reason: StepReason) -> None:
        assert step.task_id is not None, f"step {step.id} is {step.state} without a task"
        is_child = self.flow.nodes[step.id].kind is NodeKind.WORKFLOW
        undoes = is_child and self.compensation is not None
        self._cancels.append(CancelTask(step.id, step.round, step.task_id, reason.value, is_child, undoes))

    def take_signal(self, signal: Signal, step: Step) -> None:
        """Let a wait have a stored signal, for itself alone."""
        self.values[SIGNALS] = tuple(each for each in self.values[SIGNALS] if each.id != signal.id)
        self._takes.append(TakeSignal(signal.id, step.id))

    def instruct(self, step: Step, instructed: Instructed) -> None:
        """Tell the step's child something."""
        assert step.task_id is not None, f"step {step.id} is {step.state} without a child"
        self._instructions.append(InstructChild(step.task_id, instructed))

    def begin_ending(self, ending_as: Ending, error: Failure | None, *, compensate: bool = False) -> None:
        """Decide the end: nothing new starts, what waits is cancelled, what runs is asked to stop.

        What was done is undone if so said, or if the instance fails and its definition says so; then children undo
        what they did before they end.
        """
        self.move(InstanceState.ENDING)
        self.end_as(ending_as, error)
        if self.flow.can_undo and (
            compensate or (ending_as is Ending.FAILED and self.flow.graph.on_failure == "compensate")
        ):
            self.compensation = Compensation.WANTED
        for step in self.unfinished():
            self.stop(step, StepReason.INSTANCE_ENDED)
        for identifier in self.flow.own_steps:
            if identifier not in self.steps:
                self.decide(identifier, StepState.CANCELLED, reason=StepReason.INSTANCE_ENDED)
        self.decided.clear()
        self.openings.clear()

    def end_as(self, ending_as: Ending, error: Failure | None) -> None:
        """Say what an ENDING instance becomes; a cancel may still change that."""
        self.ending_as, self.error = ending_as, error
        self.record(
            "instance.ending", ending_as=ending_as.value, **({} if error is None else {"error": error.to_json()})
        )

    def want_compensation(self) -> None:
        """Decide that an ending instance undoes what it did, once nothing of it runs any more; its children too."""
        if self.compensation is None and self.flow.can_undo:
            self.compensation = Compensation.WANTED
            for step in self.unfinished():
                if step.has_task and step.task_id is not None and self.flow.nodes[step.id].kind is NodeKind.WORKFLOW:
                    self._ask_to_stop(step, step.reason or StepReason.INSTANCE_ENDED)

    def freeze(self) -> tuple[Instance, Commands]:
        """Give the new state and the commands; equal to the old state, with no commands, if nothing happened."""
        commands = Commands(
            tuple(self._submits.values()),
            tuple(self._cancels),
            tuple(self._takes),
            self.pause_wanted,
            self._kept or None,
            tuple(self._history),
            frozenset(self._changed),
            tuple(self._settled),
            tuple(self._instructions),
            frozenset(self._reset),
            self._effects,
            tuple(self._undone),
        )
        instance = replace(
            self.before,
            state=self.state,
            ending_as=self.ending_as,
            control=self.control,
            pause=self.pause,
            error=self.error,
            compensation=self.compensation,
            steps=self.steps,
            values=self.values,
        )
        return instance, commands

    def _put(self, step: Step) -> Step:
        self.steps[step.id] = step
        self._changed[step.id] = None
        return step
