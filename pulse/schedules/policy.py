"""What becomes of the instants of a schedule that are due: fired, merged, skipped, left for later. Pure.

An instant is missed if a later one is due too, or if it is later than the grace. First the misfire policy makes of what
is due a list of firings and skipped ranges, then the overlap policy lets, queues or skips each. What is decided
is decided for good: `cursor_at` says up to where.

The surprising rule: a range that is still being counted is an open `Run`, kept with the schedule from pass to pass, so
that a year of missed minutes is one record although no pass looks at more than some hundred instants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from orbit.clock import SECOND, Micros
from pulse import limits


class MisfirePolicy(StrEnum):
    """What becomes of instants that were missed."""

    SKIP = "SKIP"  # recorded as one skipped range
    COALESCE = "COALESCE"  # everything due is one firing, identified by its first instant
    CATCH_UP = "CATCH_UP"  # fired one by one, within bounds on number, age and rate


class OverlapPolicy(StrEnum):
    """What becomes of a firing while what the one before has made is unfinished."""

    ALLOW = "ALLOW"  # both run
    QUEUE = "QUEUE"  # it waits, as one of a bounded backlog
    SKIP = "SKIP"  # it is skipped, and that is recorded


class RangeReason(StrEnum):
    """Why a firing was skipped, or what an open run of instants will become."""

    MISFIRE = "MISFIRE"  # missed, and its policy or a bound of it says so
    OVERLAP = "OVERLAP"  # the firing before was unfinished
    BACKLOG_FULL = "BACKLOG_FULL"  # as many as may already waited for the firing before
    PAUSED = "PAUSED"  # the schedule was paused
    STOPPED = "STOPPED"  # the schedule had lost its rights
    MERGED = "MERGED"  # an open run only: it is to be one firing


class Misfire(Struct, frozen=True, kw_only=True):
    """A misfire policy; the bounds are those of CATCH_UP, which has them all."""

    policy: MisfirePolicy
    grace_micros: Micros = limits.MISFIRE_GRACE_MICROS_DEFAULT
    max_count: int | None = None
    max_age_micros: Micros | None = None
    rate_per_second: float | None = None

    def is_late(self, point: Micros, *, now: Micros) -> bool:
        """Say whether an instant is later than a healthy node and the grace explain."""
        return now - point > max(self.grace_micros, limits.FIRING_SLACK_MICROS)


class Overlap(Struct, frozen=True, kw_only=True):
    """An overlap policy; `max_backlog` is QUEUE's."""

    policy: OverlapPolicy
    max_backlog: int | None = None


class Run(Struct, frozen=True):
    """A range of instants with one fate, from the first to the last, that may still grow."""

    reason: RangeReason
    first_at: Micros
    last_at: Micros
    count: int


class Action(StrEnum):
    """What is done about a firing."""

    FIRE = "FIRE"
    QUEUE = "QUEUE"
    SKIP = "SKIP"


class Outcome(Struct, frozen=True):
    """One firing or skipped range, identified by its first instant; `count` tells how many it covers."""

    action: Action
    scheduled_at: Micros
    last_at: Micros
    count: int = 1
    reason: RangeReason | None = None


class Situation(Struct, frozen=True, kw_only=True):
    """What is due of one revision, in order.

    `is_cut`: there is more of this revision than `points` holds. `is_later_due`: instants of a later one are due too.
    """

    now: Micros
    points: Sequence[Micros]
    is_cut: bool = False
    is_later_due: bool = False
    run: Run | None = None


class Decision(Struct, frozen=True):
    """What is decided: outcomes in order, the run that stays open, and up to where (None: nothing of the points).

    `again_in` is the time after which a pass must look again although nothing new is due; None where it need not.
    """

    outcomes: tuple[Outcome, ...] = ()
    run: Run | None = None
    cursor_at: Micros | None = None
    again_in: Micros | None = None


def extended(run: Run | None, reason: RangeReason, points: Sequence[Micros]) -> Run | None:
    """Let a run grow by instants behind it, or begin one."""
    if not points:
        return run
    if run is None:
        return Run(reason, points[0], points[-1], len(points))
    assert run.reason is reason, "a run of another kind is closed first"
    return replace(run, last_at=points[-1], count=run.count + len(points))


def skipped(run: Run | None) -> tuple[Outcome, ...]:
    """Close a run as the record of a skipped range."""
    if run is None:
        return ()
    return (Outcome(Action.SKIP, run.first_at, run.last_at, run.count, run.reason),)


