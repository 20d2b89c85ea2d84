"""Fair places: start-time fair queueing over the fairness keys of a lane (Goyal, Vin, Cheng 1996).

A task's place is never before its lane's head and never before one quantum after its key's last place, so a key with a
single task waits for at most one task of every other key, however many they have. What a key did while nobody else
waited is not held against it: in an empty lane all begin anew. The priority is a weight here, from 1 (0) to 10 (9): it
makes the quantum shorter. A place is given when a task enters `ready` by its time, and stays until it is retried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pulse import limits
from pulse.store.fair import fair_keys_read, places_write, shares_insert, shares_lock, shares_move
from pulse.store.lanes import Look, ready_heads
from pulse.store.rows import dispatch_at, ready_key

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.store.rows import LockedTask

_EVER: Micros = -(2**62)


class Arrival(Struct, frozen=True):
    """A task that enters a lane: its fairness key, the place that it would have without, and its priority."""

    lane_id: bytes
    key: bytes
    place: Micros
    priority: int

    def share_id(self) -> bytes:
        """Name the key's share of the lane."""
        return _share_id(self.lane_id, self.key)


@lru_cache(maxsize=1_024)
def _share_id(lane_id: bytes, key: bytes) -> bytes:
    return hashlib.sha256(lane_id + key).digest()[:16]


def quantum(priority: int) -> Micros:
    """Say how far apart tasks of one key stand."""
    return limits.FAIR_QUANTUM_MICROS * (limits.PRIORITY_MAX + 1 - priority)


def arrange(
    arrivals: Sequence[Arrival], heads: Mapping[bytes, Micros | None], shares: Mapping[bytes, Micros]
) -> tuple[list[Micros], dict[bytes, Micros]]:
    """Place arrivals in their order: a place for each, and how far each key has come.

    `heads` are the lowest places in the lanes (None: empty), `shares` how far the keys had come.
    """
    floors = dict(heads)
    moved: dict[bytes, Micros] = {}
    places: list[Micros] = []
    for arrival in arrivals:
        share_id, floor = arrival.share_id(), floors[arrival.lane_id]
        if floor is None:
            floor = floors[arrival.lane_id] = arrival.place
        before = None if heads[arrival.lane_id] is None else shares.get(share_id)
        place = max(floor, moved.get(share_id, floor if before is None else before))
        moved[share_id] = place + quantum(arrival.priority)
        places.append(place)
    return places, moved


def fair_lock(tx: Transaction, arrivals: Sequence[Arrival]) -> dict[bytes, Micros]:
    """Lock the shares of arrivals ahead, for a caller that locks counters before it knows which of them come in."""
    return shares_lock(tx, {arrival.share_id() for arrival in arrivals}) if arrivals else {}


def fair_places(
    tx: Transaction, arrivals: Sequence[Arrival], locked: Mapping[bytes, Micros] | None = None
) -> list[Micros]:
    """Give arrivals their places. Locks the keys' shares, after all tasks and before pure inserts, if they aren't."""
    if not arrivals:
        return []
    lanes = {arrival.share_id(): arrival.lane_id for arrival in arrivals}
    shares = shares_lock(tx, lanes.keys()) if locked is None else locked
    looks = [Look(lane_id, _EVER, 1) for lane_id in sorted(set(lanes.values()))]
    found = ready_heads(tx, looks)
    heads = {look.lane_id: first[0].dispatch_at if first else None for look, first in zip(looks, found, strict=True)}
    places, moved = arrange(arrivals, heads, shares)
    shares_move(tx, {share_id: at for share_id, at in moved.items() if share_id in shares})
    shares_insert(tx, [(key, lanes[key], at) for key, at in sorted(moved.items()) if key not in shares])
    return places


def entries_make(tx: Transaction, tasks: Sequence[LockedTask]) -> list[dict[str, Any]]:
    """Make entries in `ready` for locked tasks that enter it by their time; with a fairness key they get a place."""
    fair = [task for task in tasks if task.fair_at is not None]
    placed: dict[bytes, Micros] = {}
    if fair:
        keys = fair_keys_read(tx, [task.id for task in fair])
        arrivals = [Arrival(task.lane_id, keys[task.id], _plain(task), task.priority) for task in fair]
        placed = dict(zip((task.id for task in fair), fair_places(tx, arrivals), strict=True))
        places_write(tx, placed)
    entries = [ready_key(task) for task in tasks]
    return [entry | {"dispatch_at": placed.get(entry["task_id"], entry["dispatch_at"])} for entry in entries]


def _plain(task: LockedTask) -> Micros:
    return dispatch_at(accepted_at=task.accepted_at, available_at=task.available_at, priority=task.priority)
