"""Schedules: create, change, pause, resume, read, list; their firings; previews.

Who makes or changes a schedule needs the right to do by hand what it will do: `tasks:submit` for its queue, or
`instances:start`. A schedule out of range does not exist for a caller.
"""

from __future__ import annotations

import json
from itertools import islice

from api.calls import Call, Operation, Parameter, Reply
from api.models.fields import revision_number
from api.models.schedules import (
    Configuration,
    ConfigureSchedule,
    CreateSchedule,
    Firing,
    PauseSchedule,
    Preview,
    PreviewSchedule,
    ResumeSchedule,
    Schedule,
    ScheduleReceipt,
)
from api.parameters import CURSOR, LIMIT, word_parameter
from api.queries import Cursor, cursor_text
from api.schedule_orders import instant_of, order_of, preview_order
from orbit.access import Scope
from orbit.clock import Micros, to_rfc3339
from orbit.database import Database, Transaction
from orbit.errors import NotFound
from orbit.ids import from_hex
from orbit.jsontext import Json
from pulse.node import PulseNode
from pulse.schedules.content import Era, Revision, era_points
from pulse.schedules.manage import ScheduleChange, Schedules, is_visible, schedule_get
from pulse.schedules.store import FiringRow, ScheduleRow, firings_find, schedules_find
from pulse.schedules.zones import local_of, zone_find
from pulse.states import FiringState, ScheduleState, SubjectKind

_MISSING = "no such schedule"
_PREVIEW_DEFAULT = 10


class ScheduleResource:
    """The schedule resource."""

    def __init__(self, database: Database, pulse: PulseNode) -> None:
        self._database = database
        self._pulse = pulse
        self._schedules = Schedules(pulse, pulse.firer.maker)

    def operations(self) -> list[Operation]:
        """Declare what can be done with schedules."""
        path, read, manage = "/v1/schedules", Scope.SCHEDULES_READ, Scope.SCHEDULES_MANAGE
        one = f"{path}/{{schedule_id}}"
        return [
            Operation("POST", path, "Create a schedule", self.create, manage, ScheduleReceipt, CreateSchedule,
                      keyed=True, creates=True),
            Operation("POST", f"{path}:preview", "Say when a schedule would fire", self.preview, read, Preview,
                      PreviewSchedule),
            Operation("GET", path, "List schedules, newest first", self.list_page, read, Schedule,
                      query=(_state(ScheduleState), LIMIT, CURSOR), is_page=True),
            Operation("GET", one, "Read a schedule", self.get, read, Schedule),
            Operation("GET", f"{one}/firings", "List what became of a schedule's instants, the latest first",
                      self.firings, read, Firing, query=(_state(FiringState), LIMIT, CURSOR),
                      is_page=True),
            Operation("POST", f"{one}:configure", "Give a schedule a new revision", self.configure, manage,
                      ScheduleReceipt, ConfigureSchedule, keyed=True),
            Operation("POST", f"{one}:pause", "Let a schedule fire nothing more", self.pause, manage, ScheduleReceipt,
                      PauseSchedule, keyed=True),
            Operation("POST", f"{one}:resume", "Let a schedule fire again", self.resume, manage, ScheduleReceipt,
                      ResumeSchedule, keyed=True),
        ]  # fmt: skip

    def create(self, call: Call) -> Reply:
        """Create a schedule."""
        body = call.model(CreateSchedule)
        _require(call, body)
        order, command, is_paused = order_of(body, call.caller), call.command("schedule.create"), bool(body.paused)
        answer = self._database.transaction(
            lambda tx: self._schedules.create(tx, command, call.actor, order=order, is_paused=is_paused)
        )
        self._pulse.schedule_changed()
        return call.receipt(answer, creates=True)

    def configure(self, call: Call) -> Reply:
        """Give a schedule a new revision."""
        body = call.model(ConfigureSchedule)
        row = self._in_range(call)
        _require(call, body)
        change = ScheduleChange(
            schedule_id=row.id,
            expected_revision=revision_number(body.expected_revision, pointer="/expected_revision"),
            reason=body.reason,
            order=order_of(body, call.caller),
            effective_at=instant_of(body.effective_at, "/effective_at"),
        )
        command = call.command("schedule.configure", resource=row.id.hex())
        answer = self._database.transaction(lambda tx: self._schedules.configure(tx, command, call.actor, change))
        self._pulse.schedule_changed()
        return call.receipt(answer, creates=False)

    def pause(self, call: Call) -> Reply:
        """Pause a schedule."""
        change = self._moved(call, call.model(PauseSchedule))
        command = call.command("schedule.pause", resource=change.schedule_id.hex())
        answer = self._database.transaction(lambda tx: self._schedules.pause(tx, command, call.actor, change))
        return call.receipt(answer, creates=False)

    def resume(self, call: Call) -> Reply:
        """Resume a schedule."""
        change = self._moved(call, call.model(ResumeSchedule))
        command = call.command("schedule.resume", resource=change.schedule_id.hex())
        answer = self._database.transaction(lambda tx: self._schedules.resume(tx, command, call.actor, change))
        self._pulse.schedule_changed()
        return call.receipt(answer, creates=False)

    def get(self, call: Call) -> Reply:
        """Read a schedule."""
        row = self._in_range(call)
        return call.data(self._database.transaction(lambda tx: self._schedules.json(tx, [row])[0]))

    def list_page(self, call: Call) -> Reply:
        """List schedules; what is out of range is left out, so a page may be short."""
        limit, cursor = call.query.limit(), call.query.cursor()
        word = call.query.word("state", tuple(state.value for state in ScheduleState))
        before = None if cursor is None else (cursor.at, cursor.id)

        def read(tx: Transaction) -> tuple[list[Json], str | None]:
            state = None if word is None else ScheduleState(word)
            rows = schedules_find(tx, call.namespace_id, limit=limit, before=before, state=state)
            shown = self._schedules.json(tx, [row for row in rows if is_visible(call.caller, row)])
            return list(shown), Cursor(rows[-1].created_at, rows[-1].id).text() if len(rows) == limit else None

        return call.page(*self._database.transaction(read))

    def firings(self, call: Call) -> Reply:
        """List what became of a schedule's instants."""
        limit, parts = call.query.limit(), call.query.cursor_parts(1)
        before = None if parts is None else parts[0]
        if parts is not None and (not isinstance(before, int) or isinstance(before, bool) or abs(before) >= 2**63):
            raise call.query.refused("cursor", "this is not a cursor of this list")
        word = call.query.word("state", tuple(state.value for state in FiringState))
        row = self._in_range(call)

        def read(tx: Transaction) -> list[FiringRow]:
            state = None if word is None else FiringState(word)
            return firings_find(tx, row.id, limit=limit, before=before, state=state)

        rows = self._database.transaction(read)
        next_cursor = cursor_text([rows[-1].scheduled_at]) if len(rows) == limit else None
        return call.page([_firing(each) for each in rows], next_cursor)

    def preview(self, call: Call) -> Reply:
        """Say when a schedule would fire; of an existing one also after a change that is only thought of."""
        body = call.model(PreviewSchedule)
        count = body.count or _PREVIEW_DEFAULT
        effective_at, after = instant_of(body.effective_at, "/effective_at"), instant_of(body.after, "/after")

        def read(tx: Transaction) -> tuple[list[Era], Micros]:
            now = tx.now()
            row = None
            if body.schedule_id is not None:
                row = schedule_get(tx, call.namespace_id, from_hex(body.schedule_id))
                if not is_visible(call.caller, row):
                    raise NotFound(_MISSING)
            start = now if after is None else after
            begin = (now if row is not None else start) if effective_at is None else effective_at
            order = preview_order(body, call.caller, start=begin, is_needed=row is None)
            return self._schedules.timeline(tx, row, order, effective_at=begin), start

        eras, start = self._database.transaction(read)
        is_stored = body.schedule_id is not None
        is_changed = body.cron is not None or body.every_seconds is not None
        thought_of = eras[-1].revision if eras and is_changed else None
        found = islice(era_points(eras, start), count)
        return call.data(
            {"points": [_point(at, rev, is_stored=is_stored and rev is not thought_of) for at, rev in found]}
        )

    def _moved(self, call: Call, body: PauseSchedule | ResumeSchedule) -> ScheduleChange:
        said = body.expected_revision
        expected = None if said is None else revision_number(said, pointer="/expected_revision")
        return ScheduleChange(schedule_id=self._in_range(call).id, expected_revision=expected, reason=body.reason)

    def _in_range(self, call: Call) -> ScheduleRow:
        schedule_id = call.path_id("schedule_id", message=_MISSING)
        row = self._database.transaction(lambda tx: schedule_get(tx, call.namespace_id, schedule_id))
        if not is_visible(call.caller, row):
            raise NotFound(_MISSING)
        return row


