"""The rows that Pulse's decisions read, locked: tasks first, then attempts, each by primary key in sorted order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import bindparam, select

from orbit.clock import Micros
from orbit.database import Transaction
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.database.packed import Packed
from pulse.limits import PRIORITY_STEP_MICROS
from pulse.policy import Budget
from pulse.states import AttemptState, RecoverySafety, TaskState
from pulse.store.counters import LOCK_USAGE, Usage
from pulse.tables import attempt, task

# Later than any instant: the deadline of what stands still.
FAR_AHEAD: Micros = 2**62


class LockedTask(msgspec.Struct, frozen=True, array_like=True):
    """A task's row under its lock, without its payload."""

    id: bytes
    namespace_id: bytes
    queue_id: bytes
    lane_id: bytes
    state: TaskState
    wait_reason: str | None
    priority: int
    attempts_max: int
    backoff_micros: Micros
    backoff_micros_max: Micros
    attempt_timeout_micros: Micros
    accepted_at: Micros
    available_at: Micros
    start_deadline_at: Micros | None
    deadline_at: Micros
    leases_count: int
    starts_count: int
    failed_count: int
    lost_count: int
    deferred_count: int
    released_count: int
    cancel_requested_at: Micros | None
    cancel_reason: str | None
    revision: int
    source_kind: str
    source_id: bytes | None
    source_step: str | None
    source_round: int | None
    operation_id: bytes | None
    fencing_base: int
    held_since: Micros | None
    concurrency_keys: str | None
    fair_at: Micros | None
    recovery: RecoverySafety | None
    type_revision_id: bytes | None
    redact: str | None = None

    def budget(self) -> Budget:
        """Return what decisions need of it; the deadlines stand still while its gate is closed, unless it runs."""
        is_still = self.held_since is not None and self.state is not TaskState.RUNNING
        return Budget(
            attempts_max=self.attempts_max,
            backoff_micros=self.backoff_micros,
            backoff_micros_max=self.backoff_micros_max,
            failed_count=self.failed_count,
            lost_count=self.lost_count,
            deferred_count=self.deferred_count,
            released_count=self.released_count,
            starts_count=self.starts_count,
            start_deadline_at=None if is_still else self.start_deadline_at,
            deadline_at=FAR_AHEAD if is_still else self.deadline_at,
            is_cancel_wanted=self.cancel_requested_at is not None,
        )


class Payload(Struct, frozen=True):
    """What a worker is handed of a task: JSON and text as they were sent."""

    params: bytes
    params_version: str
    business_key: bytes | None
    labels: str | None
    traceparent: str | None


class LockedAttempt(msgspec.Struct, frozen=True, array_like=True):
    """An attempt's row, under its task's lock or its own."""

    id: bytes
    task_id: bytes
    number: int
    state: AttemptState
    token_hash: bytes
    recovery: RecoverySafety
    session_id: bytes
    lease_expires_at: Micros | None
    limit_at: Micros | None
    started_at: Micros | None
    start_message_id: bytes | None
    leased_at: Micros


def dispatch_at(*, accepted_at: Micros, available_at: Micros, priority: int) -> Micros:
    """Return a task's place in its lane: the later of acceptance and availability, less its priority's steps.

    A function of what the task's row holds, so that whoever has the row can name its entry in `ready`.
    """
    return max(accepted_at, available_at) - priority * PRIORITY_STEP_MICROS


def ready_key(row: LockedTask, *, available_at: Micros | None = None) -> dict[str, Any]:
    """Name a task's entry in `ready` by its whole primary key; a fair place, once given, stands above the time."""
    available = row.available_at if available_at is None else available_at
    at = row.fair_at or dispatch_at(accepted_at=row.accepted_at, available_at=available, priority=row.priority)
    return {"lane_id": row.lane_id, "dispatch_at": at, "task_id": row.id}


_ID_BYTES = 16
_TASK = Packed(LockedTask, task)
_ATTEMPT = Packed(LockedAttempt, attempt)
_LOCK_TASKS = Hot(through(select(_TASK.column), task).where(ids_in(task.c.id)).order_by(task.c.id).with_for_update())
_LOCK_TASKS_FREE = Hot(
    through(
        select(
            _TASK.column,
            task.c.params,
            task.c.params_version,
            task.c.business_key,
            task.c.labels,
            task.c.traceparent,
        ),
        task,
    )
    .where(ids_in(task.c.id))
    .order_by(task.c.id)
    .with_for_update(skip_locked=True)
)
_READ_TASK = Hot(select(_TASK.column).where(task.c.id == bindparam("id")))
_READ_TASKS = Hot(through(select(_TASK.column), task).where(ids_in(task.c.id)).order_by(task.c.id))
_TASKS_OF = Hot(through(select(attempt.c.id, attempt.c.task_id), attempt).where(ids_in(attempt.c.id)))
_LOCK_ATTEMPTS = Hot(
    through(select(_ATTEMPT.column), attempt).where(ids_in(attempt.c.id)).order_by(attempt.c.id).with_for_update(),
    tells_time=True,
)
_LIVE_OF_TASKS = Hot(
    through(select(_ATTEMPT.column), attempt, "pulse_attempt_number_unique").where(
        ids_in(attempt.c.task_id), attempt.c.finished_at.is_(None)
    )
)


