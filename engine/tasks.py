"""Steps with Pulse tasks, one for a TASK, one a round for a POLL: how they are submitted and how their ends are judged.

Leaves the flow between steps to `advance`. The surprising rule: a step that was asked to stop because its bound has
passed is still decided by what its task answers, so a success that came anyway counts, and is never repeated.
"""

from __future__ import annotations

import zlib

from msgspec import Struct

from definitions.graph import Node, PollSpec, TaskSpec
from engine import polling
from engine.command import SubmitTask
from engine.draft import Draft
from engine.flow import is_undoing
from engine.instance import UNDONE, Failure, Step
from engine.scope import ExpressionFailed, check_output, place_of, render, render_key
from engine.states import LOST, InstanceState, StepReason, StepState
from engine.stimulus import Outcome, ReviewClosed, ReviewOpened, SubmissionRefused, TaskEnded
from orbit.clock import SECOND, Micros, seconds
from orbit.jsontext import Json

REFUSED_WAIT_MICROS = SECOND
REFUSED_WAIT_MICROS_MAX = 30 * SECOND


def enter(draft: Draft, node: Node) -> None:
    """Enter a TASK or POLL node: its first task is submitted at once."""
    spec = polling.task_spec(node)
    rendered = _render(draft, node, 1)
    step = draft.enter(
        node.id,
        StepState.RUNNING,
        round=1,
        start_by_at=draft.now + seconds(spec.start_within_seconds),
        timeout_at=draft.now + seconds(node.spec.timeout_seconds) if isinstance(node.spec, PollSpec) else None,
    )
    _submit(draft, step, spec, rendered)


def submit_again(draft: Draft, node: Node, step: Step) -> None:
    """Try once more what a full queue has refused, or fail if the time to start is over."""
    spec = polling.task_spec(node)
    assert step.start_by_at is not None
    if draft.now >= step.start_by_at:
        message = f"queue {spec.queue} was full for {spec.start_within_seconds:g} s"
        _failed(draft, node, step, Failure("START_DEADLINE_EXCEEDED", message))
        return
    _submit(draft, step, spec, _render(draft, node, step.poll_round))


def next_round(draft: Draft, node: Node, step: Step) -> None:
    """Begin the next round of a poll."""
    spec = polling.task_spec(node)
    number = step.round + 1
    rendered = _render(draft, node, step.poll_round + 1)
    start_by_at = draft.now + seconds(spec.start_within_seconds)
    step = draft.change(step, round=number, task_id=None, retry_of=None, start_by_at=start_by_at, refused_count=0)
    _submit(draft, step, spec, rendered)


class _Rendered(Struct, frozen=True):
    """What a task's templates give: its params, and the concurrency keys that it holds."""

    params: Json
    keys: tuple[str, ...]


def _render(draft: Draft, node: Node, round_number: int) -> _Rendered:
    spec, place = polling.task_spec(node), place_of(node, round_number=round_number)
    params = render(draft, spec.input, place)
    keys = tuple(render_key(draft, key, place) for key in spec.concurrency_keys)
    return _Rendered(params, keys)


def _submit(draft: Draft, step: Step, spec: TaskSpec, rendered: _Rendered) -> None:
    start_by_at = step.start_by_at
    assert start_by_at is not None
    deadline_at = draft.now + seconds(spec.timeout_seconds)
    if _is_behind_others(draft, step, spec):
        _wait_for_room(draft, step)
        return
    # A poll has its own bound over all rounds; a task step's bound is its task's deadline.
    timeout_at = deadline_at if step.timeout_at is None else step.timeout_at
    step = draft.change(step, StepState.RUNNING, reason=None, due_at=None, timeout_at=timeout_at)
    start_deadline_at = min(start_by_at, deadline_at)
    draft.submit(
        SubmitTask(
            step=step.id,
            round=step.round,
            spec=spec,
            params=rendered.params,
            start_deadline_at=start_deadline_at,
            deadline_at=deadline_at,
            concurrency_keys=rendered.keys,
            retry_of=step.retry_of,
        )
    )
    if step.poll_round == 1 and step.refused_count == 0:
        draft.record("step.submitted", step.id, queue=spec.queue, type=spec.type, version=spec.task_version)


