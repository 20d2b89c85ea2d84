"""Say in words and data why an instance is not moving, from its rows alone.

Every unfinished instance waits for something that has a name; that it does is asserted with each advance.
"""

from __future__ import annotations

from collections.abc import Mapping

from definitions.graph import ChildSpec, NodeKind
from engine import joining
from engine.compensating import is_underway
from engine.flow import Flow, is_undoing
from engine.instance import Instance, Items, Pause, Step
from engine.lanes import ParallelBlock
from engine.pausing import still_running
from engine.polling import task_spec
from engine.recovery import is_engine_error
from engine.signals import signal_spec
from engine.states import (
    INSTANCE_TERMINAL,
    STEP_UNFINISHED,
    Control,
    InstanceState,
    StepReason,
    StepState,
)
from engine.task_words import TaskLook, review_words, words_of
from orbit.clock import to_rfc3339
from orbit.ids import to_hex
from orbit.jsontext import Json

# Tasks that are looked at for one explanation.
TASKS_SHOWN = 20
# Unfinished steps that one explanation tells of: a foreach may have thousands under way.
STEPS_SHOWN = 50


def tasks_of(flow: Flow, instance: Instance) -> list[bytes]:
    """List the tasks whose looks make the explanation better."""
    return _ids(flow, instance, of_children=False)


def children_of(flow: Flow, instance: Instance) -> list[bytes]:
    """List the children whose looks make the explanation better."""
    return _ids(flow, instance, of_children=True)


def _ids(flow: Flow, instance: Instance, *, of_children: bool) -> list[bytes]:
    found = [
        step.task_id
        for step in instance.steps.values()
        if step.has_task and (flow.nodes[step.id].kind is NodeKind.WORKFLOW) is of_children
    ]
    return [identifier for identifier in found if identifier is not None][:TASKS_SHOWN]


def explain(flow: Flow, instance: Instance, looks: Mapping[bytes, TaskLook] | None = None) -> dict[str, Json]:
    """Give the state, a sentence, and one reason for each thing that is waited for.

    `looks` are at tasks, and at children as far as they have a state, by id.
    """
    if instance.state in INSTANCE_TERMINAL:
        ended = f"the instance has ended {instance.state.value}"
        return {"state": instance.state.value, "summary": ended, "waits_for": []}
    reasons = [] if instance.pause is None else [_paused(instance, instance.pause)]
    if instance.state is InstanceState.NEEDS_RECOVERY:
        reasons.append(_needs_recovery(flow, instance))
    order = flow.order
    unfinished = [
        step for step in instance.steps.values() if step.state in STEP_UNFINISHED and step.reason is not StepReason.JOIN
    ]
    unfinished.sort(key=lambda step: order[step.id])
    reasons += [_step_reason(flow, instance, step, looks or {}) for step in unfinished[:STEPS_SHOWN]]
    reasons += [_join_reason(block, outcomes) for block, outcomes in joining.open_blocks(flow, instance)]
    if not reasons and not instance.steps:
        reasons.append({"kind": "RUNNER", "text": "has been started by its parent and begins at once"})
    summary = "; ".join(str(reason["text"]) for reason in reasons)
    if len(unfinished) > STEPS_SHOWN:
        summary += f"; and {len(unfinished) - STEPS_SHOWN} more steps wait"
    if instance.state is InstanceState.ENDING:
        summary = f"ends as {instance.ending_as} when its last task is terminal: {summary}"
    if instance.state is InstanceState.COMPENSATING:
        summary = f"undoes what it did, then ends as {instance.ending_as}: {summary}"
    return {"state": instance.state.value, "summary": summary, "waits_for": reasons}


def explain_newer(instance: Instance, number: int, newest: int) -> dict[str, Json]:
    """Explain an instance that only a newer node can move."""
    text = f"waits for a newer node: its state has form {number}, this node knows forms up to {newest}"
    reason = {"kind": "NEWER_NODE", "text": text, "format": number, "known": newest}
    return {"state": instance.state.value, "summary": text, "waits_for": [reason]}


def _items_reason(step: Step, items: Items) -> dict[str, Json]:
    text = f"step {step.id} waits for its items: {items.ended} of {items.count} have ended, {items.open} are under way"
    if items.error is not None:
        text += f", none begins any more because of {items.error.code}"
    form: dict[str, Json] = {"kind": "ITEMS", "count": items.count, "ended": items.ended, "open": items.open}
    if step.due_at is not None:
        form["until"] = to_rfc3339(step.due_at)
        text += f"; more are tried at {form['until']}"
    return form | {"text": text}


def _child_reason(spec: ChildSpec, step: Step, look: TaskLook | None) -> dict[str, Json]:
    assert step.task_id is not None
    child = to_hex(step.task_id)
    form: dict[str, Json] = {"kind": "CHILD", "child_id": child, "workflow": spec.workflow, "version": spec.version}
    text = f"step {step.id} waits for its child {child} ({spec.workflow}@{spec.version})"
    if look is not None:
        control = (look.details or {}).get("control")
        form |= {"child_state": look.state, "child_control": control, "wait_reason": look.wait_reason}
        text += f", which is {look.state}" + (f" ({look.wait_reason})" if look.wait_reason else "")
        text += "" if control in {None, Control.ACTIVE} else f" and {control}"
    if step.state is StepState.NEEDS_REVIEW:
        assert step.review_at is not None
        form["since"] = to_rfc3339(step.review_at)
        text += f" and waits for a person since {form['since']}"
    return form | {"text": text + _stopped(step)}


