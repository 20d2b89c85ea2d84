"""Start: the second phase. Before it is granted the handler has certainly not run, so every refusal is harmless.

A grant keeps its message id: the same id gets the same answer, another id on a RUNNING attempt gets ALREADY_STARTED.
RATE_LIMITED writes no receipt and spends no attempt, it only prolongs the assignment, so that the worker can ask again
with the same id. Any other refusal ends the attempt ABANDONED in the same transaction. Locks: tasks, attempts,
concurrency keys, usage, quotas.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from pulse import limits
from pulse.claim import token_hash, window_room, window_stands
from pulse.policy import Decision, Ending, Finish, Requeue, on_released, passed_deadline
from pulse.quotas import Permits, permits_lock
from pulse.quotas import starts_count as quota_starts_count
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import AttemptState, TaskState
from pulse.store.counters import Usage, starts_grant, usage_lock
from pulse.store.execute import StartWrite, assignments_extend, attempts_start, tasks_start
from pulse.store.key import key_ids, keys_lock
from pulse.store.rows import LockedAttempt, LockedTask, attempts_lock_with_tasks, attempts_lock_with_usage

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class StartCode(StrEnum):
    """Why a Start was not granted."""

    RATE_LIMITED = "RATE_LIMITED"  # ask again with the same message id
    QUEUE_PAUSED = "QUEUE_PAUSED"
    HELD = "HELD"  # its gate is closed
    CANCELLED = "CANCELLED"
    DEADLINE = "DEADLINE"
    LEASE_LOST = "LEASE_LOST"  # the attempt is unknown, has ended, or the token is not its own
    ALREADY_STARTED = "ALREADY_STARTED"


# An operator's doing: it keeps its place, and no release that follows waits longer for it.
_NO_FAULT = frozenset({StartCode.QUEUE_PAUSED, StartCode.HELD})


class StartItem(Struct, frozen=True):
    """A worker asks to start an attempt that it holds; `message_id` has 16 bytes."""

    message_id: bytes
    attempt_id: bytes
    token: str


class StartOutcome(Struct, frozen=True):
    """The answer to one item; spans in microseconds. `lease_micros` tells how long the lease lasts from now."""

    message_id: bytes
    granted: bool
    code: StartCode | None = None
    retry_after_micros: Micros = 0
    lease_micros: Micros = 0


@dataclass(frozen=True, slots=True)
class _Limits:
    usages: Mapping[bytes, Usage]
    permits: Permits


class _Asked(Struct, frozen=True):
    item: StartItem
    task: LockedTask
    attempt: LockedAttempt


class KeysFirst(Exception):
    """A refusal gives concurrency keys back, whose locks come before those of usage that are held: start again."""


def start(
    tx: Transaction, items: Sequence[StartItem], around: Surroundings, *, with_keys: bool = True
) -> list[StartOutcome]:
    """Grant or refuse a batch of Starts; one outcome for each item, in order.

    A grant needs no key, and that anything is refused is known only under the usage's lock. So it can be tried without
    the keys' locks (`with_keys`), and raises KeysFirst where they turn out to be needed.
    """
    ids = {item.attempt_id for item in items}
    if with_keys:
        tasks, attempts = attempts_lock_with_tasks(tx, ids)
        keys_lock(tx, {key for task in tasks.values() for key in key_ids(task)})
        usages: Mapping[bytes, Usage] = {}
    else:
        tasks, attempts, usages = attempts_lock_with_usage(tx, ids)
    if not usages:
        usages = usage_lock(tx, {task.queue_id for task in tasks.values()})
    permits = permits_lock(tx, usages.values())
    now = tx.now()
    outcomes: dict[int, StartOutcome] = {}
    asked: dict[int, _Asked] = {}
    asking: set[bytes] = set()
    for index, item in enumerate(items):
        attempt = attempts.get(item.attempt_id)
        seen = None if attempt is None else _seen_before(item, attempt, now=now)
        if attempt is None or not hmac.compare_digest(attempt.token_hash, token_hash(item.token)):
            outcomes[index] = _refused(item, StartCode.LEASE_LOST)
        elif seen is not None:
            outcomes[index] = seen
        elif attempt.id in asking:
            outcomes[index] = _refused(item, StartCode.ALREADY_STARTED)
        else:
            asking.add(attempt.id)
            asked[index] = _Asked(item, tasks[attempt.task_id], attempt)
    judged, refusals = _judge(tx, asked, _Limits(usages, permits), now=now)
    if not with_keys and any(refusal.task.concurrency_keys is not None for refusal in refusals):
        raise KeysFirst
    settle(tx, refusals, around, now=now)
    outcomes |= judged
    return [outcomes[index] for index in range(len(items))]


def _seen_before(item: StartItem, attempt: LockedAttempt, *, now: Micros) -> StartOutcome | None:
    """Answer for an attempt that is no longer LEASED; None if it still waits for its Start."""
    if attempt.state is AttemptState.LEASED:
        return None
    if attempt.state is not AttemptState.RUNNING:
        return _refused(item, StartCode.LEASE_LOST)
    if attempt.start_message_id != item.message_id:
        return _refused(item, StartCode.ALREADY_STARTED)
    left = max(0, (attempt.lease_expires_at or now) - now)
    return StartOutcome(item.message_id, granted=True, lease_micros=left)


def _refused(item: StartItem, code: StartCode) -> StartOutcome:
    return StartOutcome(item.message_id, granted=False, code=code)


def _judge(
    tx: Transaction,
    asked: Mapping[int, _Asked],
    limited_by: _Limits,
    *,
    now: Micros,
) -> tuple[dict[int, StartOutcome], list[Settlement]]:
    """Write what is granted or has to wait; return the outcomes, and the refusals that are still to be settled."""
    outcomes: dict[int, StartOutcome] = {}
    granted: dict[bytes, list[_Asked]] = defaultdict(list)
    limited: dict[bytes, Micros] = {}
    refusals: list[Settlement] = []
    usages = limited_by.usages
    room = {queue_id: window_room(usage, now=now) for queue_id, usage in usages.items()}
    shared = limited_by.permits.start_rooms(now=now)
    for index, ask in asked.items():
        usage = usages[ask.task.queue_id]
        refusal = _refusal(ask, usage, now=now)
        if refusal is not None:
            code, decision = refusal
            outcomes[index] = _refused(ask.item, code)
            released = int(code not in _NO_FAULT)
            refusals.append(Settlement(ask.task, decision, ask.attempt, AttemptState.ABANDONED, released=released))
        elif room[usage.queue_id] <= 0:
            outcomes[index] = _limited(ask, usage.window_started_at, limited, now=now)
        elif (quota := shared.get(usage.queue_id)) is not None and quota.left <= 0:
            window = limited_by.permits.window_of(usage.queue_id)
            outcomes[index] = _limited(ask, window, limited, now=now)
        else:
            room[usage.queue_id] -= 1
            if quota is not None:
                quota.left -= 1
            granted[usage.queue_id].append(ask)
            outcomes[index] = StartOutcome(ask.item.message_id, granted=True, lease_micros=_lease(ask, now) - now)
    _grant(tx, granted, usages, now=now)
    quota_starts_count(tx, limited_by.permits, {key: len(asks) for key, asks in granted.items()}, now=now)
    assignments_extend(tx, limited)
    return outcomes, refusals


def _refusal(ask: _Asked, usage: Usage, *, now: Micros) -> tuple[StartCode, Decision] | None:
    """Say why this attempt may not start at all, and what becomes of its task."""
    budget = ask.task.budget()
    ending = Ending(budget, ask.attempt.recovery, now, jitter=0.0)
    if ask.attempt.lease_expires_at is None or ask.attempt.lease_expires_at <= now:
        return StartCode.LEASE_LOST, on_released(ending)
    if budget.is_cancel_wanted:
        return StartCode.CANCELLED, Finish(TaskState.CANCELLED)
    if ask.task.held_since is not None:
        return StartCode.HELD, Requeue()
    error = passed_deadline(budget, now=now)
    if error is not None:
        return StartCode.DEADLINE, Finish(TaskState.FAILED, error)
    if usage.paused:
        return StartCode.QUEUE_PAUSED, Requeue()
    return None


def _limited(ask: _Asked, window: Micros, limited: dict[bytes, Micros], *, now: Micros) -> StartOutcome:
    window_end = window + limits.RATE_WINDOW_MICROS
    until = min(now + limits.ASSIGN_MICROS, ask.attempt.leased_at + limits.RATE_LIMITED_ASSIGN_MICROS_MAX)
    until = max(until, ask.attempt.lease_expires_at or 0)
    limited[ask.attempt.id] = until
    wait = max(window_end - now, 1_000)
    return StartOutcome(ask.item.message_id, False, StartCode.RATE_LIMITED, wait, until - now)  # noqa: FBT003


def _lease(ask: _Asked, now: Micros) -> Micros:
    return min(now + limits.LEASE_MICROS, _limit(ask, now))


def _limit(ask: _Asked, now: Micros) -> Micros:
    return min(now + ask.task.attempt_timeout_micros, ask.task.deadline_at)


def _grant(
    tx: Transaction, granted: Mapping[bytes, Sequence[_Asked]], usages: Mapping[bytes, Usage], *, now: Micros
) -> None:
    every = [ask for asks in granted.values() for ask in asks]
    if not every:
        return
    tasks_start(tx, {ask.task.id for ask in every})
    writes: list[StartWrite] = []
    for queue_id in sorted(granted):
        usage, asks = usages[queue_id], granted[queue_id]
        stands = window_stands(usage, now=now)
        # A Start counts in the window that stands under its lock, even if the clock reads a little earlier.
        window = usage.window_started_at if stands else now
        used = (usage.window_used if stands else 0) + len(asks)
        starts_grant(tx, queue_id, granted=len(asks), window=window, used=used)
        started_at = max(now, window)
        for ask in asks:
            write = StartWrite(ask.attempt.id, ask.item.message_id, started_at, _limit(ask, now), _lease(ask, now))
            writes.append(write)
    attempts_start(tx, writes)
