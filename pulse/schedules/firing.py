"""The firing pass: makes the tasks and instances of schedules that are due, each instant once.

A firing is one transaction: lock the schedule's row, decide, make what is to be made, record it and move the cursor.
Two nodes can't fire the same instant, and one that dies leaves the schedule as it was. Many schedules are fired
together, so that a full hour costs a few transactions; one that fails alone is put off, and holds up no other.

The surprising rule: a queue without a place, or a workflow that runs as often as it may, is no outcome. The instant
stays undecided and is tried again a second later; nothing is recorded, and nothing counts as the firing before.

Locks: schedules, then what instances and tasks need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from orbit.access import Scope
from orbit.clock import SECOND
from orbit.database import Pool
from orbit.errors import NotFound, OrbitError
from orbit.jsontext import dumps
from orbit.logs import get_logger
from orbit.store.journal import EventRecord, events_insert
from pulse import limits
from pulse.listener import InstanceMaker, InstanceStart
from pulse.requests import TaskRequest
from pulse.schedules.content import Era, eras_of, task_request
from pulse.schedules.deciding import Plan, advanced, plan, plan_queued
from pulse.schedules.manage import schedule_event
from pulse.schedules.policy import Action, Outcome, OverlapPolicy, RangeReason, cut_off
from pulse.schedules.store import (
    FiringRow,
    ScheduleRow,
    Standing,
    firing_new,
    firing_queued_first,
    firing_settle,
    firings_insert,
    revision_read,
    revisions_read,
    schedule_put_off,
    schedules_lock_due,
    schedules_waiting,
    schedules_write,
    standings_read,
    tasks_states,
    tasks_successors,
)
from pulse.settle import Surroundings
from pulse.states import TERMINAL, FiringState, ScheduleState, SubjectKind, TaskState
from pulse.submission import Submit, tasks_submit

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Database, Transaction
    from pulse.schedules.content import Revision

_GONE = ("CREDENTIAL_REVOKED", "the credential that it acts with is not there any more")
_RETRIED = frozenset({TaskState.FAILED, TaskState.CANCELLED})
_RETRIES_FOLLOWED_MAX = 100

_log = get_logger(__name__)


class _Wish(Struct):
    """One firing on its way: of which plan and outcome, and what came of it."""

    turn: _Turn
    index: int
    outcome: Outcome
    range: frozenset[str] | None
    made: bytes | OrbitError | None = None


class _Turn(Struct):
    """One schedule in a pass."""

    row: ScheduleRow
    eras: list[Era]
    plan: Plan | None = None
    wishes: list[_Wish] = []
    lost: tuple[str, str] | None = None


class Firer:
    """Fires schedules, on any number of nodes. `maker` starts instances; without one only tasks are made.

    `breathe` lets others run between two schedules: each may compute for some 30 ms after a long downtime.
    """

    def __init__(
        self,
        database: Database,
        around: Surroundings,
        maker: InstanceMaker | None = None,
        *,
        breathe: Callable[[], object] = lambda: None,
    ) -> None:
        self.maker = maker
        self._breathe = breathe
        self._database = database
        self._around = around

    def run_once(self) -> float:
        """Fire what is due, at most a batch; return in how many seconds there may be more to do."""
        waiting, now = self._database.transaction(_look, pool=Pool.DISPATCH)
        due = [schedule_id for schedule_id, look_at in waiting if look_at <= now]
        if due:
            self._fire_each(due)
            return 0.0
        if not waiting:
            return limits.PROBE_SECONDS
        return min(limits.PROBE_SECONDS, max(0.001, (waiting[0][1] - now) / SECOND))

    def _fire_each(self, ids: Sequence[bytes]) -> None:
        """Fire schedules together; where that fails one by one, and put off those that fail alone."""
        try:
            self._database.transaction(partial(self._fire, ids=ids), pool=Pool.DISPATCH)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with one must not hold up the others)
            if len(ids) > 1:
                for schedule_id in ids:
                    self._fire_each([schedule_id])
                return
            self._database.transaction(partial(_put_off, schedule_id=ids[0]), pool=Pool.DISPATCH)
            _log.exception("schedule.failed", extra={"schedule_id": ids[0].hex(), "error": str(error)})

    def _fire(self, tx: Transaction, ids: Sequence[bytes]) -> None:
        rows = schedules_lock_due(tx, ids, now=tx.now())
        if not rows:
            return
        now = tx.now()
        revisions = revisions_read(tx, [row.id for row in rows])
        turns = [_Turn(row, eras_of(revisions[row.id])) for row in rows]
        busy = self._busy(tx, turns)
        for turn in turns:
            turn.plan = _plan(tx, turn, is_busy=turn.row.id in busy, now=now)
            if not tx.is_sqlite:
                self._breathe()  # an embedded database works in a thread of its own, which holds nobody up
        _wish(tx, turns)
        self._make(tx, turns)
        after = [_record(tx, turn, now=now) for turn in turns]
        schedules_write(tx, [(before, turn.row) for before, turn in zip(rows, turns, strict=True)])
        firings_insert(tx, [row for rows_ in after for row in rows_])
        events = [event for turn, before in zip(turns, rows, strict=True) for event in _events(tx, turn, before)]
        if events:
            events_insert(tx, events, now=now)

    def _busy(self, tx: Transaction, turns: Sequence[_Turn]) -> set[bytes]:
        """Return the schedules whose latest firing has made something that is unfinished, its retries included."""
        asked = {turn.row.id: turn for turn in turns if turn.row.latest_id is not None and _asks(turn)}
        ids = {key: turn.row.latest_id for key, turn in asked.items() if turn.row.latest_id is not None}
        tasks = {key: ids[key] for key, turn in asked.items() if turn.row.latest_kind is SubjectKind.TASK}
        instances = {key: ids[key] for key in ids.keys() - tasks.keys()}
        busy: set[bytes] = set()
        if instances and self.maker is not None:
            unfinished = self.maker.unfinished(tx, set(instances.values()))
            busy |= {key for key, instance_id in instances.items() if instance_id in unfinished}
        states = tasks_states(tx, set(tasks.values()))
        for _ in range(_RETRIES_FOLLOWED_MAX):
            busy |= {key for key, task_id in tasks.items() if states.get(task_id, TaskState.FAILED) not in TERMINAL}
            ended = {key: task_id for key, task_id in tasks.items() if states.get(task_id) in _RETRIED}
            successors = tasks_successors(tx, set(ended.values()))
            tasks = {key: successors[task_id][0] for key, task_id in ended.items() if task_id in successors}
            if not tasks:
                break
            states = dict(successors.values())
            for key, task_id in tasks.items():
                asked[key].row = replace(asked[key].row, latest_id=task_id)
        return busy

    def _make(self, tx: Transaction, turns: Sequence[_Turn]) -> None:
        """Make everything that is wished for: instances first, as the order of locks has it, then tasks."""
        wishes = [wish for turn in turns for wish in turn.wishes]
        tasks = [wish for wish in wishes if _revision(wish).content.task is not None]
        instances = [wish for wish in wishes if _revision(wish).content.task is None]
        if instances:
            self._start(tx, instances)
        if tasks:
            submits = [Submit(_request_of(wish)) for wish in tasks]
            for wish, answer in zip(tasks, tasks_submit(tx, submits, self._around), strict=True):
                wish.made = answer if isinstance(answer, OrbitError) else answer.subject_id

    def _start(self, tx: Transaction, wishes: Sequence[_Wish]) -> None:
        if self.maker is None:
            for wish in wishes:
                wish.made = NotFound("this node knows no workflows")
            return
        for wish, made in zip(wishes, self.maker.start_all(tx, [_start_of(wish) for wish in wishes]), strict=True):
            wish.made = made


def _look(tx: Transaction) -> tuple[list[tuple[bytes, Micros]], Micros]:
    return schedules_waiting(tx, limit=limits.FIRING_BATCH_MAX), tx.now()


def _put_off(tx: Transaction, schedule_id: bytes) -> None:
    schedule_put_off(tx, schedule_id, until=tx.now() + limits.FIRING_RETRY_MICROS)


def _asks(turn: _Turn) -> bool:
    """Say whether it matters to a schedule whether the firing before is over."""
    policies = {era.revision.content.overlap.policy for era in turn.eras}
    return turn.row.backlog > 0 or policies != {OverlapPolicy.ALLOW}


def _plan(tx: Transaction, turn: _Turn, *, is_busy: bool, now: Micros) -> Plan | None:
    row = turn.row
    if row.backlog and not is_busy:
        queued = firing_queued_first(tx, row.id)
        assert queued is not None, "the backlog counts the firings that are queued"
        return plan_queued(queued, revision_read(tx, row.id, queued.schedule_revision))
    return plan(row, turn.eras, is_busy=is_busy, now=now)


def _wish(tx: Transaction, turns: Sequence[_Turn]) -> None:
    """List what is to be made, of schedules that still have the right to it; the others are stopped."""
    asking = [turn for turn in turns if turn.plan is not None and _fires(turn.plan)]
    standings = standings_read(tx, {turn.plan.revision.credential_id for turn in asking if turn.plan is not None})
    for turn in asking:
        assert turn.plan is not None
        revision = turn.plan.revision
        standing = standings.get(revision.credential_id, Standing(frozenset(), None, _GONE))
        turn.lost = _lost(revision, standing)
        if turn.lost is None:
            allowed = _narrower(revision.queues, standing.queues)
            turn.wishes = [
                _Wish(turn, index, outcome, allowed)
                for index, outcome in enumerate(turn.plan.decision.outcomes)
                if outcome.action is Action.FIRE
            ]


def _fires(done: Plan) -> bool:
    return any(outcome.action is Action.FIRE for outcome in done.decision.outcomes)


def _lost(revision: Revision, standing: Standing) -> tuple[str, str] | None:
    """Say which right that a firing needs is missing, by code and words."""
    if standing.lost is not None:
        return standing.lost
    target = revision.content.task
    scope = Scope.INSTANCES_START if target is None else Scope.TASKS_SUBMIT
    if scope not in standing.scopes:
        return "SCOPE_LOST", f"the credential that it acts with has lost the scope {scope}"
    allowed = _narrower(revision.queues, standing.queues)
    if target is not None and allowed is not None and target.queue not in allowed:
        return "QUEUE_OUT_OF_RANGE", "its queue is out of the range of the credential that it acts with"
    return None


def _narrower(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _revision(wish: _Wish) -> Revision:
    assert wish.turn.plan is not None
    return wish.turn.plan.revision


def _request_of(wish: _Wish) -> TaskRequest:
    row, scheduled_at = wish.turn.row, wish.outcome.scheduled_at
    return task_request(_revision(wish), scheduled_at, namespace_id=row.namespace_id, schedule_id=row.id)


def _start_of(wish: _Wish) -> InstanceStart:
    revision, row = _revision(wish), wish.turn.row
    target = revision.content.instance
    assert target is not None, "a revision makes either"
    return InstanceStart(
        namespace_id=row.namespace_id,
        schedule_id=row.id,
        scheduled_at=wish.outcome.scheduled_at,
        workflow=target.workflow,
        version=target.version,
        input=revision.payload,
        queues=wish.range,
        business_key=target.business_key,
        labels=target.labels,
    )


def _record(tx: Transaction, turn: _Turn, *, now: Micros) -> list[FiringRow]:
    """Move a schedule on by what was made, and return the firings to be recorded."""
    row = turn.row
    if turn.lost is not None:
        code, message = turn.lost
        stopped = dumps({"code": code, "message": message}).decode()
        turn.row = replace(
            row,
            state=ScheduleState.STOPPED,
            stop_reason=stopped,
            revision=row.revision + 1,
            next_at=None,
            look_at=None,
        )
        return []
    done = turn.plan
    if done is None:
        turn.row = advanced(row, turn.eras, None, now=now)
        return []
    full = next((w for w in turn.wishes if isinstance(w.made, OrbitError) and w.made.retryable), None)
    if full is not None:
        assert not any(isinstance(w.made, bytes) for w in turn.wishes[turn.wishes.index(full) :]), (
            "places come in order"
        )
        done = replace(done, decision=cut_off(done.decision, full.index))
    if done.queued is not None:
        if full is None:
            _settle_queued(tx, turn, done.queued, now=now)
        turn.row = advanced(
            turn.row, turn.eras, replace(done, decision=replace(done.decision, cursor_at=None)), now=now
        )
        return []
    made = {wish.index: wish.made for wish in turn.wishes}
    rows = [_firing(turn, done, outcome, made.get(n), now=now) for n, outcome in enumerate(done.decision.outcomes)]
    turn.row = advanced(_counted(row, rows), turn.eras, done, now=now)
    return rows


def _settle_queued(tx: Transaction, turn: _Turn, queued: FiringRow, *, now: Micros) -> None:
    (wish,) = turn.wishes
    settled = _with_subject(queued, wish, now=now)
    firing_settle(tx, settled)
    turn.row = _counted(replace(turn.row, backlog=turn.row.backlog - 1), [settled])


def _firing(turn: _Turn, done: Plan, outcome: Outcome, made: bytes | OrbitError | None, *, now: Micros) -> FiringRow:
    row = firing_new(
        turn.row.id,
        scheduled_at=outcome.scheduled_at,
        last_at=outcome.last_at,
        points_count=outcome.count,
        schedule_revision=done.revision.number,
        state=FiringState.QUEUED if outcome.action is Action.QUEUE else FiringState.SKIPPED,
        reason=None if outcome.reason is RangeReason.MERGED and outcome.count == 1 else outcome.reason,
        recorded_at=now,
    )
    if outcome.action is not Action.FIRE:
        return row
    return _with_subject(row, _Wish(turn, 0, outcome, None, made), now=now)


def _with_subject(row: FiringRow, wish: _Wish, *, now: Micros) -> FiringRow:
    """Write what was made, or why it was refused for good, onto a firing."""
    made = wish.made
    if isinstance(made, OrbitError):
        more = {} if made.details is None else {"details": made.details}
        error = dumps({"code": made.code, "message": made.message, **more}).decode()
        return replace(row, state=FiringState.REFUSED, error=error)
    assert made is not None, "everything wished for is answered"
    kind = SubjectKind.INSTANCE if _revision(wish).content.task is None else SubjectKind.TASK
    return replace(row, state=FiringState.FIRED, subject_kind=kind, subject_id=made, fired_at=now)


def _counted(row: ScheduleRow, firings: Sequence[FiringRow]) -> ScheduleRow:
    """Note what was made last, and what waits."""
    for each in firings:
        if each.state is FiringState.FIRED:
            row = replace(row, latest_kind=each.subject_kind, latest_id=each.subject_id)
    return replace(row, backlog=row.backlog + sum(each.state is FiringState.QUEUED for each in firings))


def _events(tx: Transaction, turn: _Turn, before: ScheduleRow) -> list[EventRecord]:
    row = turn.row
    if row.state is before.state:
        return []
    target = turn.eras[-1].revision.content.instance
    workflow = None if target is None else target.workflow
    name, data = f"schedule.{row.state.value.lower()}", row.stop_reason or "{}"
    return [schedule_event(tx, row, name, workflow=workflow, data=data)]
