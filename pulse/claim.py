"""Claim: pick what can run, take permits, make attempts. One transaction.

Locks: `ready` (one range of its primary key, SKIP LOCKED), tasks (SKIP LOCKED, with their payloads), concurrency keys
where a task has any, and the queues' usage last. Who gets what is decided in pure code between the last lock and the
first write. A task that meets a full key leaves `ready` for the key's line. Namespaces share a round evenly.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from orbit.ids import new_id
from pulse import limits
from pulse.keys import rooms_lock, rooms_write
from pulse.placement import Rooms, Seat, deal, owners_of, place, rooms_by_lane, rooms_of
from pulse.quotas import Permits, permits_lock
from pulse.states import TaskState
from pulse.store.counters import Usage, UsageMove, usage_lock, usage_move
from pulse.store.execute import NewAttempt, attempts_insert, checkpoints_read, tasks_lease
from pulse.store.key import LineKey
from pulse.store.lanes import Look, ReadyKey, ready_delete, ready_heads, ready_lock
from pulse.store.rows import LockedTask, Payload, attempts_learn, tasks_lock_free
from pulse.window import stands

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Demand(Struct, frozen=True):
    """What a node has room for; `from_at` is a hint for each lane below which nothing is expected.

    `look_min` entries of a lane are looked at whatever the room: where the last claim met blocked tasks, more may stand
    behind them.
    """

    seats: Sequence[Seat]
    from_at: Mapping[bytes, Micros]
    look_min: int = 1
    fencing_epoch: int = 1


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
    fencing: int


class Claimed(Struct, frozen=True):
    """A claim's yield.

    `reached` tells for each lane the place up to which it was emptied (None: look from its head again),
    `room_in_micros` when the next rate window opens, if a closed one held tasks back.
    """

    assignments: Sequence[Assignment]
    reached: Mapping[bytes, Micros | None]
    room_in_micros: Micros | None = None
    remaining: frozenset[bytes] = frozenset()  # lanes that may hold more
    blocked: int = 0  # tasks that left `ready` for a line
    is_key_free: bool = False  # a wake-up was written


def claim(tx: Transaction, demand: Demand) -> Claimed:
    """Claim up to the room of all seats, at most one batch."""
    wanted = min(sum(seat.room for seat in demand.seats), limits.CLAIM_BATCH_MAX)
    rooms = rooms_of(demand.seats, look_min=demand.look_min)
    looks = {lane_id: max(min(room, wanted), demand.look_min) for lane_id, room in rooms_by_lane(demand.seats).items()}
    remaining: set[bytes] = set()
    if len(looks) > _LANES_LOCKED_AT_ONCE:
        looks = _merge_heads(tx, demand, looks, rooms)
        remaining.update(looks)
    keys: list[ReadyKey] = []
    reached: dict[bytes, Micros | None] = {}
    in_order = _in_order(demand, looks)
    for look, found in zip(in_order, ready_lock(tx, in_order), strict=True):
        is_full = len(found) == look.limit
        reached[look.lane_id] = found[-1].dispatch_at if is_full else None
        if is_full:
            remaining.add(look.lane_id)
        keys.extend(found)
    if not keys:
        return Claimed([], reached, remaining=frozenset(remaining))
    chosen = deal(keys, owners_of(demand.seats), rooms, max(wanted, demand.look_min))
    yielded = _lease(tx, demand, chosen)
    for key in keys:
        if key.task_id not in yielded.gone:
            # Left in place for want of room: the next claim must see it again.
            reached[key.lane_id] = None
            remaining.add(key.lane_id)
    return Claimed(
        yielded.assignments,
        reached,
        yielded.room_in_micros,
        frozenset(remaining),
        len(yielded.gone) - len(yielded.assignments),
        yielded.is_key_free,
    )


_EVER: Micros = -(2**62)
# Up to so many lanes are locked at once and what is too much is left; of more the heads are looked at first.
_LANES_LOCKED_AT_ONCE = 3


def _merge_heads(
    tx: Transaction, demand: Demand, looks: Mapping[bytes, int], rooms: Mapping[bytes, int]
) -> dict[bytes, int]:
    """Look at all lanes' heads without locks and share the room by the order of dispatch."""
    heads = [key for found in ready_heads(tx, _in_order(demand, looks)) for key in found]
    wanted = min(sum(seat.room for seat in demand.seats), limits.CLAIM_BATCH_MAX)
    shared: dict[bytes, int] = defaultdict(int)
    for key in deal(heads, owners_of(demand.seats), rooms, max(wanted, demand.look_min)):
        shared[key.lane_id] += 1
    return shared


def _in_order(demand: Demand, looks: Mapping[bytes, int]) -> list[Look]:
    """Name the looks in the order of their lanes, in which locks are taken."""
    return [Look(lane_id, demand.from_at.get(lane_id, _EVER), looks[lane_id]) for lane_id in sorted(looks)]


