"""JSON as bytes for machines: the canonical form that digests are made of, and the quick way to write a value.

Apart from `orbit.jsontext` because these are on every hot path and load msgspec and OpenSSL, which `orbit --help`
starts without. The rule is on the caller: a value is one that `orbit.jsontext.parse` has read, or that Orbit has made.
NaN and Infinity would become null, bytes would become text.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from orbit.jsontext import Json

_canonical = msgspec.json.Encoder(order="sorted")
_compact = msgspec.json.Encoder()


def canonical(value: Json) -> bytes:
    """Write a value in its one canonical form: sorted keys, no spaces, UTF-8, integers exact."""
    return _canonical.encode(value)


def digest(value: Json) -> bytes:
    """Hash a value's canonical form: SHA-256, 32 bytes."""
    return sha256(_canonical.encode(value)).digest()


def compact(value: Json) -> bytes:
    """Write a value compactly, keys in their own order: what `orbit.jsontext.dumps` does, many times as fast."""
    return _compact.encode(value)
