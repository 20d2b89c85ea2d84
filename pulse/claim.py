"""Claim: pick what can run, take permits, make attempts. One transaction.

Locks: `ready` (one range of its primary key, SKIP LOCKED), tasks (SKIP LOCKED, with their payloads), and the queues'
usage last. Who gets what is decided in pure code between the last lock and the first write.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.ids import new_id
from pulse import limits
from pulse.quotas import SharedRoom, permits_lock
from pulse.states import RecoverySafety, TaskState
from pulse.store.counters import Usage, UsageMove, usage_lock, usage_move
from pulse.store.execute import NewAttempt, attempts_insert, checkpoints_read, tasks_lease
from pulse.store.lanes import ReadyKey, ready_delete, ready_head, ready_lock
from pulse.store.rows import LockedTask, Payload, attempts_learn, tasks_lock_free
from pulse.window import stands

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Seat(Struct, frozen=True):
    """A session's room: how many tasks it takes in all, and of which lanes, with the handler's declared safety."""

    session_id: bytes
    room: int
    lanes: Mapping[bytes, RecoverySafety]


class Demand(Struct, frozen=True):
    """What a node has room for; `from_at` is a hint for each lane below which nothing is expected."""

    seats: Sequence[Seat]
    from_at: Mapping[bytes, Micros]


class Assignment(Struct, frozen=True):
    """A claimed task, for the session that gets it."""

    session_id: bytes
    attempt_id: bytes
    token: str
    task: LockedTask
    payload: Payload
    attempt_number: int
    checkpoint: str | None
    deadline_in_micros: Micros


class Claimed(Struct, frozen=True):
    """A claim's yield.

    `reached` tells for each lane the place up to which it was emptied (None: look from its head again),
    `room_in_micros` when the next rate window opens, if a closed one held tasks back.
    """

    assignments: Sequence[Assignment]
    reached: Mapping[bytes, Micros | None]
    room_in_micros: Micros | None = None
    remaining: frozenset[bytes] = frozenset()  # lanes that may hold more


def claim(tx: Transaction, demand: Demand) -> Claimed:
    """Claim up to the room of all seats, at most one batch."""
    wanted = min(sum(seat.room for seat in demand.seats), limits.CLAIM_BATCH_MAX)
    by_lane: dict[bytes, int] = defaultdict(int)
    for seat in demand.seats:
        for lane_id in seat.lanes:
            by_lane[lane_id] += seat.room
    quotas = {lane_id: min(room, wanted) for lane_id, room in by_lane.items()}
    remaining: set[bytes] = set()
    if len(quotas) > _LANES_LOCKED_AT_ONCE:
        quotas = _merge_heads(tx, demand, quotas, wanted)
        remaining.update(quotas)
    keys: list[ReadyKey] = []
    reached: dict[bytes, Micros | None] = {}
    for lane_id in sorted(quotas):
        found = ready_lock(tx, lane_id, from_at=demand.from_at.get(lane_id, _EVER), limit=quotas[lane_id])
        is_full = len(found) == quotas[lane_id]
        reached[lane_id] = found[-1].dispatch_at if is_full else None
        if is_full:
            remaining.add(lane_id)
        keys.extend(found)
    if not keys:
        return Claimed([], reached, remaining=frozenset(remaining))
    keys.sort(key=lambda key: (key.dispatch_at, key.task_id))
    assignments, room_in = _lease(tx, demand, keys[:wanted])
    taken = {item.task.id for item in assignments}
    for key in keys:
        if key.task_id not in taken:
            # Left in place for want of room: the next claim must see it again.
            reached[key.lane_id] = None
            remaining.add(key.lane_id)
    return Claimed(assignments, reached, room_in, frozenset(remaining))


_EVER: Micros = -(2**62)
# Up to so many lanes are locked at once and what is too much is left; of more the heads are looked at first.
_LANES_LOCKED_AT_ONCE = 3


def _merge_heads(tx: Transaction, demand: Demand, quotas: Mapping[bytes, int], wanted: int) -> dict[bytes, int]:
    """Look at all lanes' heads without locks and share the room by the order of dispatch."""
    heads: list[ReadyKey] = []
    for lane_id in sorted(quotas):
        heads.extend(ready_head(tx, lane_id, from_at=demand.from_at.get(lane_id, _EVER), limit=quotas[lane_id]))
    heads.sort(key=lambda key: (key.dispatch_at, key.task_id))
    shared: dict[bytes, int] = defaultdict(int)
    for key in heads[:wanted]:
        shared[key.lane_id] += 1
    return shared


