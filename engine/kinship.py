"""What parents and children tell each other, as the pure core sees it: the same on a node and in the simulator.

Everything between them is a stimulus. A child's end, its need of a person and its quiet go up; instructions go down,
and become an operator's command where the child is looked at.

The surprising rule: nothing of a child goes up but what its parent's step waits for. A parent never looks into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from definitions.graph import ChildSpec
from engine.command import CancelTask, InstructChild
from engine.compensating import has_undone_all
from engine.flow import Flow
from engine.instance import UNDONE, Failure, Instance, Pause
from engine.pausing import PAUSABLE
from engine.states import INSTANCE_TERMINAL, Control, InstanceState, StepState
from engine.stimulus import (
    CancelRequested,
    ChildQuiet,
    Instructed,
    Instruction,
    Outcome,
    PauseRequested,
    ResumeRequested,
    ReviewClosed,
    ReviewOpened,
    Stimulus,
    TaskEnded,
)
from orbit.clock import Micros, seconds
from orbit.ids import to_hex
from orbit.jsontext import Json

HELD = "CHILD_HELD"

_OUTCOMES = {
    InstanceState.SUCCEEDED: Outcome.SUCCEEDED,
    InstanceState.FAILED: Outcome.FAILED,
    InstanceState.CANCELLED: Outcome.CANCELLED,
}


class Parent(Struct, frozen=True):
    """Whose child an instance is: the parent, the step that has started it, and that step's round."""

    id: bytes
    step: str
    round: int


class Kin(Struct, frozen=True):
    """A child as its parent knows it: whose it is, and which version of which workflow."""

    parent: Parent
    workflow: str
    version: int

    def __str__(self) -> str:
        return f"{self.workflow}@{self.version}"


# What a child tells its parent.
Told = TaskEnded | ReviewOpened | ReviewClosed | ChildQuiet


def child_instance(spec: ChildSpec, parent: Instance, *, identifier: bytes, now: Micros) -> Instance:
    """Make the child that a step asks for. While its parent is paused it is born paused, and begins with its resume."""
    pause = None
    if parent.pause is not None:
        pause = Pause(parent.pause.reason, parent.pause.by, now, parent_paused_at=parent.pause.paused_at)
    return Instance(
        id=identifier,
        state=InstanceState.RUNNING,
        revision=0,
        started_at=now,
        deadline_at=now + seconds(spec.bound_seconds),
        business_key=parent.business_key,
        clock_stopped_at=None if pause is None else now,
        control=Control.ACTIVE if pause is None else Control.PAUSED,
        pause=pause,
    )


def told_down(
    parent: Instance, cancels: Iterable[CancelTask], instructions: Iterable[InstructChild]
) -> list[tuple[bytes, Instructed]]:
    """List what an advance tells the instance's children, by their ids."""
    by = f"instance:{to_hex(parent.id)}"
    told = [
        (cancel.task_id, Instructed(Instruction.CANCEL, cancel.reason, by, cancel.compensate))
        for cancel in cancels
        if cancel.is_child
    ]
    return told + [(each.child_id, each.instructed) for each in instructions]


def told_up(kin: Kin, before: Instance, after: Instance, flow: Flow | None) -> list[Told]:
    """List what an advance of a child tells its parent: its end, that it is quiet, that it waits for a person.

    The `flow` is needed where it may have ended.
    """
    if after.revision == before.revision:
        return []
    step, number = kin.parent.step, kin.parent.round
    if after.state in INSTANCE_TERMINAL:
        assert flow is not None, "what has ended has a flow"
        error = _failure(kin, after, is_undone=has_undone_all(flow, after))
        return [TaskEnded(step, number, _OUTCOMES[after.state], error)]
    told: list[Told] = []
    if needs_person(after) and not needs_person(before):
        told.append(ReviewOpened(step, number, _held(kin, after)))
    elif needs_person(before) and not needs_person(after):
        told.append(ReviewClosed(step, number))
    quiet = quiet_for(kin.parent, after)
    if quiet is not None and quiet != quiet_for(kin.parent, before):
        told.append(quiet)
    return told


def command_of(
    said: Instructed, child: Instance, parent: Callable[[], Instance], stop: Callable[[], int]
) -> Stimulus | None:
    """Make a command of an instruction; None if it does not fit, or is so already.

    `stop` lets no task of the child begin any more and says how many run. The parent is looked at as it is now: what
    changes it later instructs the child once more.
    """
    if said.instruction is Instruction.CANCEL:
        is_over = child.state in INSTANCE_TERMINAL
        return None if is_over else CancelRequested(said.reason, said.by, said.compensate)
    above = parent()
    if above.pause is None:
        is_with_parent = child.pause is not None and child.pause.with_parent
        return ResumeRequested("its parent goes on", None, from_parent=True) if is_with_parent else None
    if child.state not in PAUSABLE:
        return None
    known = None if child.pause is None else child.pause.parent_paused_at
    if known == above.pause.paused_at:
        return None
    in_flight = 0 if child.pause is not None else stop()
    return PauseRequested(in_flight, above.pause.reason, above.pause.by, above.pause.paused_at)


def quiet_for(parent: Parent, child: Instance) -> ChildQuiet | None:
    """Give what a child that is paused with its parent says once nothing of it runs; None before."""
    if child.control is not Control.PAUSED or child.pause is None or child.pause.parent_paused_at is None:
        return None
    return ChildQuiet(parent.step, parent.round, child.pause.parent_paused_at)


def needs_person(instance: Instance) -> bool:
    """Tell whether an instance, or a child of it, waits for a person's decision."""
    return instance.state is InstanceState.NEEDS_RECOVERY or any(
        step.state is StepState.NEEDS_REVIEW for step in instance.steps.values()
    )


def _failure(kin: Kin, child: Instance, *, is_undone: bool) -> Failure | None:
    """Give a child's end as its parent's step sees it: the same code, with the way to the child."""
    if child.state is InstanceState.SUCCEEDED:
        return None
    error = child.error or Failure(child.state.value, f"{kin} has ended {child.state}")
    undone = {UNDONE: True} if is_undone else {}
    return Failure(error.code, error.message, {**(error.details or {}), **_link(kin, child), **undone})


def _held(kin: Kin, child: Instance) -> Failure:
    code = "a review" if child.error is None else child.error.code
    return Failure(HELD, f"{kin} waits for a person to decide about {code}", _link(kin, child))


def _link(kin: Kin, child: Instance) -> dict[str, Json]:
    return {"child": to_hex(child.id), "workflow": kin.workflow, "version": kin.version}
