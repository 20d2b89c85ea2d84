"""The recovery table, row by row: what becomes of a task by its safety, its end, its budget, its time and a cancel."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pulse import limits, policy
from pulse.policy import Budget, Decision, Ending, Finish, Park, Requeue, Retry, TaskError
from pulse.states import ErrorClass, RecoverySafety, TaskState

SECOND = 1_000_000
NOW = 1_000 * SECOND
SAFE, VERIFY, MANUAL = RecoverySafety.REPLAY_SAFE, RecoverySafety.VERIFY, RecoverySafety.MANUAL
FRESH = Budget(
    attempts_max=3,
    backoff_micros=2 * SECOND,
    backoff_micros_max=300 * SECOND,
    failed_count=0,
    lost_count=0,
    deferred_count=0,
    released_count=0,
    starts_count=1,
    start_deadline_at=None,
    deadline_at=NOW + 3_600 * SECOND,
    is_cancel_wanted=False,
)
# What stands in the way of another attempt, or nothing.
SITUATIONS: dict[str, dict[str, Any]] = {
    "fresh": {},
    "last attempt": {"failed_count": 2},
    "past the deadline": {"deadline_at": NOW},
    "cancel wanted": {"is_cancel_wanted": True},
    "lost twice": {"lost_count": 2},
}


def error(class_: ErrorClass = ErrorClass.UNKNOWN_OUTCOME, code: str = "BROKEN") -> TaskError:
    return TaskError(class_, code, "it broke", effect_unknown=class_ is ErrorClass.UNKNOWN_OUTCOME)


def reported(class_: ErrorClass) -> Any:
    return lambda ending: policy.on_failure(ending, error(class_))


# How an attempt can end in a way that nobody knows, as the worker or the platform says it.
UNKNOWN_ENDS: dict[str, Any] = {
    "lost": lambda ending: policy.on_unknown(ending, error(code="LEASE_LOST"), lost=True),
    "timed out": lambda ending: policy.on_unknown(ending, error(code="ATTEMPT_TIMED_OUT"), lost=False),
    "unknown outcome": reported(ErrorClass.UNKNOWN_OUTCOME),
    "cancelled unasked": policy.on_cancelled,
    "returned running": lambda ending: policy.on_returned(ending, ran=True),
    "unclassified": reported(ErrorClass.UNCLASSIFIED),
}


def said(decision: Decision) -> tuple[str, str | None, bool]:
    """Write a decision as the state, the error's code and whether an effect is possible; RETRY for another attempt."""
    match decision:
        case Finish(state, found):
            return state, None if found is None else found.code, found is not None and found.effect_unknown
        case Retry(_, found):
            return "RETRY", None if found is None else found.code, found is not None and found.effect_unknown
        case Park(found, is_verifiable):
            return "VERIFY" if is_verifiable else "REVIEW", found.code, found.effect_unknown
        case Requeue():
            return "WAITING", None, False


def judged(end: str, safety: RecoverySafety, situation: str) -> tuple[str, str | None, bool]:
    budget = replace(FRESH, **SITUATIONS[situation])
    return said(UNKNOWN_ENDS[end](Ending(budget, safety, NOW, jitter=0.5)))


@pytest.mark.parametrize("end", UNKNOWN_ENDS)
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("safety", "becomes"), [(MANUAL, "REVIEW"), (VERIFY, "VERIFY")])
def test_r173_an_unknown_outcome_is_never_repeated_on_a_guess(
    end: str, situation: str, safety: RecoverySafety, becomes: str
) -> None:
    """Neither budget nor time nor a wanted cancel settles what nobody knows: the effect may have happened."""
    state, code, is_unknown = judged(end, safety, situation)
    is_poison = situation == "lost twice" and end in {"lost", "returned running"}
    if end == "cancelled unasked" and situation == "cancel wanted":
        assert (state, code) == ("CANCELLED", None), "then it was asked"
        return
    assert (state, is_unknown) == ("REVIEW" if is_poison else becomes, True)
    assert (code == "LOST_TOO_OFTEN") is is_poison


