"""A foreach: its items begin in the order of the list, some at once; what each leaves becomes a list in that order.

The steps of an item are steps like any other, named by `items`; they run by the rules of the flow, and this module only
begins items, takes their results and puts them out of the way. So an advance sees the items that are under way and
none that is done with, however many there are.

The surprising rule: a failed step of an item does not fail the foreach. It waits for a person, like one in a parallel
branch: items under way go on until they settle, and no new one begins until it is dealt with. The foreach itself fails
only for what is its own: its list, or a result that can't be made or kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from definitions.graph import ForeachSpec, Node
from definitions.limits import VALUE_BYTES_MAX
from engine import joining, tasks
from engine.draft import Draft
from engine.flow import Flow, is_undoing
from engine.instance import Failure, Items, Step
from engine.items import Item, item_step, items_slot
from engine.scope import ExpressionFailed, item_list, needed, output_of, place_of, render
from engine.states import STEP_UNFINISHED, InstanceState, StepReason, StepState
from engine.stimulus import Outcome, Stimulus, TaskEnded
from orbit.jsontext import Json, dumps

EXCEEDED = "ITEMS_EXCEEDED"
TOO_LARGE = "RESULTS_TOO_LARGE"

# Items that begin in one advance; the others begin in the next ones, so that no advance is long.
BEGUN_MAX = 100

_DONE = frozenset({StepState.SUCCEEDED, StepState.SKIPPED, StepState.CANCELLED})


def expect(draft: Draft, stimuli: Sequence[Stimulus]) -> None:
    """Note whose outputs this advance brings, so that they are asked for together."""
    draft.arriving = frozenset(
        stimulus.step
        for stimulus in stimuli
        if isinstance(stimulus, TaskEnded)
        and stimulus.outcome is Outcome.SUCCEEDED
        and draft.flow.item_of(stimulus.step) is not None
        and (step := draft.steps.get(stimulus.step)) is not None
        and step.round == stimulus.round
    )


def enter(draft: Draft, node: Node) -> None:
    """Enter a FOREACH node, or take it up again where it has failed. Raises ExpressionFailed."""
    spec = _spec(node)
    was = draft.reopened(node.id)
    if was is not None and was.items is not None:
        _take_up(draft, node, was.items, was.round)
        return
    found = item_list(draft, spec.items, place_of(node))
    if len(found) > spec.items_max:
        details: dict[str, Json] = {"items": len(found), "max_items": spec.items_max}
        message = f"the list has {len(found)} items, and max_items is {spec.items_max}"
        raise ExpressionFailed(Failure(EXCEEDED, message, details))
    if not found:
        draft.keep(node.id, [])
        draft.succeed(node.id, items=Items(0))
        return
    draft.keep(items_slot(node.id), found)
    step = draft.enter(node.id, StepState.WAITING, reason=StepReason.ITEMS, items=Items(len(found)))
    draft.record("step.waiting", node.id, reason=StepReason.ITEMS.value, items=len(found))
    _begin_items(draft, step)


def _take_up(draft: Draft, node: Node, items: Items, rounds: int) -> None:
    """Go on with the items that have no result: one that was given up begins anew, of another it is made again."""
    left = _open_items(draft, node.id)
    given_up = [item for item in left if _was_given_up(draft, item)]
    parts = [item_step(step, item.index) for item in given_up for step in draft.flow.bodies[node.id].steps]
    done = [draft.reset(part) for part in parts if part in draft.steps]
    more = max((step.round for step in done), default=rounds) - rounds
    draft.enter(
        node.id, StepState.WAITING, reason=StepReason.ITEMS, items=replace(items, error=None), round=max(more, 0)
    )
    for item in left:
        if item not in given_up:
            _look_at_item(draft, item)
    roots = draft.flow.bodies[node.id].roots
    draft.openings.extend(item_step(root, item.index) for item in given_up for root in roots)
    _begin_items(draft, draft.steps[node.id])


def _was_given_up(draft: Draft, item: Item) -> bool:
    steps = (draft.steps.get(item_step(step, item.index)) for step in draft.flow.bodies[item.foreach].steps)
    return any(step is not None and step.reason is StepReason.BLOCK_FAILED for step in steps)


def decided(draft: Draft, identifier: str) -> None:
    """Look what follows for a foreach from a decided step: its item may be done with, or the foreach itself."""
    if identifier in draft.flow.bodies:
        foreach = draft.steps[identifier]
        if not foreach.waits_for_decision:
            for left in _open_items(draft, identifier):
                _leave(draft, left, foreach)
        return
    item = draft.flow.item_of(identifier)
    if item is None or is_undoing(identifier):
        return
    foreach = draft.steps[item.foreach]
    is_whole = foreach.state is StepState.WAITING and foreach.items is not None and foreach.items.error is None
    if is_whole and draft.flow.outgoing[identifier] and not draft.flow.lanes.blocks:
        return  # without parallel blocks the last step of an item is one that nothing comes after
    _look_at_item(draft, item)
    _begin_items(draft, draft.steps[item.foreach])


def takes_failure(draft: Draft, step: Step) -> bool:
    """Tell whether the failure of an item's step is that of its foreach, because somebody takes the foreach's.

    Then it holds nothing by itself: the foreach fails when its other items have settled.
    """
    item = draft.flow.item_of(step.id)
    foreach = None if item is None else draft.steps[item.foreach]
    if item is None or foreach is None or not joining.is_taken(draft.flow, foreach.id):
        return False
    if foreach.state is StepState.WAITING:
        _doom(draft, item, draft.failure_of(step))
        return True
    # With the last of several failures the foreach has failed already, by the first of them.
    return foreach.state is StepState.FAILED


def repaired(draft: Draft, step: Step) -> None:
    """Let a foreach that an item's failure has failed, or will fail, wait for that item: a person repairs it."""
    item = draft.flow.item_of(step.id)
    foreach = None if item is None else draft.steps.get(item.foreach)
    if item is None or foreach is None or foreach.items is None or foreach.items.error is None:
        return
    items = replace(foreach.items, error=_error_without(draft, item, step, foreach.items.error))
    if foreach.state is StepState.WAITING:
        draft.change(foreach, items=items)
    elif foreach.state is StepState.FAILED:
        draft.change(foreach, StepState.WAITING, reason=StepReason.ITEMS, items=items, error=None, finished_at=None)
        draft.record("step.waiting", foreach.id, reason=StepReason.ITEMS.value, items=items.count)


