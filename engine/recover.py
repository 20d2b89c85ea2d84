"""An operator's recovery of an instance: checked, settled with Pulse, advanced and audited in one transaction.

What a decision does is `recovery`'s. A step whose task is under review is settled through here only: its task ends, and
for a retry the new one is made, in the same transaction. A dry run does everything short of writing.

The surprising rule: a dry run takes the lock and leaves no receipt, so its key may be used again for the real thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.batch import Advancer
from engine.control import MISSING, Controls, Order, audit, conflict, shown
from engine.flow import Flow
from engine.hiding import Hiding, evidence_shown
from engine.instance import Step
from engine.ports import TaskLayer, hiding_known
from engine.recovery import needs_safety_statement, refusal
from engine.scope import schema_failure
from engine.states import Action, StepState
from engine.stimulus import Recovered
from engine.store.instances import instance_find
from engine.store.recoveries import Recovery, recoveries_list, recovery_insert
from engine.work import Work
from orbit.canonical import digest
from orbit.clock import to_rfc3339
from orbit.database import Database
from orbit.errors import InvalidRequest, NotFound
from orbit.idempotency import Answer, Made
from orbit.ids import to_hex
from orbit.jsontext import Json, dumps, parse
from pulse.owned import REVIEWED_FAILED, SUPERSEDED, OwnedVerdict
from pulse.policy import Finish
from pulse.states import TaskState
from pulse.tasks import attempts_list

if TYPE_CHECKING:
    from orbit.database import Transaction

RECOVERIES_SHOWN = 200

_ENDS = {
    Action.RETRY: (Finish(TaskState.FAILED, SUPERSEDED), "SUCCESSOR"),
    Action.COMPLETE: (Finish(TaskState.SUCCEEDED), "SUCCEEDED"),
    Action.FAIL: (Finish(TaskState.FAILED, REVIEWED_FAILED), "FAILED"),
    Action.SKIP: (Finish(TaskState.FAILED, SUPERSEDED), "FAILED"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A person's decision: `step` None is the instance itself, `output` counts for COMPLETE, `evidence` is JSON."""

    order: Order
    action: Action
    step: str | None
    evidence: Json
    output: Json = None
    safety_statement: str | None = None
    is_dry_run: bool = False


class Recoveries:
    """The recoveries of a node."""

    def __init__(self, database: Database, advancer: Advancer, controls: Controls, tasks: TaskLayer) -> None:
        self._database = database
        self._advancer = advancer
        self._controls = controls
        self._tasks = tasks

    def instance_recover(self, decision: Decision) -> Answer:
        """Carry out a decision, or say what it would do.

        Raises NotFound; InvalidRequest for an unknown step, an output that does not fit the step's schema, or a missing
        safety statement; StateConflict with the current revision for what does not wait for it (any more).
        """
        if decision.is_dry_run:
            return self._database.transaction(lambda tx: self._preview(tx, decision))
        return self._controls.run(decision.order, lambda tx: self.recover_now(tx, decision))

    def recoveries_list(self, namespace_id: bytes, instance_id: bytes) -> list[Json]:
        """List the decisions about an instance, in order, with what their tasks reported later. Raises NotFound."""

        def read(tx: Transaction) -> list[Json]:
            stored = instance_find(tx, namespace_id, instance_id)
            if stored is None:
                raise NotFound(MISSING)
            hiding = hiding_known(tx, self._advancer.flows, stored)
            found = recoveries_list(tx, instance_id, limit=RECOVERIES_SHOWN)
            return [_recovery_json(hiding, each, _late(tx, namespace_id, each.task_id)) for each in found]

        return self._database.transaction(read)

    def _preview(self, tx: Transaction, decision: Decision) -> Answer:
        work, stimulus = self._judged(tx, decision)
        before = _looked(work, decision.step)
        work.stimuli = [stimulus]
        self._advancer.preview(tx, work, now=tx.now())
        return Answer(work.instance.id, _told(work, before, decision), deduplicated=False)

    def recover_now(self, tx: Transaction, decision: Decision) -> Made:
        """As `instance_recover`, in the given transaction and without a receipt."""
        order = decision.order
        work, stimulus = self._judged(tx, decision)
        before = _looked(work, decision.step)
        step = None if decision.step is None else work.instance.steps[decision.step]
        if step is not None and step.state is StepState.NEEDS_REVIEW:
            self._tasks.settle(tx, _verdict(decision, step))
        self._controls.advance(tx, work, stimulus)
        told = _told(work, before, decision)
        recovery_insert(tx, _recovery(decision, step, work.instance.revision, tx))
        audit(tx, order, "instance.recover", (before, {**told["after"], **_asked(decision)}))
        return Made(work.instance.id, told)

    def _judged(self, tx: Transaction, decision: Decision) -> tuple[Work, Recovered]:
        work = self._controls.locked(tx, decision.order)
        if decision.step is not None and not work.flow.knows(decision.step):
            raise InvalidRequest(f"the workflow has no step {decision.step}", pointer="/step")
        order = decision.order
        stimulus = Recovered(decision.action, decision.step, decision.output, order.reason, order.actor.name)
        why_not = refusal(work.flow, work.instance, stimulus)
        if why_not is not None:
            raise conflict(work.instance, why_not)
        if decision.step is not None:
            _check_step(work, decision, decision.step)
        return work, stimulus


