"""Instances, steps and histories as the API shows them: ids in hex, instants in RFC 3339, counters as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from definitions.graph import NodeKind
from engine.command import Entry
from engine.flow import Flow, is_undoing
from engine.instance import Instance, Items, Pause, Round, RoundLog, Step
from engine.items import item_step, own_name
from engine.kinship import Parent
from engine.states import STEP_TERMINAL, StepState
from engine.store.instances import Stored
from engine.store.records import Recorded
from orbit.clock import Micros, to_rfc3339
from orbit.ids import to_hex
from orbit.jsontext import Json

_SHOWN_FIRST = (
    StepState.FAILED,
    StepState.NEEDS_REVIEW,
    StepState.RUNNING,
    StepState.WAITING,
    StepState.SUCCEEDED,
    StepState.SKIPPED,
    StepState.CANCELLED,
    StepState.PENDING,
)


def instance_json(stored: Stored) -> dict[str, Json]:
    """Write an instance without its steps and values."""
    origin, instance = stored.origin, stored.instance
    return {
        "id": to_hex(instance.id),
        "workflow": origin.workflow,
        "version": origin.version,
        "state": instance.state.value,
        "ending_as": None if instance.ending_as is None else instance.ending_as.value,
        "compensation": None if instance.compensation is None else instance.compensation.value,
        "revision": str(instance.revision),
        "control": instance.control.value,
        "pause": None if instance.pause is None else _pause_json(instance.pause),
        "business_key": instance.business_key,
        "forked_from": None if origin.forked_from is None else to_hex(origin.forked_from),
        "parent": None if origin.parent is None else _parent_json(origin.parent),
        "root_id": to_hex(origin.root_id or instance.id),
        "started_by": origin.started_by,
        "labels": dict(origin.labels or {}),
        "error": None if instance.error is None else instance.error.to_json(),
        "started_at": to_rfc3339(instance.started_at),
        "deadline_at": to_rfc3339(instance.deadline_at),
        "finished_at": _instant(instance.finished_at),
    }


def steps_json(flow: Flow, instance: Instance, verified: Mapping[bytes, Json] | None = None) -> list[Json]:
    """Write the instance's own steps in the definition's order, then what undoes them; what is not entered is PENDING.

    `verified` tells of the verifications of steps under review, by task.
    """
    names = (*flow.own_steps, *(node.id for node in flow.compensations.values() if node.within is None))
    return [_step_json(flow, name, instance.steps.get(name), verified or {}) for name in names]


def graph_states(flow: Flow, instance: Instance) -> dict[str, str]:
    """Give the state of each step of the graph; a step of items is shown by the item that most wants to be seen."""
    found = {name: step.state for name, step in instance.steps.items() if name in flow.nodes}
    for name, step in instance.steps.items():
        own = own_name(name)
        if own != name and (own not in found or _SHOWN_FIRST.index(step.state) < _SHOWN_FIRST.index(found[own])):
            found[own] = step.state
    for name, node in flow.nodes.items():
        around = None if node.within is None or is_undoing(name) else instance.steps.get(node.within)
        if around is not None and around.state in STEP_TERMINAL and around.items is not None and around.items.next:
            found.setdefault(name, around.state)
    return {name: found.get(name, StepState.PENDING).value for name in flow.nodes}


def item_json(flow: Flow, foreach: str, index: int, steps: Mapping[str, Step]) -> dict[str, Json]:
    """Write one item of a foreach with its steps in the definition's order."""
    names = [item_step(name, index) for name in flow.bodies[foreach].steps]
    names += [undoing.id for name in names if (undoing := flow.compensations.get(name)) and undoing.id in steps]
    return {"index": index, "steps": [_step_json(flow, name, steps.get(name), {}) for name in names]}


def history_json(recorded: Sequence[Recorded]) -> list[Json]:
    """Write the entries in order; `index` counts within the advance that `revision` names."""
    return [_entry_json(record, index, entry) for record in recorded for index, entry in enumerate(record.entries)]


def _pause_json(pause: Pause) -> dict[str, Json]:
    return {
        "reason": pause.reason,
        "by": pause.by,
        "paused_at": to_rfc3339(pause.paused_at),
        "with_parent": pause.with_parent,
    }


def _parent_json(parent: Parent) -> dict[str, Json]:
    return {"id": to_hex(parent.id), "step": parent.step, "round": parent.round}


def _step_json(flow: Flow, name: str, step: Step | None, verified: Mapping[bytes, Json]) -> dict[str, Json]:
    node = flow.nodes[name]
    form: dict[str, Json] = {
        "id": name,
        "kind": node.kind.value,
        "title": node.title,
        "state": "PENDING" if step is None else step.state.value,
    }
    if step is None:
        return form
    is_child = node.kind is NodeKind.WORKFLOW
    form |= {
        "reason": None if step.reason is None else step.reason.value,
        "case": step.chosen,
        "round": step.round,
        "task_id": None if is_child or step.task_id is None else to_hex(step.task_id),
        "child_id": to_hex(step.task_id) if is_child and step.task_id is not None else None,
        "due_at": _instant(step.due_at),
        "timeout_at": _instant(step.timeout_at),
        "entered_at": to_rfc3339(step.entered_at),
        "finished_at": _instant(step.finished_at),
        "error": None if step.error is None else flow.hiding.failure(name, step.error).to_json(),
        "retry_of": None if step.retry_of is None else to_hex(step.retry_of),
        "retries": None if step.retries is None else sum(step.retries),
        "effect_unknown": step.doubts > 0,
        "rounds": None if step.log is None else _rounds_json(step.log),
        "verification": None if step.task_id is None else verified.get(step.task_id),
        "items": None if step.items is None else _items_json(step.items),
    }
    return form


def _items_json(items: Items) -> dict[str, Json]:
    return {"count": items.count, "begun": items.next, "ended": items.ended, "under_way": items.open}


def _rounds_json(log: RoundLog) -> dict[str, Json]:
    return {"first": _round_list(log.first), "last": _round_list(log.last), "counts": dict(log.counts)}


def _round_list(rounds: Iterable[Round]) -> list[Json]:
    return [
        {
            "number": entry.number,
            "task_id": None if entry.task_id is None else to_hex(entry.task_id),
            "outcome": entry.outcome,
            "ended_at": to_rfc3339(entry.ended_at),
        }
        for entry in rounds
    ]


def _entry_json(record: Recorded, index: int, entry: Entry) -> dict[str, Json]:
    return {
        "revision": str(record.revision),
        "index": index,
        "at": to_rfc3339(record.recorded_at),
        "type": entry.kind,
        "step": entry.step,
        "data": dict(entry.data),
    }


def _instant(instant: Micros | None) -> str | None:
    return None if instant is None else to_rfc3339(instant)
