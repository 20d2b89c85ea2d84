"""The part of a batch that is about instances: which ones, and with which arguments. What is done is the engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from api.calls import Call
from api.models.batches import CreateBatch, InstanceSelection
from api.queries import label_read
from api.resources.recovery import evidence_read
from engine.instance_batches import CANCEL, MIGRATE, PAUSE, RECOVER, RESUME, InstanceChoice, instances_chosen
from engine.ports import Flows
from engine.states import Action, Control, InstanceState
from engine.store.instances import Filter, Stored
from orbit.access import Scope
from orbit.clock import from_rfc3339
from orbit.errors import InvalidRequest, PayloadTooLarge
from orbit.ids import from_hex
from orbit.jsontext import Json
from pulse import limits

if TYPE_CHECKING:
    from orbit.database import Transaction

SCOPES = {
    PAUSE: Scope.INSTANCES_CONTROL,
    RESUME: Scope.INSTANCES_CONTROL,
    CANCEL: Scope.INSTANCES_CONTROL,
    MIGRATE: Scope.INSTANCES_CONTROL,
    RECOVER: Scope.INSTANCES_RECOVER,
}


def instances_selected(
    tx: Transaction, call: Call, flows: Flows, operation: str, said: InstanceSelection
) -> list[Stored]:
    """Read the instances of a selection; raises InvalidRequest for one that no index serves."""
    caller = call.caller
    criteria = (said.workflow, said.version, said.state, said.control, said.business_key, said.label)
    wanted = None
    named = None
    if said.ids is not None:
        if any(value is not None for value in (*criteria, said.created_after, said.created_before)):
            raise InvalidRequest("ids and a filter exclude each other", pointer="/instances/ids")
        named = sorted({from_hex(each) for each in said.ids})
    else:
        if said.workflow is None and said.business_key is None and said.label is None:
            raise InvalidRequest("ids, workflow, business_key or label is required", pointer="/instances")
        wanted = Filter(
            workflow=said.workflow,
            version=said.version,
            state=None if said.state is None else InstanceState(said.state),
            control=None if said.control is None else Control(said.control),
            business_key=said.business_key,
            label=None if said.label is None else label_read(said.label, pointer="/instances/label"),
            started_after=_instant(said.created_after, "/instances/created_after"),
            started_before=_instant(said.created_before, "/instances/created_before"),
        )
    more = limits.BATCH_SUBJECTS_MAX + 1
    choice = InstanceChoice(caller.namespace_id, operation, named, wanted, caller.queues, more)
    return instances_chosen(tx, choice, flows)


def instance_arguments(call: Call, body: CreateBatch) -> Json:
    """Return what the operation needs beside an instance; raises InvalidRequest for what is missing or too much."""
    queues = call.caller.queues
    arguments: dict[str, Json] = {"queues": None if queues is None else sorted(queues)}
    if (body.version is None) == (body.operation == MIGRATE):
        raise InvalidRequest("a migration, and nothing else, needs a version", pointer="/version")
    if (body.action is None) == (body.operation == RECOVER):
        raise InvalidRequest("a recovery, and nothing else, needs an action", pointer="/action")
    if body.compensate is not None and body.operation != CANCEL:
        raise InvalidRequest("only a cancel compensates", pointer="/compensate")
    if body.operation == MIGRATE:
        return arguments | {"version": body.version}
    if body.operation == CANCEL:
        return arguments | {"compensate": bool(body.compensate)}
    if body.operation != RECOVER:
        return arguments
    if body.evidence is UNSET:
        raise InvalidRequest("a decision needs evidence", pointer="/evidence")
    if body.output is not UNSET:
        if body.action != Action.COMPLETE:
            raise InvalidRequest("only COMPLETE has an output", pointer="/output")
        if len(bytes(body.output)) > limits.OUTPUT_BYTES_MAX:
            raise PayloadTooLarge(f"an output may have {limits.OUTPUT_BYTES_MAX} bytes", pointer="/output")
        arguments["output"] = bytes(body.output).decode()
    return arguments | {
        "action": body.action,
        "step": body.step,
        "evidence": evidence_read(body.evidence),
        "safety_statement": body.safety_statement,
    }


def selected_json(stored: Stored) -> Json:
    """Write an instance that would be an item."""
    origin, instance = stored.origin, stored.instance
    return {
        "id": instance.id.hex(),
        "state": instance.state.value,
        "control": instance.control.value,
        "workflow": origin.workflow,
        "version": origin.version,
        "revision": str(instance.revision),
    }


def _instant(text: str | None, pointer: str) -> int | None:
    return None if text is None else from_rfc3339(text, pointer=pointer)
