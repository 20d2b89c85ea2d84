"""Breakpoints: the instance pauses before a step that its definition or its start has named.

The core can't close the gate in front of the tasks, so it asks for the pause; the shell closes the gate in the same
transaction and tells the core how many tasks still run. The surprising rule: nothing that is due fires between the two,
and a step is stopped at once only, so a retry of it goes on.
"""

from __future__ import annotations

from definitions.graph import Node
from engine.draft import Draft
from engine.instance import Step
from engine.items import own_name
from engine.states import Control, StepReason, StepState


def is_before(draft: Draft, node: Node) -> bool:
    """Tell whether the instance has to pause before a step that is about to run for the first time."""
    return (node.pause_at or own_name(node.id) in draft.before.pause_at) and not draft.is_reopened(node.id)


def reach(draft: Draft, node: Node) -> None:
    """Let a step wait for the resume of a pause, and ask for one if there is none yet."""
    draft.enter(node.id, StepState.WAITING, reason=StepReason.BREAKPOINT, due_at=draft.now)
    draft.record("step.waiting", node.id, reason=StepReason.BREAKPOINT.value)
    if draft.control is Control.ACTIVE and draft.pause_wanted is None:
        draft.pause_wanted = f"pause_at step {node.id}"


def leave(draft: Draft, step: Step) -> None:
    """Let a step begin after its pause; the caller enters it."""
    draft.reopen(step)
