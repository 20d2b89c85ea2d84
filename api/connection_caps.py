"""How many worker sockets one credential and one address may hold on this node.

Counts only; whether an address is right (a proxy in front hides the workers') is the operator's to know: behind a
proxy the cap per address is raised or 0, which means none. A place is held until the socket's greenlet has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from orbit.errors import OrbitError


class TooManyConnections(OrbitError):
    """The credential or the address holds as many worker sockets as it may on this node."""

    code = "TOO_MANY_CONNECTIONS"
    status = 429
    retryable = True
    retry_after_seconds: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class CapLimits:
    """The most sockets per address and per credential; 0 means no limit."""

    per_address: int = 2_000
    per_credential: int = 2_000


class ConnectionCaps:
    """The sockets that are open now, counted by address and by credential."""

    def __init__(self, limits: CapLimits) -> None:
        self._limits = limits
        self._held: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def address(self, address: str) -> Iterator[None]:
        """Hold a place of an address; raise TooManyConnections when there is none."""
        with self._place(("address", address), self._limits.per_address):
            yield

    @contextmanager
    def credential(self, credential: str) -> Iterator[None]:
        """Hold a place of a credential; raise TooManyConnections when there is none."""
        with self._place(("credential", credential), self._limits.per_credential):
            yield

    def open_count(self) -> int:
        """Count the places that are held by credentials."""
        return sum(count for (kind, _), count in self._held.items() if kind == "credential")

    @contextmanager
    def _place(self, key: tuple[str, str], limit: int) -> Iterator[None]:
        if limit and self._held[key] >= limit:
            raise TooManyConnections(f"this {key[0]} already holds {limit} worker connections on this node")
        self._held[key] += 1
        try:
            yield
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
