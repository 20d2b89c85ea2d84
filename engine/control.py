"""What operators do to one instance: lock it, run the same `advance` as the runner, answer inside the request.

So an operator and a result can't both win: who locks the instance second sees what the first has made of it, and gets
409 with the current revision. Every command is audited with before and after, and has a receipt.

The surprising rule: what an engine error or a pause has set aside is released only after the command, so that the
command itself never runs into the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.batch import Advancer
from engine.instance import Instance
from engine.pausing import PAUSABLE
from engine.states import INSTANCE_TERMINAL, Control, InstanceState
from engine.stimulus import CancelRequested, PauseRequested, ResumeRequested, Stimulus
from engine.store.instances import instance_lock
from engine.store.steps import steps_load
from engine.work import Work
from orbit.clock import Micros
from orbit.database import Database
from orbit.errors import NotFound, StateConflict, Unavailable
from orbit.idempotency import Answer, Command, Made, once
from orbit.jsontext import Json
from orbit.store.journal import Actor, AuditRecord, audit_insert

if TYPE_CHECKING:
    from orbit.database import Transaction

MISSING = "no such instance"
NEWER = "the instance is stored in a newer form than this node knows: ask a node of the newer release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An operator's command to one instance.

    `expected_revision` None is whatever revision it has; `queues` is the operator's range, None for all.
    """

    command: Command
    actor: Actor
    instance_id: bytes
    reason: str
    expected_revision: int | None = None
    queues: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Whom the commands of this process tell after COMMIT: the watchers, and the runner about timers and stimuli."""

    changed: Callable[[Sequence[bytes]], None]
    moved: Callable[[Sequence[bytes]], None]  # changed, and certainly not ended
    due_in: Callable[[Micros], None]
    wake: Callable[[], None]


class Controls:
    """The operators' commands of a node."""

    def __init__(self, database: Database, advancer: Advancer, told: Told) -> None:
        self._database = database
        self._advancer = advancer
        self._told = told

    def instance_cancel(self, order: Order, *, compensate: bool = False) -> Answer:
        """End an instance as CANCELLED, paused or not: its waiting tasks at once, running ones when they have stopped.

        With `compensate` what its steps have done is undone first, where the definition says how; asking for that while
        it ends already adds it.

        Cancelling again changes nothing and gives the state as it is. Raises NotFound, StateConflict for one that has
        ended otherwise or has another revision.
        """
        return self.run(order, lambda tx: self.cancel_now(tx, order, compensate=compensate))

    def cancel_now(self, tx: Transaction, order: Order, *, compensate: bool = False) -> Made:
        """As `instance_cancel`, in the given transaction and without a receipt."""
        work = self.locked(tx, order)
        before = work.instance
        if before.state is InstanceState.CANCELLED:
            return _made(before)
        if before.state in INSTANCE_TERMINAL:
            raise conflict(before)
        self.advance(tx, work, CancelRequested(order.reason, order.actor.name, compensate))
        audit(tx, order, "instance.cancel", (shown(before), {**shown(work.instance), "compensate": compensate}))
        return _made(work.instance)

    def instance_pause(self, order: Order) -> Answer:
        """Let nothing of an instance begin any more; what runs goes on, and its results are kept until the resume.

        PAUSED says that nothing runs. Pausing again changes nothing. Raises NotFound, StateConflict for an instance
        that ends or has ended, or has another revision.
        """
        return self.run(order, lambda tx: self.pause_now(tx, order))

    def pause_now(self, tx: Transaction, order: Order) -> Made:
        """As `instance_pause`, in the given transaction and without a receipt."""
        work = self.locked(tx, order)
        before = work.instance
        if before.state not in PAUSABLE:
            raise conflict(before)
        if before.control is not Control.ACTIVE:
            return _made(before)
        in_flight = self._advancer.close_gate(tx, work.stored)
        self.advance(tx, work, PauseRequested(in_flight, order.reason, order.actor.name))
        audit(tx, order, "instance.pause", (shown(before), {**shown(work.instance), "in_flight": in_flight}))
        return _made(work.instance)

    def instance_resume(self, order: Order) -> Answer:
        """Let a paused instance go on with what was left of every wait and budget, then apply what came meanwhile.

        Resuming an active one changes nothing. Raises NotFound, StateConflict for one that has ended or has another
        revision.
        """
        return self.run(order, lambda tx: self.resume_now(tx, order))

    def resume_now(self, tx: Transaction, order: Order) -> Made:
        """As `instance_resume`, in the given transaction and without a receipt."""
        work = self.locked(tx, order)
        before = work.instance
        if before.state in INSTANCE_TERMINAL:
            raise conflict(before)
        if before.control is Control.ACTIVE:
            return _made(before)
        if before.pause is not None and before.pause.with_parent:
            raise conflict(before, "the instance is paused with its parent: resume that")
        self.advance(tx, work, ResumeRequested(order.reason, order.actor.name))
        audit(tx, order, "instance.resume", (shown(before), shown(work.instance)))
        return _made(work.instance)

    def run(self, order: Order, make: Callable[[Transaction], Made]) -> Answer:
        """Run a command in one transaction with its receipt, or replay the receipt."""
        return self._database.transaction(lambda tx: once(tx, order.command, lambda: make(tx)))

    def advance(self, tx: Transaction, work: Work, stimulus: Stimulus) -> None:
        """Advance a locked instance and write what follows; then release what was set aside, if it goes on."""
        self._advancer.steer(tx, work, stimulus)
        if work.has_told:
            tx.after_commit(self._told.wake)
        due_at = work.instance.due_at
        if due_at is not None:
            now = tx.now()
            tx.after_commit(lambda: self._told.due_in(due_at - now))
        identifier = work.instance.id
        tx.after_commit(lambda: self._told.changed([identifier]))

    def locked(self, tx: Transaction, order: Order) -> Work:
        """Lock the instance of a command and load what its advance needs.

        Raises NotFound for one that is not there or uses a queue out of the operator's range, StateConflict if it is
        not at the expected revision, Unavailable for what only a newer node can read.
        """
        stored = instance_lock(tx, order.command.namespace_id, order.instance_id)
        if stored is None:
            raise NotFound(MISSING)
        origin = stored.origin
        if origin.format > self._advancer.formats.newest:
            raise Unavailable(NEWER)
        flow = self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version)
        if order.queues is not None and not flow.queues <= order.queues:
            raise NotFound(MISSING)
        if order.expected_revision not in {None, stored.instance.revision}:
            raise conflict(stored.instance)
        steps = steps_load(tx, [stored.instance.id])[stored.instance.id]
        return Work(stored.with_steps(steps), flow, [])


