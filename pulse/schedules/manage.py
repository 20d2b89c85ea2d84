"""Create, change, pause and resume schedules: management, with audit, event and receipt.

A schedule acts with the rights of who made its revision, as they were then and as they are at each firing: what either
lacks it can't do. The surprising rule: a change is a new revision with a boundary. Instants before it follow the old
one, also when they are decided late, so a change in the past is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orbit.access import queue_not_found
from orbit.clock import to_rfc3339
from orbit.errors import InvalidRequest, NotFound, PayloadTooLarge, StateConflict
from orbit.idempotency import Answer, Command, Made, once
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.redaction import MASK, below, masked
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from pulse import limits
from pulse.listener import InstanceMaker, InstanceStart
from pulse.requests import policy_of
from pulse.schedules.content import Content, Era, Revision, content_json, era_points, eras_of, task_request
from pulse.schedules.policy import RangeReason
from pulse.schedules.rules import rule_check
from pulse.schedules.store import (
    ScheduleRow,
    contents_read,
    revision_insert,
    revisions_read,
    schedule_insert,
    schedule_read,
    schedules_count,
    schedules_write,
)
from pulse.settle import Surroundings
from pulse.states import ScheduleState
from pulse.store.queue import queue_ids

if TYPE_CHECKING:
    from orbit.access import Credential
    from orbit.clock import Micros
    from orbit.database import Transaction

_MISSING = "no such schedule"


@dataclass(frozen=True, slots=True)
class ScheduleOrder:
    """A configuration as asked for, by whom; `payload` is the JSON text of the task's params or instance's input."""

    content: Content
    payload: bytes
    caller: Credential


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChange:
    """A change of a schedule; `order` and the boundary `effective_at` (None: now) are those of a new configuration."""

    schedule_id: bytes
    expected_revision: int | None
    reason: str
    order: ScheduleOrder | None = None
    effective_at: Micros | None = None


class Schedules:
    """Manages schedules inside transactions of the caller's. `maker` knows workflows."""

    def __init__(self, around: Surroundings, maker: InstanceMaker | None) -> None:
        self._around = around
        self._maker = maker

    def create(
        self, tx: Transaction, command: Command, actor: Actor, *, order: ScheduleOrder, is_paused: bool
    ) -> Answer:
        """Make a schedule. Raises InvalidRequest naming the field, NotFound for a queue or workflow, StateConflict."""

        def make() -> Made:
            if schedules_count(tx, command.namespace_id) >= limits.SCHEDULES_MAX:
                raise StateConflict(f"a namespace may have {limits.SCHEDULES_MAX} schedules")
            now = tx.now()
            revision = self._revision(tx, order, 1, effective_at=now, former=None)
            row = ScheduleRow(
                id=new_id(),
                namespace_id=command.namespace_id,
                name=revision.content.name,
                state=ScheduleState.PAUSED if is_paused else ScheduleState.ACTIVE,
                stop_reason=None,
                revision=1,
                newest_revision=1,
                base_revision=1,
                cursor_at=now,
                next_at=None,
                look_at=None,
                run=None,
                skip_until=None,
                skip_reason=None,
                backlog=0,
                latest_kind=None,
                latest_id=None,
                queue=None if revision.content.task is None else revision.content.task.queue,
                credential_id=order.caller.id,
                created_at=now,
            )
            row = _timed(row, eras_of([revision]), now=now)
            schedule_insert(tx, row)
            revision_insert(tx, row.id, revision, reason=None, now=now)
            shown = self.json(tx, [row])[0]
            return self._made(tx, (command, actor, None), row, (None, shown))

        return once(tx, command, make)

    def configure(self, tx: Transaction, command: Command, actor: Actor, change: ScheduleChange) -> Answer:
        """Give a schedule a new revision from its boundary on. Raises as `create`, and for another revision."""
        order = change.order
        assert order is not None, "a configuration says what it is"

        def write(row: ScheduleRow, now: Micros) -> ScheduleRow:
            effective_at = now if change.effective_at is None else change.effective_at
            if effective_at < now:
                raise InvalidRequest("effective_at has passed", pointer="/effective_at")
            known = revisions_read(tx, [row.id])[row.id]
            if sum(each.effective_at > now for each in known) >= limits.REVISIONS_PENDING_MAX:
                raise StateConflict(f"{limits.REVISIONS_PENDING_MAX} revisions have not come into force yet")
            number = row.revision + 1
            former = eras_of(known)[-1].revision
            revision = self._revision(tx, order, number, effective_at=effective_at, former=former)
            revision_insert(tx, row.id, revision, reason=change.reason, now=now)
            is_ended = row.state is ScheduleState.ENDED
            row = replace(
                row,
                name=revision.content.name,
                state=ScheduleState.ACTIVE if is_ended else row.state,
                newest_revision=number,
                queue=None if revision.content.task is None else revision.content.task.queue,
                credential_id=order.caller.id,
                # Of one that had ended nothing is left to decide before the boundary.
                cursor_at=max(row.cursor_at, now) if is_ended else row.cursor_at,
            )
            return _timed(row, eras_of([*known, revision]), now=now)

        return self._change(tx, (command, actor), change, write)

    def pause(self, tx: Transaction, command: Command, actor: Actor, change: ScheduleChange) -> Answer:
        """Let a schedule fire nothing more; what it has made goes on.

        Raises StateConflict for one that has ended and of which nothing waits.
        """

        def write(row: ScheduleRow, _now: Micros) -> ScheduleRow:
            if row.state is ScheduleState.ENDED and not row.backlog:
                raise StateConflict("the schedule has ended", details={"state": row.state})
            if row.state is ScheduleState.PAUSED:
                return row
            return replace(row, state=ScheduleState.PAUSED, stop_reason=None, next_at=None, look_at=None)

        return self._change(tx, (command, actor), change, write)

    def resume(self, tx: Transaction, command: Command, actor: Actor, change: ScheduleChange) -> Answer:
        """Let a paused or stopped schedule fire again; what has passed meanwhile is recorded as one skipped range.

        One that is active stays as it is. Raises StateConflict for one that has ended.
        """

        def write(row: ScheduleRow, now: Micros) -> ScheduleRow:
            if row.state is ScheduleState.ENDED:
                raise StateConflict("the schedule has ended", details={"state": row.state})
            if row.state is ScheduleState.ACTIVE:
                return row
            reason = RangeReason.PAUSED if row.state is ScheduleState.PAUSED else RangeReason.STOPPED
            row = replace(
                row,
                state=ScheduleState.ACTIVE,
                stop_reason=None,
                skip_until=now,
                skip_reason=row.skip_reason or reason,
            )
            return _timed(row, eras_of(revisions_read(tx, [row.id])[row.id]), now=now)

        return self._change(tx, (command, actor), change, write)

    def json(self, tx: Transaction, rows: list[ScheduleRow]) -> list[dict[str, Json]]:
        """Write schedules as the API shows them, with what types and workflows hide masked."""
        self._around.catalog.freshen(tx)
        contents = contents_read(tx, rows)
        return [self._json(tx, row, *contents[row.id]) for row in rows]

    def timeline(
        self, tx: Transaction, row: ScheduleRow | None, order: ScheduleOrder | None, *, effective_at: Micros
    ) -> list[Era]:
        """Lay out a schedule's revisions, and after them a configuration that is only thought of."""
        known = [] if row is None else revisions_read(tx, [row.id])[row.id]
        if order is None:
            return eras_of(known)
        number = 0 if row is None else row.revision + 1
        former = eras_of(known)[-1].revision if known else None
        return eras_of([*known, _with_anchor(_unchecked(order, number, effective_at=effective_at), former)])

    def _change(
        self,
        tx: Transaction,
        who: tuple[Command, Actor],
        change: ScheduleChange,
        write: Callable[[ScheduleRow, Micros], ScheduleRow],
    ) -> Answer:
        command, actor = who

        def make() -> Made:
            row = schedule_get(tx, command.namespace_id, change.schedule_id, is_locked=True)
            if change.expected_revision is not None and change.expected_revision != row.revision:
                message = "the schedule has changed; read it again"
                raise StateConflict(message, details={"current_revision": str(row.revision)})
            before = self.json(tx, [row])[0]
            written = write(row, tx.now())
            if written is row:
                return Made(row.id, {"schedule": before})
            written = replace(written, revision=row.revision + 1)
            schedules_write(tx, [(row, written)])
            after = self.json(tx, [written])[0]
            return self._made(tx, (command, actor, change.reason), written, (before, after))

        return once(tx, command, make)

    def _made(
        self, tx: Transaction, who: tuple[Command, Actor, str | None], row: ScheduleRow, change: tuple[Json, Json]
    ) -> Made:
        command, actor, reason = who
        before, after = change
        now = tx.now()
        record = AuditRecord(row.namespace_id, actor, command.operation, "schedule", row.id, reason, before, after)
        audit_insert(tx, record, now=now)
        target = after["configuration"]["workflow"]
        workflow = None if target is None else target["workflow"]
        events_insert(tx, [schedule_event(tx, row, _EVENT_OF[command.operation], workflow=workflow)], now=now)
        return Made(row.id, {"schedule": after})

    def _revision(
        self,
        tx: Transaction,
        order: ScheduleOrder,
        number: int,
        *,
        effective_at: Micros,
        former: Revision | None,
    ) -> Revision:
        """Make a revision of a configuration that could be fired now."""
        revision = _with_anchor(_unchecked(order, number, effective_at=effective_at), former)
        rule_check(revision.content.rule, start=effective_at)
        if MASK.encode() in revision.payload:
            pointer = "/task/params" if revision.content.task is not None else "/workflow/input"
            raise InvalidRequest("this holds a masked value, as it was read: give the real one", pointer=pointer)
        if revision.content.task is not None:
            self._check_task(tx, order, revision)
        elif self._maker is not None:
            self._maker.check(tx, _start(order, revision))
        return revision

    def _check_task(self, tx: Transaction, order: ScheduleOrder, revision: Revision) -> None:
        namespace_id = order.caller.namespace_id
        request = task_request(revision, 0, namespace_id=namespace_id, schedule_id=b"")
        order.caller.require_queue(request.queue)
        if not queue_ids(tx, namespace_id, {request.queue}):
            raise queue_not_found()
        if len(request.params) > limits.PARAMS_BYTES_MAX:
            message = f"params may have {limits.PARAMS_BYTES_MAX} bytes: keep more elsewhere and pass a reference"
            raise PayloadTooLarge(message, pointer="/task/params")
        catalog = self._around.catalog
        catalog.freshen(tx)
        kind = catalog.current(namespace_id, request.type, request.version)
        try:
            policy_of(request.policy_wish(), None if kind is None else kind.policy)
            fault = None if kind is None else kind.params_fault(request.params, request.params_version)
        except InvalidRequest as error:
            fault = error
        if fault is not None:
            raise InvalidRequest(fault.message, pointer=f"/task{fault.pointer or ''}")

    def _json(self, tx: Transaction, row: ScheduleRow, content: Content, payload: bytes) -> dict[str, Json]:
        latest = None if row.latest_id is None else {"kind": row.latest_kind, "id": row.latest_id.hex()}
        return {
            "id": row.id.hex(),
            "state": row.state,
            "stop_reason": None if row.stop_reason is None else json.loads(row.stop_reason),
            "revision": str(row.revision),
            "schedule_revision": str(row.newest_revision),
            "next_at": None if row.next_at is None else to_rfc3339(row.next_at),
            "backlog": row.backlog,
            "latest": latest,
            "created_at": to_rfc3339(row.created_at),
            "configuration": content_json(content, self._shown(tx, row, content, payload)),
        }

    def _shown(self, tx: Transaction, row: ScheduleRow, content: Content, payload: bytes) -> Json:
        target = content.task
        if target is not None:
            kind = self._around.catalog.current(row.namespace_id, target.type, target.version)
            return masked(json.loads(payload), below(() if kind is None else kind.redact, "params"))
        assert content.instance is not None
        if self._maker is None:
            return json.loads(payload)
        wanted = InstanceStart(
            namespace_id=row.namespace_id,
            schedule_id=row.id,
            scheduled_at=0,
            workflow=content.instance.workflow,
            version=content.instance.version,
            input=payload,
            queues=None,
            business_key=None,
            labels={},
        )
        return self._maker.input_shown(tx, wanted)


