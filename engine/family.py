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
from engine.flow import Flow
from engine.instance import INPUT, Instance
from engine.kinship import Kin, Parent, child_instance, told_down, told_up
from engine.stimulus import Started
from engine.store.instance_lists import labels_insert
from engine.store.instances import Origin, Stored, instances_insert
from engine.store.records import values_insert
from engine.store.stimuli import StoredStimulus, stimuli_insert
from orbit.clock import Micros
from orbit.ids import new_id
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction


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
    instance = child_instance(spec, parent, identifier=new_id(), now=now)
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
    return [*told_down(parent, cancels, instructions)]


def told_to_parent(
    origin: Origin, before: Instance, after: Instance, flow: Flow | None = None
) -> list[tuple[bytes, StoredStimulus]]:
    """List what an advance of a child tells its parent. The `flow` is needed where it may have ended."""
    if origin.parent is None:
        return []
    kin = Kin(origin.parent, origin.workflow, origin.version)
    return [(origin.parent.id, stimulus) for stimulus in told_up(kin, before, after, flow)]
