"""Leases: renewed, given back, taken up again by a reconnected worker, and ended when they run out.

Renewal extends a lease; it never resurrects one and never goes beyond the attempt's limit. It locks attempt rows only.
Everything that ends an attempt locks its task first.
"""

from __future__ import annotations

import hmac
import random
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from pulse import limits
from pulse.claim import token_hash
from pulse.policy import Ending, TaskError, on_released, on_unknown, passed_limit
from pulse.settle import Settlement, Surroundings, settle
from pulse.states import AttemptState, ErrorClass
from pulse.store.execute import attempts_adopt, attempts_expired, attempts_renew, cancels_wanted, progress_write
from pulse.store.rows import LockedAttempt, LockedTask, attempts_lock, attempts_lock_with_tasks

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Held(Struct, frozen=True):
    """A worker names an attempt that it holds, by id and token."""

    attempt_id: bytes
    token: str


class RenewOutcome(Struct, frozen=True):
    """The lease's length from now, or None if there is none left; `cancel` is the reason of a wanted cancel."""

    attempt_id: bytes
    lease_micros: Micros | None
    cancel: str | None = None


class Verdict(StrEnum):
    """What a reconnected worker does with an attempt that it still holds."""

    HELD = "HELD"  # go on
    START_AGAIN = "START_AGAIN"  # the Start was not recorded: ask again
    LOST = "LOST"  # stop, cancel what can be cancelled
    RECORDED = "RECORDED"  # its result is recorded: drop it


class Resumed(Struct, frozen=True):
    """The verdict on one attempt; `lease_micros` as it stands, `cancel` the reason of a wanted cancel."""

    attempt_id: bytes
    verdict: Verdict
    lease_micros: Micros = 0
    cancel: str | None = None


class Progress(Struct, frozen=True):
    """The last progress of a running attempt, as JSON text."""

    held: Held
    text: str


def _is_holder(attempt: LockedAttempt | None, held: Held) -> bool:
    return attempt is not None and hmac.compare_digest(attempt.token_hash, token_hash(held.token))


def renew(tx: Transaction, items: Sequence[Held]) -> list[RenewOutcome]:
    """Extend leases; one outcome for each item, in order."""
    attempts = attempts_lock(tx, {item.attempt_id for item in items})
    now = tx.now()
    alive = {
        item.attempt_id: attempts[item.attempt_id]
        for item in items
        if _is_holder(attempts.get(item.attempt_id), item) and _is_running(attempts[item.attempt_id], now)
    }
    cancels = cancels_wanted(tx, {attempt.task_id for attempt in alive.values()})
    if alive:
        attempts_renew(tx, alive.keys(), until=now + limits.LEASE_MICROS)
    outcomes: list[RenewOutcome] = []
    for item in items:
        attempt = alive.get(item.attempt_id)
        if attempt is None:
            outcomes.append(RenewOutcome(item.attempt_id, None))
        else:
            left = min(limits.LEASE_MICROS, (attempt.limit_at or now) - now)
            outcomes.append(RenewOutcome(item.attempt_id, left, cancels.get(attempt.task_id)))
    return outcomes


def _is_running(attempt: LockedAttempt, now: Micros) -> bool:
    return attempt.state is AttemptState.RUNNING and (attempt.lease_expires_at or 0) > now


def progress(tx: Transaction, items: Sequence[Progress]) -> None:
    """Keep the last progress of each attempt that runs and is held by who says so."""
    attempts = attempts_lock(tx, {item.held.attempt_id for item in items})
    kept = {
        item.held.attempt_id: item.text
        for item in items
        if _is_holder(attempts.get(item.held.attempt_id), item.held)
        and attempts[item.held.attempt_id].state is AttemptState.RUNNING
    }
    progress_write(tx, kept)


def release(tx: Transaction, items: Sequence[Held], around: Surroundings) -> list[bool]:
    """Take back attempts that were not started; False for one that is not the caller's or no longer LEASED."""
    tasks, attempts = attempts_lock_with_tasks(tx, {item.attempt_id for item in items})
    now = tx.now()
    released: dict[bytes, Settlement] = {}
    for item in items:
        attempt = attempts.get(item.attempt_id)
        if attempt is not None and _is_holder(attempt, item) and attempt.state is AttemptState.LEASED:
            released[attempt.id] = _undo(tasks[attempt.task_id], attempt, now)
    settle(tx, list(released.values()), around, now=now)
    return [item.attempt_id in released for item in items]