def _paused(instance: Instance, pause: Pause) -> dict[str, Json]:
    since = to_rfc3339(pause.paused_at)
    who = "at a breakpoint" if pause.by is None else f"by {pause.by}"
    text = f"is {instance.control}: paused {who} since {since} because {pause.reason!r}; its waits stand still"
    noisy = list(still_running(pause))
    if noisy:
        text += f"; still runs: {', '.join(noisy)}"
    if pause.with_parent:
        text += "; only the resume of its parent lets it go on"
    return {
        "kind": "PAUSE",
        "text": text,
        "since": since,
        "by": pause.by,
        "reason": pause.reason,
        "with_parent": pause.with_parent,
        "still_running": noisy,
    }


def _needs_recovery(flow: Flow, instance: Instance) -> dict[str, Json]:
    error = None if instance.error is None else instance.error.to_json()
    since = instance.clock_stopped_at
    cause = "an error" if instance.error is None else f"{instance.error.code}: {instance.error.message}"
    order = flow.order
    failed = sorted((step for step in instance.steps.values() if joining.holds(flow, step)), key=lambda s: order[s.id])
    if is_underway(instance):
        failed = [step for step in failed if is_undoing(step.id)]
    text = f"waits for a person to recover it from {cause}"
    if is_engine_error(instance.error):
        failed = []
        text += "; what comes for it is kept until then"
    elif failed:
        names = ", ".join(step.id for step in failed[:STEPS_SHOWN])
        text += f" (step {names} has failed)" if len(failed) == 1 else f" (steps {names} have failed)"
    return {
        "kind": "RECOVERY",
        "text": text,
        "since": None if since is None else to_rfc3339(since),
        "error": error,
        "steps": [step.id for step in failed[:STEPS_SHOWN]],
    }


def _join_reason(block: ParallelBlock, outcomes: joining.Outcomes) -> dict[str, Json]:
    done = sum(outcome is joining.Outcome.DONE for outcome in outcomes.values())
    told: dict[str, Json] = {label: None if outcome is None else outcome.value for label, outcome in outcomes.items()}
    still = [label for label, outcome in outcomes.items() if outcome is None]
    if block.needed:
        text = f"{done} of {block.needed} needed branches are done, there are {len(outcomes)}"
    else:
        text = f"{len(outcomes) - len(still)} of {len(outcomes)} branches have ended"
    return {
        "kind": "JOIN",
        "step": block.opener,
        "policy": block.policy.value,
        "needed": block.needed or len(outcomes),
        "branches": told,
        "text": f"waits for the join of {block.opener} ({block.policy.value}): {text}; open: {', '.join(still)}",
    }


def _step_reason(flow: Flow, instance: Instance, step: Step, looks: Mapping[bytes, TaskLook]) -> dict[str, Json]:
    form: dict[str, Json] = {"step": step.id}
    if step.items is not None:
        return form | _items_reason(step, step.items)
    if step.state is StepState.WAITING:
        assert step.due_at is not None
        form |= {"kind": "TIMER", "until": to_rfc3339(step.due_at)}
        match step.reason:
            case StepReason.QUEUE_FULL:
                queue = task_spec(flow.nodes[step.id]).queue
                form |= {"kind": "QUEUE_FULL", "queue": queue, "refusals": step.refused_count}
                item = None if is_undoing(step.id) else flow.item_of(step.id)
                if item is None:
                    form["text"] = f"step {step.id} waits for room on queue {queue}, tries again at {form['until']}"
                else:
                    tries = f"tries again with the other items of {item.foreach}, until {form['until']}"
                    form["text"] = f"step {step.id} waits for room on queue {queue}, {tries}"
            case StepReason.POLL_GAP:
                form["text"] = f"step {step.id} asks again (round {step.poll_round + 1}) at {form['until']}"
            case StepReason.BREAKPOINT:
                form |= {"kind": "BREAKPOINT"}
                form["text"] = f"step {step.id} begins when the instance is resumed"
            case StepReason.SIGNAL:
                name = signal_spec(flow.nodes[step.id]).signal
                form |= {"kind": "SIGNAL", "signal": name}
                form["text"] = f"step {step.id} waits for signal {name} until {form['until']}"
            case StepReason.BLOCK_FAILED:
                code = "its failure" if step.error is None else step.error.code
                form |= {"kind": "BLOCK"}
                form["text"] = f"{step.id} waits for what still runs in its block, then its handlers take {code}"
            case StepReason.RETRY:
                form["text"] = f"step {step.id} is tried again by an error handler at {form['until']}"
            case _:
                form["text"] = f"step {step.id} waits until {form['until']}"
                if step.timeout_at is not None:
                    form["at_most"] = to_rfc3339(step.timeout_at)
                    form["text"] += f", and at most until {form['at_most']}"
        return form
    assert step.task_id is not None
    node = flow.nodes[step.id]
    if isinstance(node.spec, ChildSpec):
        return form | _child_reason(node.spec, step, looks.get(step.task_id))
    spec = task_spec(node)
    task = f"task {to_hex(step.task_id)} ({spec.type}@{spec.task_version}) on queue {spec.queue}"
    form |= {"task_id": to_hex(step.task_id), "queue": spec.queue, "round": step.round}
    look = looks.get(step.task_id)
    if step.state is StepState.NEEDS_REVIEW:
        assert step.review_at is not None
        text = f"step {step.id} waits for a review of {task}, since {to_rfc3339(step.review_at)}: {review_words(look)}"
        form |= {} if look is None else look.to_json()
        return form | {"kind": "REVIEW", "since": to_rfc3339(step.review_at), "text": text + _stopped(step)}
    text = f"step {step.id} waits for {task}"
    if look is not None:
        form |= look.to_json()
        text += f", {words_of(look, instance)}"
    return form | {"kind": "TASK", "text": text + _stopped(step)}


def _stopped(step: Step) -> str:
    return "" if step.reason is None else f", and was asked to stop ({step.reason})"