@pytest.mark.parametrize("end", UNKNOWN_ENDS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_r171_a_replay_safe_type_is_retried_as_far_as_budget_time_and_cancel_allow(end: str, situation: str) -> None:
    is_lost = end in {"lost", "returned running"}
    is_retryable = end == "unclassified"  # the table calls it RETRYABLE, so its own failure is its end
    found = judged(end, SAFE, situation)
    match situation:
        case "fresh":
            assert found[0] == "RETRY"
        case "last attempt":
            if is_lost:
                assert found[0] == "RETRY", "what the platform lost is counted apart"
            else:
                assert found == ("FAILED", "BROKEN" if is_retryable else "ATTEMPTS_EXHAUSTED", not is_retryable)
        case "past the deadline":
            assert found == ("FAILED", "DEADLINE_EXCEEDED", not is_retryable)
        case "cancel wanted":
            assert found[0] == "CANCELLED"
        case "lost twice":
            assert found[:2] == (("REVIEW", "LOST_TOO_OFTEN") if is_lost else ("RETRY", found[1]))


@pytest.mark.parametrize("safety", RecoverySafety)
@pytest.mark.parametrize(
    ("class_", "states"),
    [
        (ErrorClass.RETRYABLE, ("RETRY", "RETRY", "RETRY")),
        (ErrorClass.NON_RETRYABLE, ("FAILED", "FAILED", "FAILED")),
        (ErrorClass.NEEDS_HUMAN, ("REVIEW", "REVIEW", "REVIEW")),
        (ErrorClass.UNKNOWN_OUTCOME, ("RETRY", "VERIFY", "REVIEW")),
        (ErrorClass.UNCLASSIFIED, ("RETRY", "VERIFY", "REVIEW")),
    ],
)
def test_r171_each_class_by_each_safety(
    class_: ErrorClass, states: tuple[str, str, str], safety: RecoverySafety
) -> None:
    wanted = dict(zip((SAFE, VERIFY, MANUAL), states, strict=True))
    assert said(policy.on_failure(Ending(FRESH, safety, NOW, jitter=0.5), error(class_)))[0] == wanted[safety]


@pytest.mark.parametrize(
    ("situation", "becomes"),
    [
        ("fresh", "RETRY"),
        ("last attempt", "RETRY"),
        ("past the deadline", "DEADLINE_EXCEEDED"),
        ("cancel wanted", "CANCELLED"),
    ],
)
def test_what_was_not_executed_is_tried_again_if_budget_deadline_and_cancel_allow(situation: str, becomes: str) -> None:
    budget = replace(FRESH, failed_count=1, **(SITUATIONS[situation] if situation != "last attempt" else {}))
    state, code, is_unknown = said(policy.on_not_executed(Ending(budget, VERIFY, NOW, jitter=0.5), error()))
    assert becomes in {state, code}
    assert not is_unknown, "a verification has made sure"
    spent = replace(FRESH, failed_count=3)
    assert said(policy.on_not_executed(Ending(spent, VERIFY, NOW, jitter=0.5), error()))[:2] == (
        "FAILED",
        "NOT_EXECUTED",
    )


def test_a_handler_that_is_stopped_at_its_limit_was_asked() -> None:
    for limit_at, deadline_at, code in ((NOW, NOW + 1, "ATTEMPT_TIMED_OUT"), (NOW, NOW, "DEADLINE_EXCEEDED")):
        limit = policy.passed_limit(limit_at=limit_at, deadline_at=deadline_at)
        decided = policy.on_cancelled(Ending(FRESH, MANUAL, NOW, jitter=0.5), limit)
        assert said(decided) == ("REVIEW", code, True)


def test_a_drain_costs_nothing_before_the_handler_ran_and_never_its_place() -> None:
    assert policy.on_returned(Ending(FRESH, MANUAL, NOW, jitter=0.5), ran=False) == Requeue(None)
    gone = Ending(replace(FRESH, is_cancel_wanted=True), MANUAL, NOW, jitter=0.5)
    assert said(policy.on_returned(gone, ran=False))[0] == "CANCELLED"
    again = policy.on_returned(Ending(FRESH, SAFE, NOW, jitter=0.5), ran=True)
    assert isinstance(again, Retry)
    assert again.available_at == NOW, "it runs elsewhere at once"


def test_put_offs_are_bounded_in_number_and_by_the_deadline() -> None:
    last = replace(FRESH, deferred_count=limits.DEFERRALS_MAX - 1)
    assert policy.on_deferred(Ending(last, SAFE, NOW, jitter=0.5), SECOND) == Requeue(NOW + SECOND)
    spent = replace(FRESH, deferred_count=limits.DEFERRALS_MAX)
    assert said(policy.on_deferred(Ending(spent, SAFE, NOW, jitter=0.5), SECOND))[1] == "DEFERRALS_EXHAUSTED"
    near = replace(FRESH, deadline_at=NOW + SECOND)
    assert said(policy.on_deferred(Ending(near, SAFE, NOW, jitter=0.5), SECOND))[1] == "DEADLINE_EXCEEDED"


def test_releases_in_a_row_wait_longer_and_end_no_task_before_its_deadline() -> None:
    near = replace(FRESH, starts_count=0, start_deadline_at=NOW + SECOND, released_count=0)
    waits: list[int] = []
    for count in range(30):
        decided = policy.on_released(Ending(replace(near, released_count=count), SAFE, NOW, jitter=0.5))
        assert isinstance(decided, Requeue)
        waits.append(0 if decided.available_at is None else decided.available_at - NOW)
    assert waits[:4] == [0, SECOND // 5, SECOND * 2 // 5, SECOND * 4 // 5]
    assert waits == sorted(waits)
    assert waits[-1] == 30 * SECOND
    passed = replace(near, start_deadline_at=NOW)
    assert said(policy.on_released(Ending(passed, SAFE, NOW, jitter=0.5)))[1] == "START_DEADLINE_EXCEEDED"


def test_the_start_deadline_binds_the_first_start_only() -> None:
    waiting = replace(FRESH, starts_count=0, start_deadline_at=NOW)
    first = policy.passed_deadline(waiting, now=NOW)
    assert first is not None
    assert first.code == "START_DEADLINE_EXCEEDED"
    assert policy.passed_deadline(replace(waiting, starts_count=1), now=NOW) is None
    total = policy.passed_deadline(replace(waiting, deadline_at=NOW), now=NOW)
    assert total is not None
    assert total.code == "DEADLINE_EXCEEDED"


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 6))
def test_attempts_never_exceed_their_bound(losses: list[bool], attempts_max: int) -> None:
    """At most max_attempts + max_lost - 1 attempts, in whatever order failures and losses come."""
    budget = replace(FRESH, attempts_max=attempts_max)
    for attempts, is_lost in enumerate(losses, start=1):
        ending = Ending(budget, SAFE, NOW, jitter=0.5)
        lost = error(code="LEASE_LOST")
        failed = error(ErrorClass.RETRYABLE)
        decided = policy.on_unknown(ending, lost, lost=True) if is_lost else policy.on_failure(ending, failed)
        budget = replace(
            budget, failed_count=budget.failed_count + (not is_lost), lost_count=budget.lost_count + is_lost
        )
        if not isinstance(decided, Retry):
            assert decided == Finish(TaskState.FAILED, failed) or isinstance(decided, Park)
            break
        assert attempts < attempts_max + limits.LOST_MAX - 1
