"""What this process has read and what never changes again: the id of a name, an attempt's task. Losing it is harmless.

A fact is learned after the COMMIT of the transaction that read or made it, so nothing rolled back is ever believed.
What does change is kept in a memory of its own kind, which knows how old it may be.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar, cast

MemoryT = TypeVar("MemoryT")

_FACTS_MAX = 50_000


class Facts:
    """Immutable facts by key, bounded; when full it forgets everything and learns again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, bytes] = {}
        self._memories: dict[type[object], object] = {}

    def get(self, key: Hashable) -> bytes | None:
        """Return a fact, or None if it is not known."""
        return self._known.get(key)

    def learn(self, facts: Mapping[Hashable, bytes]) -> None:
        """Remember facts."""
        if len(self._known) >= _FACTS_MAX:
            self._known.clear()
        self._known.update(facts)

    def memory(self, kind: type[MemoryT]) -> MemoryT:
        """Return the one object of a kind, made when it is first asked for: it keeps itself true and bounded."""
        found = self._memories.get(kind)
        if found is None:
            # Two threads may both make one; they must go on with the same.
            found = self._memories.setdefault(kind, kind())
        return cast("MemoryT", found)
