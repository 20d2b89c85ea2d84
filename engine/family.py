"""Parents and children as rows: how a child is born in its parent's transaction, and what each is told of the other.

Everything between them is a stimulus, a pure insert in the transaction that causes it: neither ever waits for the
other's lock. A child begins with its own first advance, which a runner makes; so a parent that starts a hundred
children makes a hundred rows, and a child's fault never falls back on its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from definitions.graph import ChildSpec
from engine.command import CancelTask, InstructChild, SubmitTask
from engine.compensating import has_undone_all
from engine.flow import Flow
from engine.instance import INPUT, UNDONE, Failure, Instance, Pause
from engine.states import INSTANCE_TERMINAL, Control, InstanceState, StepState
from engine.stimulus import (
    ChildQuiet,
    Instructed,
    Instruction,
    Outcome,
    ReviewClosed,
    ReviewOpened,
    Started,
    TaskEnded,
)
from engine.store.instance_lists import labels_insert
from engine.store.instances import Origin, Parent, Stored, instances_insert
from engine.store.records import values_insert
from engine.store.stimuli import StoredStimulus, stimuli_insert
from orbit.clock import Micros, seconds
from orbit.ids import new_id, to_hex
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction

HELD = "CHILD_HELD"

_OUTCOMES = {
    InstanceState.SUCCEEDED: Outcome.SUCCEEDED,
    InstanceState.FAILED: Outcome.FAILED,
    InstanceState.CANCELLED: Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Born:
    """A child that is to be stored with its input."""

    stored: Stored
    input: Json


def born(stored: Stored, parent: Instance, command: SubmitTask, *, format_: int, now: Micros) -> Born:
    """Make the child that a step asks for. While its parent is paused it is born paused, and begins with its resume.

    `stored` tells of the parent's origin, `parent` how it stands now.
    """
    spec, origin = command.spec, stored.origin
    assert isinstance(spec, ChildSpec), f"step {command.step} starts no child"
    child_origin = Origin(
        namespace_id=origin.namespace_id,
        workflow=spec.workflow,
        version=spec.version,
        started_by=origin.started_by,
        labels=origin.labels,
        queues=origin.queues,
        traceparent=origin.traceparent,
        format=format_,
        parent=Parent(parent.id, command.step, command.round),
        root_id=origin.root_id or parent.id,
    )
    pause = None
    if parent.pause is not None:
        pause = Pause(parent.pause.reason, parent.pause.by, now, parent_paused_at=parent.pause.paused_at)
    instance = Instance(
        id=new_id(),
        state=InstanceState.RUNNING,
        revision=0,
        started_at=now,
        deadline_at=now + seconds(spec.bound_seconds),
        business_key=parent.business_key,
        clock_stopped_at=None if pause is None else now,
        control=Control.ACTIVE if pause is None else Control.PAUSED,
        pause=pause,
    )
    return Born(Stored(child_origin, instance), command.params)


def children_insert(tx: Transaction, children: Sequence[Born]) -> None:
    """Store children with their inputs, and that they are to begin."""
    if not children:
        return
    instances_insert(tx, [child.stored for child in children])
    labels_insert(tx, [child.stored for child in children])
    values_insert(tx, [(child.stored.instance.id, INPUT, child.input) for child in children])
    stimuli_insert(tx, [(child.stored.instance.id, Started()) for child in children])


def told_to_children(
    parent: Instance, cancels: Iterable[CancelTask], instructions: Iterable[InstructChild]
) -> list[tuple[bytes, StoredStimulus]]:
    """List what an advance tells the instance's children."""
    by = f"instance:{to_hex(parent.id)}"
    told: list[tuple[bytes, StoredStimulus]] = [
        (cancel.task_id, Instructed(Instruction.CANCEL, cancel.reason, by, cancel.compensate))
        for cancel in cancels
        if cancel.is_child
    ]
    return told + [(each.child_id, each.instructed) for each in instructions]


def told_to_parent(
    origin: Origin, before: Instance, after: Instance, flow: Flow | None = None
) -> list[tuple[bytes, StoredStimulus]]:
    """List what an advance of a child tells its parent: its end, that it is quiet, that it waits for a person.

    The `flow` is needed where it may have ended.
    """
    parent = origin.parent
    if parent is None or after.revision == before.revision:
        return []
    told: list[StoredStimulus] = []
    if after.state in INSTANCE_TERMINAL:
        assert flow is not None, "what has ended has a flow"
        error = _failure(origin, after, is_undone=has_undone_all(flow, after))
        told.append(TaskEnded(parent.step, parent.round, _OUTCOMES[after.state], error))
    else:
        if needs_person(after) and not needs_person(before):
            told.append(ReviewOpened(parent.step, parent.round, _held(origin, after)))
        elif needs_person(before) and not needs_person(after):
            told.append(ReviewClosed(parent.step, parent.round))
        quiet = quiet_for(parent, after)
        if quiet is not None and quiet != quiet_for(parent, before):
            told.append(quiet)
    return [(parent.id, stimulus) for stimulus in told]


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


def _failure(origin: Origin, child: Instance, *, is_undone: bool) -> Failure | None:
    """Give a child's end as its parent's step sees it: the same code, with the way to the child."""
    if child.state is InstanceState.SUCCEEDED:
        return None
    error = child.error or Failure(child.state.value, f"{origin.workflow}@{origin.version} has ended {child.state}")
    undone = {UNDONE: True} if is_undone else {}
    return Failure(error.code, error.message, {**(error.details or {}), **_link(origin, child), **undone})


def _held(origin: Origin, child: Instance) -> Failure:
    code = "a review" if child.error is None else child.error.code
    message = f"{origin.workflow}@{origin.version} waits for a person to decide about {code}"
    return Failure(HELD, message, _link(origin, child))


def _link(origin: Origin, child: Instance) -> dict[str, Json]:
    return {"child": to_hex(child.id), "workflow": origin.workflow, "version": origin.version}
