"""What schedules may make: lost rights, refusals for good, faults of one that hold up no other, and the doctor."""

import json

import pytest
from sqlalchemy import update

from orbit.clock import SECOND, Micros
from orbit.database import Transaction
from orbit.errors import InvalidRequest, NotFound, OrbitError
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.store.tenancy import credential_change, credential_revoke, namespace_disable
from pulse.doctor import examine, is_repairable, repair
from pulse.listener import InstanceStart
from pulse.schedules.content import InstanceTarget, TaskTarget
from pulse.schedules.policy import Overlap, OverlapPolicy
from pulse.schedules.tables import schedule
from pulse.states import (
    FIRING_MOVES,
    SCHEDULE_MOVES,
    FiringState,
    ScheduleState,
)
from tests.support.pulse import Pulse
from tests.support.schedules import Scheduling, at, every

SERIAL = Overlap(policy=OverlapPolicy.SKIP)


def test_what_is_refused_for_good_is_recorded_and_blocks_nothing(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    made = schedules.create(every(60, anchor_at=anchor), overlap=SERIAL, payload=b'{"n": "text"}')
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    pulse.register(params_schemas={"1": schema})
    schedules.run_at(*at(anchor, 0))
    (refused,) = schedules.firings(made)
    assert (refused.state, refused.subject_id) == (FiringState.REFUSED, None)
    assert refused.error is not None
    assert json.loads(refused.error)["code"] == "INVALID_REQUEST"
    assert schedules.row(made).latest_id is None
    schedules.configure(made, every(60, anchor_at=anchor), overlap=SERIAL, payload=b'{"n": 1}')
    schedules.run_at(*at(anchor, 60))
    assert schedules.told(made, anchor)[1:] == [("FIRED", 60, 1)]


def test_a_schedule_that_can_never_be_fired_is_refused(pulse: Pulse, schedules: Scheduling) -> None:
    with pytest.raises(NotFound):
        schedules.create(every(60), task=TaskTarget(queue="none", type="echo", version=1))
    with pytest.raises(NotFound):
        schedules.create(every(60), caller=schedules.credential(queues=["other"]))
    pulse.register(params_schemas={"1": {"type": "string"}})
    with pytest.raises(InvalidRequest) as refused:
        schedules.create(every(60), payload=b"7")
    assert refused.value.pointer == "/task/params"


@pytest.mark.requirement("c164")
@pytest.mark.parametrize("how", ["revoked", "scope", "queue", "namespace"])
def test_c157_a_firing_needs_the_rights_that_it_was_made_with(
    pulse: Pulse, schedules: Scheduling, anchor: Micros, how: str
) -> None:
    maker = schedules.credential(queues=["main", "other"])
    made = schedules.create(every(60, anchor_at=anchor), caller=maker)
    schedules.run_at(*at(anchor, 0))

    def lose() -> str:
        if how == "revoked":
            schedules.database.transaction(lambda tx: credential_revoke(tx, maker.id))
            return "CREDENTIAL_REVOKED"
        if how == "namespace":
            schedules.database.transaction(lambda tx: namespace_disable(tx, pulse.namespace_id))
            return "NAMESPACE_DISABLED"
        scopes = maker.scopes if how == "queue" else maker.scopes - {"tasks:submit"}
        queues = ["other"] if how == "queue" else None
        schedules.database.transaction(lambda tx: credential_change(tx, maker.id, scopes=scopes, queues=queues))
        return "QUEUE_OUT_OF_RANGE" if how == "queue" else "SCOPE_LOST"

    code = lose()
    schedules.run_at(*at(anchor, 60, 120))
    row = schedules.row(made)
    assert row.stop_reason is not None
    assert (row.state, json.loads(row.stop_reason)["code"], row.look_at) == (ScheduleState.STOPPED, code, None)
    assert schedules.told(made, anchor) == [("FIRED", 0, 1)]
    if how == "namespace":
        return
    schedules.resume(made)
    schedules.run_at(*at(anchor, 180))
    assert schedules.row(made).state is ScheduleState.STOPPED
    schedules.configure(made, every(60, anchor_at=anchor))
    schedules.resume(made)
    schedules.run_at(*at(anchor, 240))
    assert schedules.told(made, anchor)[-1] == ("FIRED", 240, 1)
    assert "STOPPED" in {reason for reason, _, _ in schedules.told(made, anchor)}


def test_a_wider_credential_widens_no_schedule(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    maker = schedules.credential(queues=["main"])
    made = schedules.create(every(60, anchor_at=anchor), caller=maker)
    with pytest.raises(NotFound):
        schedules.configure(made, every(60), caller=maker, task=TaskTarget(queue="side", type="echo", version=1))
    pulse.queue("side")


class Broken:
    """A maker of instances that fails in a way that nobody has foreseen."""

    def check(self, tx: Transaction, wanted: InstanceStart) -> None:
        """Refuse nothing."""

    def start_all(self, *_: object) -> list[bytes | OrbitError]:
        raise RuntimeError("it broke")

    def unfinished(self, *_: object) -> set[bytes]:
        return set()

    def input_shown(self, *_: object) -> Json:
        return None


def test_one_that_fails_holds_up_no_other(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    both = Scheduling(pulse, Broken())
    bad = both.create(every(60, anchor_at=anchor), task=None, instance=InstanceTarget(workflow="broken"))
    good = both.create(every(60, anchor_at=anchor))
    both.run_at(*at(anchor, 0))
    assert (both.told(good, anchor), both.firings(bad)) == ([("FIRED", 0, 1)], [])
    look_at = both.row(bad).look_at
    assert look_at is not None
    assert look_at > both.now() + 20 * SECOND
    schedules.run_at(look_at)  # a node that knows no workflows refuses them
    assert schedules.told(bad, anchor) == [("REFUSED", 0, 1)]


def test_the_doctor_finds_and_mends_what_is_wrong_with_schedules(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    serial = Overlap(policy=OverlapPolicy.QUEUE, max_backlog=2)
    made = schedules.create(every(60, anchor_at=anchor), overlap=serial)
    schedules.run_at(*at(anchor, 0, 60))
    assert examine(schedules.database) == []

    def damage(**values: object) -> None:
        statement = update(schedule).where(schedule.c.id == made).values(**values)
        schedules.database.transaction(lambda tx: tx.execute(statement))

    damage(backlog=2, look_at=None)
    found = examine(schedules.database)
    assert {(each.name, each.stored, each.counted) for each in found} == {
        ("schedule_backlog", 2, 1),
        ("schedule_asleep", 0, 1),
    }
    assert all(is_repairable(each) for each in found)
    assert repair(schedules.database) == found
    assert examine(schedules.database) == []
    pulse.succeed(pulse.run())
    schedules.run()
    assert [state for state, _, _ in schedules.told(made, anchor)] == ["FIRED", "FIRED"]
    damage(latest_id=new_id())
    (lost,) = examine(schedules.database)
    assert (lost.name, is_repairable(lost)) == ("schedule_latest", False)
    schedules.run_at(*at(anchor, 120))
    assert schedules.told(made, anchor)[2:] == [("FIRED", 120, 1)]


def test_states_of_schedules_and_firings_move_as_their_tables_say() -> None:
    assert set(SCHEDULE_MOVES) == set(ScheduleState)
    assert set(FIRING_MOVES) == set(FiringState)
    assert [state for state, moves in FIRING_MOVES.items() if moves] == [FiringState.QUEUED]