def _error_without(draft: Draft, item: Item, step: Step, error: Failure) -> Failure | None:
    """Say why a foreach still fails when a step of an item is repaired: without a reason nothing would end it."""
    named = (error.details or {}).get("step")
    failed = [name for name in failed_steps(draft.flow, draft.steps, item.foreach) if name != step.id]
    if named is None or named in failed:
        return error  # it is the result of an item that was refused, or another step, and still is
    if failed:
        other = draft.flow.item_of(failed[0])
        assert other is not None, "it is a step of an item"
        return _of_item(other, draft.failure_of(draft.steps[failed[0]]))
    at_rest = {each for each in _open_items(draft, item.foreach) if each != item}
    at_rest -= {draft.flow.item_of(each.id) for each in draft.unfinished()}
    return error if at_rest else None


def give_up(draft: Draft, foreach: Step, error: Failure) -> None:
    """Stop what is under way of a foreach whose handlers take the failure of an item; then it fails with that."""
    assert foreach.items is not None, f"step {foreach.id} has no items"
    found = [draft.flow.item_of(named) for named in [str((error.details or {}).get("step"))]]
    item = next((item for item in found if item is not None and item.foreach == foreach.id), None)
    told = error if item is None else _of_item(item, error)
    foreach = draft.change(foreach, items=replace(foreach.items, error=foreach.items.error or told))
    for left in _open_items(draft, foreach.id):
        for step in draft.flow.bodies[foreach.id].steps:
            write_off(draft, item_step(step, left.index))
    _fail_if_at_rest(draft, draft.steps[foreach.id])


def write_off(draft: Draft, identifier: str) -> None:
    """Let nothing more come of a step in a block that is given up; what runs is asked to stop."""
    step = draft.steps.get(identifier)
    if step is None:
        draft.decide(identifier, StepState.CANCELLED, reason=StepReason.BLOCK_FAILED)
    elif step.state in STEP_UNFINISHED:
        draft.stop(step, StepReason.BLOCK_FAILED)
    elif step.waits_for_decision:
        draft.change(step, reason=StepReason.BLOCK_FAILED)
        draft.decided.append(identifier)  # what is left of its items goes with it


