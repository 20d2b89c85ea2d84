"""The rows of schedules, of their revisions and of their firings."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import and_, bindparam, func, or_, select, update

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.ids import new_id
from orbit.tables import credential, namespace
from pulse.schedules.content import Content, Revision, content_read
from pulse.schedules.policy import RangeReason, Run
from pulse.schedules.tables import firing, schedule, schedule_revision
from pulse.states import SCHEDULE_MOVES, FiringState, ScheduleState, SubjectKind
from pulse.tables import task

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.clock import Micros
    from orbit.database import Transaction


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """A schedule's row. `run` is the range that is being counted; `stop_reason` is JSON text."""

    id: bytes
    namespace_id: bytes
    name: str
    state: ScheduleState
    stop_reason: str | None
    revision: int
    newest_revision: int
    base_revision: int
    cursor_at: Micros
    next_at: Micros | None
    look_at: Micros | None
    run: Run | None
    skip_until: Micros | None
    skip_reason: RangeReason | None
    backlog: int
    latest_kind: SubjectKind | None
    latest_id: bytes | None
    queue: str | None
    credential_id: bytes
    created_at: Micros


class FiringRow(Struct, frozen=True, kw_only=True):
    """A firing or skipped range; `error` is JSON text."""

    schedule_id: bytes
    scheduled_at: Micros
    id: bytes
    last_at: Micros
    points_count: int
    schedule_revision: int
    state: FiringState
    reason: RangeReason | None
    error: str | None
    subject_kind: SubjectKind | None
    subject_id: bytes | None
    recorded_at: Micros
    fired_at: Micros | None


class Standing(Struct, frozen=True):
    """What a credential may do now; `lost` says in code and words why it may do nothing."""

    scopes: frozenset[str]
    queues: frozenset[str] | None
    lost: tuple[str, str] | None = None


_WAITING = Hot(
    through(select(schedule.c.id, schedule.c.look_at), schedule, "pulse_schedule_by_look")
    .where(schedule.c.look_at.is_not(None))
    .order_by(schedule.c.look_at, schedule.c.id)
    .limit(bindparam("limit")),
    tells_time=True,
)
_LOCK_DUE = (
    through(select(schedule), schedule)
    .where(ids_in(schedule.c.id), schedule.c.look_at <= bindparam("now"))
    .order_by(schedule.c.id)
    .with_for_update(skip_locked=True)
)
_REVISIONS = (
    through(select(schedule_revision), schedule_revision)
    .join(schedule, schedule.c.id == schedule_revision.c.schedule_id)
    .where(ids_in(schedule_revision.c.schedule_id), schedule_revision.c.revision >= schedule.c.base_revision)
)
_QUEUED = (
    select(firing)
    .where(firing.c.schedule_id == bindparam("id"), firing.c.state == FiringState.QUEUED)
    .order_by(firing.c.scheduled_at)
    .limit(1)
)
_TASKS = through(select(task.c.id, task.c.state), task).where(ids_in(task.c.id))
_SUCCESSORS = through(select(task.c.id, task.c.state, task.c.retry_of), task, "pulse_task_by_retry_of").where(
    ids_in(task.c.retry_of)
)
_BACKLOGS = (
    select(schedule.c.id, schedule.c.backlog, func.count(firing.c.id))
    .join(firing, and_(firing.c.schedule_id == schedule.c.id, firing.c.state == FiringState.QUEUED), isouter=True)
    .group_by(schedule.c.id, schedule.c.backlog)
)
_ASLEEP = select(schedule.c.id).where(
    schedule.c.look_at.is_(None),
    or_(
        schedule.c.state == ScheduleState.ACTIVE,
        and_(schedule.c.state == ScheduleState.ENDED, schedule.c.backlog > 0),
    ),
)
_LOST = (
    select(schedule.c.id)
    .join(task, task.c.id == schedule.c.latest_id, isouter=True)
    .where(schedule.c.latest_kind == SubjectKind.TASK, task.c.id.is_(None))
)
_RIGHTS = (
    select(
        credential.c.id,
        credential.c.scopes,
        credential.c.queues,
        credential.c.revoked_at,
        namespace.c.disabled_at,
    )
    .join(namespace, namespace.c.id == credential.c.namespace_id)
    .where(ids_in(credential.c.id))
)


