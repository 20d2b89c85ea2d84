"""What a person's decision does to an instance that waits for one: pure, like all that `advance` calls.

A failed step is tried again, completed, skipped, or ends the instance; a step under review is judged in the same way.
Only what failed is reopened: the flow behind it goes on from outcomes, and joins are never patched. A decision without
a step is about the instance itself: an error of the engine, or an output that could not be computed.

The surprising rule: a retry starts the step anew (its bounds, a poll's rounds) but its tasks count on, so a late answer
of an earlier one is recognised, and the new task continues the line of the last.
"""

from __future__ import annotations

from msgspec.structs import replace

from definitions.graph import Node, NodeKind, SignalSpec
from engine import blocks, compensating, foreach, joining
from engine.draft import Draft
from engine.flow import Flow, is_undoing, undone_step
from engine.instance import ENGINE_ERROR, OUTPUT, Failure, Instance, Step
from engine.items import own_name
from engine.states import INSTANCE_TERMINAL, LOST, Action, Ending, InstanceState, StepReason, StepState
from engine.stimulus import Recovered

_COMPLETABLE = frozenset({NodeKind.TASK, NodeKind.POLL, NodeKind.SET, NodeKind.FOREACH, NodeKind.WORKFLOW})
REVIEWED_FAILED = Failure("REVIEWED_FAILED", "a person judged that it failed")


def refusal(flow: Flow, instance: Instance, decision: Recovered) -> str | None:
    """Say why a decision does not fit the instance as it is; None if it does."""
    if instance.state in INSTANCE_TERMINAL:
        return f"the instance has ended {instance.state}"
    if decision.step is None:
        return _refusal_of_all(instance, decision.action)
    if is_engine_error(instance.error):
        return "an error of the engine comes first: recover the instance, not a step"
    step = instance.steps.get(decision.step)
    state = StepState.PENDING if step is None else step.state
    if step is None and flow.item_of(decision.step) is not None:
        return f"{decision.step} is no step of an item that is under way"
    undoing = compensating.refusal(instance, decision.step)
    if undoing is not None:
        return undoing
    if step is None or state not in {StepState.FAILED, StepState.NEEDS_REVIEW}:
        return f"step {decision.step} is {state}: only FAILED and NEEDS_REVIEW wait for a decision"
    if state is StepState.NEEDS_REVIEW and flow.nodes[step.id].kind is NodeKind.WORKFLOW:
        return f"the child of step {step.id} waits for a person: recover that instance"
    if step.reason is StepReason.HANDLED:
        return f"an error handler has taken the failure of step {decision.step}"
    if state is StepState.FAILED and instance.state is not InstanceState.NEEDS_RECOVERY:
        return f"the instance is {instance.state}"
    is_over = instance.state is InstanceState.ENDING or is_undoing(step.id)
    past = None if is_over else joining.why_decided(flow, instance, step)
    if past is not None and (state is StepState.FAILED or decision.action in {Action.RETRY, Action.SKIP}):
        return f"step {step.id}: {past}" + (
            "" if state is StepState.FAILED else "; its review can be completed or failed"
        )
    return _refusal_of_step(flow, instance, step, decision.action)


def _refusal_of_all(instance: Instance, action: Action) -> str | None:
    if instance.state is not InstanceState.NEEDS_RECOVERY:
        return f"the instance is {instance.state}"
    if action is Action.FAIL:
        return None
    if is_engine_error(instance.error):
        return None if action is Action.RETRY else "an error of the engine can be retried or failed"
    if any(step.waits_for_decision for step in instance.steps.values()):
        return "a step has failed: say which step to recover"
    return "an instance can't be skipped" if action is Action.SKIP else None


def _refusal_of_step(flow: Flow, instance: Instance, step: Step, action: Action) -> str | None:
    if instance.state is InstanceState.ENDING and action in {Action.RETRY, Action.SKIP}:
        return "the instance ends: a review can only be completed or failed"
    if action is Action.RETRY and blocks.was_given_up(flow, instance, step.id):
        if not flow.guards.faces[step.id].may_restart:
            return "not all of its steps can be done once more: skip it, or fork the instance"
        return None
    if action is Action.RETRY and step.id in flow.lanes.judged:
        failed = ", ".join(joining.failed_steps(flow, instance, step.id))
        return f"a join is judged by its branches: retry what has failed in them ({failed}), or skip the join"
    if action is Action.RETRY and step.id in flow.bodies:
        failed = ", ".join(foreach.failed_steps(flow, instance.steps, step.id))
        if failed:
            return f"the foreach has failed because of its items: retry what has failed in them ({failed})"
    if action is Action.COMPLETE and not has_output(flow.nodes[step.id]):
        return f"a {flow.nodes[step.id].kind} step has no output that could be given"
    if action is Action.SKIP:
        needed_by = _needed_by(flow, instance, step.id)
        if needed_by is not None:
            return f"the output of {step.id} is needed by {needed_by}: complete it instead"
    return None


def has_output(node: Node) -> bool:
    """Tell whether a step has an output that a person may vouch for."""
    return node.kind in _COMPLETABLE or isinstance(node.spec, SignalSpec)