def _require(call: Call, body: Configuration) -> None:
    """Ask for the right to do by hand what the schedule will do."""
    call.caller.require(Scope.TASKS_SUBMIT if body.task is not None else Scope.INSTANCES_START)


def _state(states: type[ScheduleState | FiringState]) -> Parameter:
    return word_parameter("state", "In this state", [state.value for state in states])


def _point(at: Micros, revision: Revision, *, is_stored: bool) -> Json:
    timezone = revision.content.rule.timezone
    zone = None if timezone is None else zone_find(timezone)
    return {
        "scheduled_at": to_rfc3339(at),
        "local": None if zone is None else local_of(zone, at).isoformat(timespec="seconds"),
        "schedule_revision": str(revision.number) if is_stored else None,
    }


def _firing(row: FiringRow) -> Json:
    subject = None if row.subject_id is None else row.subject_id.hex()
    return {
        "id": row.id.hex(),
        "scheduled_at": to_rfc3339(row.scheduled_at),
        "last_at": to_rfc3339(row.last_at),
        "count": row.points_count,
        "schedule_revision": str(row.schedule_revision),
        "state": row.state,
        "reason": row.reason,
        "error": None if row.error is None else json.loads(row.error),
        "task_id": subject if row.subject_kind is SubjectKind.TASK else None,
        "instance_id": subject if row.subject_kind is SubjectKind.INSTANCE else None,
        "recorded_at": to_rfc3339(row.recorded_at),
        "fired_at": None if row.fired_at is None else to_rfc3339(row.fired_at),
    }
