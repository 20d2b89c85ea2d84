"""Fork an instance: check, copy, advance, audit and answer in one transaction, while the source is locked.

What is copied is `forking`'s decision. Outputs of tasks are not copied: the copied steps keep their tasks, which keep
them. The fork runs with the rights of who forks, not of who started the source.

The surprising rule: a fork may go to another version of the workflow, if each step that it copies means the same there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from definitions.graph import KeyPolicy
from engine import forking
from engine.admission import Admitted, Entrant, Existing, admit
from engine.batch import Advancer, next_due
from engine.control import MISSING, Controls, Order, audit, conflict
from engine.flow import Flow, is_undoing
from engine.instance import INPUT, Instance, Step
from engine.ports import VersionFinder
from engine.states import InstanceState
from engine.stimulus import Forked
from engine.store.business_keys import BusinessKey
from engine.store.instances import Stored
from engine.store.records import values_load
from engine.views import instance_json
from engine.work import Work
from orbit.clock import Micros, seconds
from orbit.database import Database
from orbit.errors import BusinessKeyInUse, InvalidRequest, NotFound, OrbitError
from orbit.idempotency import Answer, Made
from orbit.ids import new_id, to_hex
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A fork as asked for: `order` names the source; what is None is the source's own."""

    order: Order
    step: str
    version: int | None = None
    business_key: str | None = None
    labels: Mapping[str, str] | None = None
    safety_statement: str | None = None
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    source: Work
    flow: Flow
    version: int
    warning: Json
    kept: Mapping[str, Step]


class Forks:
    """The forks of a node. `on_started` is told after COMMIT in how many microseconds a timer of the fork is due."""

    def __init__(
        self,
        database: Database,
        advancer: Advancer,
        controls: Controls,
        find_version: VersionFinder,
        *,
        on_started: Callable[[Micros], None],
    ) -> None:
        self._database = database
        self._advancer = advancer
        self._controls = controls
        self._find_version = find_version
        self._on_started = on_started

    def instance_fork(self, fork: Fork) -> Answer:
        """Start a new instance that takes over what lies before a step, or say what that would be.

        Raises NotFound; InvalidRequest for an unknown step or a missing safety statement; StateConflict for a source
        that runs, a step that it never came to, and a version that takes no starts or means copied steps otherwise;
        BusinessKeyInUse and TooManyRunning as a start.
        """
        if fork.is_dry_run:
            return self._database.transaction(lambda tx: self._preview(tx, fork))
        return self._controls.run(fork.order, lambda tx: self._make(tx, fork))

    def _preview(self, tx: Transaction, fork: Fork) -> Answer:
        plan = self._planned(tx, fork)
        return Answer(fork.order.instance_id, _told(fork, plan, None), deduplicated=False)

    def _make(self, tx: Transaction, fork: Fork) -> Made:
        plan = self._planned(tx, fork)
        now = tx.now()
        work = self._work(tx, fork, plan, now=now)
        told = _told(fork, plan, instance_json(work.stored))
        self._advancer.run(tx, [work], now=now)
        if work.broken is not None:
            raise work.broken
        due_at = next_due([work])
        if due_at is not None:
            tx.after_commit(lambda: self._on_started(due_at - now))
        shown: dict[str, Json] = {name: told[name] for name in ("step", "copied", "again")}
        shown |= {"fork": to_hex(work.instance.id), "safety_statement": fork.safety_statement}
        audit(tx, fork.order, "instance.fork", (None, shown))
        return Made(work.instance.id, told)

    def _planned(self, tx: Transaction, fork: Fork) -> _Plan:
        source = self._controls.locked(tx, fork.order)
        origin, instance = source.stored.origin, source.instance
        if fork.step not in source.flow.nodes or is_undoing(fork.step):
            raise InvalidRequest(f"the workflow has no step {fork.step}", pointer="/step")
        why_not = forking.refusal(source.flow, instance, fork.step)
        if why_not is not None:
            raise conflict(instance, why_not)
        found = self._find_version(tx, origin.namespace_id, origin.workflow, fork.version or origin.version)
        flow = self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, found.number)
        if fork.order.queues is not None and not flow.queues <= fork.order.queues:
            raise NotFound(MISSING)
        kept = forking.kept_steps(source.flow, instance, fork.step)
        _check_version(source, flow, kept)
        doubtful = forking.repeats_an_effect(source.flow, instance, kept)
        if doubtful is not None and fork.safety_statement is None:
            message = f"step {doubtful} runs again, and its effect happened or may have: say why that does no harm"
            raise InvalidRequest(message, pointer="/safety_statement")
        return _Plan(source, flow, found.number, found.warning, kept)

    def _work(self, tx: Transaction, fork: Fork, plan: _Plan, *, now: Micros) -> Work:
        order, source = fork.order, plan.source
        before = source.instance
        identifier, key = new_id(), fork.business_key or before.business_key
        counted = _admitted(tx, _entrant(plan, identifier, key))
        instance = Instance(
            id=identifier,
            state=InstanceState.RUNNING,
            revision=0,
            started_at=now,
            deadline_at=now + seconds(plan.flow.graph.timeout_seconds),
            business_key=key,
        )
        origin = replace(
            source.stored.origin,
            version=plan.version,
            started_by=order.actor.name,
            labels=source.stored.origin.labels if fork.labels is None else fork.labels,
            queues=order.queues,
            counted=counted,
            forked_from=before.id,
            # A fork of a child stands alone: its parent has been told, or will be, how the child itself ends.
            parent=None,
            root_id=None,
            format=self._advancer.formats.to_write(tx),
        )
        stimulus = Forked(fork.step, to_hex(before.id), source.stored.origin.version, order.reason, order.actor.name)
        work = Work(Stored(origin, instance), plan.flow, [stimulus], is_new=True)
        work.instance = replace(instance, steps=dict(plan.kept))
        work.changed_steps |= plan.kept.keys()
        texts = values_load(tx, [(before.id, slot) for slot in (INPUT, *plan.kept)])
        work.kept = {slot: json.loads(text) for (_, slot), text in texts.items()}
        work.values = dict(work.kept)
        return work


