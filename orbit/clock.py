"""Instants and spans: whole microseconds since the Unix epoch, UTC.

The one clock is the database's (`Transaction.now`). This module only converts; it never reads a clock. Integers are
exact, compare the same on every database and can't be rounded by a column's precision or shifted by a session's zone.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache

from orbit.errors import InvalidRequest

Micros = int

SECOND: Micros = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d{2}):(\d{2}))\Z", re.ASCII
)


def seconds(value: float) -> Micros:
    """Turn a span in seconds into microseconds, to the nearest one."""
    return round(value * SECOND)


def to_rfc3339(instant: Micros) -> str:
    """Write an instant as `2026-11-30T12:00:00.000000Z`, always with six digits."""
    whole, micros = divmod(instant, SECOND)
    return f"{_whole_second(whole)}.{micros:06d}Z"


@lru_cache(maxsize=1024)
def _whole_second(value: int) -> str:
    return (_EPOCH + dt.timedelta(seconds=value)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def from_rfc3339(text: str, *, pointer: str | None = None) -> Micros:
    """Read an RFC 3339 instant; digits beyond the sixth are cut off, never rounded up.

    Raises InvalidRequest naming `pointer` if the text is not one, an offset is missing, or the date does not exist.
    """
    match = _RFC3339.match(text)
    message = "an instant is written as RFC 3339 with an offset, as in 2026-11-30T12:00:00Z"
    if match is None:
        raise InvalidRequest(message, pointer=pointer)
    year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        moment = dt.datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), micros, tzinfo=dt.UTC
        )
    except ValueError:
        raise InvalidRequest(message, pointer=pointer) from None
    span = 0 if sign is None else (int(offset_hours) * 3600 + int(offset_minutes) * 60) * SECOND
    return (moment - _EPOCH) // _MICROSECOND + (span if sign == "-" else -span)
