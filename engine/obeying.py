"""What a child does when its parent has told it something: an operator's command, without the operator.

Each instruction is carried out in a transaction of its own, as a command is: it takes the child's lock, then the
gate's, and can't come between the locks of a batch. The surprising rule: an instruction that no longer fits is done
with; what the parent waits for is told by the child's end, or is so already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.batch import Advancer, Work
from engine.instance import Instance
from engine.pausing import PAUSABLE
from engine.states import INSTANCE_TERMINAL
from engine.stimulus import (
    CancelRequested,
    Instructed,
    Instruction,
    PauseRequested,
    ResumeRequested,
    Stimulus,
)
from engine.store.instances import Stored, instance_find, instances_lock
from engine.store.steps import steps_load
from engine.store.stimuli import Pending, stimulus_take
from orbit.errors import Unavailable

if TYPE_CHECKING:
    from orbit.database import Transaction


def obey(tx: Transaction, advancer: Advancer, entry: Pending) -> Work | None:
    """Carry out a stored instruction; None if nothing follows, or if somebody else has the child or knows it better."""
    locked = instances_lock(tx, [entry.instance_id], newest=advancer.formats.newest)
    if not locked:
        return None
    (stored,) = locked
    instance, origin = stored.instance, stored.origin
    try:
        flow = advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version)
    except Unavailable:
        return None  # its graph is a newer node's, and so is the instruction
    if not stimulus_take(tx, entry.id):
        return None
    assert isinstance(entry.stimulus, Instructed), "only instructions are obeyed"
    command = _command(tx, advancer, stored, entry.stimulus)
    if command is None:
        return None
    steps = steps_load(tx, [instance.id])[instance.id]
    work = Work(stored.with_steps(steps), flow, [], [entry])
    advancer.steer(tx, work, command)
    return work


def _command(tx: Transaction, advancer: Advancer, stored: Stored, said: Instructed) -> Stimulus | None:
    """Make a command of an instruction; None if it does not fit, or is so already."""
    instance = stored.instance
    if said.instruction is Instruction.CANCEL:
        return None if instance.state in INSTANCE_TERMINAL else CancelRequested(said.reason, said.by)
    parent = _parent(tx, stored)
    if parent.pause is None:
        is_with_parent = instance.pause is not None and instance.pause.with_parent
        return ResumeRequested("its parent goes on", None, from_parent=True) if is_with_parent else None
    if instance.state not in PAUSABLE:
        return None
    known = None if instance.pause is None else instance.pause.parent_paused_at
    if known == parent.pause.paused_at:
        return None
    in_flight = 0 if instance.pause is not None else advancer.close_gate(tx, stored)
    return PauseRequested(in_flight, parent.pause.reason, parent.pause.by, parent.pause.paused_at)


def _parent(tx: Transaction, stored: Stored) -> Instance:
    """Read the parent as it is now, without a lock: whatever changes it later instructs the child once more."""
    origin = stored.origin
    assert origin.parent is not None, "only a parent instructs"
    found = instance_find(tx, origin.namespace_id, origin.parent.id)
    assert found is not None, "a parent is kept as long as its children"
    return found.instance
