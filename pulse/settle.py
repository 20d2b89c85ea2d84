"""Carry out decisions: the one way in which a task leaves LEASED or RUNNING, or becomes terminal.

Results, lost leases, releases, refused Starts, cancels and deadlines all end here, so that a state, its counters, its
events and its owner's stimulus always move together. The caller holds the locks of tasks and attempts; this locks the
counters, last. An attempt ends at most once because its row's state is part of every write and the count is checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from orbit.store.journal import EventRecord
from pulse.arrivals import NOTHING_NEW, Arrivals, arrivals_by_lane
from pulse.catalog import Catalog
from pulse.keys import keys_release
from pulse.listener import BacklogShort, Takings, TaskChange, TaskListener, TaskOwner
from pulse.policy import Decision, Finish, Park, Requeue, Retry, TaskError
from pulse.states import AttemptState, SourceKind, TaskState, WaitReason
from pulse.store.counters import UsageMove, backlog_move, backlog_take, usage_lease, usage_move
from pulse.store.gate import gates_leave
from pulse.store.lanes import delayed_insert, ready_insert
from pulse.store.rows import LockedAttempt, LockedTask, ready_key
from pulse.store.settle import AttemptEnd, TaskWrite, attempts_end, tasks_write
from pulse.store.verification import verifications_answer, verifications_insert
from pulse.telling import task_events_insert
from pulse.type_revision import error_shown

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.sessions import Offer

_EVENT_OF = {
    TaskState.SUCCEEDED: "task.succeeded",
    TaskState.FAILED: "task.failed",
    TaskState.CANCELLED: "task.cancelled",
    TaskState.NEEDS_REVIEW: "task.review_needed",
}


# The ends of tasks that a success which is reported later contradicts.
_ENDED_WITHOUT = frozenset({TaskState.FAILED, TaskState.CANCELLED})


class Settlement(Struct, frozen=True):
    """One decision about one task; `attempt` with its end if one is live, and which count it adds to."""

    task: LockedTask
    decision: Decision
    attempt: LockedAttempt | None = None
    attempt_end: AttemptState | None = None
    failed: int = 0
    lost: int = 0
    deferred: int = 0
    released: int = 0


# Lets owners go on with what has changed, and returns what this needs of the queues' counters.
Follow = Callable[["Transaction", Sequence[TaskChange]], Takings]


class Surroundings(Protocol):
    """Whom changes are told: owners' listeners inside the transaction, and this process's dispatcher after it."""

    listeners: list[TaskListener]
    catalog: Catalog

    def offer(self, lanes: Mapping[bytes, int]) -> Offer | None:
        """Offer room of this process's workers for so many tasks of lanes; None where they have to wait in `ready`."""

    def on_ready(self, lanes: Mapping[bytes, Arrivals]) -> None:
        """Hear of lanes in which something may be claimed, and of what has come into each (NOTHING_NEW: only room)."""

    def on_changed(self, task_ids: frozenset[bytes]) -> None:
        """Hear of tasks that somebody may wait for."""

    def on_ended(self, attempt_ids: frozenset[bytes]) -> None:
        """Hear of attempts that are no longer live."""

    def on_trouble(self, *, retries: int, lost: int) -> None:
        """Hear how many tasks will be tried again and how many attempts were lost, for the metrics."""

    def on_keys_free(self) -> None:
        """Hear that a concurrency key may have room for tasks that wait for it: wake-ups are there to be followed."""

    def on_verification(self) -> None:
        """Hear that a verification is wanted or answered."""

    def on_cancel_wanted(self, reasons: Mapping[bytes, str]) -> None:
        """Hear of running tasks whose workers should be asked to stop, and why."""


