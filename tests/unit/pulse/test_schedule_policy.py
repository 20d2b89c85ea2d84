"""What becomes of due instants: misfire and overlap, with ranges that grow from pass to pass."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orbit.clock import SECOND
from pulse import limits
from pulse.schedules.policy import (
    Action,
    Decision,
    Misfire,
    MisfirePolicy,
    Outcome,
    Overlap,
    OverlapPolicy,
    RangeReason,
    Run,
    Situation,
    admit,
    cut_off,
    decide,
)

MINUTE = 60 * SECOND
SKIP = Misfire(policy=MisfirePolicy.SKIP)
COALESCE = Misfire(policy=MisfirePolicy.COALESCE)
CATCH_UP = Misfire(
    policy=MisfirePolicy.CATCH_UP, max_count=100, max_age_micros=10**12, rate_per_second=limits.CATCH_UP_RATE_MAX
)
ALLOW = Overlap(policy=OverlapPolicy.ALLOW)


def due(*minutes: int, now: float, **fields: object) -> Situation:
    return replace(Situation(now=round(now * MINUTE), points=[m * MINUTE for m in minutes]), **fields)


def told(decision: Decision) -> list[tuple[str, float, float, int]]:
    """Write outcomes as (action or reason, first, last, count), in minutes."""
    return [
        (
            each.reason if each.action is Action.SKIP and each.reason else each.action,
            each.scheduled_at / MINUTE,
            each.last_at / MINUTE,
            each.count,
        )
        for each in decision.outcomes
    ]


def test_r154_an_instant_on_time_is_fired_under_every_policy() -> None:
    for misfire in (SKIP, COALESCE, CATCH_UP):
        decision = decide(due(5, now=5.5), misfire)
        assert (told(decision), decision.cursor_at, decision.again_in) == ([("FIRE", 5, 5, 1)], 5 * MINUTE + 1, None)


def test_r154_what_was_missed_is_skipped_merged_or_caught_up_with() -> None:
    missed = due(2, 3, 4, 5, now=5.5)
    assert told(decide(missed, SKIP)) == [("MISFIRE", 2, 4, 3), ("FIRE", 5, 5, 1)]
    assert told(decide(missed, COALESCE)) == [("FIRE", 2, 5, 4)]
    assert told(decide(missed, CATCH_UP)) == [("FIRE", n, n, 1) for n in (2, 3, 4, 5)]
    late = due(2, 3, 4, 5, now=6.9)
    assert told(decide(late, SKIP)) == [("MISFIRE", 2, 5, 4)]
    assert told(decide(late, COALESCE)) == [("FIRE", 2, 5, 4)]


def test_a_grace_of_none_leaves_a_node_some_seconds() -> None:
    hasty = replace(SKIP, grace_micros=0)
    assert told(decide(due(5, now=5 + 4 / 60), hasty)) == [("FIRE", 5, 5, 1)]
    assert told(decide(due(5, now=5 + 6 / 60), hasty)) == [("MISFIRE", 5, 5, 1)]


def test_an_instant_is_missed_if_one_of_a_later_revision_is_due() -> None:
    assert told(decide(due(5, now=5.1, is_later_due=True), SKIP)) == [("MISFIRE", 5, 5, 1)]


def test_r154_catching_up_is_bounded_by_number_age_and_rate() -> None:
    points = due(*range(1, 11), now=10.5)
    few = replace(CATCH_UP, max_count=3)
    assert told(decide(points, few)) == [("MISFIRE", 1, 6, 6), *(("FIRE", n, n, 1) for n in (7, 8, 9, 10))]
    young = replace(CATCH_UP, max_age_micros=3 * MINUTE)
    assert told(decide(points, young)) == [("MISFIRE", 1, 7, 7), *(("FIRE", n, n, 1) for n in (8, 9, 10))]
    slow = decide(points, replace(CATCH_UP, rate_per_second=0.5))
    assert (told(slow), slow.cursor_at, slow.again_in) == ([("FIRE", 1, 1, 1)], 2 * MINUTE, 2 * SECOND)
    steady = decide(points, replace(CATCH_UP, rate_per_second=4.0))
    assert (len(steady.outcomes), steady.cursor_at, steady.again_in) == (4, 5 * MINUTE, SECOND)


def test_r158_a_range_grows_from_pass_to_pass_and_is_one_record() -> None:
    first = decide(due(1, 2, 3, now=9.1, is_cut=True), SKIP)
    assert (first.outcomes, first.run) == ((), Run(RangeReason.MISFIRE, MINUTE, 3 * MINUTE, 3))
    second = decide(due(4, 5, now=9.1, is_cut=True, run=first.run), SKIP)
    last = decide(due(6, 9, now=9.1, run=second.run), SKIP)
    assert (told(last), last.run) == ([("MISFIRE", 1, 6, 6), ("FIRE", 9, 9, 1)], None)
    merged = decide(due(1, 2, 3, now=9.1, is_cut=True), COALESCE)
    assert (merged.outcomes, merged.again_in) == ((), 0)
    assert told(decide(due(4, 9, now=9.1, run=merged.run), COALESCE)) == [("FIRE", 1, 9, 5)]


def test_a_range_is_closed_by_the_policy_that_comes_after() -> None:
    merged = Run(RangeReason.MERGED, MINUTE, 3 * MINUTE, 3)
    missed = replace(merged, reason=RangeReason.MISFIRE)
    fired = decide(due(9, now=9.1, run=merged), SKIP)
    assert (told(fired), fired.cursor_at, fired.again_in) == ([("FIRE", 1, 3, 3)], None, 0)
    closed = decide(due(9, now=9.1, run=missed), COALESCE)
    assert (told(closed), closed.cursor_at, closed.again_in) == ([("MISFIRE", 1, 3, 3)], None, 0)
    assert told(decide(due(now=9.1, run=merged), COALESCE)) == [("FIRE", 1, 3, 3)]
    assert told(decide(due(now=9.1, run=missed), SKIP)) == [("MISFIRE", 1, 3, 3)]


def fires(*minutes: int) -> Decision:
    outcomes = tuple(Outcome(Action.FIRE, m * MINUTE, m * MINUTE) for m in minutes)
    return Decision(outcomes, cursor_at=minutes[-1] * MINUTE + 1)


def test_r155_firings_run_side_by_side_wait_or_are_skipped() -> None:
    skip, queue = Overlap(policy=OverlapPolicy.SKIP), Overlap(policy=OverlapPolicy.QUEUE, max_backlog=2)
    assert admit(fires(1, 2), ALLOW, is_busy=True, backlog=0) == fires(1, 2)
    assert told(admit(fires(1), skip, is_busy=True, backlog=0)) == [("OVERLAP", 1, 1, 1)]
    assert told(admit(fires(1), skip, is_busy=False, backlog=0)) == [("FIRE", 1, 1, 1)]
    waiting = admit(fires(1, 2, 3), queue, is_busy=True, backlog=0)
    assert told(waiting) == [("QUEUE", 1, 1, 1), ("QUEUE", 2, 2, 1), ("BACKLOG_FULL", 3, 3, 1)]
    assert told(admit(fires(1), queue, is_busy=False, backlog=1)) == [("QUEUE", 1, 1, 1)]
    assert told(admit(fires(1), queue, is_busy=True, backlog=2)) == [("BACKLOG_FULL", 1, 1, 1)]


@pytest.mark.parametrize(
    "overlap", [Overlap(policy=OverlapPolicy.SKIP), Overlap(policy=OverlapPolicy.QUEUE, max_backlog=9)]
)
def test_only_one_firing_a_pass_where_the_next_depends_on_it(overlap: Overlap) -> None:
    one = admit(fires(1, 2, 3), overlap, is_busy=False, backlog=0)
    assert (told(one), one.cursor_at, one.again_in) == ([("FIRE", 1, 1, 1)], 2 * MINUTE, 0)


def test_r076_a_firing_without_a_place_stays_undecided() -> None:
    decision = decide(due(1, 2, 3, 4, 5, now=5.1), CATCH_UP)
    cut = cut_off(decision, 3)
    assert (told(cut), cut.cursor_at) == ([("FIRE", n, n, 1) for n in (1, 2, 3)], 4 * MINUTE)
    assert cut.again_in == limits.FIRING_FULL_MICROS
    merged = cut_off(decide(due(1, 2, 3, now=3.1), COALESCE), 0)
    assert (merged.outcomes, merged.run) == ((), Run(RangeReason.MERGED, MINUTE, 3 * MINUTE, 3))
    assert told(decide(due(4, now=4.1, run=merged.run), COALESCE)) == [("FIRE", 1, 4, 4)]


def passes(points: Sequence[int], misfire: Misfire, *, now: int) -> list[Outcome]:
    """Decide about everything that is due, a few instants a pass."""
    found: list[Outcome] = []
    run, cursor = None, 0
    for _ in range(10 * len(points) + 10):
        rest = [at for at in points if at >= cursor]
        seen = rest[: limits.POINTS_PER_PASS_MAX]
        decision = decide(Situation(now=now, points=seen, is_cut=len(rest) > len(seen), run=run), misfire)
        found += decision.outcomes
        run, cursor = decision.run, cursor if decision.cursor_at is None else decision.cursor_at
        if decision.again_in is None:
            return found
    raise AssertionError("it never ends")


@settings(max_examples=150, deadline=None)
@given(
    points=st.lists(st.integers(1, 10_000), unique=True, max_size=900).map(sorted),
    lateness=st.integers(0, 5_000),
    misfire=st.one_of(
        st.just(SKIP),
        st.just(COALESCE),
        st.builds(
            Misfire,
            policy=st.just(MisfirePolicy.CATCH_UP),
            max_count=st.integers(1, limits.CATCH_UP_COUNT_MAX),
            max_age_micros=st.integers(1, 10_000).map(lambda seconds: seconds * SECOND),
            rate_per_second=st.floats(limits.CATCH_UP_RATE_MIN, limits.CATCH_UP_RATE_MAX),
        ),
    ),
)
def test_every_instant_has_one_fate_and_the_bounds_hold(points: list[int], lateness: int, misfire: Misfire) -> None:
    instants = [at * SECOND for at in points]
    now = (instants[-1] if instants else 0) + lateness * SECOND
    outcomes = passes(instants, misfire, now=now)
    assert sum(each.count for each in outcomes) == len(instants)
    edges = [edge for each in outcomes for edge in (each.scheduled_at, each.last_at)]
    assert edges == sorted(edges)
    fired = [each for each in outcomes if each.action is Action.FIRE]
    missed = len(instants) - (0 if not instants or misfire.is_late(instants[-1], now=now) else 1)
    if misfire.policy is MisfirePolicy.COALESCE:
        assert len(fired) == min(1, len(instants))
    elif misfire.policy is MisfirePolicy.SKIP:
        assert len(fired) == len(instants) - missed
    else:
        assert misfire.max_count is not None
        assert misfire.max_age_micros is not None
        young = [at for at in instants[:missed] if now - at <= misfire.max_age_micros]
        assert [each.scheduled_at for each in fired] == young[-misfire.max_count :] + instants[missed:]
