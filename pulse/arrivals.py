"""What comes into lanes of `ready`, as the transactions of this process tell its dispatcher after their COMMIT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from orbit.clock import Micros


class Arrivals(Struct, frozen=True):
    """What has come into a lane: the lowest place among its new entries, and how many they are."""

    lowest: Micros
    count: int

    def plus(self, other: Arrivals) -> Arrivals:
        """Take two lots together."""
        return Arrivals(min(self.lowest, other.lowest), self.count + other.count)


# Room came free in the lane, but no entry was added.
NOTHING_NEW = Arrivals(2**62, 0)


def arrivals_by_lane(entries: Sequence[Mapping[str, Any]]) -> dict[bytes, Arrivals]:
    """Sum up new entries of `ready` by lane."""
    places: dict[bytes, list[Micros]] = {}
    for entry in entries:
        places.setdefault(entry["lane_id"], []).append(entry["dispatch_at"])
    return {lane_id: Arrivals(min(found), len(found)) for lane_id, found in places.items()}