_EVENT_OF = {
    "schedule.create": "schedule.created",
    "schedule.configure": "schedule.configured",
    "schedule.pause": "schedule.paused",
    "schedule.resume": "schedule.resumed",
}


def schedule_get(tx: Transaction, namespace_id: bytes, schedule_id: bytes, *, is_locked: bool = False) -> ScheduleRow:
    """Read a schedule, with `is_locked` under its lock; raises NotFound."""
    row = schedule_read(tx, namespace_id, schedule_id, is_locked=is_locked)
    if row is None:
        raise NotFound(_MISSING)
    return row


def schedule_event(
    tx: Transaction, row: ScheduleRow, name: str, *, workflow: str | None, data: str = "{}"
) -> EventRecord:
    """Make an event of a schedule, which subscriptions find by its queue or by its workflow."""
    queue_id = None if row.queue is None else queue_ids(tx, row.namespace_id, {row.queue}).get(row.queue)
    return EventRecord(row.namespace_id, name, row.id, row.revision, data, queue_id=queue_id, workflow=workflow)


def is_visible(caller: Credential, row: ScheduleRow) -> bool:
    """Say whether a caller may know of a schedule: its queue is in range; of instances, who made it or sees all."""
    if caller.queues is None:
        return True
    return row.credential_id == caller.id if row.queue is None else row.queue in caller.queues


