"""Workers connected to this node: what each can run, how much room it has, and which attempts it holds.

In-memory and a cache: losing it loses no fact. Flow control is credit: a session never holds more unfinished attempts
than its capacity. One that lets an assignment run out without a word gets nothing more until it answers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pulse import limits
from pulse.placement import Seat
from pulse.states import RecoverySafety

if TYPE_CHECKING:
    from pulse.claim import Assignment

_ASSIGN_SECONDS = limits.ASSIGN_MICROS / 1_000_000


@dataclass(frozen=True, slots=True)
class Handler:
    """What a worker can run, and what it says of repeating it."""

    type: str
    version: int
    recovery: RecoverySafety


@dataclass(frozen=True, slots=True)
class HandlerRefusal:
    """A handler that contradicts what its type is registered as; it is given nothing."""

    handler: Handler
    registered: RecoverySafety


@dataclass(frozen=True, slots=True)
class SessionHello:
    """A worker's declaration; `queues` are names within the credential's range."""

    namespace_id: bytes
    credential_id: bytes
    worker: str
    queues: frozenset[str]
    handlers: tuple[Handler, ...]
    capacity: int


@dataclass(frozen=True, slots=True)
class CancelNotice:
    """A worker should stop an attempt, and why."""

    attempt_id: bytes
    reason: str


class Outbox(Protocol):
    """The way to a worker. Its calls put into a bounded queue and never wait for the network."""

    def has_room(self) -> bool:
        """Say whether the way is free enough for another batch; a slow network is no reason to lease more."""

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Hand out tasks."""

    def cancel(self, notices: Sequence[CancelNotice]) -> None:
        """Ask for attempts to be stopped."""

    def drain(self, spread_ms: int) -> None:
        """Say that this node goes away; the worker reconnects elsewhere within the spread."""


class Offer(Protocol):
    """Room of this node's workers for tasks of lanes that stood empty, kept free until it is used or withdrawn.

    `waiting` tells for each of these lanes how many tasks have come into it since: they get their permits first.
    """

    seats: Sequence[Seat]
    waiting: Mapping[bytes, int]

    def deliver(self, assignments: Sequence[Assignment]) -> None:
        """Send what was handed out, after COMMIT, and give back the rest of the room."""

    def withdraw(self) -> None:
        """Give back the room: the transaction was rolled back, and is better run without."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a lane means to a worker: the queue's name, the task type and its version."""

    queue: str
    type: str
    version: int


@dataclass(slots=True)
class _Holding:
    task_id: bytes
    assigned_at: float
    has_answered: bool


class Session:
    """One connected worker."""

    def __init__(self, session_id: bytes, hello: SessionHello, outbox: Outbox) -> None:
        self.id = session_id
        self.hello = hello
        self.outbox = outbox
        self.lanes: Mapping[bytes, RecoverySafety] = {}
        self.places: Mapping[bytes, Place] = {}
        self.refused: Sequence[HandlerRefusal] = ()
        self.is_draining = False
        self.is_unresponsive = False
        self._capacity = hello.capacity
        self._held: dict[bytes, _Holding] = {}
        self._reserved = 0

    def serve(self, lanes: Mapping[bytes, tuple[Place, RecoverySafety]]) -> None:
        """Set the lanes that it serves."""
        self.places = {lane_id: place for lane_id, (place, _) in lanes.items()}
        self.lanes = {lane_id: safety for lane_id, (_, safety) in lanes.items()}

    def room(self) -> int:
        """Say how many more tasks it may be given now."""
        if self.is_draining or self.is_unresponsive or not self.outbox.has_room():
            return 0
        return max(0, self._capacity - len(self._held) - self._reserved)

    def reserve(self, count: int) -> None:
        """Keep room for tasks that are being handed out; a negative number gives it back."""
        self._reserved += count

    def seat(self) -> Seat | None:
        """Return its seat in a claim, or None if it has no room or no lane."""
        room = self.room()
        return Seat(self.id, room, self.lanes, self.hello.namespace_id) if room and self.lanes else None

    def is_nearly_full(self) -> bool:
        """Say whether it holds three quarters of what it takes."""
        return len(self._held) * 4 >= self._capacity * 3

    def set_capacity(self, capacity: int) -> None:
        """Set its declared room, absolute; less than it holds revokes nothing."""
        self._capacity = capacity

    def hold(self, attempt_id: bytes, task_id: bytes, *, has_answered: bool = False) -> None:
        """Note an attempt that it holds."""
        self._held[attempt_id] = _Holding(task_id, time.monotonic(), has_answered)

    def answered(self, attempt_ids: Collection[bytes]) -> None:
        """Note that it has said something of these attempts, which makes it responsive again."""
        self.is_unresponsive = False
        for attempt_id in attempt_ids:
            holding = self._held.get(attempt_id)
            if holding is not None:
                holding.has_answered = True

    def drop(self, attempt_ids: Collection[bytes]) -> bool:
        """Forget attempts that are no longer live; say whether any was held.

        The lease sweep may find a silent assignment before `drop_silent` does, so that is noted here as well.
        """
        before = len(self._held)
        late = time.monotonic() - _ASSIGN_SECONDS / 2
        for attempt_id in attempt_ids:
            held = self._held.pop(attempt_id, None)
            if held is not None and not held.has_answered and held.assigned_at < late:
                self.is_unresponsive = True
        return len(self._held) < before

    def drop_silent(self) -> bool:
        """Forget assignments that ran out without a word, and give it nothing more until it answers."""
        late = time.monotonic() - _ASSIGN_SECONDS
        silent = [key for key, held in self._held.items() if not held.has_answered and held.assigned_at < late]
        for attempt_id in silent:
            del self._held[attempt_id]
        self.is_unresponsive = self.is_unresponsive or bool(silent)
        return bool(silent)

    def attempts_of(self, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
        """Return which of the tasks it holds: attempt → task."""
        return {key: held.task_id for key, held in self._held.items() if held.task_id in task_ids}

    def held_count(self) -> int:
        """Count the attempts that it holds."""
        return len(self._held)