def tasks_lock(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, LockedTask]:
    """Lock tasks by id, in the order of their ids, waiting for those that others hold."""
    if not ids:
        return {}
    return {row.id: row for row in _TASK.unpack(tx.rows(_LOCK_TASKS, {"ids": ids}))}


def tasks_lock_free(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, tuple[LockedTask, Payload]]:
    """Lock those of the tasks that nobody holds, and read their payloads with them."""
    if not ids:
        return {}
    rows = tx.rows(_LOCK_TASKS_FREE, {"ids": ids})
    payloads = [Payload(*tuple(row)[1:]) for row in rows]
    return {row.id: (row, payload) for row, payload in zip(_TASK.unpack(rows), payloads, strict=True)}


def task_read(tx: Transaction, task_id: bytes) -> LockedTask | None:
    """Read a task's row without locking it, to learn which rows to lock in which order."""
    found = _TASK.unpack(tx.rows(_READ_TASK, {"id": task_id}))
    return found[0] if found else None


def tasks_read(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, LockedTask]:
    """Read tasks' rows without locking them, in the order of their ids; those that do not exist are left out."""
    return {row.id: row for row in _TASK.unpack(tx.rows(_READ_TASKS, {"ids": ids}))} if ids else {}


def attempts_lock(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, LockedAttempt]:
    """Lock attempts by id, in the order of their ids. Their tasks are locked before, except by renewals."""
    if not ids:
        return {}
    return {row.id: row for row in _ATTEMPT.unpack(tx.rows(_LOCK_ATTEMPTS, {"ids": ids}))}


def attempts_lock_with_tasks(
    tx: Transaction, ids: Collection[bytes]
) -> tuple[dict[bytes, LockedTask], dict[bytes, LockedAttempt]]:
    """Lock the tasks of attempts, then the attempts, each in the order of their ids, in one round trip.

    Attempts that do not exist are left out.
    """
    known = attempts_tasks(tx, ids)
    if not known:
        return {}, {}
    tasks, attempts = tx.rows_each(_lock_both(known))
    return {row.id: row for row in _TASK.unpack(tasks)}, {row.id: row for row in _ATTEMPT.unpack(attempts)}


def attempts_lock_with_usage(
    tx: Transaction, ids: Collection[bytes]
) -> tuple[dict[bytes, LockedTask], dict[bytes, LockedAttempt], dict[bytes, Usage]]:
    """Lock the tasks of attempts, the attempts and then the usage rows of their queues, in one round trip.

    Concurrency keys come between attempts and usage: a caller that may need them locks in steps. For attempts that
    another process has made no usage is locked, and it is left to the caller.
    """
    known = [tx.known(("attempt", key)) or b"" for key in ids]
    queue_ids = {fact[_ID_BYTES:] for fact in known}
    if not known or b"" in queue_ids:
        return *attempts_lock_with_tasks(tx, ids), {}
    locks = [*_lock_both(attempts_tasks(tx, ids)), (LOCK_USAGE, {"ids": queue_ids})]
    tasks, attempts, usages = tx.rows_each(locks)
    return (
        {row.id: row for row in _TASK.unpack(tasks)},
        {row.id: row for row in _ATTEMPT.unpack(attempts)},
        {row.queue_id: Usage(*tuple(row)) for row in usages},
    )


def _lock_both(known: Mapping[bytes, bytes]) -> list[tuple[Hot, Mapping[str, Any]]]:
    return [(_LOCK_TASKS, {"ids": set(known.values())}), (_LOCK_ATTEMPTS, {"ids": known})]


def attempts_tasks(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Find the tasks of attempts, to lock those first: attempt → task; attempts that do not exist are left out.

    It never changes, and the process that claimed an attempt knows it already.
    """
    found = {key: known[:_ID_BYTES] for key in ids if (known := tx.known(("attempt", key))) is not None}
    missing = set(ids) - found.keys()
    if missing:
        found |= {row.id: row.task_id for row in tx.rows(_TASKS_OF, {"ids": missing})}
    return found


def attempts_learn(tx: Transaction, tasks: Mapping[bytes, LockedTask]) -> None:
    """Remember the tasks of attempts that this transaction makes, and their queues."""
    tx.learn({("attempt", key): task.id + task.queue_id for key, task in tasks.items()})


def attempts_live_of(tx: Transaction, task_ids: Collection[bytes]) -> list[LockedAttempt]:
    """Read the live attempts of tasks whose locks are held, which keeps everybody else from ending them."""
    return _ATTEMPT.unpack(tx.rows(_LIVE_OF_TASKS, {"ids": task_ids})) if task_ids else []