def _undo(task: LockedTask, attempt: LockedAttempt, now: Micros) -> Settlement:
    ending = Ending(task.budget(), attempt.recovery, now, jitter=0.0)
    return Settlement(task, on_released(ending), attempt, AttemptState.ABANDONED, released=1)


def resume(tx: Transaction, session_id: bytes, items: Sequence[Held]) -> list[Resumed]:
    """Move attempts to the worker's new session and say what to do with each; one verdict for each, in order."""
    attempts = attempts_lock(tx, {item.attempt_id for item in items})
    now = tx.now()
    verdicts: list[Resumed] = []
    adopted: list[bytes] = []
    running: dict[bytes, bytes] = {}
    for item in items:
        attempt = attempts.get(item.attempt_id)
        if attempt is None or not _is_holder(attempt, item):
            verdicts.append(Resumed(item.attempt_id, Verdict.LOST))
            continue
        left = (attempt.lease_expires_at or 0) - now
        match attempt.state:
            case AttemptState.LEASED | AttemptState.RUNNING if left > 0:
                adopted.append(attempt.id)
                running[attempt.id] = attempt.task_id
                verdict = Verdict.HELD if attempt.state is AttemptState.RUNNING else Verdict.START_AGAIN
                verdicts.append(Resumed(item.attempt_id, verdict, left))
            case AttemptState.SUCCEEDED | AttemptState.FAILED | AttemptState.CANCELLED:
                verdicts.append(Resumed(item.attempt_id, Verdict.RECORDED))
            case AttemptState.RETURNED | AttemptState.DEFERRED:
                verdicts.append(Resumed(item.attempt_id, Verdict.RECORDED))
            case _:
                verdicts.append(Resumed(item.attempt_id, Verdict.LOST))
    attempts_adopt(tx, set(adopted), session_id)
    cancels = cancels_wanted(tx, set(running.values()))
    return [
        Resumed(v.attempt_id, v.verdict, v.lease_micros, cancels.get(running.get(v.attempt_id, b""))) for v in verdicts
    ]


def expire(tx: Transaction, candidates: Sequence[bytes], around: Surroundings) -> int:
    """End those of the attempts whose lease has passed under their locks; return how many."""
    tasks, attempts = attempts_lock_with_tasks(tx, candidates)
    now = tx.now()
    settlements = [
        _expired(tasks[attempt.task_id], attempt, now)
        for attempt in attempts.values()
        if attempt.lease_expires_at is not None and attempt.lease_expires_at <= now
    ]
    settle(tx, settlements, around, now=now)
    return len(settlements)


def give_up(tx: Transaction, candidates: Sequence[bytes], around: Surroundings) -> int:
    """End those of the attempts that are live, whatever their lease says; return how many."""
    tasks, attempts = attempts_lock_with_tasks(tx, candidates)
    now = tx.now()
    settlements = []
    for attempt in attempts.values():
        task = tasks[attempt.task_id]
        if attempt.state is AttemptState.LEASED:
            settlements.append(_undo(task, attempt, now))
        elif attempt.state is AttemptState.RUNNING:
            settlements.append(_lost(task, attempt, now))
    settle(tx, settlements, around, now=now)
    return len(settlements)


def expired(tx: Transaction, *, limit: int) -> list[bytes]:
    """Read, without locks, attempts whose lease has passed."""
    return attempts_expired(tx, now=tx.now(), limit=limit)


def _expired(task: LockedTask, attempt: LockedAttempt, now: Micros) -> Settlement:
    if attempt.state is AttemptState.LEASED:
        return _undo(task, attempt, now)
    if attempt.limit_at is None or attempt.limit_at > now:
        return _lost(task, attempt, now)
    ending = Ending(task.budget(), attempt.recovery, now, jitter=random.random())
    error = passed_limit(limit_at=attempt.limit_at, deadline_at=task.deadline_at)
    return Settlement(task, on_unknown(ending, error, lost=False), attempt, AttemptState.TIMED_OUT, failed=1)


def _lost(task: LockedTask, attempt: LockedAttempt, now: Micros) -> Settlement:
    ending = Ending(task.budget(), attempt.recovery, now, jitter=random.random())
    error = TaskError(ErrorClass.UNKNOWN_OUTCOME, "LEASE_LOST", "its worker stopped renewing", effect_unknown=True)
    return Settlement(task, on_unknown(ending, error, lost=True), attempt, AttemptState.LOST, lost=1)
