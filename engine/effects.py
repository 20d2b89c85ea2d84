"""What an instance may have to undo, also of steps that have been put away with their items: pure.

The steps of an item leave the instance's state when the item has ended. What of them has a compensation, and may have
had its effect, stays behind as an `Effect`: a name and a place in the order, in a ledger that no advance reads before
the instance undoes what it did. Then it sees the last few of it (`EFFECTS`), and the put away steps of the one item
whose step it undoes (`past_slot`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from definitions.graph import NodeKind
from engine.flow import Flow
from engine.instance import Step
from engine.items import item_step, parted
from engine.states import StepState
from orbit.clock import Micros

EFFECTS = "@effects"  # a key of an instance's values: a tuple of Effect, the latest first
# So many of the ledger are seen at once: more than one advance can take from it.
EFFECTS_SEEN = 10

_PAST = "@past:"
_WITH_EFFECT = frozenset({NodeKind.TASK, NodeKind.POLL, NodeKind.WORKFLOW})
_INDEX_BITS, _STEP_BITS = 14, 12


class Effect(msgspec.Struct, frozen=True):
    """A step that has to be undone: its id, when it was decided, and its place in the flow's order."""

    step: str
    finished_at: Micros
    place: int


def past_slot(name: str, index: int) -> str:
    """Name the value that holds the steps which were put away under a name: a foreach, or a compensation of items."""
    return f"{_PAST}{item_step(name, index)}"


def parted_past(slot: str) -> tuple[str, int] | None:
    """Part the name of such a value into name and index; None for any other."""
    return parted(slot.removeprefix(_PAST)) if slot.startswith(_PAST) else None


def in_order(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Sort effects as they are undone: the latest first, and of one instant what the flow comes to later."""
    return tuple(sorted(effects, key=lambda effect: (effect.finished_at, effect.place), reverse=True))


def effects_of(flow: Flow, steps: Mapping[str, Step]) -> Iterator[Effect]:
    """Give what has to be undone of some steps."""
    for step in steps.values():
        if step.id in flow.compensations and leaves_something(flow, steps, step):
            yield effect_of(flow, steps, step)


def effect_of(flow: Flow, steps: Mapping[str, Step], step: Step) -> Effect:
    """Make the effect of a step; that of a block is decided with the last step in it that has had one."""
    block = flow.undone_blocks.get(step.id)
    inner = () if block is None else flow.steps_in(block, steps)
    ended = [each.finished_at or 0 for each in (step, *inner) if each is step or _acts(flow, steps, each)]
    return Effect(step.id, max(ended), place_of(flow, step.id))


def place_of(flow: Flow, identifier: str) -> int:
    """Write a step's place in the flow's order as a number."""
    first, index, step = (*flow.order[identifier], 0, 0)[:3]
    return (((first << _INDEX_BITS) + index) << _STEP_BITS) + step


def leaves_something(flow: Flow, steps: Mapping[str, Step], step: Step) -> bool:
    """Tell whether a step has had an effect, or may have, that is still there."""
    block = flow.undone_blocks.get(step.id)
    if block is not None:
        return any(_acts(flow, steps, each) for each in flow.steps_in(block, steps))
    kind = flow.nodes[step.id].kind
    if kind is NodeKind.FOREACH and step.items is not None:
        return step.items.next > 0
    if step.may_have_effect:
        return True
    # What a child did before it failed or was cancelled is there, unless it has undone that itself.
    has_child = kind is NodeKind.WORKFLOW and step.task_id is not None
    has_stopped = step.state in {StepState.FAILED, StepState.CANCELLED}
    return has_child and has_stopped and not (step.error is not None and step.error.is_undone)


def _acts(flow: Flow, steps: Mapping[str, Step], step: Step) -> bool:
    kind = flow.nodes[step.id].kind
    if kind is NodeKind.FOREACH:
        return step.items is not None and step.items.next > 0
    return kind in _WITH_EFFECT and leaves_something(flow, steps, step)