def conflict(instance: Instance, why: str | None = None) -> StateConflict:
    """Make the refusal of a command that came too late or does not fit, with the current state and revision."""
    message = why or f"the instance is {instance.state} at revision {instance.revision}"
    return StateConflict(message, details={"state": instance.state, "current_revision": str(instance.revision)})


def audit(tx: Transaction, order: Order, operation: str, change: tuple[Json, Json]) -> None:
    """Write the audit record of a command: `change` is what was before and what is after."""
    record = AuditRecord(
        namespace_id=order.command.namespace_id,
        actor=order.actor,
        operation=operation,
        subject_kind="instance",
        subject_id=order.instance_id,
        reason=order.reason,
        before=change[0],
        after=change[1],
    )
    audit_insert(tx, record, now=tx.now())


def shown(instance: Instance) -> dict[str, Json]:
    """Write what of an instance a command's answer and its audit tell."""
    return {
        "state": instance.state.value,
        "ending_as": None if instance.ending_as is None else instance.ending_as.value,
        "compensation": None if instance.compensation is None else instance.compensation.value,
        "control": instance.control.value,
        "revision": str(instance.revision),
    }


def _made(instance: Instance) -> Made:
    return Made(instance.id, {"instance": {"id": instance.id.hex(), **shown(instance)}})