def _needed_by(flow: Flow, instance: Instance, identifier: str) -> str | None:
    """Name what may still read a step's output: a step that is not decided for good, or the workflow's output."""
    if identifier in flow.output_references:
        return "the workflow's output"
    decided = {StepState.SUCCEEDED, StepState.SKIPPED, StepState.CANCELLED}
    item, own = flow.item_of(identifier), own_name(identifier)
    for name, references in flow.references.items():
        # What undoes the step itself reads its output with a guard only.
        if undone_step(name) == own or own not in references:
            continue
        reader = flow.seen_as(name, item)
        around = flow.nodes[name].within
        if item is None and around is not None:
            reader = around  # every item may read it
        step = instance.steps.get(reader)
        if step is None or step.state not in decided:
            return f"step {reader}"
    return None


def needs_safety_statement(node: Node, step: Step) -> bool:
    """Tell whether a retry could repeat an effect: it happened, or nobody knows whether it did."""
    if step.state is StepState.NEEDS_REVIEW:
        return True
    if node.kind is NodeKind.WORKFLOW:
        # What the child did before it failed would be done again, unless it has undone that.
        return step.error is None or not step.error.is_undone
    if node.kind is NodeKind.JOIN:
        return True  # what the block did before it failed would be done again
    return node.kind is NodeKind.TASK and step.doubts > 0


def is_engine_error(error: Failure | None) -> bool:
    """Tell whether an instance is held because its advance raised."""
    return error is not None and error.code == ENGINE_ERROR


def apply(draft: Draft, decision: Recovered) -> Step | None:
    """Carry out a decision that `refusal` allows; give the step that has to be entered again, if one has."""
    assert refusal(draft.flow, draft.before, decision) is None, "the decision does not fit"
    draft.record(
        "instance.recovery_decided" if decision.step is None else "step.recovery_decided",
        decision.step,
        action=decision.action.value,
        reason=decision.reason,
        by=decision.by,
    )
    if decision.step is None:
        _apply_to_all(draft, decision)
        return None
    step = draft.steps[decision.step]
    if decision.action is Action.FAIL and step.state is StepState.FAILED:
        if compensating.is_underway(draft):
            compensating.abandon(draft)
        else:
            draft.begin_ending(Ending.FAILED, draft.failure_of(step))
        return None
    if decision.action in {Action.RETRY, Action.SKIP} and step.state is StepState.NEEDS_REVIEW:
        step = draft.change(step, doubts=step.doubts + 1)  # nobody has said that it had no effect
    if step.reason not in LOST and not is_undoing(step.id):
        joining.reopen(draft, step)
        foreach.repaired(draft, step)
    reconsider(draft, without=step.id)
    match decision.action:
        case Action.RETRY:
            draft.reopen(replace(step, retries=None))
            return step
        case Action.COMPLETE:
            draft.keep(step.id, decision.output)
            draft.decide(step.id, StepState.SUCCEEDED, reason=StepReason.RECOVERED)
            draft.record("step.succeeded", step.id)
        case Action.SKIP:
            draft.skip(step.id, StepReason.RECOVERED)
            if step.id in draft.flow.lanes.judged:
                joining.close(draft, draft.flow.lanes.judged[step.id])
        case Action.FAIL:
            pass  # its review says that its task has failed: the caller goes on as with any failed task
    return None


def _apply_to_all(draft: Draft, decision: Recovered) -> None:
    error = draft.error
    match decision.action:
        case Action.FAIL if compensating.is_underway(draft):
            compensating.abandon(draft)
        case Action.FAIL:
            draft.begin_ending(Ending.FAILED, error)
        case Action.COMPLETE:
            draft.keep(OUTPUT, decision.output)
            draft.begin_ending(Ending.SUCCEEDED, None)
        case _ if error is not None and is_engine_error(error):
            _restore(draft, error)
        case _:
            reconsider(draft)


def _restore(draft: Draft, error: Failure) -> None:
    """Put an instance back to where an engine error has found it."""
    former = (error.details or {}).get("before")
    draft.error = None if former is None else Failure.from_json(former)
    if compensating.is_underway(draft):
        if not any(is_undoing(step.id) and step.waits_for_decision for step in draft.steps.values()):
            draft.move(InstanceState.COMPENSATING)
    elif draft.ending_as is not None:
        draft.move(InstanceState.ENDING)
    elif draft.error is None:
        draft.move(InstanceState.RUNNING)
    draft.record("instance.recovered", state=draft.state.value)


def reconsider(draft: Draft, *, without: str | None = None) -> None:
    """Let the instance go on, unless another failed step still waits for a person."""
    if draft.state is not InstanceState.NEEDS_RECOVERY:
        return
    if compensating.is_underway(draft):
        compensating.go_on(draft)
        return
    order = draft.flow.order
    failed = [step for step in draft.steps.values() if joining.holds(draft.flow, step) and step.id != without]
    if failed:
        draft.error = draft.failure_of(min(failed, key=lambda step: order[step.id]))
        return
    draft.error = None
    draft.move(InstanceState.RUNNING)
    draft.record("instance.recovered", state=draft.state.value)
