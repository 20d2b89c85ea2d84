"""When a schedule fires: a time rule and its bounds, as a pure enumeration of instants.

Two kinds of rule: cron in a time zone, and a fixed rate from an anchor, in closed form and blind to wall clocks. The
surprising rule: a cron expression with fixed hours and minutes means local times, each once; one with a wildcard or a
step in either means every instant at which local clocks show a time that fits, so that `*/15` goes on through a change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.clock import SECOND, Micros
from orbit.errors import InvalidRequest
from pulse.schedules.cron import Cron, CronError, cron_read, local_times
from pulse.schedules.zones import (
    HORIZON,
    HORIZON_YEAR,
    instant_of,
    local_of,
    moment_at,
    offset_at,
    steady_until,
    zone_find,
)

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

EVERY_MICROS_MIN = SECOND
EVERY_MICROS_MAX = 366 * 24 * 3600 * SECOND


class TimeRule(Struct, frozen=True, kw_only=True):
    """A cron expression with its zone, or a rate with its anchor; nothing before `starts_at`, all before `ends_at`."""

    cron: str | None = None
    timezone: str | None = None
    every_micros: Micros | None = None
    anchor_at: Micros | None = None
    starts_at: Micros | None = None
    ends_at: Micros | None = None


def rule_check(rule: TimeRule, *, start: Micros) -> None:
    """Refuse a rule that is none, or that gives no instant from `start` on; raises InvalidRequest naming the field."""
    if (rule.cron is None) == (rule.every_micros is None):
        raise InvalidRequest("either cron or every_seconds is required", pointer="/cron")
    for value, pointer in ((rule.starts_at, "/starts_at"), (rule.ends_at, "/ends_at"), (rule.anchor_at, "/anchor_at")):
        if value is not None and not 0 <= value < HORIZON:
            raise InvalidRequest(f"instants of a schedule lie from 1970 to {HORIZON_YEAR - 1}", pointer=pointer)
    if rule.starts_at is not None and rule.ends_at is not None and rule.ends_at <= rule.starts_at:
        raise InvalidRequest("ends_at is not after starts_at", pointer="/ends_at")
    if rule.cron is not None:
        _check_cron(rule, rule.cron)
    else:
        _check_rate(rule)
    if next_point(rule, start) is None:
        at = "/cron" if rule.ends_at is None and rule.cron is not None else "/ends_at"
        raise InvalidRequest("this never comes", pointer=at)


def _check_cron(rule: TimeRule, expression: str) -> None:
    if rule.anchor_at is not None:
        raise InvalidRequest("only a fixed rate has an anchor", pointer="/anchor_at")
    try:
        cron_read(expression)
    except CronError as error:
        raise InvalidRequest(str(error), pointer="/cron") from None
    if rule.timezone is None:
        raise InvalidRequest("a cron expression needs a time zone, UTC too", pointer="/timezone")
    if zone_find(rule.timezone) is None:
        raise InvalidRequest("a time zone is named as in Europe/Berlin or UTC, to the letter", pointer="/timezone")


def _check_rate(rule: TimeRule) -> None:
    if rule.timezone is not None:
        raise InvalidRequest("a fixed rate ignores wall clocks: leave the time zone out", pointer="/timezone")
    assert rule.every_micros is not None, "a rule without an expression is a rate"
    if not EVERY_MICROS_MIN <= rule.every_micros <= EVERY_MICROS_MAX:
        message = f"every_seconds is from {EVERY_MICROS_MIN // SECOND} to {EVERY_MICROS_MAX // SECOND}"
        raise InvalidRequest(message, pointer="/every_seconds")


def next_point(rule: TimeRule, start: Micros, until: Micros = HORIZON) -> Micros | None:
    """Return the first instant of a rule from `start` on and before `until`; None if there is none."""
    return next(points(rule, start, until), None)


def points(rule: TimeRule, start: Micros, until: Micros = HORIZON) -> Iterator[Micros]:
    """Enumerate the instants of a rule from `start` on, in order, before `until` and its own end."""
    rate = rate_points(rule, start, until)
    if rate is not None:
        return iter(rate)
    assert rule.cron is not None
    assert rule.timezone is not None
    cron, zone = cron_read(rule.cron), zone_find(rule.timezone)
    if zone is None:
        # A zone that was there when the schedule was made has left the package: nobody knows when to fire.
        return iter(())
    begin, end = _bounded(rule, start, until)
    if begin >= end:
        return iter(())
    every = _elapsed(cron, zone, begin) if cron.follows_elapsed else _local(cron, zone, begin)
    return takewhile(lambda at: at < end, every)


def rate_points(rule: TimeRule, start: Micros, until: Micros = HORIZON) -> range | None:
    """Return the instants of a fixed rate in closed form; None for a cron rule."""
    if rule.every_micros is None:
        return None
    begin, end = _bounded(rule, start, until)
    anchor = rule.anchor_at or 0
    steps = max(0, -(-(begin - anchor) // rule.every_micros))
    return range(anchor + steps * rule.every_micros, end, rule.every_micros)


def points_due(rule: TimeRule, start: Micros, until: Micros, *, limit: int) -> tuple[Sequence[Micros], bool]:
    """Return the instants from `start` on and before `until`, and whether there are more than these.

    Those of a rate are all there, in closed form; of a cron rule at most `limit`.
    """
    rate = rate_points(rule, start, until)
    if rate is not None:
        return rate, False
    found: list[Micros] = []
    for at in points(rule, start, until):
        if len(found) == limit:
            return found, True
        found.append(at)
    return found, False


def _bounded(rule: TimeRule, start: Micros, until: Micros) -> tuple[Micros, Micros]:
    begin = max(start, 0 if rule.starts_at is None else rule.starts_at)
    end = min(until, HORIZON) if rule.ends_at is None else min(until, rule.ends_at)
    return begin, end


def _minute_before(local: dt.datetime) -> dt.datetime:
    return local.replace(second=0, microsecond=0)


def _local(cron: Cron, zone: ZoneInfo, start: Micros) -> Iterator[Micros]:
    """Enumerate fixed local times, each once: several that fall into one gap are one instant."""
    last: Micros | None = None
    # The minute before `start` may lie before a gap, so that times within the gap are seen too.
    for local in local_times(cron, _minute_before(local_of(zone, start - 1))):
        at = instant_of(zone, local)
        if at >= start and at != last:
            last = at
            yield at


def _elapsed(cron: Cron, zone: ZoneInfo, start: Micros) -> Iterator[Micros]:
    """Enumerate the instants at which local clocks show a time that fits, stretch by stretch of one offset."""
    while start < HORIZON:
        offset, end = offset_at(zone, start), steady_until(zone, start)
        first = _minute_before(moment_at(start - 1 + offset).replace(tzinfo=None))
        for local in local_times(cron, first):
            at = (local - _EPOCH) // _MICROSECOND - offset
            if at >= end:
                break
            yield at
        start = end


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  (of local times, which have no zone)
_MICROSECOND = dt.timedelta(microseconds=1)
