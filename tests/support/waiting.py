"""Wait for something that happens elsewhere. This is the only place of the tests that sleeps."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# It only bounds how long a failing test takes: a machine may be ten times slower than ours, and busy besides.
WAIT_SECONDS_MAX = 60.0
_PAUSE_SECONDS_FIRST = 0.002
_PAUSE_SECONDS_MAX = 0.05


def wait_until(predicate: Callable[[], T], timeout: float = WAIT_SECONDS_MAX, *, what: str = "") -> T:
    """Call `predicate` until what it returns is true, and return that.

    Greenlets of this thread run meanwhile, if there are any. Raises AssertionError, naming `what`, after `timeout`
    seconds.
    """
    deadline = time.monotonic() + timeout
    pause_seconds = _PAUSE_SECONDS_FIRST
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            name = what or getattr(predicate, "__name__", "the condition")
            message = f"{name} did not come true within {timeout:g} s; last value: {value!r}"
            raise AssertionError(message)
        _pause(pause_seconds)
        pause_seconds = min(pause_seconds * 1.5, _PAUSE_SECONDS_MAX)
    return value


def _pause(seconds: float) -> None:
    gevent = sys.modules.get("gevent")
    (gevent.sleep if gevent is not None else time.sleep)(seconds)  # noqa: TID251