def _timed(row: ScheduleRow, eras: list[Era], *, now: Micros) -> ScheduleRow:
    """Write when a schedule fires next and when a node has to look at it; nobody has to while it stands."""
    if row.state is not ScheduleState.ACTIVE:
        return replace(row, next_at=None, look_at=None)
    following = next(era_points(eras, max(row.cursor_at, row.skip_until or 0)), None)
    next_at = None if following is None else following[0]
    is_pending = row.skip_until is not None or row.run is not None or row.backlog > 0
    return replace(row, next_at=next_at, look_at=now if is_pending or next_at is None else next_at)


def _unchecked(order: ScheduleOrder, number: int, *, effective_at: Micros) -> Revision:
    return Revision(
        number=number,
        effective_at=effective_at,
        content=order.content,
        payload=order.payload,
        credential_id=order.caller.id,
        queues=order.caller.queues,
    )


def _with_anchor(revision: Revision, former: Revision | None) -> Revision:
    """Anchor a rate that names no anchor: where it was anchored before, else at its begin."""
    rule = revision.content.rule
    if rule.every_micros is None or rule.anchor_at is not None:
        return revision
    before = None if former is None else former.content.rule.anchor_at
    begin = revision.effective_at if rule.starts_at is None else max(rule.starts_at, revision.effective_at)
    anchored = replace(rule, anchor_at=begin if before is None else before)
    return replace(revision, content=replace(revision.content, rule=anchored))


def _start(order: ScheduleOrder, revision: Revision) -> InstanceStart:
    target = revision.content.instance
    assert target is not None, "a revision makes either"
    return InstanceStart(
        namespace_id=order.caller.namespace_id,
        schedule_id=b"",
        scheduled_at=0,
        workflow=target.workflow,
        version=target.version,
        input=revision.payload,
        queues=order.caller.queues,
        business_key=target.business_key,
        labels=target.labels,
    )