def _check_step(work: Work, decision: Decision, identifier: str) -> None:
    node, step = work.flow.nodes[identifier], work.instance.steps[identifier]
    if decision.action is Action.RETRY and decision.safety_statement is None and needs_safety_statement(node, step):
        message = "a retry needs a safety statement: an effect is possible, so say why another attempt can't repeat it"
        raise InvalidRequest(message, pointer="/safety_statement")
    validator = work.flow.output_validator(node)
    if decision.action is Action.COMPLETE and validator is not None:
        errors = validator.iter_errors(decision.output)
        hidden = work.flow.hiding.of_step(identifier).output
        error = schema_failure(errors, "OUTPUT_INVALID", f"the output of {identifier}", hidden=hidden)
        if error is not None:
            raise InvalidRequest(error.message, pointer="/output")


def _verdict(decision: Decision, step: Step) -> OwnedVerdict:
    assert step.task_id is not None, f"step {step.id} is under review without a task"
    finish, kind = _ENDS[decision.action]
    return OwnedVerdict(
        task_id=step.task_id,
        finish=finish,
        kind=kind,
        evidence=decision.evidence,
        reason=decision.order.reason,
        actor=decision.order.actor.name,
        safety_statement=decision.safety_statement,
        output=dumps(decision.output) if decision.action is Action.COMPLETE else None,
    )


def _recovery(decision: Decision, step: Step | None, revision: int, tx: Transaction) -> Recovery:
    return Recovery(
        instance_id=decision.order.instance_id,
        revision=revision,
        action=decision.action.value,
        step=decision.step,
        round=0 if step is None else step.round,
        task_id=None if step is None else step.task_id,
        safety_statement=decision.safety_statement,
        evidence=dumps(decision.evidence).decode(),
        evidence_digest=digest(decision.evidence),
        reason=decision.order.reason,
        actor=decision.order.actor.name,
        created_at=tx.now(),
    )


def _told(work: Work, before: dict[str, Json], decision: Decision) -> dict[str, Json]:
    return {
        "dry_run": decision.is_dry_run,
        "instance": {"id": to_hex(work.instance.id), **shown(work.instance)},
        "before": before,
        "after": _looked(work, decision.step),
    }


def _asked(decision: Decision) -> dict[str, Json]:
    return {"action": decision.action.value, "evidence_sha256": digest(decision.evidence).hex()}


def _looked(work: Work, step: str | None) -> dict[str, Json]:
    """Write what a decision may change: the instance's state and error, and the step."""
    instance = work.instance
    found = None if step is None else instance.steps.get(step)
    return {
        **shown(instance),
        "error": None if instance.error is None else instance.error.to_json(),
        "step": None if found is None else _step_json(work.flow, found),
    }


def _step_json(flow: Flow, step: Step) -> dict[str, Json]:
    return {
        "id": step.id,
        "state": step.state.value,
        "round": step.round,
        "task_id": None if step.task_id is None else to_hex(step.task_id),
        "error": None if step.error is None else flow.hiding.failure(step.id, step.error).to_json(),
    }


def _late(tx: Transaction, namespace_id: bytes, task_id: bytes | None) -> list[Json]:
    """Read what came for a task after its attempts had ended: kept, and without effect."""
    if task_id is None:
        return []
    attempts = attempts_list(tx, namespace_id, task_id)
    return [
        {
            "outcome": each["outcome"],
            "output": None if each["output"] is None else parse(each["output"]),
            "error": None if each["error"] is None else parse(each["error"]),
            "recorded_at": to_rfc3339(each["recorded_at"]),
        }
        for attempt in attempts
        for each in attempt.late
    ]


def _recovery_json(hiding: Hiding | None, recovery: Recovery, late: list[Json]) -> dict[str, Json]:
    return {
        "revision": str(recovery.revision),
        "action": recovery.action,
        "step": recovery.step,
        "round": recovery.round,
        "task_id": None if recovery.task_id is None else to_hex(recovery.task_id),
        "safety_statement": recovery.safety_statement,
        "evidence": evidence_shown(hiding, recovery.step, parse(recovery.evidence)),
        "evidence_sha256": recovery.evidence_digest.hex(),
        "reason": recovery.reason,
        "actor": recovery.actor,
        "at": to_rfc3339(recovery.created_at),
        "superseded": late,
    }
