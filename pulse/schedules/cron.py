"""Five-field cron expressions: read strictly, then enumerated in local time by croniter.

Croniter is given nothing but plain lists of numbers: its dialect (seconds, years, `L`, `#`, hashes, aliases) is not
ours, and neither is its idea of clock changes. The surprising rule: a field that allows every value restricts nothing,
however it is written; where both day fields restrict, a day that fits either one counts.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from croniter import croniter
from msgspec import Struct

EXPRESSION_LENGTH_MAX = 256
_ITEM = re.compile(r"(?:(\*)|([0-9]{1,2}|[A-Za-z]{3})(?:-([0-9]{1,2}|[A-Za-z]{3}))?)(?:/([0-9]{1,2}))?", re.ASCII)
_LEAP_YEAR = 2024
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


class CronError(ValueError):
    """An expression that can't be used; the message names the field."""


class _Field(Struct, frozen=True):
    """What one field may hold. `top` is the highest number that may be written: a Sunday is 0 or 7."""

    name: str
    low: int
    high: int
    top: int
    names: Mapping[str, int]


_FIELDS = (
    _Field("minute", 0, 59, 59, {}),
    _Field("hour", 0, 23, 23, {}),
    _Field("day of month", 1, 31, 31, {}),
    _Field("month", 1, 12, 12, _MONTHS),
    _Field("day of week", 0, 6, 7, _DAYS),
)


class Cron(Struct, frozen=True):
    """An expression that was read: `plain` is the same in lists of numbers.

    With `follows_elapsed` it has a wildcard or step in its hour or minute: it goes by time that has passed, not by
    single local times.
    """

    plain: str
    follows_elapsed: bool


@lru_cache(maxsize=4096)
def cron_read(text: str) -> Cron:
    """Read an expression; raise CronError for what is not five fields, or never comes."""
    fields = text.split()
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise CronError(f"an expression has at most {EXPRESSION_LENGTH_MAX} characters")
    if len(fields) != len(_FIELDS):
        raise CronError(
            "five fields are expected: minute, hour, day of month, month, day of week; "
            f"these are {len(fields)}. There are no seconds, years or aliases such as @daily"
        )
    values = [_field_values(field, said) for field, said in zip(_FIELDS, fields, strict=True)]
    _check_days(values[2], values[3], values[4])
    plain = " ".join(_plain(field, each) for field, each in zip(_FIELDS, values, strict=True))
    return Cron(plain, any(sign in said for said in fields[:2] for sign in "*/"))


def local_times(cron: Cron, after: dt.datetime) -> Iterator[dt.datetime]:
    """Enumerate the local times, whole minutes, that come after one; clocks that never change are assumed."""
    times = croniter(cron.plain, after)
    while True:
        yield times.get_next(dt.datetime)


def _field_values(field: _Field, said: str) -> list[int]:
    found: set[int] = set()
    for item in said.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise CronError(
                f"{field.name}: {item!r} is none of *, a value, a range a-b, a step */n or a-b/n, or a list of those"
            )
        star, first, last, step = match.groups()
        if step is not None and star is None and last is None:
            raise CronError(f"{field.name}: a step needs a range, as in {first}-{field.high}/{step}")
        if star is not None:
            low, high = field.low, field.high
        else:
            low = _number(field, first)
            high = low if last is None else _number(field, last)
            if last is not None and field.top > field.high and low > high == field.low:
                high = field.top  # a week may end on a Sunday that is written as a name
        if high < low:
            raise CronError(f"{field.name}: the range {item!r} goes backwards")
        width = 1 if step is None else int(step)
        if not 1 <= width <= field.top:
            raise CronError(f"{field.name}: a step is from 1 to {field.top}")
        found.update(field.low if number > field.high else number for number in range(low, high + 1, width))
    return sorted(found)


def _number(field: _Field, word: str) -> int:
    number = field.names.get(word.lower()) if word.isalpha() else int(word)
    if number is None or not field.low <= number <= field.top:
        names = f", or {', '.join(field.names)}" if field.names else ""
        raise CronError(f"{field.name}: {word!r} is none of {field.low} to {field.top}{names}")
    return number


def _check_days(days: Sequence[int], months: Sequence[int], weekdays: Sequence[int]) -> None:
    """Refuse a day that none of the months has; a restricted day of week always comes."""
    longest = max(calendar.monthrange(_LEAP_YEAR, month)[1] for month in months)
    if len(weekdays) == len(_DAYS) and min(days) > longest:
        raise CronError(f"day of month: none of the months has a day {min(days)}")


def _plain(field: _Field, values: Sequence[int]) -> str:
    if len(values) == field.high - field.low + 1:
        return "*"
    return ",".join(map(str, values))