def schedules_waiting(tx: Transaction, *, limit: int) -> list[tuple[bytes, Micros]]:
    """Read, without locks, what a node has to look at first, each with the instant; the clock comes along."""
    return [(row.id, row.look_at) for row in tx.rows(_WAITING, {"limit": limit})]


def schedules_lock_due(tx: Transaction, ids: Collection[bytes], *, now: Micros) -> list[ScheduleRow]:
    """Lock those of some schedules that are still due and that nobody else holds, in the order of ids."""
    return [_schedule(row) for row in tx.rows(_LOCK_DUE, {"ids": ids, "now": now})]


def schedule_read(
    tx: Transaction, namespace_id: bytes, schedule_id: bytes, *, is_locked: bool = False
) -> ScheduleRow | None:
    """Read a schedule of a namespace, with `is_locked` under its lock."""
    query = select(schedule).where(schedule.c.id == schedule_id, schedule.c.namespace_id == namespace_id)
    row = tx.row(query.with_for_update() if is_locked else query)
    return None if row is None else _schedule(row)


def schedules_find(
    tx: Transaction,
    namespace_id: bytes,
    *,
    limit: int,
    before: tuple[Micros, bytes] | None = None,
    state: ScheduleState | None = None,
) -> list[ScheduleRow]:
    """Read a page of a namespace's schedules, newest first."""
    query = select(schedule).where(schedule.c.namespace_id == namespace_id)
    if state is not None:
        query = query.where(schedule.c.state == state)
    if before is not None:
        at, identifier = before
        query = query.where(
            or_(schedule.c.created_at < at, and_(schedule.c.created_at == at, schedule.c.id < identifier))
        )
    query = query.order_by(schedule.c.created_at.desc(), schedule.c.id.desc()).limit(limit)
    return [_schedule(row) for row in tx.rows(query)]


def schedules_count(tx: Transaction, namespace_id: bytes) -> int:
    """Count a namespace's schedules."""
    row = tx.row(select(func.count()).select_from(schedule).where(schedule.c.namespace_id == namespace_id))
    return 0 if row is None else int(row[0])


def schedule_insert(tx: Transaction, made: ScheduleRow) -> None:
    """Store a new schedule."""
    tx.insert(schedule, [_columns(made)])


def schedules_write(tx: Transaction, changes: Sequence[tuple[ScheduleRow, ScheduleRow]]) -> None:
    """Write locked schedules back, each as it was and as it is now; a state only moves as its table says."""
    for before, after in changes:
        is_allowed = after.state is before.state or after.state in SCHEDULE_MOVES[before.state]
        assert is_allowed, f"a schedule does not move from {before.state} to {after.state}"
    rows = [after for _, after in changes]
    constant = ("namespace_id", "created_at")
    changed = [{name: value for name, value in _columns(row).items() if name not in constant} for row in rows]
    tx.update_many(schedule, rows=changed)


def schedule_put_off(tx: Transaction, schedule_id: bytes, *, until: Micros) -> None:
    """Let nobody look at a schedule before an instant."""
    query = update(schedule).where(schedule.c.id == schedule_id, schedule.c.look_at < until)
    tx.execute(query.values(look_at=until))


def revisions_read(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, list[Revision]]:
    """Read the revisions of schedules that still matter, in order."""
    found: dict[bytes, list[Revision]] = {}
    for row in tx.rows(_REVISIONS, {"ids": ids}):
        found.setdefault(row.schedule_id, []).append(_revision(row))
    return {key: sorted(each, key=lambda one: one.number) for key, each in found.items()}


