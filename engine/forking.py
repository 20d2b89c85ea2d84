"""Which results a fork takes over, and which steps it runs again: pure, over one instance as it stands.

A fork is a new instance that begins in the middle: what lies before the chosen step is copied as it was decided, and
the step itself with everything behind it is run again. Copied steps keep their tasks, whose outputs stay with them.

The surprising rule: a step beside the chosen one that failed, or that was cut off by the instance's end, is run again
too, because a copy of it could never be decided; a loser of a join was decided, and is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from definitions.diff import Reason, diff_graphs
from definitions.graph import NodeKind
from engine.draft import Draft
from engine.flow import Flow, is_undoing
from engine.instance import Instance, Step
from engine.states import INSTANCE_TERMINAL, Compensation, InstanceState, StepReason, StepState
from engine.stimulus import Forked

_DECIDED = frozenset({StepState.SUCCEEDED, StepState.SKIPPED})


def refusal(flow: Flow, instance: Instance, step: str) -> str | None:
    """Say why no fork can begin at a step of an instance as it is; None if one can. The flow knows the step."""
    if instance.state not in INSTANCE_TERMINAL | {InstanceState.NEEDS_RECOVERY}:
        return f"the instance is {instance.state}: only one that has ended or waits for a person can be forked"
    busy = sorted(each.id for each in instance.steps.values() if each.has_task)
    if busy:
        return f"step {busy[0]} still has an unfinished task, which a fork could repeat"
    entered = instance.steps.get(step)
    if entered is None or (entered.state is StepState.CANCELLED and not _was_reached(flow, instance, step)):
        return f"the instance never came to step {step}"
    if entered.reason is StepReason.DEAD_PATH:
        return f"step {step} lies on a path that was not taken"
    undone = [name for name in kept_steps(flow, instance, step) if was_undone(flow, instance, name)]
    if undone:
        return f"step {undone[0]} was undone, so its result can't be copied: fork from it or from before"
    return None


def kept_steps(flow: Flow, instance: Instance, step: str) -> Mapping[str, Step]:
    """Give the steps that a fork from `step` copies, by id, in the definition's order."""
    again = _behind(flow, [step])
    while found := [each for each in instance.steps.values() if _holds_up(flow, instance, each, again)]:
        again |= _behind(flow, [each.id for each in found])
    return {
        # The items of a foreach are not copied, only its results: the copy counts none.
        identifier: replace(instance.steps[identifier], items=None)
        for identifier in flow.own_steps
        if identifier in instance.steps and identifier not in again
    }


def obstacles(old: Flow, new: Flow, kept: Mapping[str, Step]) -> list[Reason]:
    """Say why another version can't take over copied steps, or may not take the input; nothing if it can."""
    if new is old:
        return []
    diff = diff_graphs(old.graph, new.graph)
    return [
        reason
        for reason in diff.reasons
        if (reason.step in kept and reason.step in diff.changed) or (reason.step is None and diff.is_forbidden)
    ]


def was_undone(flow: Flow, instance: Instance, step: str) -> bool:
    """Tell whether the compensation of a step has begun, so that what it did may be there no more."""
    undoing = flow.compensations.get(step)
    # The compensations of items are put away as they end.
    are_items_undone = step in flow.undone_loops and instance.compensation not in {None, Compensation.WANTED}
    return are_items_undone or (undoing is not None and undoing.id in instance.steps)


def repeats_an_effect(flow: Flow, instance: Instance, kept: Mapping[str, Step]) -> str | None:
    """Name the first step that would be run again although its effect happened or may have; None for none."""
    for step in sorted((each for each in instance.steps.values() if each.id not in kept), key=lambda e: e.entered_at):
        node = flow.nodes[step.id]
        if step.items is not None and step.items.next and has_tasks(flow, step.id):
            return step.id
        if node.kind not in {NodeKind.TASK, NodeKind.WORKFLOW} or step.task_id is None or is_undoing(step.id):
            continue
        if step.state is StepState.SUCCEEDED or step.doubts or (step.error is not None and step.error.may_have_effect):
            return step.id
    return None


def has_tasks(flow: Flow, foreach: str) -> bool:
    """Tell whether what is done for each item of a foreach has effects outside."""
    return any(flow.nodes[step].kind in {NodeKind.TASK, NodeKind.WORKFLOW} for step in flow.bodies[foreach].steps)


def apply(draft: Draft, stimulus: Forked) -> None:
    """Note where a new instance comes from; its copied steps are in it already."""
    draft.record(
        "instance.forked",
        stimulus.step,
        source=stimulus.source,
        source_version=stimulus.source_version,
        reason=stimulus.reason,
        by=stimulus.by,
        copied=sorted(draft.steps),
    )


def _holds_up(flow: Flow, instance: Instance, step: Step, again: set[str]) -> bool:
    """Tell whether a copy of a step would hold up the flow, or a join that is judged again."""
    if step.id in again or step.state in _DECIDED:
        return False
    if step.reason is StepReason.BLOCK_FAILED:
        # Its block was given up: the flow goes on from the block's handlers if they are copied, and through it if not.
        faces = (instance.steps.get(face) for face in flow.faces_around(step.id))
        return not any(face is not None and _is_handled(face) and face.id not in again for face in faces)
    joins = [block.join for block in flow.lanes.around(step.id) if block.join is not None]
    if joins:
        # Its failure, or that it lost, is an outcome; the nearest join that went on with it is copied with it.
        return not any(_is_decided(instance, join) and join not in again for join in joins)
    return not any(_is_decided(instance, target) for target in flow.outgoing[step.id])


def _is_handled(step: Step) -> bool:
    return step.reason is StepReason.HANDLED


def _is_decided(instance: Instance, step: str) -> bool:
    found = instance.steps.get(step)
    return found is not None and found.state in _DECIDED


def _was_reached(flow: Flow, instance: Instance, step: str) -> bool:
    """Tell whether a step that the end has cancelled could have begun: all that leads to it was decided before."""
    sources = [instance.steps.get(source.id) for source, _ in flow.incoming[step]]
    return all(source is not None and source.state in _DECIDED for source in sources)


def _behind(flow: Flow, steps: Iterable[str]) -> set[str]:
    found: set[str] = set()
    todo = list(steps)
    while todo:
        step = todo.pop()
        if step not in found:
            found.add(step)
            todo.extend(flow.outgoing[step])
    return found
