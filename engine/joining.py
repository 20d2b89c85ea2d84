"""Joins over outcomes: when a parallel block is decided, what becomes of the branches that lose, what `needs` mean.

Every lane has one outcome: done, skipped, failed or cancelled, computed from its steps' states whenever it is asked
for and stored nowhere; so a recovery that changes a step changes the join, and nothing is ever patched.

The surprising rule: a failure inside a lane of a join other than `all` leaves the steps behind it undecided and holds
nothing. They are written off only when the join is decided for good; until then a person may still repair it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from definitions.graph import JoinPolicy
from engine.draft import Draft
from engine.flow import EdgeState, Flow, edge_state, is_undoing
from engine.instance import Failure, Instance, Step
from engine.lanes import Lane, Lanes, ParallelBlock
from engine.states import PASSED, STEP_UNFINISHED, InstanceState, StepReason, StepState

UNSATISFIED = "JOIN_UNSATISFIED"


class Outcome(StrEnum):
    """How a lane has ended."""

    DONE = "done"  # the flow came to its end, and a step of it ran or was passed by a person
    SKIPPED = "skipped"  # the flow came to its end and every step was skipped
    FAILED = "failed"  # a step failed without a handler, or a lane that it needs has failed
    CANCELLED = "cancelled"  # it lost: the join was decided without it


Outcomes = Mapping[str, Outcome | None]  # by lane; None is still open


class Verdict(StrEnum):
    """What the outcomes mean to a join."""

    OPEN = "open"
    SATISFIED = "satisfied"
    UNSATISFIED = "unsatisfied"  # and can't be satisfied any more


def verdict_of(policy: JoinPolicy, needed: int, outcomes: Outcomes) -> Verdict:
    """Judge a join: as soon as enough lanes are done, or as soon as they can't be any more."""
    open_count = sum(outcome is None for outcome in outcomes.values())
    match policy:
        case JoinPolicy.ANY | JoinPolicy.AT_LEAST:
            done = sum(outcome is Outcome.DONE for outcome in outcomes.values())
            if done >= needed:
                return Verdict.SATISFIED
            return Verdict.OPEN if done + open_count >= needed else Verdict.UNSATISFIED
        case JoinPolicy.SETTLED:
            return Verdict.OPEN if open_count else Verdict.SATISFIED
        case JoinPolicy.ALL:
            if Outcome.FAILED in outcomes.values():
                return Verdict.UNSATISFIED
            return Verdict.OPEN if open_count else Verdict.SATISFIED


def outcomes_of(lanes: Lanes, steps: Mapping[str, Step], block: ParallelBlock) -> dict[str, Outcome | None]:
    """Compute the outcome of each lane of a block."""
    found: dict[str, Outcome | None] = {}
    for label, lane in block.lanes.items():  # a lane comes behind those that it needs
        found[label] = _outcome(lanes, steps, block, lane, found)
    return found


def _outcome(
    lanes: Lanes, steps: Mapping[str, Step], block: ParallelBlock, lane: Lane, before: Outcomes
) -> Outcome | None:
    has_failed = is_moving = has_run = False
    for name in lane.members:
        step = steps.get(name)
        if step is None:
            continue
        if step.state in STEP_UNFINISHED:
            is_moving = True
        elif step.waits_for_decision:
            has_failed = has_failed or lanes.absorbers.get(name) is lane
        elif step.state is StepState.SUCCEEDED or step.reason is StepReason.RECOVERED:
            has_run = True
    if has_failed:
        # What runs beside the failure in the same lane can't mend it, but `settled` is about what has ended.
        return None if is_moving and block.policy is JoinPolicy.SETTLED else Outcome.FAILED
    if lane.start not in steps and any(before[need] is Outcome.FAILED for need in lane.needs):
        return Outcome.FAILED
    edges = {edge_state(source, steps.get(source.id), case) for source, case in lane.exits}
    if not edges or EdgeState.UNDECIDED in edges:
        return None
    return Outcome.DONE if has_run else Outcome.SKIPPED


def way_in(draft: Draft, lane: Lane) -> EdgeState:
    """Judge the way into a lane by what it needs: live if one is done and none has failed, dead if all are skipped."""
    lanes = draft.flow.lanes
    outcomes = outcomes_of(lanes, draft.steps, lanes.blocks[lane.block])
    needed = {outcomes[need] for need in lane.needs}
    if None in needed or Outcome.FAILED in needed:
        return EdgeState.UNDECIDED
    return EdgeState.LIVE if Outcome.DONE in needed else EdgeState.DEAD


def takes_failure(draft: Draft, step: Step) -> bool:
    """Tell whether a failure is only the outcome of a lane, to be judged by its join; that is looked at next."""
    if draft.flow.lanes.absorbers.get(step.id) is None:
        return False
    draft.look_at(step.id)
    return True


def judge(draft: Draft, join: str) -> None:
    """Decide a join if that is due: satisfied, so that what has not ended loses; or failed for good."""
    lanes = draft.flow.lanes
    block = lanes.judged[join]
    opener, own = draft.steps.get(block.opener), draft.steps.get(join)
    if opener is None or (own is not None and own.state is not StepState.WAITING):
        return
    if opener.state is StepState.SKIPPED:
        draft.skip(join, StepReason.WHEN if opener.reason in PASSED else StepReason.DEAD_PATH)
        return
    outcomes = outcomes_of(lanes, draft.steps, block)
    match verdict_of(block.policy, block.needed, outcomes):
        case Verdict.SATISFIED:
            close(draft, block)
            told = {label: (outcome or Outcome.CANCELLED).value for label, outcome in outcomes.items()}
            draft.decide(join, StepState.SUCCEEDED, reason=None)
            draft.record("step.succeeded", join, branches=told)
        case Verdict.UNSATISFIED:
            draft.fail(join, _unsatisfied(block, outcomes))
        case Verdict.OPEN:
            pass


