"""What a child does when its parent has told it something: an operator's command, without the operator.

Each instruction is carried out in a transaction of its own, as a command is: it takes the child's lock, then the
gate's, and can't come between the locks of a batch. So does a child begin for which signals may have been kept: the
lock of its business key comes before its own. The surprising rule: an instruction that no longer fits is done with;
what the parent waits for is told by the child's end, or is so already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.admission import Entrant, adopt
from engine.batch import Advancer, is_set_aside
from engine.flow import Flow
from engine.instance import Instance
from engine.kinship import command_of
from engine.stimulus import Instructed, Started, Stimulus
from engine.store.business_keys import BusinessKey, business_keys_lock
from engine.store.instances import Stored, instance_find, instances_lock, instances_read
from engine.store.steps import steps_load
from engine.store.stimuli import Pending, stimulus_take
from engine.work import Work
from orbit.errors import Unavailable

if TYPE_CHECKING:
    from orbit.database import Transaction


def begins_alone(stored: Stored, flow: Flow) -> bool:
    """Tell whether signals may have been kept for the business key of a child that has not begun."""
    return stored.origin.parent is not None and stored.instance.business_key is not None and bool(flow.signals)


def obey(tx: Transaction, advancer: Advancer, entry: Pending) -> Work | None:
    """Carry out a stored instruction; None if nothing follows, or if somebody else has the child or knows it better."""
    key = _key_of(tx, entry.instance_id) if isinstance(entry.stimulus, Started) else None
    if key is not None:
        business_keys_lock(tx, [key])
    locked = instances_lock(tx, [entry.instance_id], newest=advancer.formats.newest)
    if not locked:
        return None
    (stored,) = locked
    instance, origin = stored.instance, stored.origin
    try:
        flow = advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version)
    except Unavailable:
        return None  # its graph is a newer node's, and so is the instruction
    if key is not None and is_set_aside(instance):
        return None  # it was paused meanwhile: what lets it begin is set aside by the next round
    if not stimulus_take(tx, entry.id):
        return None
    command: Stimulus | None = None
    if key is not None:
        command = Started()
        adopt(tx, [Entrant(origin.namespace_id, origin.workflow, instance.id, key, takes=frozenset(flow.signals))])
    elif isinstance(entry.stimulus, Instructed):
        command = command_of(
            entry.stimulus, instance, lambda: _parent(tx, stored), lambda: advancer.close_gate(tx, stored)
        )
    if command is None:
        return None
    steps = steps_load(tx, [instance.id])[instance.id]
    work = Work(stored.with_steps(steps), flow, [], [entry])
    advancer.steer(tx, work, command)
    return work


def _key_of(tx: Transaction, instance_id: bytes) -> BusinessKey:
    """Read the business key of a child: it never changes, so no lock is needed for that."""
    stored = instances_read(tx, [instance_id])[instance_id]
    assert stored.instance.business_key is not None, "only a child with a key begins alone"
    return BusinessKey(stored.origin.namespace_id, stored.origin.workflow, stored.instance.business_key)


def _parent(tx: Transaction, stored: Stored) -> Instance:
    """Read the parent as it is now, without a lock: whatever changes it later instructs the child once more."""
    origin = stored.origin
    assert origin.parent is not None, "only a parent instructs"
    found = instance_find(tx, origin.namespace_id, origin.parent.id)
    assert found is not None, "a parent is kept as long as its children"
    return found.instance