def _entrant(plan: _Plan, identifier: bytes, key: str | None) -> Entrant:
    origin, rules = plan.source.stored.origin, plan.flow.graph.starts
    cares = bool(plan.flow.signals) or rules.business_key_policy is not KeyPolicy.ALLOW
    return Entrant(
        namespace_id=origin.namespace_id,
        workflow=origin.workflow,
        instance_id=identifier,
        key=BusinessKey(origin.namespace_id, origin.workflow, key) if key is not None and cares else None,
        policy=rules.business_key_policy,
        takes=frozenset(plan.flow.signals),
        max_running=rules.max_running,
    )


def _admitted(tx: Transaction, entrant: Entrant) -> int:
    """Let a fork in as any start, and say which limits count it; one with its key that still runs refuses it."""
    (verdict,) = admit(tx, [entrant])
    match verdict:
        case Admitted(counted=counted):
            return counted
        case Existing(stored=stored):
            identifier = to_hex(stored.instance.id)
            raise BusinessKeyInUse(
                "an instance with this business key runs already", details={"instance_id": identifier}
            )
        case OrbitError():
            raise verdict


def _check_version(source: Work, flow: Flow, kept: Mapping[str, Step]) -> None:
    """Refuse another version in which a copied step means something else, or that may not take the input."""
    reasons = forking.obstacles(source.flow, flow, kept)
    if reasons:
        refused = conflict(source.instance, f"version {flow.graph.version} can't take the copied steps over")
        refused.details = {**(refused.details or {}), "reasons": [reason.to_json() for reason in reasons]}
        raise refused


def _told(fork: Fork, plan: _Plan, instance: Json) -> dict[str, Json]:
    names = (node.id for node in plan.source.flow.graph.nodes)
    again = [name for name in names if name in plan.source.instance.steps and name not in plan.kept]
    told: dict[str, Json] = {
        "dry_run": fork.is_dry_run,
        "forked_from": to_hex(plan.source.instance.id),
        "version": plan.version,
        "step": fork.step,
        "copied": list(plan.kept),
        "again": again,
        "instance": instance,
    }
    return told if plan.warning is None else told | {"warnings": [plan.warning]}