def _unsatisfied(block: ParallelBlock, outcomes: Outcomes) -> Failure:
    most = sum(outcome in {Outcome.DONE, None} for outcome in outcomes.values())
    told = {label: None if outcome is None else outcome.value for label, outcome in outcomes.items()}
    message = f"{block.needed} of {len(outcomes)} branches of {block.opener} must be done, and {most} can be at most"
    return Failure(UNSATISFIED, message, {"needed": block.needed, "branches": told})


def close(draft: Draft, block: ParallelBlock) -> None:
    """Let the flow go on without whatever of a block has not ended.

    Lanes that have not ended lose: what waits ends now, what runs is asked to stop, and nothing more is entered. What
    stands behind a failure is written off as a dead path.
    """
    outcomes = outcomes_of(draft.flow.lanes, draft.steps, block)
    for label, lane in block.lanes.items():
        if outcomes[label] in {Outcome.DONE, Outcome.SKIPPED}:
            continue  # losers of blocks nested in it were told when those were decided
        for name in lane.members:
            step = draft.steps.get(name)
            if step is not None:
                if step.state in STEP_UNFINISHED:
                    draft.stop(step, StepReason.BRANCH_LOST)
            elif outcomes[label] is Outcome.FAILED:
                draft.decide(name, StepState.SKIPPED, reason=StepReason.DEAD_PATH)
            else:
                draft.decide(name, StepState.CANCELLED, reason=StepReason.BRANCH_LOST)


# Recovery


def holds(flow: Flow, step: Step) -> bool:
    """Tell whether a failed step holds the instance by itself: no join takes its failure, or its foreach's."""
    if not step.waits_for_decision or is_taken(flow, step.id):
        return False
    item = None if is_undoing(step.id) else flow.item_of(step.id)
    return item is None or not is_taken(flow, item.foreach)


def is_taken(flow: Flow, identifier: str) -> bool:
    """Tell whether a join takes the failure of a step as an outcome."""
    return identifier in flow.lanes.absorbers


def why_decided(flow: Flow, instance: Instance, step: Step) -> str | None:
    """Say why a step's failure, or its review, is past: its join went on without it. None if it can be repaired."""
    if step.reason is StepReason.BRANCH_LOST:
        return "its branch has lost the join"
    if step.reason is StepReason.BLOCK_FAILED:
        return "a block around it has failed, and its error handlers take that"
    for block in _around(flow, step.id):
        join = None if block.join is None else instance.steps.get(block.join)
        if join is not None and join.state not in {StepState.FAILED, StepState.WAITING}:
            return f"the join of {block.opener} has taken it as the outcome of a branch and has gone on"
    return None


def _around(flow: Flow, identifier: str) -> Iterator[ParallelBlock]:
    """Give the blocks around a step that take failures, and for one of an item those around its foreach."""
    yield from flow.lanes.around(identifier)
    item = flow.item_of(identifier)
    if item is not None:
        yield from flow.lanes.around(item.foreach)


def failed_steps(flow: Flow, instance: Instance, join: str) -> list[str]:
    """Name the failed steps in the lanes of a join, in the graph's order: whose retry could satisfy it."""
    block = flow.lanes.judged[join]
    members = [name for lane in block.lanes.values() for name in lane.members]
    return [name for name in members if (step := instance.steps.get(name)) and step.waits_for_decision]


def reopen(draft: Draft, step: Step) -> None:
    """Let the failed joins around a step that is repaired wait for their lanes again."""
    for block in _around(draft.flow, step.id):
        own = None if block.join is None else draft.steps.get(block.join)
        if own is not None and own.state is StepState.FAILED:
            # It is due from now on: each time the flow has settled it is judged anew, and no timer fires it.
            fields = {"reason": StepReason.JOIN, "due_at": draft.now, "error": None, "finished_at": None}
            draft.change(own, StepState.WAITING, **fields)
            draft.record("step.waiting", own.id, reason=StepReason.JOIN.value)
            draft.joins[own.id] = None


# Seeing


def open_blocks(flow: Flow, instance: Instance) -> list[tuple[ParallelBlock, dict[str, Outcome | None]]]:
    """List the blocks whose join is waited for, with the outcomes of their lanes."""
    if instance.state is InstanceState.ENDING:
        return []
    found = []
    if not flow.lanes.blocks:
        return []
    begun = (
        flow.lanes.blocks.get(identifier) for identifier in sorted(instance.steps, key=lambda step: flow.order[step])
    )
    for block in begun:
        if block is None:
            continue
        opener = instance.steps.get(block.opener)
        own = None if block.join is None else instance.steps.get(block.join)
        is_open = own is None or (own.state in STEP_UNFINISHED and own.reason is not StepReason.BLOCK_FAILED)
        if opener is not None and opener.state is StepState.SUCCEEDED and is_open:
            found.append((block, outcomes_of(flow.lanes, instance.steps, block)))
    return found
