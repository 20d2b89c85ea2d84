"""What the client can do with schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orbit import jsontext
from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.schedule_models import (
    ConfigureSchedule,
    CreateSchedule,
    Firing,
    Point,
    Preview,
    PreviewSchedule,
    Schedule,
    ScheduleResult,
)
from orbit.sdk.transport import Exchange


class ScheduleCalls(Calls):
    """The part of `orbit.Client` that is about schedules."""

    def create_schedule(self, key: str, request: CreateSchedule) -> ScheduleResult:
        """Create a schedule; it acts with the rights of this credential."""
        return models.read(self._write("/v1/schedules", "create_schedule", key, request.body()), ScheduleResult)

    def get_schedule(self, schedule_id: str) -> Schedule:
        """Read a schedule."""
        return models.read(self._read(f"/v1/schedules/{segment(schedule_id)}", "get_schedule").data, Schedule)

    def list_schedules(self, **query: str | int) -> Iterator[Schedule]:
        """List schedules, newest first; `state` narrows them."""
        return self._pages("/v1/schedules", "list_schedules", query, Schedule)

    def configure_schedule(self, schedule_id: str, key: str, request: ConfigureSchedule) -> ScheduleResult:
        """Give a schedule a new revision. Raises APIError STATE_CONFLICT if `expected_revision` is stale."""
        path = f"/v1/schedules/{segment(schedule_id)}:configure"
        return models.read(self._write(path, "configure_schedule", key, request.body()), ScheduleResult)

    def pause_schedule(
        self, schedule_id: str, key: str, *, reason: str, expected_revision: int | None = None
    ) -> ScheduleResult:
        """Let a schedule fire nothing more; what it has made goes on."""
        return self._move(f"{segment(schedule_id)}:pause", key, reason, expected_revision)

    def resume_schedule(
        self, schedule_id: str, key: str, *, reason: str, expected_revision: int | None = None
    ) -> ScheduleResult:
        """Let a paused or stopped schedule fire again; what has passed meanwhile is skipped."""
        return self._move(f"{segment(schedule_id)}:resume", key, reason, expected_revision)

    def schedule_firings(self, schedule_id: str, **query: str | int) -> Iterator[Firing]:
        """List what became of a schedule's instants, the latest first; `state` narrows them."""
        return self._pages(f"/v1/schedules/{segment(schedule_id)}/firings", "schedule_firings", query, Firing)

    def preview_schedule(self, request: PreviewSchedule) -> list[Point]:
        """Say when a schedule would fire; nothing is stored."""
        exchange = Exchange("POST", "/v1/schedules:preview", "preview_schedule", body=request.body())
        return models.read(self._transport.send(exchange).data, Preview).points

    def _move(self, path: str, key: str, reason: str, expected_revision: int | None) -> ScheduleResult:
        body: dict[str, Any] = {"reason": reason}
        if expected_revision is not None:
            body["expected_revision"] = str(expected_revision)
        operation = f"{path.rpartition(':')[2]}_schedule"
        return models.read(self._write(f"/v1/schedules/{path}", operation, key, jsontext.dumps(body)), ScheduleResult)
