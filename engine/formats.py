"""Which stored forms of an instance this node takes on, and in which one it starts new ones.

The surprising rule: an instance keeps the form in which it was started for life, whoever advances it, so an older node
can go on with what it has begun while newer ones run beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit.formats import FIRST, NEWEST, StoredFormat
from orbit.store.formats import formats_read

if TYPE_CHECKING:
    from orbit.database import Transaction


class StateFormats:
    """The forms of one node: it reads all up to `newest` and writes the newest that the database is finalized for."""

    def __init__(self, newest: int = NEWEST[StoredFormat.STATE]) -> None:
        self.newest = newest
        self._written = FIRST

    def to_write(self, tx: Transaction) -> int:
        """Give the form of a new instance. What is finalized stays so: once it is the newest, nothing is read."""
        if self._written < self.newest:
            self._written = min(self.newest, formats_read(tx)[StoredFormat.STATE])
        return self._written