def settle(
    tx: Transaction,
    settlements: Sequence[Settlement],
    around: Surroundings,
    *,
    now: Micros,
    follow: Follow | None = None,
) -> None:
    """Write decisions about locked tasks and attempts, with counters, events and stimuli.

    With `follow` owners go on at once instead of being told; then raises BacklogShort where places are short for that,
    and RunAgain where permits are.
    """
    if not settlements:
        return
    writes = [_held(_write(item, now=now), now=now) for item in settlements]
    tasks_write(tx, writes)
    attempts_end(tx, [_end(item) for item in settlements if item.attempt is not None], now=now)
    ready_rows, delayed_rows = _placements(writes)
    ready_insert(tx, ready_rows)
    delayed_insert(tx, delayed_rows)
    events = [_event(tx, write, around) for write in writes if write.state in _EVENT_OF or write.is_retry]
    task_events_insert(tx, events, now=now)
    changes = [change for write in writes if (change := _change(tx, write, around)) is not None]
    if changes and follow is None:
        for listener in around.listeners:
            listener.tasks_changed(tx, changes)
    _verify(tx, settlements, writes, around, now=now)
    _leave_gates(tx, settlements, around)
    takings = follow(tx, changes) if changes and follow is not None else Takings()
    keys_release(tx, [item.task for item in settlements if item.attempt is not None], around.on_keys_free)
    _move_usages(tx, _usage_moves(settlements), takings)
    _move_backlogs(tx, _backlog_moves(writes), takings.places)
    changed = frozenset(write.task.id for write in writes)
    ended = frozenset(item.attempt.id for item in settlements if item.attempt is not None)
    freed = dict.fromkeys((item.task.lane_id for item in settlements if item.attempt is not None), NOTHING_NEW)
    lanes = freed | arrivals_by_lane(ready_rows)
    # The order matters: a session's room must be free before the dispatcher is told to look.
    tx.after_commit(lambda: around.on_ended(ended))
    tx.after_commit(lambda: around.on_ready(lanes))
    tx.after_commit(lambda: around.on_changed(changed))
    retries, lost = sum(write.is_retry for write in writes), sum(item.lost for item in settlements)
    if retries or lost:
        tx.after_commit(lambda: around.on_trouble(retries=retries, lost=lost))


def _write(item: Settlement, *, now: Micros) -> TaskWrite:
    counts = {
        "failed_count": item.task.failed_count + item.failed,
        "lost_count": item.task.lost_count + item.lost,
        "deferred_count": item.task.deferred_count + item.deferred,
        "released_count": item.task.released_count + item.released if item.released else 0,
    }
    match item.decision:
        case Finish(state, error):
            return TaskWrite(item.task, state, None, item.task.available_at, now, _text(error), counts)
        case Park(error):
            return TaskWrite(
                item.task, TaskState.NEEDS_REVIEW, None, item.task.available_at, None, _text(error), counts
            )
        case Retry(available_at, error):
            return TaskWrite(
                item.task, TaskState.WAITING, "BACKOFF", available_at, None, _text(error), counts, is_retry=True
            )
        case Requeue(None):
            return TaskWrite(item.task, TaskState.WAITING, "READY", item.task.available_at, None, None, counts)
        case Requeue(available_at):
            reason = "READY" if available_at is not None and available_at <= now else "DELAYED"
            at = item.task.available_at if available_at is None else available_at
            return TaskWrite(item.task, TaskState.WAITING, reason, at, None, None, counts)


def _held(write: TaskWrite, *, now: Micros) -> TaskWrite:
    """Hold what would wait behind a closed gate; what never ran has been held since the gate was closed."""
    held_since = write.task.held_since
    if held_since is None or write.wait_reason is None:
        return write
    since = held_since if write.task.state is TaskState.LEASED else now
    return replace(write, wait_reason=WaitReason.HELD, held_since=since)


def _leave_gates(tx: Transaction, settlements: Sequence[Settlement], around: Surroundings) -> None:
    """Count what stops to run behind closed gates, and tell of those behind which nothing runs any more."""
    left = [s.task.id for s in settlements if s.task.state is TaskState.RUNNING and s.task.held_since is not None]
    for gate_id in gates_leave(tx, left):
        for listener in around.listeners:
            listener.gate_quiet(tx, gate_id)


def _verify(
    tx: Transaction,
    settlements: Sequence[Settlement],
    writes: Sequence[TaskWrite],
    around: Surroundings,
    *,
    now: Micros,
) -> None:
    """Want verifications of what goes under review, and note those that have ended; most batches have neither."""
    parked = [
        (item.task, item.attempt)
        for item in settlements
        if isinstance(item.decision, Park)
        and item.decision.is_verifiable
        and item.attempt is not None
        and item.task.type_revision_id is not None
    ]
    ended = [
        write.task.id
        for write in writes
        if write.task.source_kind == SourceKind.VERIFICATION and write.state is not TaskState.WAITING
    ]
    verifications_insert(tx, parked, now=now)
    if ended:
        verifications_answer(tx, ended, now=now)
    if parked or ended:
        tx.after_commit(around.on_verification)


def _text(error: TaskError | None) -> str | None:
    return None if error is None else error.as_text()


