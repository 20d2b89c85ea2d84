"""The database's clock, with the two controls that tests need: an offset added to every reading, and standing still."""

from __future__ import annotations

import time

from orbit.clock import Micros, seconds


class DatabaseClock:
    """Offsets what the database says. In production the offset is zero and stays zero."""

    def __init__(self) -> None:
        self.offset_micros: Micros = 0
        self._stands = False
        self._stands_at: Micros | None = None

    def local_now(self) -> Micros:
        """Read the clock of an embedded database, which is this process's own."""
        return self.shown(time.time_ns() // 1_000)

    def shown(self, read: Micros) -> Micros:
        """Return what a reading of the real clock counts as."""
        if self._stands:
            if self._stands_at is None:
                self._stands_at = read
            read = self._stands_at
        return read + self.offset_micros

    def advance(self, *, seconds_forward: float) -> None:
        """Move the clock; a test's tool, negative to step back."""
        self.offset_micros += seconds(seconds_forward)

    def stand_still(self) -> None:
        """Let nothing but `advance` move the clock from its next reading on: a slow machine then changes no outcome."""
        self._stands, self._stands_at = True, None

    def go_on(self) -> None:
        """Follow the real clock again."""
        self._stands = False
