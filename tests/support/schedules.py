"""Schedules without a node: each pass is a call, and time passes only where a test says so."""

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from orbit.access import Credential, Scope
from orbit.clock import SECOND, Micros
from orbit.idempotency import Answer
from orbit.store.tenancy import credential_find, credential_insert
from pulse.listener import InstanceMaker
from pulse.schedules.content import Content, TaskTarget
from pulse.schedules.firing import Firer
from pulse.schedules.manage import ScheduleChange, ScheduleOrder, Schedules, schedule_get
from pulse.schedules.policy import Misfire, MisfirePolicy, Overlap, OverlapPolicy
from pulse.schedules.rules import TimeRule
from pulse.schedules.store import FiringRow, ScheduleRow, firings_find
from pulse.states import FiringState
from tests.support.pulse import Pulse

ALLOW = Overlap(policy=OverlapPolicy.ALLOW)
SKIP = Misfire(policy=MisfirePolicy.SKIP)


def every(seconds: float, **fields: Any) -> TimeRule:
    """Make a fixed rate."""
    return TimeRule(every_micros=round(seconds * SECOND), **fields)


def at(anchor: Micros, *seconds: float) -> list[Micros]:
    """Give instants a moment after those of a rate."""
    return [anchor + round((each + 0.2) * SECOND) for each in seconds]


class Scheduling:
    """The schedules of a namespace, made with the rights of one credential."""

    def __init__(self, pulse: Pulse, maker: InstanceMaker | None = None) -> None:
        self.pulse = pulse
        self.database = pulse.database
        self.firer = Firer(pulse.database, pulse, maker)
        self.manage = Schedules(pulse, maker)
        self.caller = self.credential()

    def credential(self, scopes: Collection[str] = tuple(Scope), queues: Collection[str] | None = None) -> Credential:
        """Make somebody with rights."""
        namespace_id = self.pulse.namespace_id

        def work(tx: Any) -> Credential:
            token = credential_insert(tx, namespace_id, name="tests", scopes=scopes, queues=queues)
            found = credential_find(tx, token.credential_id)
            assert found is not None
            return found.credential

        return self.database.transaction(work)

    def now(self) -> Micros:
        """Read the clock."""
        return self.database.transaction(lambda tx: tx.now())

    def order(self, rule: TimeRule, caller: Credential | None = None, **fields: Any) -> ScheduleOrder:
        """Make a configuration: `echo@1` in `main` with no params, SKIP what was missed, ALLOW overlap."""
        plain = Content(
            name="tests", rule=rule, misfire=SKIP, overlap=ALLOW, task=TaskTarget(queue="main", type="echo", version=1)
        )
        payload = fields.pop("payload", b"{}")
        return ScheduleOrder(replace(plain, **fields), payload, caller or self.caller)

    def create(self, rule: TimeRule, *, is_paused: bool = False, **fields: Any) -> bytes:
        """Make a schedule and return its id."""
        order, command, actor = self.order(rule, **fields), self.pulse.command("schedule.create"), self.pulse.actor()
        answer = self.database.transaction(
            lambda tx: self.manage.create(tx, command, actor, order=order, is_paused=is_paused)
        )
        return answer.subject_id

    def configure(
        self, schedule_id: bytes, rule: TimeRule, *, effective_at: Micros | None = None, **fields: Any
    ) -> Answer:
        """Give a schedule a new revision."""
        change = self._change(schedule_id, order=self.order(rule, **fields), effective_at=effective_at)
        command, actor = self.pulse.command("schedule.configure"), self.pulse.actor()
        return self.database.transaction(lambda tx: self.manage.configure(tx, command, actor, change))

    def pause(self, schedule_id: bytes) -> None:
        """Pause a schedule."""
        command, actor, change = self.pulse.command("schedule.pause"), self.pulse.actor(), self._change(schedule_id)
        self.database.transaction(lambda tx: self.manage.pause(tx, command, actor, change))

    def resume(self, schedule_id: bytes) -> None:
        """Resume a schedule."""
        command, actor, change = self.pulse.command("schedule.resume"), self.pulse.actor(), self._change(schedule_id)
        self.database.transaction(lambda tx: self.manage.resume(tx, command, actor, change))

    def run(self) -> None:
        """Run passes until nothing is due now."""
        while self.firer.run_once() == 0.0:
            pass

    def move_to(self, at: Micros) -> None:
        """Move the clock to an instant, without a pass."""
        self.database.clock.advance(seconds_forward=(at - self.now()) / SECOND)

    def run_at(self, *instants: Micros) -> None:
        """Move the clock to each instant, and run what is due there."""
        for at in instants:
            self.move_to(at)
            self.run()

    def row(self, schedule_id: bytes) -> ScheduleRow:
        """Read a schedule."""
        return self.database.transaction(lambda tx: schedule_get(tx, self.pulse.namespace_id, schedule_id))

    def firings(self, schedule_id: bytes, state: FiringState | None = None) -> list[FiringRow]:
        """Read a schedule's firings, in order of time."""
        found = self.database.transaction(lambda tx: firings_find(tx, schedule_id, limit=1000, state=state))
        return found[::-1]

    def told(self, schedule_id: bytes, anchor: Micros) -> list[tuple[str, float, int]]:
        """Write firings as (state or reason of the skip, seconds after the anchor, count)."""
        return [
            (
                str(row.reason if row.state is FiringState.SKIPPED else row.state),
                (row.scheduled_at - anchor) / SECOND,
                row.points_count,
            )
            for row in self.firings(schedule_id)
        ]

    def tasks(self, schedule_id: bytes) -> list[bytes]:
        """List what a schedule has made, in order of time."""
        return [row.subject_id for row in self.firings(schedule_id) if row.subject_id is not None]

    def _change(self, schedule_id: bytes, **fields: Any) -> ScheduleChange:
        return ScheduleChange(schedule_id=schedule_id, expected_revision=None, reason="a test", **fields)