def revision_insert(tx: Transaction, schedule_id: bytes, made: Revision, *, reason: str | None, now: Micros) -> None:
    """Store a revision."""
    tx.insert(
        schedule_revision,
        [
            {
                "schedule_id": schedule_id,
                "revision": made.number,
                "effective_at": made.effective_at,
                "content": made.content.text(),
                "payload": made.payload,
                "credential_id": made.credential_id,
                "queues": None if made.queues is None else json.dumps(sorted(made.queues)),
                "reason": reason,
                "created_at": now,
            }
        ],
    )


def revision_read(tx: Transaction, schedule_id: bytes, number: int) -> Revision:
    """Read one revision."""
    row = tx.row(
        select(schedule_revision).where(
            schedule_revision.c.schedule_id == schedule_id, schedule_revision.c.revision == number
        )
    )
    assert row is not None, "a revision is never removed"
    return _revision(row)


def contents_read(tx: Transaction, rows: Sequence[ScheduleRow]) -> dict[bytes, tuple[Content, bytes]]:
    """Read the newest configuration of schedules, with its payload."""
    if not rows:
        return {}
    keys = [(row.id, row.newest_revision) for row in rows]
    wanted = or_(
        *(and_(schedule_revision.c.schedule_id == key, schedule_revision.c.revision == number) for key, number in keys)
    )
    columns = (schedule_revision.c.schedule_id, schedule_revision.c.content, schedule_revision.c.payload)
    return {
        row.schedule_id: (content_read(row.content), bytes(row.payload))
        for row in tx.rows(select(*columns).where(wanted))
    }


def firings_insert(tx: Transaction, rows: Sequence[FiringRow]) -> None:
    """Record firings and skipped ranges."""
    tx.insert(firing, [{name: getattr(row, name) for name in FiringRow.__struct_fields__} for row in rows])


def firings_find(
    tx: Transaction,
    schedule_id: bytes,
    *,
    limit: int,
    before: Micros | None = None,
    state: FiringState | None = None,
) -> list[FiringRow]:
    """Read a page of a schedule's firings, the latest instant first."""
    query = select(firing).where(firing.c.schedule_id == schedule_id)
    if state is not None:
        query = query.where(firing.c.state == state)
    if before is not None:
        query = query.where(firing.c.scheduled_at < before)
    return [_firing(row) for row in tx.rows(query.order_by(firing.c.scheduled_at.desc()).limit(limit))]


def firing_queued_first(tx: Transaction, schedule_id: bytes) -> FiringRow | None:
    """Read the firing that has waited longest; the schedule's lock is held."""
    row = tx.row(_QUEUED, {"id": schedule_id})
    return None if row is None else _firing(row)


def firing_settle(tx: Transaction, row: FiringRow) -> None:
    """Write what became of a firing that was QUEUED."""
    query = update(firing).where(
        firing.c.schedule_id == row.schedule_id,
        firing.c.scheduled_at == row.scheduled_at,
        firing.c.state == FiringState.QUEUED,
    )
    values = {
        "state": row.state,
        "error": row.error,
        "subject_kind": row.subject_kind,
        "subject_id": row.subject_id,
        "fired_at": row.fired_at,
    }
    tx.expect(query.values(values), count=1)


def tasks_states(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, str]:
    """Read the states of tasks; one that is not there any more is left out."""
    return {row.id: row.state for row in tx.rows(_TASKS, {"ids": ids})} if ids else {}


def tasks_successors(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, tuple[bytes, str]]:
    """Read the direct retry of tasks that have one: its id and state."""
    return {row.retry_of: (row.id, row.state) for row in tx.rows(_SUCCESSORS, {"ids": ids})} if ids else {}


def standings_read(tx: Transaction, ids: Collection[bytes]) -> dict[bytes, Standing]:
    """Read what credentials may do now."""
    if not ids:
        return {}
    return {row.id: _standing(row) for row in tx.rows(_RIGHTS, {"ids": ids})}


