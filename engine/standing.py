"""How an instance stands after an advance: its next timer, its time budget, and that it waits for something named."""

from __future__ import annotations

from msgspec.structs import replace

from engine.instance import Instance, Step
from engine.states import FOR_OTHERS, INSTANCE_TERMINAL, STEP_UNFINISHED, Control, InstanceState, StepState
from orbit.clock import Micros

_TIMED = frozenset({InstanceState.RUNNING, InstanceState.NEEDS_RECOVERY, InstanceState.COMPENSATING})


def _open(instance: Instance) -> list[Step]:
    """List the steps that are not decided: few of many, in an instance that has come far, and all that matter here."""
    return [step for step in instance.steps.values() if step.state in STEP_UNFINISHED]


def step_due(step: Step) -> Micros | None:
    """Give the next instant at which a step goes on by itself; None if it waits for others."""
    if step.reason in FOR_OTHERS:
        return None  # what stands before it decides it, no timer
    if step.state is StepState.WAITING:
        instants = [instant for instant in (step.due_at, step.timeout_at) if instant is not None]
        return min(instants, default=None)
    is_bound = step.state is StepState.RUNNING and step.reason is None
    return step.timeout_at if is_bound else None


def next_due(instance: Instance) -> Micros | None:
    """Give the next instant at which something happens by itself; None if only others can move the instance."""
    if instance.state not in _TIMED or _is_paused(instance):
        return None
    due = [instant for step in _open(instance) if (instant := step_due(step)) is not None]
    if instance.state is InstanceState.RUNNING and instance.clock_stopped_at is None:
        due.append(instance.deadline_at)
    return min(due, default=None)


def _is_paused(instance: Instance) -> bool:
    return instance.control is not Control.ACTIVE


def with_clock(instance: Instance, now: Micros) -> Instance:
    """Stop the instance's time budget while a person is waited for or it is paused; go on with what was left."""
    is_waiting = (
        instance.state is InstanceState.NEEDS_RECOVERY
        or _is_paused(instance)
        or any(step.state is StepState.NEEDS_REVIEW for step in _open(instance))
    )
    if is_waiting and instance.clock_stopped_at is None:
        return replace(instance, clock_stopped_at=now)
    if not is_waiting and instance.clock_stopped_at is not None:
        stood_still = now - instance.clock_stopped_at
        return replace(instance, clock_stopped_at=None, deadline_at=instance.deadline_at + stood_still)
    return instance


def check_waits(instance: Instance) -> None:
    """Refuse a state in which an unfinished instance waits for nothing that has a name."""
    if instance.state in INSTANCE_TERMINAL:
        assert not _open(instance), "ended with an unfinished step"
        return
    named = (
        not instance.steps  # a child that has not begun: what lets it begin is a stimulus
        or instance.state is InstanceState.NEEDS_RECOVERY
        or _is_paused(instance)
        or any(
            step.has_task or (step.state is StepState.WAITING and step.reason not in FOR_OTHERS)
            for step in _open(instance)
        )
    )
    assert named, f"instance is {instance.state} and waits for nothing"


def misfit(instance: Instance) -> str | None:
    """Say what no advance could have left an instance in: an end with open steps, or a wait for nothing."""
    try:
        check_waits(instance)
    except AssertionError as wrong:
        return str(wrong)
    return None
