"""What operators do to many instances: pause, resume, cancel, recover, migrate; and how the instances are chosen.

Each item is decided by the very code that decides a request for one instance, so it is refused for the same reasons and
leaves the same audit record, by the same actor and within the queue range that the actor had.

The surprising rule: only a recovery insists on the revision that was chosen. An instance moves on by itself between the
choice and its turn, and pausing it then is what was wanted; a decision about a failure is about that failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine import migration
from engine.control import Controls, conflict
from engine.control import Order as InstanceOrder
from engine.migrate import Migration, Migrations
from engine.pausing import PAUSABLE
from engine.ports import Flows
from engine.recover import Decision, Recoveries
from engine.states import INSTANCE_TERMINAL, INSTANCE_UNFINISHED, Action, Control, InstanceState, StepState
from engine.store.instance_lists import instances_choose
from engine.store.instances import Filter, Stored, instances_read
from orbit.idempotency import Command, Made
from orbit.jsontext import Json, parse
from pulse.batches import BatchOperation, Order, Subject

if TYPE_CHECKING:
    from orbit.database import Transaction

PAUSE, RESUME, CANCEL = "instance.pause", "instance.resume", "instance.cancel"
RECOVER, MIGRATE = "instance.recover", "instance.migrate"

# Which instances an operation can be meant for; of those that are named by their ids none is left out.
STATES: Mapping[str, frozenset[InstanceState]] = {
    PAUSE: PAUSABLE,
    RESUME: PAUSABLE,
    CANCEL: INSTANCE_UNFINISHED,
    RECOVER: frozenset({InstanceState.NEEDS_RECOVERY}),
    MIGRATE: migration.STATES,
}
CONTROLS: Mapping[str, frozenset[Control]] = {
    PAUSE: frozenset({Control.ACTIVE}),
    RESUME: frozenset({Control.PAUSING, Control.PAUSED}),
}


@dataclass(frozen=True, slots=True)
class InstanceChoice:
    """Which instances: named ones, or what a filter finds; of these only what lies within `queues` (None: all)."""

    namespace_id: bytes
    operation: str
    instance_ids: Sequence[bytes] | None
    wanted: Filter | None
    queues: frozenset[str] | None
    limit: int


def instances_chosen(tx: Transaction, choice: InstanceChoice, flows: Flows) -> list[Stored]:
    """Read the instances of a choice, the longest started first."""
    if choice.instance_ids is not None:
        named = instances_read(tx, choice.instance_ids).values()
        found = [each for each in named if each.origin.namespace_id == choice.namespace_id]
        found.sort(key=lambda each: (each.instance.started_at, each.instance.id))
    else:
        assert choice.wanted is not None, "instances are named or filtered"
        wanted = choice.wanted
        states = STATES[choice.operation]
        if wanted.state is not None:
            states &= {wanted.state}
        controls = CONTROLS.get(choice.operation, frozenset(Control))
        if wanted.control is not None:
            controls &= {wanted.control}
        is_open = states and controls
        found = (
            instances_choose(tx, choice.namespace_id, wanted, (states, controls), limit=choice.limit) if is_open else []
        )
    if choice.queues is None:
        return found
    return [each for each in found if _queues_of(tx, each, flows) <= choice.queues]


def _queues_of(tx: Transaction, stored: Stored, flows: Flows) -> frozenset[str]:
    origin = stored.origin
    return flows.get(tx, origin.namespace_id, origin.workflow, origin.version).queues


def _order(order: Order, subject: Subject, operation: str, *, is_exact: bool = False) -> InstanceOrder:
    """Write the command to one instance. It has no receipt of its own: the batch's item is done once."""
    queues: list[str] | None = order.arguments.get("queues")
    command = Command(order.namespace_id, operation, subject.id.hex(), order.batch_id.hex(), b"")
    return InstanceOrder(
        command=command,
        actor=order.actor,
        instance_id=subject.id,
        reason=order.reason,
        expected_revision=subject.revision if is_exact else None,
        queues=None if queues is None else frozenset(queues),
    )


class Steer:
    """Pause or resume each instance."""

    def __init__(self, controls: Controls, operation: str) -> None:
        self._operation = operation
        self._now = {PAUSE: controls.pause_now, RESUME: controls.resume_now}[operation]

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Steer one instance."""
        return _shown(self._now(tx, _order(order, subject, self._operation)))


class CancelInstances:
    """Cancel each instance; with compensation what its steps have done is undone first."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Cancel one instance."""
        compensate = bool(order.arguments.get("compensate"))
        return _shown(self._controls.cancel_now(tx, _order(order, subject, CANCEL), compensate=compensate))


class MigrateInstances:
    """Let each instance go on with another version, or refuse it with the reasons."""

    def __init__(self, migrations: Migrations) -> None:
        self._migrations = migrations

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Migrate one instance."""
        wanted = Migration(_order(order, subject, MIGRATE), int(order.arguments["version"]))
        return _shown(self._migrations.migrate_now(tx, wanted))


class RecoverInstances:
    """Take one decision about each held instance; without a step, about the one that has failed in it."""

    def __init__(self, controls: Controls, recoveries: Recoveries) -> None:
        self._controls = controls
        self._recoveries = recoveries

    def apply(self, tx: Transaction, order: Order, subject: Subject) -> Json:
        """Recover one instance."""
        arguments: Mapping[str, Any] = order.arguments
        command = _order(order, subject, RECOVER, is_exact=True)
        output = arguments.get("output")
        decision = Decision(
            order=command,
            action=Action(arguments["action"]),
            step=arguments.get("step") or self._failed_step(tx, command),
            evidence=arguments["evidence"],
            output=None if output is None else parse(output.encode()),
            safety_statement=arguments.get("safety_statement"),
        )
        return _shown(self._recoveries.recover_now(tx, decision))

    def _failed_step(self, tx: Transaction, order: InstanceOrder) -> str | None:
        instance = self._controls.locked(tx, order).instance
        failed = sorted(step.id for step in instance.steps.values() if step.state is StepState.FAILED)
        if len(failed) > 1 and instance.state not in INSTANCE_TERMINAL:
            raise conflict(instance, f"several steps have failed ({', '.join(failed)}): say which one is meant")
        return failed[0] if failed else None


def _shown(made: Made) -> Json:
    return made.answer["instance"]


def instance_operations(
    controls: Controls, recoveries: Recoveries, migrations: Migrations
) -> dict[str, BatchOperation]:
    """Return the operations on instances by name."""
    return {
        **{name: Steer(controls, name) for name in (PAUSE, RESUME)},
        CANCEL: CancelInstances(controls),
        RECOVER: RecoverInstances(controls, recoveries),
        MIGRATE: MigrateInstances(migrations),
    }
