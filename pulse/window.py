"""The one-second window of a rate limit, of a queue's or an application's."""

from __future__ import annotations

from orbit.clock import Micros
from pulse import limits


def stands(started_at: Micros, *, now: Micros) -> bool:
    """Say whether a window that began then still counts.

    It lasts one second on the database's clock. One that begins more than a second in the future is from before a step
    back of the clock, and is replaced.
    """
    return -limits.RATE_WINDOW_MICROS <= now - started_at < limits.RATE_WINDOW_MICROS