def failed_steps(flow: Flow, steps: Mapping[str, Step], foreach: str) -> list[str]:
    """Name the failed steps in a foreach's items: whose retry lets it go on."""
    order = flow.order
    found = [
        name
        for name, step in steps.items()
        if step.waits_for_decision
        and (item := flow.item_of(name)) is not None
        and item.foreach == foreach
        and not joining.is_taken(flow, name)
    ]
    return sorted(found, key=lambda name: order[name])


def fire(draft: Draft, foreach: Step) -> None:
    """Go on after a full queue, or after an advance that has begun as many items as one may."""
    was_full = foreach.reason is StepReason.QUEUE_FULL
    foreach = draft.change(foreach, reason=StepReason.ITEMS, due_at=None)
    if was_full:
        for step in draft.unfinished():
            item = draft.flow.item_of(step.id)
            if item is None or item.foreach != foreach.id or step.reason is not StepReason.QUEUE_FULL:
                continue
            draft.stand_at(step.id)
            try:
                tasks.submit_again(draft, draft.flow.nodes[step.id], step)
            except ExpressionFailed as failed:
                draft.fail(step.id, failed.error)
    _begin_items(draft, draft.steps[foreach.id])


def go_on(draft: Draft) -> None:
    """Begin items that a failure has kept back, if a person has dealt with it."""
    for identifier in draft.flow.bodies:
        foreach = draft.steps.get(identifier)
        if foreach is not None:
            _begin_items(draft, foreach)


def _begin_items(draft: Draft, foreach: Step) -> None:
    items = foreach.items
    if items is None or foreach.state is not StepState.WAITING:
        return
    room = min(_spec(draft.flow.nodes[foreach.id]).concurrency - items.open, items.count - items.next)
    if room <= 0 or _is_kept_back(draft, foreach):
        return
    count = min(room, BEGUN_MAX - draft.begun_items)
    draft.begun_items += count
    roots = draft.flow.bodies[foreach.id].roots
    for index in range(items.next, items.next + count):
        draft.openings.extend(item_step(root, index) for root in roots)
    items = replace(items, next=items.next + count, open=items.open + count)
    # Those that may not begin in this advance do in the next one, or when there is room on the queue again.
    due_at = draft.now + 1 if count < room and foreach.due_at is None else foreach.due_at
    draft.change(foreach, items=items, due_at=due_at)


def _is_kept_back(draft: Draft, foreach: Step) -> bool:
    """Tell whether a failure in an item keeps new ones from beginning."""
    assert foreach.items is not None
    if foreach.items.error is not None:
        return True
    failed = list(draft.failures)
    if draft.state is not InstanceState.RUNNING:
        failed += [step for step in draft.steps.values() if step.waits_for_decision]
    return any(
        (item := draft.flow.item_of(step.id)) is not None
        and item.foreach == foreach.id
        and not joining.is_taken(draft.flow, step.id)
        for step in failed
    )


def _look_at_item(draft: Draft, item: Item) -> None:
    """Take the result of an item whose steps are all decided; put away one that nobody waits for any more."""
    foreach = draft.steps[item.foreach]
    steps = [draft.steps.get(item_step(step, item.index)) for step in draft.flow.bodies[item.foreach].steps]
    if foreach.state is not StepState.WAITING:
        if not foreach.waits_for_decision and not any(step and step.state in STEP_UNFINISHED for step in steps):
            _put_away(draft, item)
            left = foreach.items
            draft.change(foreach, items=None if left is None else replace(left, open=left.open - 1))
        return
    assert foreach.items is not None
    is_given_up = foreach.items.error is not None and _was_given_up(draft, item)
    if not is_given_up and all(step is not None and _is_passed(draft, step) for step in steps):
        _take_result(draft, item, foreach, foreach.items)
    elif foreach.items.error is not None:
        _fail_if_at_rest(draft, foreach)


def _is_passed(draft: Draft, step: Step) -> bool:
    """Tell whether the flow of an item has gone past a step; past a failure only if a join takes it as an outcome."""
    is_taken = step.state is StepState.FAILED and joining.is_taken(draft.flow, step.id)
    return step.state in _DONE or is_taken or (step.state is StepState.FAILED and not step.waits_for_decision)


