"""The writes that end attempts and move tasks. Each names the state that it expects; the number of rows is checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import bindparam, update

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from pulse.states import AttemptState, TaskState, WaitReason
from pulse.tables import attempt, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.store.rows import LockedAttempt, LockedTask

# What nearly every task ends by: one statement for all of them, with no values of their own.
_SUCCEED = Hot(
    through(update(task), task)
    .where(ids_in(task.c.id), task.c.state == TaskState.RUNNING)
    .values(state=TaskState.SUCCEEDED, finished_at=bindparam("now"), revision=task.c.revision + 1, error=None)
)
_READY = Hot(
    through(update(task), task)
    .where(ids_in(task.c.id), task.c.state == TaskState.WAITING)
    .values(wait_reason=WaitReason.READY, revision=task.c.revision + 1)
)
_END_ATTEMPTS = Hot(
    through(update(attempt), attempt)
    .where(ids_in(attempt.c.id), attempt.c.state == bindparam("was"))
    .values(state=bindparam("becomes"), finished_at=bindparam("now"), lease_expires_at=None)
)


class TaskWrite(Struct, frozen=True):
    """What a task's row becomes; `error` None clears it: attempts keep their own. `held_since` is for HELD only."""

    task: LockedTask
    state: TaskState
    wait_reason: str | None
    available_at: Micros
    finished_at: Micros | None
    error: str | None
    counts: Mapping[str, int]
    is_retry: bool = False
    held_since: Micros | None = None


class AttemptEnd(Struct, frozen=True):
    """How an attempt ends."""

    attempt: LockedAttempt
    state: AttemptState
    error: str | None


def tasks_write(tx: Transaction, writes: Sequence[TaskWrite]) -> None:
    """Move tasks, whose locks are held, to their new states."""
    plain = [w for w in writes if w.state is TaskState.SUCCEEDED and w.task.state is TaskState.RUNNING]
    if plain:
        parameters = {"ids": [w.task.id for w in plain], "now": plain[0].finished_at}
        tx.expect(_SUCCEED, parameters, count=len(plain))
    by_state: dict[tuple[TaskState, bool], list[dict[str, Any]]] = defaultdict(list)
    for write in writes:
        if write.state is not TaskState.SUCCEEDED or write.task.state is not TaskState.RUNNING:
            by_state[write.task.state, write.held_since is not None].append(_row(write))
    for state, is_held in sorted(by_state):
        rows = sorted(by_state[state, is_held], key=lambda row: row["id"])
        tx.update_many(task, rows=rows, where={"state": state})


def tasks_ready(tx: Transaction, ids: Collection[bytes]) -> None:
    """Move locked waiting tasks to the reason READY."""
    if ids:
        tx.expect(_READY, {"ids": ids}, count=len(ids))


def _row(write: TaskWrite) -> dict[str, Any]:
    held = {} if write.held_since is None else {"held_since": write.held_since}
    return {
        "id": write.task.id,
        "state": write.state,
        "wait_reason": write.wait_reason,
        "available_at": write.available_at,
        "finished_at": write.finished_at,
        "error": write.error,
        "revision": write.task.revision + 1,
        **write.counts,
        **held,
    }


def attempts_end(tx: Transaction, ends: Sequence[AttemptEnd], *, now: Micros) -> None:
    """End attempts, whose locks are held; the ones without an error of their own share one statement."""
    plain: dict[tuple[AttemptState, AttemptState], list[bytes]] = defaultdict(list)
    failed: dict[AttemptState, list[dict[str, Any]]] = defaultdict(list)
    for end in ends:
        if end.error is None:
            plain[end.attempt.state, end.state].append(end.attempt.id)
        else:
            row = {"id": end.attempt.id, "state": end.state, "finished_at": now, "lease_expires_at": None}
            failed[end.attempt.state].append(row | {"error": end.error})
    for (was, becomes), ids in sorted(plain.items()):
        parameters = {"ids": ids, "was": was, "becomes": becomes, "now": now}
        tx.expect(_END_ATTEMPTS, parameters, count=len(ids))
    for was, rows in sorted(failed.items()):
        tx.update_many(attempt, rows=sorted(rows, key=lambda row: row["id"]), where={"state": was})
