"""Identifiers: UUIDv7 (RFC 9562), 16 bytes inside and in the database, 32 hex digits outside.

The time part makes inserts land at the right edge of an index. No logic compares ids for order.
"""

from __future__ import annotations

import random
import re
import time

from orbit.errors import InvalidRequest

_HEX = re.compile(r"[0-9a-f]{32}\Z")
_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_MASK_B = (1 << 62) - 1


def new_id() -> bytes:
    """Mint a UUIDv7: 48 bits of milliseconds, 74 random bits."""
    bits = random.getrandbits(74)  # names, not secrets; Python seeds it from the system, and anew after a fork
    value = ((time.time_ns() // 1_000_000) << 80) | _VERSION_7 | ((bits >> 62) << 64) | _VARIANT
    return (value | (bits & _MASK_B)).to_bytes(16, "big")


def to_hex(identifier: bytes) -> str:
    """Write an id as 32 lower-case hex digits."""
    return identifier.hex()


def from_hex(text: str, *, pointer: str | None = None) -> bytes:
    """Read 32 hex digits; raise InvalidRequest naming `pointer` for anything else."""
    if not _HEX.match(text):
        message = "an id has 32 lower-case hex digits"
        raise InvalidRequest(message, pointer=pointer)
    return bytes.fromhex(text)
