"""Who gets what of a claim: pure decisions over seats, rooms and entries in the order of dispatch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from pulse.keys import KeyRooms
from pulse.quotas import SharedRoom
from pulse.states import RecoverySafety

if TYPE_CHECKING:
    from pulse.store.lanes import ReadyKey


class Seat(Struct, frozen=True):
    """A session's room: how many tasks it takes in all, and of which lanes, with the handler's declared safety.

    What a handler declares counts for tasks whose type is not registered; else the safety frozen in the task does.
    """

    session_id: bytes
    room: int
    lanes: Mapping[bytes, RecoverySafety]
    namespace_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a batch may take: of each queue, of what queues share, and of concurrency keys. Counted down on the way."""

    queues: dict[bytes, int]
    shared: Mapping[bytes, SharedRoom] = field(default_factory=dict)
    keys: KeyRooms = field(default_factory=lambda: KeyRooms({}, {}))


def place(
    wanted: Sequence[tuple[bytes, bytes, bytes]], seats: Sequence[Seat], rooms: Rooms
) -> list[Seat | bytes | None]:
    """Give each (queue, lane, task), in order, the compatible seat with the most room left, within all rooms.

    The order of `wanted` is the order of dispatch. What finds no seat or no room is left for later (None); for a task
    that meets a full key that key is returned, whether there is room for it or not.
    """
    queue_rooms, keys = rooms.queues, rooms.keys
    seat_rooms = [seat.room for seat in seats]
    by_lane: dict[bytes, list[int]] = defaultdict(list)
    for index, seat in enumerate(seats):
        for lane_id in seat.lanes:
            by_lane[lane_id].append(index)
    placed: list[Seat | bytes | None] = []
    for queue_id, lane_id, task_id in wanted:
        full = keys.full(task_id) if keys.of_task else None
        best = max(by_lane[lane_id], key=seat_rooms.__getitem__, default=None)
        if full is not None or best is None or seat_rooms[best] <= 0 or queue_rooms[queue_id] <= 0:
            placed.append(full)
            continue
        quota = rooms.shared.get(queue_id)
        if quota is not None:
            if quota.left <= 0:
                placed.append(None)
                continue
            quota.left -= 1
        seat_rooms[best] -= 1
        queue_rooms[queue_id] -= 1
        keys.take(task_id)
        placed.append(seats[best])
    return placed


def owners_of(seats: Sequence[Seat]) -> dict[bytes, bytes]:
    """Return the namespace of each lane."""
    return {lane_id: seat.namespace_id for seat in seats for lane_id in seat.lanes}


def deal(
    keys: Sequence[ReadyKey], owners: Mapping[bytes, bytes], rooms: Mapping[bytes, int], wanted: int
) -> list[ReadyKey]:
    """Choose at most `wanted` entries in the order of dispatch, so that each namespace gets an even share.

    What a namespace has no work or no room for goes to the others. So however much others have ready, and however old
    it is, a namespace's first task is in the next round, and `wanted` over the number of namespaces of its tasks are.
    """
    ordered = sorted(keys, key=lambda key: (key.dispatch_at, key.task_id))
    if len(rooms) == 1:
        return ordered[:wanted]
    found: dict[bytes, list[ReadyKey]] = defaultdict(list)
    for key in ordered:
        found[owners[key.lane_id]].append(key)
    chosen: list[ReadyKey] = []
    left = wanted
    # Those that ask for least come first: what they leave of their share is spread over the rest.
    by_size = sorted((min(len(own), rooms[owner]), owner) for owner, own in found.items())
    for index, (count, owner) in enumerate(by_size):
        share = min(count, -(-left // (len(by_size) - index)))
        chosen.extend(found[owner][:share])
        left -= share
    return sorted(chosen, key=lambda key: (key.dispatch_at, key.task_id))


def rooms_of(seats: Sequence[Seat], *, look_min: int) -> dict[bytes, int]:
    """Return how many entries are worth a look for each namespace: its seats' room, but at least `look_min`."""
    rooms: dict[bytes, int] = defaultdict(int)
    for seat in seats:
        rooms[seat.namespace_id] += seat.room
    return {namespace_id: max(room, look_min) for namespace_id, room in rooms.items()}


def rooms_by_lane(seats: Sequence[Seat]) -> dict[bytes, int]:
    """Return the room of the seats that serve each lane."""
    rooms: dict[bytes, int] = defaultdict(int)
    for seat in seats:
        for lane_id in seat.lanes:
            rooms[lane_id] += seat.room
    return rooms