def _end(item: Settlement) -> AttemptEnd:
    assert item.attempt is not None
    assert item.attempt_end is not None
    error = None if isinstance(item.decision, Requeue) else item.decision.error
    return AttemptEnd(item.attempt, item.attempt_end, _text(error))


def _placements(writes: Sequence[TaskWrite]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    ready_rows: list[dict[str, Any]] = []
    delayed_rows: list[dict[str, Any]] = []
    for write in writes:
        task = write.task
        if write.wait_reason == "READY":
            ready_rows.append(ready_key(task, available_at=write.available_at))
        elif write.wait_reason is not None and write.held_since is None:
            delayed_rows.append({"due_at": write.available_at, "task_id": task.id})
    return ready_rows, delayed_rows


def _event(tx: Transaction, write: TaskWrite, around: Surroundings) -> EventRecord:
    name = "task.retry_scheduled" if write.is_retry else _EVENT_OF[write.state]
    error = write.error
    if error is not None and write.task.type_revision_id is not None:
        error = around.catalog.revision(tx, write.task.type_revision_id).error_shown(error)
    if error is not None and write.task.redact is not None:
        error = error_shown(error, write.task.redact)
    data = "{}" if error is None else f'{{"error":{error}}}'
    task = write.task
    return EventRecord(task.namespace_id, name, task.id, task.revision + 1, data, task.queue_id, task.lane_id)


def _change(tx: Transaction, write: TaskWrite, around: Surroundings) -> TaskChange | None:
    """Tell an owner of the ends of its task, and of its ways into and out of review."""
    task = write.task
    is_news = write.state in _EVENT_OF or task.state is TaskState.NEEDS_REVIEW
    if task.source_kind != SourceKind.WORKFLOW or task.source_id is None or not is_news:
        return None
    hidden: tuple[str, ...] = ()
    if write.error is not None and task.type_revision_id is not None:
        hidden = around.catalog.revision(tx, task.type_revision_id).error_paths
    return TaskChange(_owner(task, task.source_id), task.id, write.state, write.error, hidden=hidden)


def _owner(task: LockedTask, source_id: bytes) -> TaskOwner:
    return TaskOwner(source_id, task.source_step or "", task.source_round or 0)


def tell_late_successes(tx: Transaction, tasks: Sequence[LockedTask], around: Surroundings) -> None:
    """Tell owners of successes that were reported for tasks after these had ended without one."""
    changes = [
        TaskChange(_owner(task, task.source_id), task.id, task.state, None, is_late_success=True)
        for task in tasks
        if task.source_kind == SourceKind.WORKFLOW and task.source_id is not None and task.state in _ENDED_WITHOUT
    ]
    if changes:
        for listener in around.listeners:
            listener.tasks_changed(tx, changes)


def _usage_moves(settlements: Sequence[Settlement]) -> dict[bytes, UsageMove]:
    moves: dict[bytes, UsageMove] = defaultdict(UsageMove)
    for item in settlements:
        if item.attempt is not None:
            move = moves[item.task.queue_id]
            move.active -= 1
            move.leased_unstarted -= item.attempt.state is AttemptState.LEASED
    return moves


def _move_usages(tx: Transaction, moves: dict[bytes, UsageMove], takings: Takings) -> None:
    """Give back the permits of what has ended and take those of what was handed out, each queue's in one write."""
    for queue_id in sorted(moves.keys() | takings.leases.keys()):
        leases, move = takings.leases[queue_id], moves.get(queue_id, UsageMove())
        if leases:
            needed = UsageMove(move.active + leases, move.leased_unstarted + leases)
            usage_lease(tx, queue_id, needed, left=takings.left[queue_id], now=takings.leased_at)
        else:
            usage_move(tx, {queue_id: move})


def _move_backlogs(tx: Transaction, moves: Mapping[bytes, int], places: Mapping[bytes, int]) -> None:
    """Give back the places of what has ended and take those of what follows, each queue's in one write."""
    for queue_id in sorted(moves.keys() | places.keys()):
        if queue_id in places:
            needed = moves.get(queue_id, 0) + places[queue_id]
            backlog_take(tx, queue_id, needed, otherwise=BacklogShort())
        else:
            backlog_move(tx, {queue_id: moves[queue_id]})


def _backlog_moves(writes: Sequence[TaskWrite]) -> dict[bytes, int]:
    moves: dict[bytes, int] = defaultdict(int)
    for write in writes:
        moves[write.task.queue_id] -= write.finished_at is not None
    return moves
