"""Time rules against an oracle that looks at every minute, in zones whose clocks change in every way there is."""

import datetime as dt
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit.clock import SECOND, Micros, from_rfc3339
from orbit.errors import InvalidRequest
from pulse.schedules.cron import CronError, cron_read
from pulse.schedules.rules import TimeRule, next_point, points, points_due, rule_check
from pulse.schedules.zones import changes_in, instant_at, moment_at, zone_find, zone_names

DAY = dt.timedelta(days=1)
MINUTE = dt.timedelta(minutes=1)
# Half an hour, a winter that is the exception, midnight, two hours, a whole day left out, and a month of fasting.
ODD = [
    ("Australia/Lord_Howe", 2026),
    ("Europe/Dublin", 2026),
    ("America/Sao_Paulo", 2018),
    ("America/Havana", 2026),
    ("America/Santiago", 2026),
    ("Africa/Cairo", 2026),
    ("Asia/Beirut", 2026),
    ("Asia/Tehran", 2021),
    ("Antarctica/Troll", 2026),
    ("Pacific/Apia", 2011),
    ("Africa/Casablanca", 2026),
    ("America/New_York", 2026),
    ("Asia/Kathmandu", 2026),
]
MINUTES = ["*", "*/7", "*/15", "0", "30", "0,30", "15-45/10", "59"]
HOURS = ["*", "*/2", "0", "1", "2", "3", "0,2", "1-3", "23", "0-12/6"]


def rule(cron: str, timezone: str = "UTC", **fields: int) -> TimeRule:
    return TimeRule(cron=cron, timezone=timezone, **fields)


def instant(text: str) -> Micros:
    return from_rfc3339(text)


def texts(rule_: TimeRule, after: str, until: str) -> list[str]:
    """Write the instants after one and up to another, as the given cases list them."""
    found = points(rule_, instant(after) + 1, instant(until) + 1)
    return [moment_at(at).strftime("%Y-%m-%dT%H:%MZ") for at in found]


