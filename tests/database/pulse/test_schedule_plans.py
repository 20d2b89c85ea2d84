"""What nodes ask of schedules again and again is answered by an index, however many there are."""

import pytest
from msgspec.structs import replace

from orbit.clock import SECOND
from orbit.database import Database, Transaction
from orbit.ids import new_id
from pulse.schedules.store import ScheduleRow, schedule_insert, schedules_waiting
from pulse.states import ScheduleState
from tests.support.plans import plans, recorded
from tests.support.pulse import Pulse
from tests.support.schedules import Scheduling, every

COUNT = 3_000


def fill(tx: Transaction, like: ScheduleRow) -> None:
    """Store many schedules: most stand, the others are to be looked at in an hour."""
    for number in range(COUNT):
        is_active = number % 10 == 0
        schedule_insert(
            tx,
            replace(
                like,
                id=new_id(),
                state=ScheduleState.ACTIVE if is_active else ScheduleState.PAUSED,
                look_at=like.created_at + (3600 + number) * SECOND if is_active else None,
                next_at=None,
            ),
        )


@pytest.mark.databases("mariadb", "mysql")
def test_an_idle_pass_is_one_question_to_one_index(pulse: Pulse, database: Database) -> None:
    pulse.queue()
    schedules = Scheduling(pulse)
    made = schedules.row(schedules.create(every(3600), is_paused=True))
    database.transaction(lambda tx: fill(tx, made))
    with recorded() as asked:
        database.transaction(lambda tx: schedules_waiting(tx, limit=64))
    question, _clock_that_comes_along = asked
    (plan,) = plans(database, *question)
    assert plan["key"] == "pulse_schedule_by_look"
    assert "filesort" not in (plan["Extra"] or "")
    assert schedules.firer.run_once() == 1.0
