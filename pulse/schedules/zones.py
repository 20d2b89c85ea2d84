"""Time zones: from local times to instants by one rule, and back; where a zone's offset changes.

The rule, told in `docs/schedules.md`: a local time that does not exist is the first instant after the gap, one that
occurs twice is the first of the two. Zones are read from the package `tzdata` alone: nodes whose systems know
other zones, or other rules for them, would disagree on when a schedule fires.
"""

from __future__ import annotations

import datetime as dt
from functools import cache, lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

from orbit.clock import SECOND, Micros

# What no schedule goes beyond: no zone has rules that far ahead, and no datetime overflows on the way.
HORIZON_YEAR = 2200
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
# No zone has changed its offset twice within so short a time.
_STEP_SECONDS = 6 * 3600
# A placeholder of the database for systems that were never set up.
_NO_ZONES = frozenset({"Factory"})


@cache
def zone_names() -> frozenset[str]:
    """Return the names that zones are known by, old ones that still stand for a zone included."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return frozenset(listed.split()) - _NO_ZONES


@lru_cache(maxsize=1024)
def zone_find(name: str) -> ZoneInfo | None:
    """Return the zone of this exact name, or None: names differ by case, and offsets are no zones."""
    if name not in zone_names():
        return None
    folder, _, leaf = f"zoneinfo/{name}".rpartition("/")
    with resources.files("tzdata").joinpath(*folder.split("/")).joinpath(leaf).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def instant_at(moment: dt.datetime) -> Micros:
    """Turn a moment with a zone into microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_at(instant: Micros) -> dt.datetime:
    """Turn microseconds since the epoch into a moment in UTC."""
    return _EPOCH + dt.timedelta(microseconds=instant)


HORIZON: Micros = instant_at(dt.datetime(HORIZON_YEAR, 1, 1, tzinfo=dt.UTC))


def local_of(zone: ZoneInfo, instant: Micros) -> dt.datetime:
    """Return what clocks in a zone show at an instant."""
    return moment_at(instant).astimezone(zone).replace(tzinfo=None, fold=0)


def offset_at(zone: ZoneInfo, instant: Micros) -> Micros:
    """Return how far a zone's clocks are ahead of UTC at an instant."""
    offset = moment_at(instant).astimezone(zone).utcoffset()
    assert offset is not None, "a zone has an offset at every instant"
    return offset // _MICROSECOND


def instant_of(zone: ZoneInfo, local: dt.datetime) -> Micros:
    """Return the one instant that stands for a local time: the first of two, or the first after the gap."""
    instant = instant_at(local.replace(tzinfo=zone, fold=0))
    if local_of(zone, instant) == local:
        return instant
    # In a gap fold=1 reads the time by the later offset, which gives an instant before the change, fold=0 one behind.
    return _change_between(zone, instant_at(local.replace(tzinfo=zone, fold=1)), instant)


@lru_cache(maxsize=4096)
def changes_in(zone: ZoneInfo, year: int) -> tuple[Micros, ...]:
    """Return the instants of a year (UTC) at which a zone's offset changes."""
    first = instant_at(dt.datetime(year, 1, 1, tzinfo=dt.UTC))
    last = instant_at(dt.datetime(year + 1, 1, 1, tzinfo=dt.UTC))
    found = []
    before, offset = first - 1, offset_at(zone, first - 1)
    for at in range(first + _STEP_SECONDS * SECOND - 1, last, _STEP_SECONDS * SECOND):
        now = offset_at(zone, at)
        if now != offset:
            found.append(_change_between(zone, before, at))
        before, offset = at, now
    return tuple(found)


def steady_until(zone: ZoneInfo, instant: Micros) -> Micros:
    """Return an instant after the given one up to which, without it, a zone's offset stays: at most the year's end."""
    year = moment_at(instant).year
    following = [at for at in changes_in(zone, year) if at > instant]
    return following[0] if following else instant_at(dt.datetime(year + 1, 1, 1, tzinfo=dt.UTC))


def _change_between(zone: ZoneInfo, before: Micros, after: Micros) -> Micros:
    """Find the first instant of the offset that holds at `after` and not at `before`; changes are at whole seconds."""
    offset = offset_at(zone, before)
    low, high = before // SECOND, -(-after // SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, middle * SECOND) == offset:
            low = middle
        else:
            high = middle
    return high * SECOND