def decide(due: Situation, misfire: Misfire) -> Decision:
    """Apply a misfire policy to what is due."""
    run = due.run
    if run is not None and run.reason is RangeReason.MERGED and misfire.policy is not MisfirePolicy.COALESCE:
        # Merged under a revision before, when its queue had no place.
        return Decision((_merged(run),), again_in=0)
    if run is not None and run.reason is RangeReason.MISFIRE and misfire.policy is MisfirePolicy.COALESCE:
        return Decision(skipped(run), again_in=0)
    if not due.points:
        is_merged = run is not None and run.reason is RangeReason.MERGED
        return Decision((_merged(run),)) if run is not None and is_merged else Decision(skipped(run))
    last = due.points[-1]
    is_missed = due.is_cut or due.is_later_due or misfire.is_late(last, now=due.now)
    if misfire.policy is MisfirePolicy.COALESCE:
        return _coalesce(due, is_missed=is_missed)
    missed = len(due.points) - (0 if is_missed else 1)
    if misfire.policy is MisfirePolicy.CATCH_UP:
        return _catch_up(due, misfire, missed)
    run = extended(run, RangeReason.MISFIRE, due.points[:missed])
    if due.is_cut:
        return Decision(run=run, cursor_at=last + 1, again_in=0)
    fired = () if is_missed else (_single(last),)
    return Decision((*skipped(run), *fired), cursor_at=last + 1)


def _coalesce(due: Situation, *, is_missed: bool) -> Decision:
    last = due.points[-1]
    if due.run is None and len(due.points) == 1 and not is_missed:
        return Decision((_single(last),), cursor_at=last + 1)
    run = extended(due.run, RangeReason.MERGED, due.points)
    assert run is not None
    if due.is_cut:
        return Decision(run=run, cursor_at=last + 1, again_in=0)
    return Decision((_merged(run),), cursor_at=last + 1)


def _catch_up(due: Situation, misfire: Misfire, missed: int) -> Decision:
    """Skip what is too old or too much, the oldest first, then fire as many of the rest as the rate gives."""
    assert misfire.max_count is not None
    assert misfire.max_age_micros is not None
    assert misfire.rate_per_second is not None
    points = due.points
    too_old = bisect_left(points, due.now - misfire.max_age_micros, 0, missed)
    kept_from = min(missed, max(too_old, missed - misfire.max_count + (1 if due.is_cut else 0)))
    run = extended(due.run, RangeReason.MISFIRE, points[:kept_from])
    if due.is_cut:
        assert kept_from > 0, "a pass looks at more instants than may be caught up with"
        return Decision(run=run, cursor_at=points[kept_from - 1] + 1, again_in=0)
    size = max(1, min(limits.CATCH_UP_CHUNK_MAX, int(misfire.rate_per_second)))
    chunk = points[kept_from : min(missed, kept_from + size)]
    reached = kept_from + len(chunk)
    fired = [_single(at) for at in chunk]
    if reached < missed:
        pause = round(SECOND * len(chunk) / misfire.rate_per_second)
        return Decision((*skipped(run), *fired), cursor_at=points[reached], again_in=pause)
    fired += [_single(at) for at in points[missed:]]
    return Decision((*skipped(run), *fired), cursor_at=points[-1] + 1)


def admit(decision: Decision, overlap: Overlap, *, is_busy: bool, backlog: int) -> Decision:
    """Apply an overlap policy to what is to be fired.

    Where firings wait for each other one pass makes at most one: whether it was made at all decides about the next.
    """
    if overlap.policy is OverlapPolicy.ALLOW:
        return decision
    admitted: list[Outcome] = []
    for outcome in decision.outcomes:
        if outcome.action is Action.SKIP:
            admitted.append(outcome)
        elif any(each.action is Action.FIRE for each in admitted):
            return replace(decision, outcomes=tuple(admitted), run=None, cursor_at=outcome.scheduled_at, again_in=0)
        elif overlap.policy is OverlapPolicy.SKIP:
            kept = replace(outcome, action=Action.SKIP, reason=RangeReason.OVERLAP)
            admitted.append(kept if is_busy else outcome)
        elif not is_busy and not backlog:
            admitted.append(outcome)
        elif overlap.max_backlog is not None and backlog < overlap.max_backlog:
            backlog += 1
            admitted.append(replace(outcome, action=Action.QUEUE))
        else:
            admitted.append(replace(outcome, action=Action.SKIP, reason=RangeReason.BACKLOG_FULL))
    return replace(decision, outcomes=tuple(admitted))


def cut_off(decision: Decision, index: int) -> Decision:
    """Take a decision back from its outcome at `index` on, a firing that found no place: it is tried again soon."""
    outcome = decision.outcomes[index]
    before = decision.outcomes[:index]
    if outcome.reason is RangeReason.MERGED:
        assert index == len(decision.outcomes) - 1, "nothing comes behind a merged firing"
        run = Run(RangeReason.MERGED, outcome.scheduled_at, outcome.last_at, outcome.count)
        return replace(decision, outcomes=before, run=run, again_in=limits.FIRING_FULL_MICROS)
    return Decision(before, None, outcome.scheduled_at, limits.FIRING_FULL_MICROS)


def _single(at: Micros) -> Outcome:
    return Outcome(Action.FIRE, at, at)


def _merged(run: Run) -> Outcome:
    return Outcome(Action.FIRE, run.first_at, run.last_at, run.count, RangeReason.MERGED)