def refused(draft: Draft, node: Node, stimulus: SubmissionRefused) -> None:
    """Take Pulse's refusal: missing room makes the step wait, anything else fails it."""
    step = draft.steps[stimulus.step]
    if not stimulus.retryable:
        _failed(draft, node, step, stimulus.error)
        return
    _wait_for_room(draft, step)
    if step.refused_count == 0:
        draft.record("step.waiting", step.id, reason=StepReason.QUEUE_FULL.value, code=stimulus.error.code)


def _wait_for_room(draft: Draft, step: Step) -> None:
    """Let a step wait for room on its queue, by itself or together with the other items of its foreach."""
    assert step.start_by_at is not None
    due_at = min(draft.now + refused_wait(draft.before.id, step), step.start_by_at)
    item = None if is_undoing(step.id) else draft.flow.item_of(step.id)
    if item is not None:
        _hold_back(draft, draft.steps[item.foreach])
        due_at = step.start_by_at  # its foreach submits again; by itself it only gives up
    draft.change(
        step,
        StepState.WAITING,
        reason=StepReason.QUEUE_FULL,
        due_at=due_at,
        # Its bound begins with its submission, so a task that is not submitted has none yet; a poll's has begun.
        timeout_at=step.timeout_at if isinstance(draft.flow.nodes[step.id].spec, PollSpec) else None,
        refused_count=step.refused_count + 1,
        task_id=None,
    )


def _is_behind_others(draft: Draft, step: Step, spec: TaskSpec) -> bool:
    """Tell whether other items of the same foreach wait for room on the same queue: they were there first."""
    item = None if is_undoing(step.id) else draft.flow.item_of(step.id)
    if item is None or draft.steps[item.foreach].reason is not StepReason.QUEUE_FULL:
        return False
    return any(
        other.reason is StepReason.QUEUE_FULL
        and other.state is StepState.WAITING
        and (beside := draft.flow.item_of(other.id)) is not None
        and beside.foreach == item.foreach
        and polling.task_spec(draft.flow.nodes[other.id]).queue == spec.queue
        for other in draft.steps.values()
    )


def _hold_back(draft: Draft, foreach: Step) -> None:
    """Let a foreach wait as a whole for room on a queue: its items come back together, in their order."""
    if foreach.state is StepState.WAITING and foreach.reason is not StepReason.QUEUE_FULL:
        due_at = draft.now + refused_wait(draft.before.id, foreach)
        refused_count = foreach.refused_count + 1
        draft.change(foreach, reason=StepReason.QUEUE_FULL, due_at=due_at, refused_count=refused_count)


def refused_wait(instance_id: bytes, step: Step) -> Micros:
    """Say how long to wait after a refusal: doubling, and spread by a hash so that no crowd comes back at once."""
    wait = min(REFUSED_WAIT_MICROS << min(step.refused_count, 10), REFUSED_WAIT_MICROS_MAX)
    spread = zlib.crc32(b"%s %s %d" % (instance_id, step.id.encode(), step.refused_count))
    return wait // 2 + wait // 2 * spread // 2**32


def ended(draft: Draft, node: Node, stimulus: TaskEnded) -> None:
    """Take the end of a step's current task."""
    step = draft.steps[stimulus.step]
    if draft.state is InstanceState.ENDING:
        _ended_while_ending(draft, step, stimulus)
        return
    if step.reason in LOST:
        _ended_of_a_loser(draft, node, step, stimulus)
        return
    match stimulus.outcome:
        case Outcome.SUCCEEDED:
            try:
                _succeeded(draft, node, step)
            except ExpressionFailed as failed:
                draft.fail(step.id, failed.error)
        case Outcome.FAILED:
            _failed(draft, node, step, _judged(node, step, stimulus.error))
        case Outcome.CANCELLED:
            _failed(draft, node, step, _cancel_failure(step, stimulus.error))


def _ended_while_ending(draft: Draft, step: Step, stimulus: TaskEnded) -> None:
    match stimulus.outcome:
        case Outcome.SUCCEEDED:
            # The effect is there, whoever no longer needs it: it is kept and can be compensated.
            draft.succeed(step.id)
        case Outcome.FAILED:
            draft.fail(step.id, stimulus.error or Failure("TASK_FAILED", "the task failed"))
        case Outcome.CANCELLED:
            draft.cancelled(step.id, error=stimulus.error)


