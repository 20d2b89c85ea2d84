"""What nodes ask of schedules again and again is answered by an index, however many there are."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from orbit.clock import SECOND
from orbit.database import Database, Transaction
from orbit.ids import new_id
from pulse.schedules.store import ScheduleRow, schedule_insert, schedules_waiting
from pulse.states import ScheduleState
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
    asked: list[Sequence[str]] = []

    def work(tx: Transaction) -> list[Any]:
        send = tx._send  # noqa: SLF001  (a statement as it is sent)

        def keep(texts: Sequence[str]) -> Any:
            asked.append(texts)
            return send(texts)

        tx._send = keep  # type: ignore[method-assign]  # noqa: SLF001
        schedules_waiting(tx, limit=64)
        tx.now()
        rows = tx._connection.exec_driver_sql(f"EXPLAIN FORMAT=TRADITIONAL {asked[0][0].replace('%', '%%')}")  # noqa: SLF001
        return [dict(row._mapping) for row in rows]  # noqa: SLF001

    (plan,) = database.transaction(work)
    assert len(asked) == 1, "the clock comes along with the question"
    assert plan["key"] == "pulse_schedule_by_look"
    assert "filesort" not in (plan["Extra"] or "")
    assert schedules.firer.run_once() == 1.0