@lru_cache
def allowed(said: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for item in said.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        values.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


def fits(cron: str, local: dt.datetime) -> bool:
    minutes, hours, days, months, weekdays = cron.split()
    if local.minute not in allowed(minutes, 0, 59) or local.hour not in allowed(hours, 0, 23):
        return False
    day = local.day in allowed(days, 1, 31)
    weekday = local.isoweekday() % 7 in allowed(weekdays, 0, 6)
    either = (day or weekday) if days != "*" and weekdays != "*" else (day and weekday)
    return either and local.month in allowed(months, 1, 12)


@lru_cache(maxsize=8)
def clocks(zone: ZoneInfo, begin: dt.datetime, days: int) -> list[tuple[dt.datetime, dt.datetime]]:
    """List every minute of some days in UTC, with what clocks in the zone show."""
    minutes = (begin + number * MINUTE for number in range(days * 1440))
    return [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in minutes]


def oracle(cron: str, zone: ZoneInfo, begin: dt.datetime, days: int) -> list[dt.datetime]:
    """Find the instants of some days after the first two: a simple, slow reading of the rule."""
    shown = clocks(zone, begin, days)
    start = begin + 2 * DAY
    if any(sign in field for field in cron.split()[:2] for sign in "*/"):
        return [at for at, local in shown if at >= start and fits(cron, local)]
    first: dict[dt.datetime, dt.datetime] = {}
    for at, local in shown:
        first.setdefault(local, at)
    local, last = shown[0][1], shown[-1][1]
    found: set[dt.datetime] = set()
    while local <= last:
        if fits(cron, local):
            # A time that clocks never show is the first minute at which they show a later one.
            found.add(first.get(local) or next(at for at, seen in shown if seen > local))
        local += MINUTE
    return sorted(at for at in found if at >= start)


def compared(cron: str, zone: ZoneInfo, around: dt.datetime) -> None:
    begin = around.replace(hour=0, minute=0, second=0, microsecond=0) - 3 * DAY
    expected = oracle(cron, zone, begin, 7)
    if expected:
        expected = [at for at in expected if at < begin + 6 * DAY]  # at the very end a gap may look like no time
    found = points(rule(cron, zone.key), instant_at(begin + 2 * DAY), instant_at(begin + 6 * DAY))
    assert [moment_at(at) for at in found] == expected, (cron, zone.key, begin)


def zone(name: str) -> ZoneInfo:
    found = zone_find(name)
    assert found is not None
    return found


@pytest.mark.requirement("R210")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_r156_every_kind_of_change_is_met_as_the_oracle_says(data: st.DataObject) -> None:
    name, year = data.draw(st.sampled_from(ODD))
    cron = " ".join(
        [
            data.draw(st.sampled_from(MINUTES)),
            data.draw(st.sampled_from(HOURS)),
            data.draw(st.sampled_from(["*", "*", "1-15", "28,29,30,31"])),
            "*",
            data.draw(st.sampled_from(["*", "*", "0", "1-5"])),
        ]
    )
    changes = changes_in(zone(name), year) or (instant_at(dt.datetime(year, 3, 29, tzinfo=dt.UTC)),)
    compared(cron, zone(name), moment_at(data.draw(st.sampled_from(changes))))


def test_r156_all_zones_are_met_as_the_oracle_says() -> None:
    names = sorted(zone_names())
    step = 1 if os.environ.get("ORBIT_SOAK") else 24
    for number, name in enumerate(names[::step]):
        changes = [at for year in (2026, 2027) for at in changes_in(zone(name), year)]
        around = moment_at(changes[number % len(changes)]) if changes else dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
        for cron in ("30 2 * * *", "0 0 * * *", "*/30 * * * *"):
            compared(cron, zone(name), around)


def test_zones_are_those_of_the_package_to_the_letter() -> None:
    assert {"Europe/Kyiv", "Europe/Kiev", "CET", "EST5EDT", "UTC", "Asia/Kolkata"} <= zone_names()
    assert zone_find("america/new_york") is None
    assert [zone_find(name) for name in ("", "+02:00", "Mars/Phobos", "localtime", "Factory", "../UTC")] == [None] * 6


def test_changes_are_found_to_the_second() -> None:
    assert [moment_at(at).isoformat() for at in changes_in(zone("Europe/Berlin"), 2026)] == [
        "2026-03-29T01:00:00+00:00",
        "2026-10-25T01:00:00+00:00",
    ]
    assert changes_in(zone("UTC"), 2026) == ()


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("0 9 * * 1-5", "0 9 * * 1,2,3,4,5"),
        ("*/20 * * * *", "0,20,40 * * * *"),
        ("0 0 * jan,MAR mon-FRI", "0 0 * 1,3 1,2,3,4,5"),
        ("5 4 * * 7", "5 4 * * 0"),
        ("5 4 * * sat-sun", "5 4 * * 0,6"),
        ("5 4 * * 0-0", "5 4 * * 0"),
        ("0-10/5,30 1 1-31 */1 0-7", "0,5,10,30 1 * * *"),
        ("  0   0 * * *  ", "0 0 * * *"),
    ],
)
def test_r147_a_cron_expression_has_five_fields(said: str, plain: str) -> None:
    assert cron_read(said).plain == plain


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("0 0 0 * * *", "five fields"),
        ("@daily", "five fields"),
        ("", "five fields"),
        ("0 0 L * *", "day of month"),
        ("0 0 15W * *", "day of month"),
        ("0 0 ? * *", "day of month"),
        ("0 0 * * 5#3", "day of week"),
        ("0 0 * * H", "day of week"),
        ("0 0 * * foo", "day of week"),
        ("0 0 * * 8", "day of week"),
        ("60 0 * * *", "minute"),
        ("-1 0 * * *", "minute"),
        ("0/5 0 * * *", "minute"),
        ("*/0 0 * * *", "minute"),
        ("*/60 0 * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 5-3 * * *", "hour"),
        ("0 ,1 * * *", "hour"),
        ("0 0 0 * *", "day of month"),
        ("0 0 30 2 *", "day of month"),
        ("0 0 31 4,6,9,11 *", "day of month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * jannuary *", "month"),
        ("0 0 * 1\u0661 *", "month"),
        (" ".join(["0," * 130 + "0", "0", "*", "*", "*"]), "at most"),
    ],
)
def test_r147_a_refusal_names_the_field(said: str, field: str) -> None:
    with pytest.raises(CronError, match=field):
        cron_read(said)


