"""The watchdog: whatever breaks a row is found and told once, and nothing that only moves or waits is suspected."""

import json
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from engine.states import Action
from engine.tables import instance as instance_table
from engine.tables import step as step_table
from engine.tables import stimulus as stimulus_table
from engine.watchdog import InstanceWatchdog, examine
from orbit.tables import event
from pulse.states import ErrorClass
from pulse.tables import gate
from pulse.tables import task as task_table
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

MIXED = """
orbit: weave/1
workflow: mixed
version: 1
timeout: 2d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: nap, wait: {for: 1h}}
  - id: p
    poll: {task: ask.p@1, done_when: "output.done == true", every: 60s, max_rounds: 5, timeout: 1h}
  - {id: a, task: do.a@1}
"""


def broken(weave: Weave) -> list[str]:
    return sorted(finding.code for finding in examine(weave.database))


def write(weave: Weave, statement: Any) -> None:
    assert weave.database.transaction(lambda tx: tx.execute(statement)) == 1


def of(table: Any, instance: bytes) -> Any:
    return update(table).where((table.c.id if table is instance_table else table.c.instance_id) == instance)


def unknown(*_: object) -> Done:
    return Done(error=ErrorClass.UNKNOWN_OUTCOME)


def test_nothing_is_suspected_that_only_waits(weave: Weave) -> None:
    weave.publish(MIXED)
    weave.publish(TWO_TASKS)
    napping, asking = weave.start("mixed"), weave.start("mixed")
    paused, pausing, ending, _ = (weave.start("two") for _ in range(4))
    assert broken(weave) == []
    weave.claim()
    for each in (napping, paused, pausing):
        weave.pause(each)
    weave.cancel(ending)
    states = [(weave.get(each)["state"], weave.get(each)["control"]) for each in (pausing, ending)]
    assert states == [("RUNNING", "PAUSING"), ("ENDING", "ACTIVE")]
    assert broken(weave) == []
    weave.database.clock.advance(seconds_forward=3601)
    weave.drive(lambda *_: Done({"done": False}))
    assert weave.states(asking)["p"] == "WAITING"
    assert broken(weave) == []


def test_a_task_whose_end_nobody_was_told_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    weave.start("two")
    weave.work(lambda *_: Done())
    assert broken(weave) == [], "its stimulus waits for the runner"
    write(weave, delete(stimulus_table))
    assert broken(weave) == ["LOST_TASK"]


def test_an_instance_without_an_open_step_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    write(weave, of(step_table, one).values(state="SUCCEEDED", finished_at=step_table.c.entered_at))
    assert broken(weave) == ["NO_WAIT"]


def test_a_review_is_a_wait(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    weave.drive(unknown)
    assert weave.states(one)["a"] == "NEEDS_REVIEW"
    assert broken(weave) == []


def test_a_task_that_is_gone_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    weave.start("two")
    write(weave, delete(task_table))
    assert broken(weave) == ["LOST_TASK"]


@pytest.mark.parametrize("due_at", [None, 2**53])
def test_a_lost_timer_is_found(weave: Weave, due_at: int | None) -> None:
    weave.publish(MIXED)
    one = weave.start("mixed")
    write(weave, of(instance_table, one).values(due_at=due_at))
    assert broken(weave) == ["LOST_TIMER"]


def test_a_timer_that_nobody_fires_is_found(weave: Weave) -> None:
    weave.publish(MIXED)
    weave.start("mixed")
    weave.database.clock.advance(seconds_forward=3650)
    assert broken(weave) == [], "it may take a moment"
    weave.database.clock.advance(seconds_forward=60)
    assert broken(weave) == ["OVERDUE"]
    weave.advance()
    assert broken(weave) == []


def test_a_pause_that_is_never_called_quiet_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    weave.claim()
    weave.pause(one)
    write(weave, update(gate).where(gate.c.id == one).values(in_flight=0))
    assert broken(weave) == ["NEVER_QUIET"]


def test_what_is_set_aside_of_an_instance_that_goes_on_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    weave.pause(one)
    weave.resume(one)
    weave.work(lambda *_: Done())
    write(weave, update(stimulus_table).values(held=True))
    assert broken(weave) == ["SET_ASIDE"]


def test_a_task_that_outlived_its_instance_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    write(weave, of(instance_table, one).values(state="FAILED", finished_at=1, due_at=None))
    assert broken(weave) == ["ORPHAN_TASK"]


def test_a_stuck_instance_is_told_once_and_can_be_cancelled(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    write(weave, delete(task_table))
    counts: list[int] = []
    watchdog = InstanceWatchdog(weave.database, on_stuck=counts.append)
    for _ in range(3):
        watchdog.run_once()
        while not watchdog.is_at_beginning:
            watchdog.run_once()
    assert counts == [1, 1, 1]
    rows = weave.database.transaction(lambda tx: tx.rows(select(event).where(event.c.type == "instance.stuck")))
    assert [(row.subject_id, json.loads(row.data)["findings"][0]["code"]) for row in rows] == [(one, "LOST_TASK")]


def test_an_engine_error_and_a_held_instance_wait_for_a_person(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    one = weave.start("two")
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    assert weave.get(one)["state"] == "NEEDS_RECOVERY"
    assert broken(weave) == []
    weave.recover(one, Action.RETRY, "a")
    assert broken(weave) == []


FAMILY = """
orbit: weave/1
workflow: parent
version: 1
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: c, workflow: two}
"""


def test_a_parent_waits_for_its_child(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    weave.publish(FAMILY)
    parent = weave.start("parent")
    assert broken(weave) == [], "what lets the child begin is a stimulus"
    weave.advance()
    assert broken(weave) == []
    weave.claim()
    weave.pause(parent)
    weave.advance()
    assert weave.get(parent)["control"] == "PAUSING"
    assert broken(weave) == [], "its child is not quiet yet"


def test_a_child_that_is_gone_or_was_never_told_to_begin_is_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    weave.publish(FAMILY)
    parent = weave.start("parent")
    assert weave.database.transaction(lambda tx: tx.execute(delete(stimulus_table))) == 1
    assert broken(weave) == ["NO_WAIT"]
    write(weave, delete(instance_table).where(instance_table.c.id != parent))
    assert broken(weave) == ["LOST_TASK"]