def _standing(row: Row[Any]) -> Standing:
    lost = None
    if row.disabled_at is not None:
        lost = ("NAMESPACE_DISABLED", "the namespace is disabled")
    elif row.revoked_at is not None:
        lost = ("CREDENTIAL_REVOKED", "the credential that it acts with was revoked")
    queues = None if row.queues is None else frozenset(json.loads(row.queues))
    return Standing(frozenset(json.loads(row.scopes)), queues, lost)


def schedules_wrong(tx: Transaction) -> list[tuple[str, bytes, int, int]]:
    """Find schedules that nobody would look at again, or whose backlog or latest task is not what it says.

    Each with a name, its id, what is stored and what is counted; read it in a snapshot.
    """
    backlogs = ((row[0], int(row[1]), int(row[2])) for row in list[Any](tx.rows(_BACKLOGS)))
    return [
        *(("schedule_backlog", key, stored, counted) for key, stored, counted in backlogs if stored != counted),
        *(("schedule_asleep", row[0], 0, 1) for row in list[Any](tx.rows(_ASLEEP))),
        *(("schedule_latest", row[0], 1, 0) for row in list[Any](tx.rows(_LOST))),
    ]


def schedules_mend(tx: Transaction, ids: Collection[bytes], *, now: Micros) -> None:
    """Count the backlog of schedules again under their locks, and let a node look at those that are in use."""
    changes = []
    for schedule_id in sorted(ids):
        row = tx.row(select(schedule).where(schedule.c.id == schedule_id).with_for_update())
        assert row is not None, "a schedule is never removed"
        before = _schedule(row)
        counted = tx.row(
            select(func.count())
            .select_from(firing)
            .where(firing.c.schedule_id == schedule_id, firing.c.state == FiringState.QUEUED)
        )
        backlog = 0 if counted is None else int(counted[0])
        is_used = before.state is ScheduleState.ACTIVE or (before.state is ScheduleState.ENDED and backlog > 0)
        look_at = (before.look_at or now) if is_used else None
        changes.append((before, replace(before, backlog=backlog, look_at=look_at)))
    schedules_write(tx, changes)


def firing_new(schedule_id: bytes, **fields: Any) -> FiringRow:
    """Make a firing's row with an id of its own; what is not given is null."""
    plain: dict[str, Any] = dict.fromkeys(("reason", "error", "subject_kind", "subject_id", "fired_at"))
    return FiringRow(schedule_id=schedule_id, id=new_id(), **(plain | fields))


def _columns(row: ScheduleRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in ScheduleRow.__struct_fields__ if name != "run"}
    run = row.run
    return values | {
        "run_reason": None if run is None else run.reason,
        "run_first_at": None if run is None else run.first_at,
        "run_last_at": None if run is None else run.last_at,
        "run_count": None if run is None else run.count,
    }


def _schedule(row: Row[Any]) -> ScheduleRow:
    values = row._asdict()
    reason, first, last, count = (values.pop(f"run_{name}") for name in ("reason", "first_at", "last_at", "count"))
    values["run"] = None if reason is None else Run(RangeReason(reason), first, last, count)
    values["state"] = ScheduleState(values["state"])
    values["skip_reason"] = None if values["skip_reason"] is None else RangeReason(values["skip_reason"])
    values["latest_kind"] = None if values["latest_kind"] is None else SubjectKind(values["latest_kind"])
    return ScheduleRow(**values)


def _revision(row: Row[Any]) -> Revision:
    return Revision(
        number=row.revision,
        effective_at=row.effective_at,
        content=content_read(row.content),
        payload=bytes(row.payload),
        credential_id=row.credential_id,
        queues=None if row.queues is None else frozenset(json.loads(row.queues)),
    )


def _firing(row: Row[Any]) -> FiringRow:
    values = row._asdict()
    values["state"] = FiringState(values["state"])
    values["reason"] = None if values["reason"] is None else RangeReason(values["reason"])
    values["subject_kind"] = None if values["subject_kind"] is None else SubjectKind(values["subject_kind"])
    return FiringRow(**values)
