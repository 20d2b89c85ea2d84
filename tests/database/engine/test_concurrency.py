"""Several runners on one database: an instance is advanced under its row's lock, by one of them, once."""

import pytest
from sqlalchemy import create_engine, text

from engine.batch import Advancer
from engine.ports import Flows
from engine.pulse_tasks import PulseTasks
from engine.runner import Runner
from orbit.database import Database
from orbit.errors import Unavailable
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave


def answers(*_: object) -> Done:
    return Done({"ok": True})


@pytest.mark.databases("mariadb", "mysql")
def test_a_locked_instance_is_left_to_its_holder(weave: Weave, database_url: str) -> None:
    weave.publish(TWO_TASKS)
    locked, free = weave.start("two"), weave.start("two")
    weave.work(answers)
    other = create_engine(database_url)
    with other.connect() as connection, connection.begin():
        connection.execute(text("SELECT id FROM weave_instance WHERE id = :id FOR UPDATE"), {"id": locked})
        weave.runner.due_in(0)
        assert weave.runner.run_once() == 1
        assert weave.states(free)["a"] == "SUCCEEDED"
        assert weave.states(locked)["a"] == "RUNNING"
    other.dispose()
    weave.drive(answers)
    assert [weave.get(instance)["state"] for instance in (locked, free)] == ["SUCCEEDED"] * 2


def test_two_runners_share_the_work_and_do_nothing_twice(weave: Weave, database: Database) -> None:
    weave.publish(TWO_TASKS)
    started = [weave.start("two") for _ in range(30)]
    other = Runner(database, Advancer(Flows(weave.advancer.flows.load), PulseTasks(weave)))
    ran: list[str] = []

    def handlers(step: str, *_: object) -> Done:
        ran.append(step)
        return Done({"ok": True})

    for _ in range(10):
        weave.work(handlers)
        for runner in (other, weave.runner):
            runner.due_in(0)
            runner.run_once()
    assert sorted(ran) == ["a"] * 30 + ["b"] * 30
    assert {weave.get(instance)["state"] for instance in started} == {"SUCCEEDED"}


def test_what_was_applied_by_another_runner_is_not_applied_again(weave: Weave, database: Database) -> None:
    """The probe reads without locks, so it may find stimuli that are gone by the time the instance is locked."""
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.work(answers)
    late = Runner(database, weave.advancer)
    found = database.transaction(lambda tx: late.probe(tx, is_due_time=False))[0]
    weave.advance()
    before = weave.history(instance)
    with pytest.raises(Unavailable):  # run again, what was found would be gone each time
        database.transaction(lambda tx: late.advance(tx, found))
    assert late.run_once() == 0
    assert weave.history(instance) == before
    assert weave.work(answers) == 1, "the second task was submitted once"


def test_a_repeated_stimulus_changes_nothing(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(answers)
    revision = weave.get(instance)["revision"]
    weave.repeat_last_stimulus(instance, "a")
    weave.advance()
    found = weave.get(instance)
    assert found["state"] == "SUCCEEDED"
    assert weave.history(instance)[-1][0] == "stimulus.after_end"
    assert int(found["revision"]) == int(revision) + 1
