"""Whether a running instance can go on with another version of its workflow, and what that changes in it: pure.

The rule is the diff's: every step that the instance has begun means the same in the new version and is reached by the
same edges; what lies ahead may differ. It is all or nothing, with all reasons at once.

The surprising rule: a poll in its gap may change its bounds, if what was spent fits the new ones. Its end then moves by
as much as its time-out has grown or shrunk, and so does the instance's.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from definitions.diff import Diff, Reason, diff_graphs
from definitions.graph import PollSpec
from engine.draft import Draft
from engine.flow import Flow
from engine.instance import Instance, Step
from engine.states import INSTANCE_TERMINAL, InstanceState, StepReason, StepState
from engine.stimulus import Migrated
from orbit.clock import Micros, seconds

BOUNDS = frozenset(
    {
        "every_seconds",
        "backoff",
        "every_seconds_max",
        "rounds_max",
        "timeout_seconds",
        # In its gap it has no task; those of later rounds end within the poll's bound at the latest.
        "task.timeout_seconds",
        "task.attempt_timeout_seconds",
        "task.start_within_seconds",
    }
)
STATES = frozenset({InstanceState.RUNNING, InstanceState.NEEDS_RECOVERY})


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a migration would mean: the diff, why it can't be (nothing if it can), and the polls whose bounds move."""

    diff: Diff
    obstacles: tuple[Reason, ...]
    polls: tuple[str, ...] = ()


def refusal(instance: Instance) -> str | None:
    """Say why an instance can't change its version in the state that it is in; None if it could."""
    if instance.state in INSTANCE_TERMINAL:
        return f"the instance has ended {instance.state}"
    if instance.state not in STATES or instance.ending_as is not None:
        return f"the instance is {instance.state}: it goes to its end with the version that it has"
    return None


def judge(old: Flow, new: Flow, instance: Instance, now: Micros) -> Judgement:
    """Compare two versions for one instance."""
    diff = diff_graphs(old.graph, new.graph)
    obstacles = [reason for reason in diff.reasons if reason.step is None and diff.is_forbidden]
    polls: list[str] = []
    # What is timed stands still in a pause, and is moved on by it only when it ends.
    at = now if instance.pause is None else instance.pause.paused_at
    for name in diff.changed:
        step = instance.steps.get(name)
        reasons = [reason for reason in diff.reasons if reason.step == name]
        if step is None:
            if _has_begun_in_items(old, instance, name):
                obstacles += reasons or [Reason(name, "has begun in items and is changed", None, None)]
            continue
        why_not = _poll_obstacle(old, new, step, reasons, at=at)
        if why_not is None:
            polls.append(name)
        else:
            obstacles += why_not
    if _deadline(old, new, instance) <= (instance.clock_stopped_at or now):
        left = f"{old.graph.timeout_seconds:g}", f"{new.graph.timeout_seconds:g}"
        obstacles.append(Reason(None, "the instance has run for longer than the new time-out", *left))
    return Judgement(diff, tuple(obstacles), tuple(polls))


def _has_begun_in_items(flow: Flow, instance: Instance, name: str) -> bool:
    """Tell whether a step of items may have begun in one: its foreach has begun items, and they are not looked into."""
    around = flow.nodes[name].within
    foreach = None if around is None else instance.steps.get(around)
    return foreach is not None and foreach.items is not None and foreach.items.next > 0


def _poll_obstacle(old: Flow, new: Flow, step: Step, reasons: list[Reason], *, at: Micros) -> list[Reason] | None:
    """Give the reasons against a begun step that has changed; None if it is a poll in its gap that fits."""
    is_in_gap = step.state is StepState.WAITING and step.reason is StepReason.POLL_GAP
    if not is_in_gap or not reasons or any(reason.what not in BOUNDS for reason in reasons):
        return reasons or [Reason(step.id, "has begun and is changed", None, None)]
    spec = new.nodes[step.id].spec
    assert isinstance(spec, PollSpec)
    if step.poll_round >= spec.rounds_max:
        what = f"{step.poll_round} rounds have been asked: they do not fit"
        return [Reason(step.id, what, None, None), *reasons]
    if _poll_end(old, new, step) <= at:
        return [Reason(step.id, "it has asked for longer than its new time-out", None, None), *reasons]
    return None


def stimulus_of(old: Flow, new: Flow, instance: Instance, judged: Judgement) -> Migrated:
    """Write a migration that nothing stands against as what the instance is told."""
    ends = {name: _poll_end(old, new, instance.steps[name]) for name in judged.polls}
    return Migrated(old.graph.version, new.graph.version, _deadline(old, new, instance), ends)


def _poll_end(old: Flow, new: Flow, step: Step) -> Micros:
    before, after = old.nodes[step.id].spec, new.nodes[step.id].spec
    assert isinstance(before, PollSpec)
    assert isinstance(after, PollSpec)
    assert step.timeout_at is not None
    return step.timeout_at + seconds(after.timeout_seconds) - seconds(before.timeout_seconds)


def apply(draft: Draft, stimulus: Migrated) -> None:
    """Move the bounds that the new version has changed."""
    draft.before = replace(draft.before, deadline_at=stimulus.deadline_at)
    for name, ends_at in stimulus.poll_ends.items():
        step = draft.steps[name]
        assert step.due_at is not None
        draft.change(step, timeout_at=ends_at, due_at=min(step.due_at, ends_at))
    draft.record(
        "instance.migrated",
        from_version=stimulus.from_version,
        to_version=stimulus.to_version,
        reason=stimulus.reason,
        by=stimulus.by,
    )


def _deadline(old: Flow, new: Flow, instance: Instance) -> Micros:
    return instance.deadline_at + seconds(new.graph.timeout_seconds) - seconds(old.graph.timeout_seconds)
