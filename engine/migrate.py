"""Let a running instance go on with another version of its workflow: judged, advanced, audited in one transaction.

What may change is `migration`'s. The surprising rule: once the instance is moved its flow is looked at again, so a step
that the new version adds to the end of a branch which has ended begins at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine import migration
from engine.batch import Advancer
from engine.control import MISSING, Controls, Order, audit, conflict, shown
from engine.flow import Flow
from engine.ports import VersionFinder
from engine.stimulus import Migrated
from engine.store.instances import Stored, instance_version_write
from engine.work import Work
from orbit.database import Database
from orbit.errors import NotFound
from orbit.idempotency import Answer, Made
from orbit.ids import to_hex
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration as asked for."""

    order: Order
    version: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    work: Work
    flow: Flow
    verdict: str
    stimulus: Migrated | None  # None: it runs on that version already


class Migrations:
    """The migrations of a node."""

    def __init__(self, database: Database, advancer: Advancer, controls: Controls, find_version: VersionFinder) -> None:
        self._database = database
        self._advancer = advancer
        self._controls = controls
        self._find_version = find_version

    def instance_migrate(self, wanted: Migration) -> Answer:
        """Move an instance to another version, all or nothing, or say whether it could be.

        To the version that it has nothing changes. Raises NotFound; StateConflict with the reasons for one that ends or
        has ended, has another revision, or has begun what the new version changes, and for a retired version.
        """
        if wanted.is_dry_run:
            return self._database.transaction(lambda tx: self._preview(tx, wanted))
        return self._controls.run(wanted.order, lambda tx: self.migrate_now(tx, wanted))

    def migrate_now(self, tx: Transaction, wanted: Migration) -> Made:
        """Move an instance in the given transaction, as `instance_migrate` does."""
        order = wanted.order
        plan = self._planned(tx, wanted)
        work, before, old = plan.work, plan.work.instance, plan.work.stored.origin
        told = _told(wanted, plan)
        if plan.stimulus is None:
            return Made(before.id, told)
        work.stored = Stored(replace(old, version=plan.flow.graph.version), work.stored.instance)
        work.flow = plan.flow
        self._controls.advance(tx, work, replace(plan.stimulus, reason=order.reason, by=order.actor.name))
        instance_version_write(tx, before.id, version=plan.flow.graph.version)
        told["instance"] = {"id": to_hex(before.id), **shown(work.instance)}
        change = {**shown(before), "version": old.version}, {**shown(work.instance), "version": wanted.version}
        audit(tx, order, "instance.migrate", change)
        return Made(before.id, told)

    def _preview(self, tx: Transaction, wanted: Migration) -> Answer:
        plan = self._planned(tx, wanted)
        return Answer(plan.work.instance.id, _told(wanted, plan), deduplicated=False)

    def _planned(self, tx: Transaction, wanted: Migration) -> _Plan:
        work = self._controls.locked(tx, wanted.order)
        origin, instance = work.stored.origin, work.instance
        why_not = migration.refusal(instance)
        if why_not is not None:
            raise conflict(instance, why_not)
        if wanted.version == origin.version:
            return _Plan(work, work.flow, "same", None)
        found = self._find_version(tx, origin.namespace_id, origin.workflow, wanted.version)
        flow = self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, found.number)
        if wanted.order.queues is not None and not flow.queues <= wanted.order.queues:
            raise NotFound(MISSING)
        judged = migration.judge(work.flow, flow, instance, tx.now())
        if judged.obstacles:
            first = judged.obstacles[0]
            refused = conflict(instance, f"the instance can't go on with version {wanted.version}: {first}")
            reasons = [reason.to_json() for reason in judged.obstacles]
            refused.details = {**(refused.details or {}), "verdict": judged.diff.verdict.value, "reasons": reasons}
            raise refused
        stimulus = migration.stimulus_of(work.flow, flow, instance, judged)
        return _Plan(work, flow, judged.diff.verdict.value, stimulus)


def _told(wanted: Migration, plan: _Plan) -> dict[str, Json]:
    instance = plan.work.instance
    return {
        "dry_run": wanted.is_dry_run,
        "from_version": plan.work.stored.origin.version,
        "to_version": wanted.version,
        "verdict": plan.verdict,
        "instance": {"id": to_hex(instance.id), **shown(instance)},
    }
