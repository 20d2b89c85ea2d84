"""What this process has read and what never changes again: the id of a name, an attempt's task. Losing it is harmless.

A fact is learned after the COMMIT of the transaction that read or made it, so nothing rolled back is ever believed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

_FACTS_MAX = 50_000


class Facts:
    """Immutable facts by key, bounded; when full it forgets everything and learns again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, bytes] = {}

    def get(self, key: Hashable) -> bytes | None:
        """Return a fact, or None if it is not known."""
        return self._known.get(key)

    def learn(self, facts: Mapping[Hashable, bytes]) -> None:
        """Remember facts."""
        if len(self._known) >= _FACTS_MAX:
            self._known.clear()
        self._known.update(facts)