class _Yield(Struct, frozen=True):
    """What became of the entries of a claim: assignments, and all tasks that left `ready`."""

    assignments: list[Assignment]
    gone: frozenset[bytes]
    room_in_micros: Micros | None = None
    is_key_free: bool = False


def _lease(tx: Transaction, demand: Demand, keys: Sequence[ReadyKey]) -> _Yield:
    locked = tasks_lock_free(tx, [key.task_id for key in keys])
    waiting = [
        (key, *locked[key.task_id])
        for key in keys
        if key.task_id in locked and locked[key.task_id][0].state is TaskState.WAITING
    ]
    if not waiting:
        return _Yield([], frozenset())
    checkpoints = checkpoints_read(tx, [task.id for _, task, _ in waiting if task.starts_count > 0])
    key_rooms = rooms_lock(tx, [task for _, task, _ in waiting])
    usages = usage_lock(tx, {task.queue_id for _, task, _ in waiting})
    permits = permits_lock(tx, usages.values())
    now = tx.now()
    rooms = Rooms(
        {queue_id: claim_room(usage, now=now) for queue_id, usage in usages.items()},
        permits.claim_rooms(now=now),
        key_rooms,
    )
    placed = place([(task.queue_id, key.lane_id, task.id) for key, task, _ in waiting], demand.seats, rooms)
    assignments: list[Assignment] = []
    attempts: list[NewAttempt] = []
    blocked: dict[bytes, LineKey] = {}
    for (key, task, payload), seat in zip(waiting, placed, strict=True):
        if seat is None:
            continue
        if isinstance(seat, bytes):
            blocked[task.id] = LineKey(seat, *key)
            continue
        attempt, assignment = attempt_make(task, payload, seat, fencing_epoch=demand.fencing_epoch, now=now)
        attempts.append(attempt)
        checkpoint = checkpoints.get(task.id)
        assignments.append(assignment if checkpoint is None else replace(assignment, checkpoint=checkpoint))
    gone = frozenset({item.task.id for item in assignments} | blocked.keys())
    if gone:
        ready_delete(tx, [key for key in keys if key.task_id in gone], may_miss=False)
    # Before the queues' usage is written, which is locked already: nobody waits for keys with that in hand.
    is_key_free = rooms_write(tx, key_rooms, [item.task.id for item in assignments], blocked, now=now)
    _take(tx, assignments, attempts, now=now)
    return _Yield(assignments, gone, _room_in(usages, permits, rooms, now=now), is_key_free)


def _room_in(usages: Mapping[bytes, Usage], permits: Permits, rooms: Rooms, *, now: Micros) -> Micros | None:
    """Say when the next rate window opens, of those that held tasks back."""
    closed = [usage for usage in usages.values() if not usage.paused and window_room(usage, now=now) <= 0]
    begins = [usage.window_started_at for usage in closed]
    if any(room.left <= 0 for room in rooms.shared.values()):
        begins += [at for at in permits.windows() if stands(at, now=now)]
    return min((at + limits.RATE_WINDOW_MICROS - now for at in begins), default=None)


def _take(tx: Transaction, assignments: Sequence[Assignment], attempts: Sequence[NewAttempt], *, now: Micros) -> None:
    """Write what was decided: tasks leased, attempts made, permits taken."""
    if not assignments:
        return
    tasks_lease(tx, [item.task.id for item in assignments])
    attempts_insert(tx, attempts, now=now, expires_at=now + limits.ASSIGN_MICROS)
    attempts_learn(tx, {item.attempt_id: item.task for item in assignments})
    moves: dict[bytes, UsageMove] = defaultdict(UsageMove)
    for item in assignments:
        moves[item.task.queue_id].active += 1
        moves[item.task.queue_id].leased_unstarted += 1
    usage_move(tx, moves)


def attempt_make(
    task: LockedTask, payload: Payload, seat: Seat, *, fencing_epoch: int, now: Micros
) -> tuple[NewAttempt, Assignment]:
    """Make an attempt of a task that is still WAITING, for a seat that serves its lane."""
    token = secrets.token_hex(16)
    attempt = NewAttempt(
        id=new_id(),
        task_id=task.id,
        number=task.leases_count + 1,
        token_hash=token_hash(token),
        recovery=task.recovery or seat.lanes[task.lane_id],
        session_id=seat.session_id,
    )
    assignment = Assignment(
        session_id=seat.session_id,
        attempt_id=attempt.id,
        token=token,
        task=task,
        payload=payload,
        attempt_number=task.starts_count + 1,
        checkpoint=None,
        deadline_in_micros=task.deadline_at - now,
        fencing=(fencing_epoch << 32) + task.fencing_base + task.starts_count + 1,
    )
    return attempt, assignment


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