def test_r148_a_rate_counts_from_its_anchor_in_closed_form() -> None:
    anchor = instant("2026-01-01T00:00:07.5Z")
    every = TimeRule(every_micros=10 * SECOND, anchor_at=anchor)
    assert list(islice(points(every, anchor - 3 * SECOND), 10)) == [anchor + n * 10 * SECOND for n in range(10)]
    assert next_point(every, anchor + 1) == anchor + 10 * SECOND
    far = instant("2150-01-01T00:00:00Z")
    due, is_cut = points_due(every, anchor, far, limit=5)
    assert (len(due), is_cut) == (-(-(far - anchor) // (10 * SECOND)), False)


@settings(max_examples=200, deadline=None)
@given(
    every=st.integers(SECOND, 10**12),
    anchor=st.integers(0, 10**15),
    start=st.integers(0, 10**15),
    span=st.integers(0, 10**7),
)
def test_r148_a_rate_leaves_no_instant_out(every: int, anchor: int, start: int, span: int) -> None:
    found = list(islice(points(TimeRule(every_micros=every, anchor_at=anchor), start, start + span), 100))
    steps = max(0, (start - anchor) // every)
    first = next(at for at in (anchor + n * every for n in count(steps)) if at >= start)
    expected: list[int] = []
    while first < start + span and len(expected) < 100:
        expected.append(first)
        first += every
    assert found == expected


def test_r145_nothing_lies_outside_the_bounds() -> None:
    begin, end = instant("2026-05-01T00:00:00Z"), instant("2026-05-03T00:00:00Z")
    daily = rule("0 0 * * *", starts_at=begin, ends_at=end)
    assert [moment_at(at).day for at in points(daily, 0)] == [1, 2]
    rate = TimeRule(every_micros=86_400 * SECOND, anchor_at=0, starts_at=begin, ends_at=end)
    assert list(points(rate, 0)) == list(points(daily, 0))
    assert next_point(daily, end) is None


def test_due_instants_are_cut_at_the_limit() -> None:
    begin = instant("2026-05-01T00:00:00Z")
    hourly = rule("0 * * * *")
    due, is_cut = points_due(hourly, begin, begin + 5 * 3600 * SECOND, limit=5)
    assert (len(due), is_cut) == (5, False)
    due, is_cut = points_due(hourly, begin, begin + 5 * 3600 * SECOND + 1, limit=5)
    assert (len(due), is_cut) == (5, True)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_enumeration_may_begin_anywhere(data: st.DataObject) -> None:
    name, year = data.draw(st.sampled_from(ODD))
    cron = f"{data.draw(st.sampled_from(MINUTES))} {data.draw(st.sampled_from(HOURS))} * * *"
    change = (changes_in(zone(name), year) or (instant_at(dt.datetime(year, 3, 29, tzinfo=dt.UTC)),))[0]
    begin, end = change - 7200 * SECOND, change + 7200 * SECOND
    whole = list(points(rule(cron, name), begin, end))
    start = data.draw(st.one_of(st.sampled_from([*whole, change]), st.integers(begin, end)))
    assert list(points(rule(cron, name), start, end)) == [at for at in whole if at >= start]
    assert all(a < b for a, b in pairwise(whole))


def refusals() -> Iterator[tuple[TimeRule, str]]:
    yield TimeRule(), "/cron"
    yield rule("* * * * *", every_micros=SECOND), "/cron"
    yield rule("* * * *"), "/cron"
    yield rule("0 0 30 2 *"), "/cron"
    yield TimeRule(cron="* * * * *"), "/timezone"
    yield rule("* * * * *", "Mars/Phobos"), "/timezone"
    yield rule("* * * * *", anchor_at=1), "/anchor_at"
    yield TimeRule(every_micros=SECOND - 1), "/every_seconds"
    yield TimeRule(every_micros=SECOND, timezone="UTC"), "/timezone"
    yield TimeRule(every_micros=SECOND, anchor_at=-1), "/anchor_at"
    yield rule("* * * * *", starts_at=5, ends_at=5), "/ends_at"
    yield rule("* * * * *", ends_at=5), "/ends_at"
    yield rule("* * * * *", starts_at=2**62), "/starts_at"
    yield rule("0 0 29 2 *", ends_at=instant("2027-01-01T00:00:00Z")), "/ends_at"


@pytest.mark.parametrize(("refused", "pointer"), list(refusals()))
def test_a_rule_without_a_next_instant_is_refused(refused: TimeRule, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rule_check(refused, start=instant("2026-05-01T00:00:00Z"))
    assert caught.value.pointer == pointer


def test_a_leap_day_comes_in_every_leap_year() -> None:
    leap = rule("0 0 29 2 *")
    found = islice(points(leap, instant("2025-01-01T00:00:00Z")), 3)
    assert [moment_at(at).year for at in found] == [2028, 2032, 2036]
    assert moment_at(next_point(leap, instant("2097-01-01T00:00:00Z")) or 0).year == 2104
    assert texts(rule("0 0 29 * *"), "2024-01-30T00:00:00Z", "2024-03-02T00:00:00Z") == ["2024-02-29T00:00Z"]