def _take_result(draft: Draft, item: Item, foreach: Step, items: Items) -> None:
    """Keep what an item leaves and put it away; with the last one the foreach is done."""
    spec = _spec(draft.flow.nodes[foreach.id])
    draft.item = item
    try:
        result = _result(draft, spec, item)
    except ExpressionFailed as failed:
        _doom(draft, item, failed.error)
        return
    size = items.result_bytes + len(dumps(result)) + 1
    if size + 1 > VALUE_BYTES_MAX:
        message = f"the results of {items.ended + 1} of {items.count} items are larger than {VALUE_BYTES_MAX} bytes"
        _doom(draft, item, Failure(TOO_LARGE, message))
        return
    draft.keep(item_step(foreach.id, item.index), result)
    _put_away(draft, item)
    items = replace(items, open=items.open - 1, result_bytes=size)
    foreach = draft.change(foreach, items=items, refused_count=0)
    if items.ended == items.count:
        draft.keep(foreach.id, _results(draft, foreach.id, items.count))
        draft.succeed(foreach.id)
    elif items.error is not None:
        _fail_if_at_rest(draft, foreach)


def _result(draft: Draft, spec: ForeachSpec, item: Item) -> Json:
    if spec.output is not None:
        return render(draft, spec.output)
    return None if spec.last is None else output_of(draft, item_step(spec.last, item.index))


def _results(draft: Draft, foreach: str, count: int) -> list[Json]:
    slots = [item_step(foreach, index) for index in range(count)]
    missing = frozenset(slot for slot in slots if slot not in draft.values)
    if missing:
        raise needed(draft, missing)
    return [draft.values[slot] for slot in slots]


def _doom(draft: Draft, item: Item, error: Failure) -> None:
    """Let a foreach fail because of an item, as soon as the others have settled."""
    foreach = draft.steps[item.foreach]
    assert foreach.items is not None
    items = replace(foreach.items, error=foreach.items.error or _of_item(item, error))
    _fail_if_at_rest(draft, draft.change(foreach, items=items))


def _of_item(item: Item, error: Failure) -> Failure:
    return Failure(error.code, error.message, {**(error.details or {}), "index": item.index})


def _fail_if_at_rest(draft: Draft, foreach: Step) -> None:
    assert foreach.items is not None
    is_moving = draft.openings or any(
        step.state in STEP_UNFINISHED and (item := draft.flow.item_of(name)) is not None and item.foreach == foreach.id
        for name, step in draft.steps.items()
    )
    # A failure that waits for a person is dealt with first: what is behind it may still run.
    if not is_moving and foreach.items.error is not None and not _waits_for_person(draft, foreach):
        draft.fail(foreach.id, foreach.items.error)


def _waits_for_person(draft: Draft, foreach: Step) -> bool:
    if joining.is_taken(draft.flow, foreach.id):
        return False
    failed = (step for step in draft.steps.values() if step.waits_for_decision)
    return any(
        (item := draft.flow.item_of(step.id)) is not None
        and item.foreach == foreach.id
        and not joining.is_taken(draft.flow, step.id)
        for step in failed
    )


def _leave(draft: Draft, item: Item, foreach: Step) -> None:
    """Go on without an item: what has not ended of it is stopped, and what has not begun never does."""
    reason = foreach.reason or StepReason.INSTANCE_ENDED
    for step in draft.flow.bodies[item.foreach].steps:
        part = draft.steps.get(item_step(step, item.index))
        if part is None:
            draft.decide(item_step(step, item.index), StepState.CANCELLED, reason=reason)
        elif part.state in STEP_UNFINISHED:
            draft.stop(part, reason)
    _look_at_item(draft, item)


def _put_away(draft: Draft, item: Item) -> None:
    steps = draft.flow.bodies[item.foreach].steps
    draft.settle_item(item, [item_step(step, item.index) for step in steps])


def _open_items(draft: Draft, foreach: str) -> list[Item]:
    found = {item for step in draft.steps if (item := draft.flow.item_of(step)) is not None}
    return sorted(item for item in found if item.foreach == foreach)


def _spec(node: Node) -> ForeachSpec:
    assert isinstance(node.spec, ForeachSpec), f"node {node.id} is no foreach"
    return node.spec