def _ended_of_a_loser(draft: Draft, node: Node, step: Step, stimulus: TaskEnded) -> None:
    """Take the end of a task whose branch or block has lost: nothing is judged by it, and nothing goes on from it."""
    error, reason = stimulus.error, step.reason
    assert reason is not None, f"step {step.id} has lost nothing"
    if stimulus.outcome is Outcome.SUCCEEDED:
        try:
            check_output(draft, node)
            if isinstance(node.spec, PollSpec) and not polling.is_done(draft, step, node):
                draft.cancelled(step.id, reason)
                return
        except ExpressionFailed as failed:
            error = failed.error
        else:
            # The effect is there: it is kept and can be compensated.
            draft.decide(step.id, StepState.SUCCEEDED, reason=reason)
            draft.record("step.succeeded", step.id)
            return
    if stimulus.outcome is Outcome.CANCELLED:
        draft.cancelled(step.id, reason, error=error)
        return
    error = error or Failure("TASK_FAILED", "the task failed")
    draft.decide(step.id, StepState.FAILED, reason=reason, error=error)
    draft.record("step.failed", step.id, error=draft.flow.hiding.failure(step.id, error).to_json())


def _succeeded(draft: Draft, node: Node, step: Step) -> None:
    check_output(draft, node)
    if isinstance(node.spec, PollSpec):
        polling.answered(draft, step, node)
    else:
        draft.succeed(step.id)


def _failed(draft: Draft, node: Node, step: Step, error: Failure) -> None:
    if isinstance(node.spec, PollSpec):
        polling.round_failed(draft, step, node.spec, error)
    else:
        draft.fail(step.id, error)


def _judged(node: Node, step: Step, error: Failure | None) -> Failure:
    # The deadline of a step's only task and the step's timer are the same instant: which of the two speaks first must
    # not show. A round of a poll has a deadline of its own.
    if error is not None and error.code == "DEADLINE_EXCEEDED" and not isinstance(node.spec, PollSpec):
        return _timed_out(step, error)
    return error or Failure("TASK_FAILED", "the task failed")


def _cancel_failure(step: Step, error: Failure | None) -> Failure:
    if step.reason is StepReason.STEP_TIMED_OUT:
        return _timed_out(step, error)
    return Failure("TASK_CANCELLED", "the task was cancelled, and not by this instance", _doubt(error))


def _timed_out(step: Step, error: Failure | None) -> Failure:
    return Failure("STEP_TIMED_OUT", f"step {step.id} did not end within its time-out", _doubt(error))


def _doubt(error: Failure | None) -> dict[str, Json] | None:
    """Keep of an error that is told in other words that the effect may have happened, or was undone."""
    if error is not None and error.is_undone:
        return {UNDONE: True}
    return {"effect_unknown": True} if error is not None and error.may_have_effect else None


def review_opened(draft: Draft, stimulus: ReviewOpened) -> None:
    """Note that the outcome of a step's task is unknown; its bound stands still until a person has settled it."""
    step = draft.steps[stimulus.step]
    if step.state is StepState.RUNNING:
        draft.change(step, StepState.NEEDS_REVIEW, review_at=draft.now, error=stimulus.error)
        shown = None if stimulus.error is None else draft.flow.hiding.failure(step.id, stimulus.error)
        error = {} if shown is None else {"error": shown.to_json()}
        draft.record("step.needs_review", step.id, **error)


def review_closed(draft: Draft, stimulus: ReviewClosed) -> None:
    """Note that a review ended with one more attempt: the step's bound is prolonged by the time that it took."""
    step = draft.steps[stimulus.step]
    if step.state is StepState.NEEDS_REVIEW:
        assert step.review_at is not None
        timeout_at = None if step.timeout_at is None else step.timeout_at + draft.now - step.review_at
        draft.change(step, StepState.RUNNING, review_at=None, error=None, timeout_at=timeout_at)
        draft.record("step.review_closed", step.id)
