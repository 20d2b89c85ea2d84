"""Spans of time as they are written: `500ms`, `30s`, `10m`, `1h`, `3d`, and combinations such as `1h30m`.

Whole numbers only, the larger unit first and each unit once, so that a span has one reading.
"""

from __future__ import annotations

import re

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SPAN = re.compile(
    r"(?=[0-9])(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?"
)


def parse_duration(text: str) -> float | None:
    """Return the span in seconds, or None if `text` is no span."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    # Milliseconds are added as such: 0.1 as a sum of binary fractions would miss a limit of 0.1.
    milliseconds = sum(int(number) * round(unit * 1_000) for number, unit in parts if number)
    return milliseconds / 1_000


def format_duration(seconds: float) -> str:
    """Write a span in the language's own form, rounded up to a millisecond."""
    left = -int(-seconds * 1_000 // 1)
    parts = []
    for name, unit in _UNITS.items():
        amount, left = divmod(left, round(unit * 1_000))
        if amount:
            parts.append(f"{amount}{name}")
    return "".join(parts) or "0s"
