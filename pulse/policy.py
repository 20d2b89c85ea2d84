"""What becomes of a task when an attempt ends: pure decisions, from rows and a clock reading to one of four answers.

The recovery table of the design is here and nowhere else. Random numbers and the clock are passed in.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from orbit.clock import Micros
from pulse import limits
from pulse.states import ErrorClass, RecoverySafety, TaskState


class TaskError(Struct, frozen=True):
    """Why something failed: the worker's class and code, or ours; `effect_unknown` if its effect may have happened."""

    class_: ErrorClass
    code: str
    message: str
    details: Any = None
    effect_unknown: bool = False

    def as_text(self) -> str:
        """Write it as the JSON text that is stored and shown."""
        value: dict[str, Any] = {"class": self.class_, "code": self.code, "message": self.message}
        if self.details is not None:
            value["details"] = self.details
        if self.effect_unknown:
            value["effect_unknown"] = True
        return json.dumps(value, ensure_ascii=False)


class Finish(Struct, frozen=True):
    """The task is terminal."""

    state: TaskState
    error: TaskError | None = None


class Retry(Struct, frozen=True):
    """The task waits for its next attempt from `available_at` on."""

    available_at: Micros
    error: TaskError | None


class Requeue(Struct, frozen=True):
    """The task waits again at no cost; `available_at` is None to keep its place in the order."""

    available_at: Micros | None = None


class Park(Struct, frozen=True):
    """A person decides, but with `is_verifiable` another task finds out first."""

    error: TaskError
    is_verifiable: bool = False


Decision = Finish | Retry | Requeue | Park


class Budget(Struct, frozen=True):
    """What of a task's row the decisions need."""

    attempts_max: int
    backoff_micros: Micros
    backoff_micros_max: Micros
    failed_count: int
    lost_count: int
    deferred_count: int
    released_count: int
    starts_count: int
    start_deadline_at: Micros | None
    deadline_at: Micros
    is_cancel_wanted: bool


class Ending(Struct, frozen=True):
    """An attempt's end, to be judged: the task's budget, its handler's safety, the clock, a random number in [0, 1).

    `wait_min` is what a handler asks for before the next attempt; the deadline still bounds it.
    """

    budget: Budget
    safety: RecoverySafety
    now: Micros
    jitter: float
    wait_min: Micros = 0


def backoff_cap(budget: Budget, failures: int) -> Micros:
    """Return the longest back-off after so many failures: doubling from the first, up to the policy's limit.

    The exponent is bounded, so no number of failures can overflow.
    """
    exponent = min(max(failures, 1) - 1, 40)
    return min(budget.backoff_micros << exponent, budget.backoff_micros_max)


def backoff(budget: Budget, failures: int, *, jitter: float) -> Micros:
    """Return the back-off with full jitter, at least the shortest that is allowed; `jitter` is in [0, 1)."""
    cap = backoff_cap(budget, failures)
    return max(limits.BACKOFF_MICROS_MIN, round(cap * jitter))


def on_failure(ending: Ending, error: TaskError) -> Decision:
    """Judge a failure that the handler reported, by its class; unclassified ones by the recovery safety."""
    replayable = ending.safety is RecoverySafety.REPLAY_SAFE
    match error.class_:
        case ErrorClass.NON_RETRYABLE:
            return Finish(TaskState.FAILED, error)
        case ErrorClass.NEEDS_HUMAN:
            return Park(error)
        case ErrorClass.RETRYABLE:
            return _again(ending, error, failed=1, lost=0)
        case ErrorClass.UNCLASSIFIED | ErrorClass.UNKNOWN_OUTCOME if replayable:
            return _again(ending, error, failed=1, lost=0)
        case _:
            return _park(ending, error)


def _park(ending: Ending, error: TaskError) -> Park:
    """Let a verification or a person find out what nobody knows."""
    return Park(_in_doubt(error), is_verifiable=ending.safety is RecoverySafety.VERIFY)


def _in_doubt(error: TaskError) -> TaskError:
    """Say of an error that the effect may have happened: whoever would do it again must know."""
    return error if error.effect_unknown else replace(error, effect_unknown=True)


def on_unknown(ending: Ending, error: TaskError, *, lost: bool) -> Decision:
    """Judge an end that the platform saw and whose outcome nobody knows: a lost lease or a time-out."""
    error = _in_doubt(error)
    if lost and ending.budget.lost_count + 1 >= limits.LOST_MAX:
        # It has taken down as many workers as we allow: poison, whatever its safety, and no verification tries again.
        details, message = {"last": json.loads(error.as_text())}, "attempts were lost too often"
        return Park(TaskError(error.class_, "LOST_TOO_OFTEN", message, details, effect_unknown=True))
    if ending.safety is not RecoverySafety.REPLAY_SAFE:
        return _park(ending, error)
    return _again(ending, error, failed=int(not lost), lost=int(lost))


def on_not_executed(ending: Ending, error: TaskError | None) -> Decision:
    """Judge a task whose verification found that nothing happened: tried again as far as budget and time allow.

    `error` is why it was under review; the attempt has been counted when that began.
    """
    details = None if error is None else {"last": json.loads(error.as_text())}
    verified = TaskError(ErrorClass.RETRYABLE, "NOT_EXECUTED", "a verification found that nothing happened", details)
    return _again(ending, verified, failed=0, lost=0)


