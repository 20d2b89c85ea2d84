"""What a pass does about one schedule: its due instants, a firing that waited, or a range that passed while it stood.

Pure. The surprising rule: a pass looks at the instants of one revision only; those of the next one wait for the next
pass, which follows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pulse import limits
from pulse.schedules.content import Era, Revision, era_points
from pulse.schedules.policy import (
    Action,
    Decision,
    Outcome,
    RangeReason,
    Run,
    Situation,
    admit,
    decide,
    extended,
    skipped,
)
from pulse.schedules.rules import next_point, points_due
from pulse.states import ScheduleState

if TYPE_CHECKING:
    from orbit.clock import Micros
    from pulse.schedules.store import FiringRow, ScheduleRow


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be done: a decision under a revision; `queued` is the firing that its one outcome is about."""

    decision: Decision
    revision: Revision
    queued: FiringRow | None = None
    is_passed_over: bool = False  # what passed while the schedule stood is recorded now


def plan(row: ScheduleRow, eras: Sequence[Era], *, is_busy: bool, now: Micros) -> Plan | None:
    """Decide about a locked schedule; None if nothing of it is due."""
    if row.skip_until is not None:
        return _pass_over(row, eras, row.skip_until)
    found = _due(row, eras, now=now)
    if found is None:
        return None
    revision, situation = found
    content = revision.content
    decision = admit(decide(situation, content.misfire), content.overlap, is_busy=is_busy, backlog=row.backlog)
    return Plan(decision=decision, revision=revision)


def plan_queued(queued: FiringRow, revision: Revision) -> Plan:
    """Fire what has waited for the firing before it."""
    outcome = Outcome(Action.FIRE, queued.scheduled_at, queued.last_at, queued.points_count, queued.reason)
    return Plan(decision=Decision((outcome,), again_in=0), revision=revision, queued=queued)


def _due(row: ScheduleRow, eras: Sequence[Era], *, now: Micros) -> tuple[Revision, Situation] | None:
    run_era = None if row.run is None else _era_at(eras, row.run.last_at)
    for index, era in enumerate(eras):
        found, is_cut = points_due(
            era.revision.content.rule,
            max(row.cursor_at, era.begin),
            min(era.end, now + 1),
            limit=limits.POINTS_PER_PASS_MAX,
        )
        if not found:
            continue
        if run_era is not None and run_era is not era:
            break
        is_later_due = any(
            next_point(later.revision.content.rule, max(row.cursor_at, later.begin), min(later.end, now + 1))
            is not None
            for later in eras[index + 1 :]
        )
        return era.revision, Situation(now=now, points=found, is_cut=is_cut, is_later_due=is_later_due, run=row.run)
    if run_era is None:
        return None
    # Nothing more belongs to the range that was being counted: it is over.
    return run_era.revision, Situation(now=now, points=(), run=row.run)


def _era_at(eras: Sequence[Era], at: Micros) -> Era:
    return next((era for era in reversed(eras) if era.begin <= at), eras[0])


def _pass_over(row: ScheduleRow, eras: Sequence[Era], until: Micros) -> Plan:
    """Skip what passed while the schedule stood, as one range; what was to be merged before becomes part of it."""
    reason, run = row.skip_reason, row.run
    before: tuple[Outcome, ...] = ()
    assert reason is not None, "what is skipped has its reason"
    if run is not None and run.reason is RangeReason.MERGED:
        run = Run(reason, run.first_at, run.last_at, run.count)
    elif run is not None and run.reason is not reason:
        before, run = skipped(run), None
    for era in eras:
        begin, end = max(row.cursor_at, era.begin), min(era.end, until)
        found, is_cut = points_due(era.revision.content.rule, begin, end, limit=limits.POINTS_PER_PASS_MAX)
        run = extended(run, reason, found)
        if is_cut:
            return Plan(decision=Decision(before, run, found[-1] + 1, 0), revision=era.revision)
    first_at = until if run is None else run.first_at
    decision = Decision((*before, *skipped(run)), None, max(row.cursor_at, until), 0)
    return Plan(decision=decision, revision=_era_at(eras, first_at).revision, is_passed_over=True)


def advanced(row: ScheduleRow, eras: Sequence[Era], done: Plan | None, *, now: Micros) -> ScheduleRow:
    """Move a schedule on by what was done: cursor, open range, next instant, and when to look again."""
    decision = Decision() if done is None else done.decision
    run = row.run if done is None or done.queued is not None else decision.run
    cursor_at = row.cursor_at if decision.cursor_at is None else decision.cursor_at
    is_over = done is not None and done.is_passed_over
    following = next(era_points(eras, cursor_at), None)
    next_at = None if following is None else following[0]
    row = replace(
        row,
        run=run,
        cursor_at=cursor_at,
        skip_until=None if is_over else row.skip_until,
        skip_reason=None if is_over else row.skip_reason,
        next_at=next_at,
        base_revision=_era_at(eras, cursor_at if run is None else run.first_at).revision.number,
    )
    is_ended = next_at is None and run is None and row.skip_until is None
    look_at = next_at if decision.again_in is None else now + decision.again_in
    if row.backlog and decision.again_in is None:
        wait_until = now + limits.FIRING_WAIT_MICROS
        look_at = wait_until if look_at is None else min(look_at, wait_until)
    if is_ended and not row.backlog:
        look_at = None
    elif run is not None and look_at is None:
        look_at = now
    return replace(row, look_at=look_at, state=ScheduleState.ENDED if is_ended else ScheduleState.ACTIVE)
