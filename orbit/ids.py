"""Identifiers: UUIDv7 (RFC 9562), 16 bytes inside and in the database, 32 hex digits outside.

The time part makes inserts land at the right edge of an index, and lists that break ties of an instant by the id keep
the order in which a process made things (RFC 9562, section 6.2, method 3). No other logic compares ids for order.
"""

from __future__ import annotations

import random
import re
import time

from orbit.errors import InvalidRequest

_HEX = re.compile(r"[0-9a-f]{32}\Z")
_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_MILLI_NANOS = 1_000_000


class _Stamps:
    """Instants of this process in 1/4096 of a millisecond, each above the one before, whatever the clock does."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        millis, nanos = divmod(time.time_ns(), _MILLI_NANOS)
        self._last = stamp = max(millis << 12 | (nanos << 12) // _MILLI_NANOS, self._last + 1)
        return stamp


_stamps = _Stamps()


def new_id() -> bytes:
    """Mint a UUIDv7: 60 bits of time, above all that this process has minted before, and 62 random bits."""
    stamp = _stamps.next()
    bits = random.getrandbits(62)  # names, not secrets; Python seeds it from the system, and anew after a fork
    value = (stamp >> 12) << 80 | _VERSION_7 | (stamp & 0xFFF) << 64 | _VARIANT | bits
    return value.to_bytes(16, "big")


def to_hex(identifier: bytes) -> str:
    """Write an id as 32 lower-case hex digits."""
    return identifier.hex()


def from_hex(text: str, *, pointer: str | None = None) -> bytes:
    """Read 32 hex digits; raise InvalidRequest naming `pointer` for anything else."""
    if not _HEX.match(text):
        message = "an id has 32 lower-case hex digits"
        raise InvalidRequest(message, pointer=pointer)
    return bytes.fromhex(text)