def on_cancelled(ending: Ending, stopped_by: TaskError | None = None) -> Decision:
    """Judge a handler's CANCELLED: final if a cancel was wanted, else an unknown outcome.

    `stopped_by` is the limit at which it was told to stop; without one nobody asked.
    """
    if ending.budget.is_cancel_wanted:
        return Finish(TaskState.CANCELLED)
    unasked = TaskError(ErrorClass.UNKNOWN_OUTCOME, "CANCELLED_UNASKED", "the handler stopped without being asked")
    return on_unknown(ending, stopped_by or unasked, lost=False)


def passed_limit(*, limit_at: Micros, deadline_at: Micros) -> TaskError:
    """Say which limit ended an execution: the task's total deadline, if that came first, or the attempt's time-out."""
    if limit_at >= deadline_at:
        code, message = "DEADLINE_EXCEEDED", "the task's total deadline passed while it ran"
    else:
        code, message = "ATTEMPT_TIMED_OUT", "the attempt ran into its time-out"
    return TaskError(ErrorClass.UNKNOWN_OUTCOME, code, message, effect_unknown=True)


def on_returned(ending: Ending, *, ran: bool) -> Decision:
    """Judge what a draining worker gave back: not run costs nothing, run is judged by the recovery table at once."""
    if not ran:
        return _requeue(ending, available_at=None)
    error = TaskError(ErrorClass.UNKNOWN_OUTCOME, "RETURNED_RUNNING", "its worker was stopped while it ran")
    if ending.safety is not RecoverySafety.REPLAY_SAFE or ending.budget.lost_count + 1 >= limits.LOST_MAX:
        return on_unknown(ending, error, lost=True)
    # An orderly stop is never worse than a crash: it runs elsewhere at once. It counts as lost, so it stays bounded.
    return _again(ending, _in_doubt(error), failed=0, lost=1, is_at_once=True)


def on_deferred(ending: Ending, retry_after: Micros) -> Decision:
    """Judge a handler's "not now": later and at no cost, a bounded number of times and within the deadline."""
    if ending.budget.deferred_count + 1 > limits.DEFERRALS_MAX:
        message = f"the handler put the task off more than {limits.DEFERRALS_MAX} times"
        return Finish(TaskState.FAILED, TaskError(ErrorClass.NON_RETRYABLE, "DEFERRALS_EXHAUSTED", message))
    return _requeue(ending, available_at=ending.now + min(retry_after, limits.DEFER_MICROS_MAX))


def on_released(ending: Ending) -> Decision:
    """Judge a lease that ended before Start: harmless, but releases in a row wait longer each time."""
    decided = _requeue(ending, available_at=None)
    in_a_row = ending.budget.released_count
    if in_a_row == 0 or not isinstance(decided, Requeue):
        return decided
    # A deadline that lies before the end of the wait ends the task when it comes, and not a moment earlier.
    wait = min(limits.RELEASE_BACKOFF_MICROS << min(in_a_row, 20), limits.RELEASE_BACKOFF_MICROS_MAX)
    return Requeue(ending.now + wait)


def passed_deadline(budget: Budget, *, now: Micros) -> TaskError | None:
    """Say which of the two deadlines of a task that is not running has passed, if one has."""
    if now >= budget.deadline_at:
        return TaskError(ErrorClass.NON_RETRYABLE, "DEADLINE_EXCEEDED", "the task's total deadline has passed")
    if budget.starts_count == 0 and budget.start_deadline_at is not None and now >= budget.start_deadline_at:
        message = "the task was not started by its start deadline"
        return TaskError(ErrorClass.NON_RETRYABLE, "START_DEADLINE_EXCEEDED", message)
    return None


def _requeue(ending: Ending, *, available_at: Micros | None) -> Decision:
    if ending.budget.is_cancel_wanted:
        return Finish(TaskState.CANCELLED)
    error = passed_deadline(ending.budget, now=max(ending.now, available_at or ending.now))
    return Requeue(available_at) if error is None else Finish(TaskState.FAILED, error)


def _again(ending: Ending, error: TaskError, *, failed: int, lost: int, is_at_once: bool = False) -> Decision:
    """Retry within the budget of attempts and time, or end with the reason why not."""
    budget = ending.budget
    if budget.is_cancel_wanted:
        return Finish(TaskState.CANCELLED, error)
    unknown = error.class_ is ErrorClass.UNKNOWN_OUTCOME
    details = {"last": json.loads(error.as_text())}
    if ending.now >= budget.deadline_at:
        message = "the task's total deadline has passed"
        ended = TaskError(error.class_, "DEADLINE_EXCEEDED", message, details, effect_unknown=unknown)
        return Finish(TaskState.FAILED, ended)
    if budget.failed_count + failed >= budget.attempts_max:
        ended = TaskError(error.class_, "ATTEMPTS_EXHAUSTED", error.message, details, effect_unknown=unknown)
        return Finish(TaskState.FAILED, ended if unknown else error)
    wait = backoff(budget, budget.failed_count + budget.lost_count + failed + lost, jitter=ending.jitter)
    wait = 0 if is_at_once else max(wait, ending.wait_min)
    if ending.now + wait >= budget.deadline_at:
        message = "the task's total deadline leaves no time for another attempt"
        ended = TaskError(error.class_, "DEADLINE_EXCEEDED", message, details, effect_unknown=unknown)
        return Finish(TaskState.FAILED, ended)
    return Retry(ending.now + wait, error)