def _lease(tx: Transaction, demand: Demand, keys: Sequence[ReadyKey]) -> tuple[list[Assignment], Micros | None]:
    locked = tasks_lock_free(tx, [key.task_id for key in keys])
    waiting = [
        (key, *locked[key.task_id])
        for key in keys
        if key.task_id in locked and locked[key.task_id][0].state is TaskState.WAITING
    ]
    if not waiting:
        return [], None
    checkpoints = checkpoints_read(tx, [task.id for _, task, _ in waiting if task.starts_count > 0])
    usages = usage_lock(tx, {task.queue_id for _, task, _ in waiting})
    permits = permits_lock(tx, usages.values())
    now = tx.now()
    rooms = {queue_id: claim_room(usage, now=now) for queue_id, usage in usages.items()}
    shared = permits.claim_rooms(now=now)
    placed = place([(task.queue_id, key.lane_id) for key, task, _ in waiting], demand.seats, rooms, shared)
    assignments: list[Assignment] = []
    attempts: list[NewAttempt] = []
    for (_, task, payload), seat in zip(waiting, placed, strict=True):
        if seat is None:
            continue
        attempt, token = _attempt(task, seat)
        attempts.append(attempt)
        assignments.append(
            Assignment(
                session_id=seat.session_id,
                attempt_id=attempt.id,
                token=token,
                task=task,
                payload=payload,
                attempt_number=task.starts_count + 1,
                checkpoint=checkpoints.get(task.id),
                deadline_in_micros=task.deadline_at - now,
            )
        )
    taken = {item.task.id for item in assignments}
    _take(tx, [key for key in keys if key.task_id in taken], assignments, attempts, now=now)
    closed = [usage for usage in usages.values() if not usage.paused and window_room(usage, now=now) <= 0]
    begins = [usage.window_started_at for usage in closed]
    if any(room.left <= 0 for room in shared.values()):
        begins += [at for at in permits.windows() if stands(at, now=now)]
    return assignments, min((at + limits.RATE_WINDOW_MICROS - now for at in begins), default=None)


def _take(
    tx: Transaction,
    keys: Sequence[ReadyKey],
    assignments: Sequence[Assignment],
    attempts: Sequence[NewAttempt],
    *,
    now: Micros,
) -> None:
    """Write what was decided: entries out of `ready`, tasks leased, attempts made, permits taken."""
    if not assignments:
        return
    deleted = ready_delete(tx, keys)
    assert deleted == len(keys), f"{deleted} of {len(keys)} locked entries of ready were there"
    tasks_lease(tx, [item.task.id for item in assignments])
    attempts_insert(tx, attempts, now=now, expires_at=now + limits.ASSIGN_MICROS)
    attempts_learn(tx, {item.id: item.task_id for item in attempts})
    moves: dict[bytes, UsageMove] = defaultdict(UsageMove)
    for item in assignments:
        moves[item.task.queue_id].active += 1
        moves[item.task.queue_id].leased_unstarted += 1
    usage_move(tx, moves)


def _attempt(task: LockedTask, seat: Seat) -> tuple[NewAttempt, str]:
    token = secrets.token_hex(16)
    attempt = NewAttempt(
        id=new_id(),
        task_id=task.id,
        number=task.leases_count + 1,
        token_hash=token_hash(token),
        recovery=seat.lanes[task.lane_id],
        session_id=seat.session_id,
    )
    return attempt, token


def token_hash(token: str) -> bytes:
    """Hash an execution credential; it has 128 random bits."""
    return hashlib.sha256(token.encode()).digest()


def claim_room(usage: Usage, *, now: Micros) -> int:
    """Say how many tasks a queue may still lease: permits, and window room not yet reserved by leases."""
    if usage.paused:
        return 0
    return max(0, min(usage.max_concurrency - usage.active, window_room(usage, now=now) - usage.leased_unstarted))


def window_room(usage: Usage, *, now: Micros) -> int:
    """Say how many Starts the current rate window, or the one that would open now, still has."""
    return usage.rate_per_second - (usage.window_used if window_stands(usage, now=now) else 0)


def window_stands(usage: Usage, *, now: Micros) -> bool:
    """Say whether the stored window still counts."""
    return stands(usage.window_started_at, now=now)


_UNSHARED: Mapping[bytes, SharedRoom] = {}


def place(
    wanted: Sequence[tuple[bytes, bytes]],
    seats: Sequence[Seat],
    rooms: Mapping[bytes, int],
    shared: Mapping[bytes, SharedRoom] = _UNSHARED,
) -> list[Seat | None]:
    """Give each (queue, lane), in order, the compatible seat with the most room left, within the queues' rooms.

    The order of `wanted` is the order of dispatch; what finds no seat or no room is left for later. `shared` is what
    queues share, by queue: it is counted down.
    """
    queue_rooms = dict(rooms)
    seat_rooms = [seat.room for seat in seats]
    by_lane: dict[bytes, list[int]] = defaultdict(list)
    for index, seat in enumerate(seats):
        for lane_id in seat.lanes:
            by_lane[lane_id].append(index)
    placed: list[Seat | None] = []
    for queue_id, lane_id in wanted:
        best = max(by_lane[lane_id], key=seat_rooms.__getitem__, default=None)
        if best is None or seat_rooms[best] <= 0 or queue_rooms[queue_id] <= 0:
            placed.append(None)
            continue
        quota = shared.get(queue_id)
        if quota is not None:
            if quota.left <= 0:
                placed.append(None)
                continue
            quota.left -= 1
        seat_rooms[best] -= 1
        queue_rooms[queue_id] -= 1
        placed.append(seats[best])
    return placed
