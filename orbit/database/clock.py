"""The database's clock, with the one control that tests need: an offset added to every reading."""

from __future__ import annotations

import time

from orbit.clock import Micros, seconds


class DatabaseClock:
    """Offsets what the database says. In production the offset is zero and stays zero."""

    def __init__(self) -> None:
        self.offset_micros: Micros = 0

    def local_now(self) -> Micros:
        """Read the clock of an embedded database, which is this process's own."""
        return time.time_ns() // 1_000 + self.offset_micros

    def advance(self, *, seconds_forward: float) -> None:
        """Move the clock; a test's tool, negative to step back."""
        self.offset_micros += seconds(seconds_forward)
