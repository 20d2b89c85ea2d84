"""A bounded poll: what a round's answer means, when the next round starts, and when the poll is exhausted.

`fail_when` is looked at before `done_when`. Exhaustion is a failure with its own code, never a success. The number of
retries inside a round's task is Pulse's business: a round is one task, however many attempts it took.
"""

from __future__ import annotations

import math
from dataclasses import replace

from definitions.graph import Node, PollSpec, TaskSpec
from engine.draft import Draft
from engine.instance import Failure, Round, RoundLog, Step
from engine.scope import condition, place_of
from engine.states import StepReason, StepState
from orbit.clock import Micros, seconds
from orbit.jsontext import Json

REJECTED = "POLL_REJECTED"
EXHAUSTED = "POLL_EXHAUSTED"
STOPPED = "STEP_TIMED_OUT"  # the error of a task that ended because its step's bound had passed


def task_spec(node: Node) -> TaskSpec:
    """Give what a TASK node, or each round of a POLL node, submits."""
    spec = node.spec.task if isinstance(node.spec, PollSpec) else node.spec
    assert isinstance(spec, TaskSpec), f"node {node.id} has no task"
    return spec


def is_done(draft: Draft, step: Step, node: Node) -> bool:
    """Tell whether a round's answer is what the poll waits for."""
    assert isinstance(node.spec, PollSpec), f"step {step.id} is no poll"
    place = place_of(node, round_number=step.poll_round, is_judged=True)
    if node.spec.fail_when is not None and condition(draft, node.spec.fail_when, place):
        return False
    return condition(draft, node.spec.done_when, place)


def answered(draft: Draft, step: Step, node: Node) -> None:
    """Judge a round whose task succeeded: rejected, done, or still processing."""
    spec = node.spec
    assert isinstance(spec, PollSpec), f"step {step.id} is no poll"
    place = place_of(node, round_number=step.poll_round, is_judged=True)
    if spec.fail_when is not None and condition(draft, spec.fail_when, place):
        log = _logged(draft, step, "REJECTED")
        draft.change(step, log=log)
        draft.fail(step.id, Failure(REJECTED, f"fail_when holds for the answer of round {step.poll_round}"))
    elif condition(draft, spec.done_when, place):
        draft.succeed(step.id, log=_logged(draft, step, "DONE"))
    else:
        _wait(draft, draft.change(step, log=_logged(draft, step, "PROCESSING")), spec)


def round_failed(draft: Draft, step: Step, spec: PollSpec, error: Failure) -> None:
    """Judge a round without an answer: it fails the step, or counts as still processing if the definition says so."""
    was_stopped = step.reason is StepReason.STEP_TIMED_OUT
    outcome = "CANCELLED" if was_stopped and error.code == STOPPED else "FAILED"
    log = _logged(draft, step, outcome)
    if outcome == "FAILED":
        # What is behind the message is read in the round's task, where its type's masks hold.
        log = replace(log, error={"code": error.code, "class": error.failure_class, "round": step.poll_round})
    step = draft.change(step, log=log)
    if was_stopped or spec.continue_on_round_error:
        # What the round may have done is not forgotten with its error.
        step = draft.change(step, doubts=step.doubts + error.may_have_effect)
    if was_stopped:
        exhausted(draft, step, "its time-out has passed")
    elif spec.continue_on_round_error:
        _wait(draft, step, spec)
    else:
        draft.fail(step.id, error)


def exhausted(draft: Draft, step: Step, why: str) -> None:
    """Fail a poll that has used up a bound."""
    log = step.log or RoundLog()
    details: dict[str, Json] = {"rounds": step.poll_round, "outcomes": dict(log.counts)}
    if log.error is not None:
        details["last_error"] = dict(log.error)
    draft.fail(step.id, Failure(EXHAUSTED, f"no answer after {step.poll_round} rounds: {why}", details))


def gap_micros(spec: PollSpec, ended_rounds: int) -> Micros:
    """Say how long to wait after that many rounds: `every`, times `backoff` for each round after the first, capped."""
    if spec.backoff == 1.0 or ended_rounds <= 1:
        return seconds(min(spec.every_seconds, spec.every_seconds_max))
    # Compared as logarithms: after thousands of rounds the power itself is no double any more.
    growth = (ended_rounds - 1) * math.log(spec.backoff)
    if spec.every_seconds <= 0 or growth >= math.log(spec.every_seconds_max / spec.every_seconds):
        return seconds(spec.every_seconds_max if spec.every_seconds > 0 else 0)
    return seconds(spec.every_seconds * math.exp(growth))


def _wait(draft: Draft, step: Step, spec: PollSpec) -> None:
    assert step.timeout_at is not None
    if step.poll_round >= spec.rounds_max:
        exhausted(draft, step, "max_rounds is reached")
    elif draft.now >= step.timeout_at:
        exhausted(draft, step, "its time-out has passed")
    else:
        due_at = min(draft.now + gap_micros(spec, step.poll_round), step.timeout_at)
        draft.change(step, StepState.WAITING, reason=StepReason.POLL_GAP, due_at=due_at)
        if step.poll_round == 1:
            draft.record("step.waiting", step.id, reason=StepReason.POLL_GAP.value)


def _logged(draft: Draft, step: Step, outcome: str) -> RoundLog:
    return (step.log or RoundLog()).with_round(Round(step.round, step.task_id, outcome, draft.now))
