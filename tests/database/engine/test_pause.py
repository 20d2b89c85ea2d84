"""Pause and resume: nothing begins, what runs is kept, what is timed stands still, and one resume has one effect."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from engine.states import Action
from engine.store.instances import Filter
from orbit.errors import StateConflict
from orbit.jsontext import Json
from orbit.store.journal import Page, audit_list
from pulse.claim import Assignment
from pulse.states import ErrorClass
from pulse.tables import task
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

WAITS = """
orbit: weave/1
workflow: waits
version: 1
input: {type: object}
timeout: 1h
defaults: {queue: main, start_within: 10m}
steps:
  - {id: w, wait: {for: 10m}}
  - id: p
    poll: {task: ask.p@1, input: {}, done_when: output.ok, every: 60s, max_rounds: 3, timeout: 10m}
"""
APPROVAL = """
orbit: weave/1
workflow: approval
version: 1
timeout: 1h
on_failure: fail
defaults: {queue: main}
steps:
  - {id: ok, wait: {signal: approved, timeout: 10s}}
"""
HOUR = 3600
# The scenarios ask for a hundred.
ROUNDS = 100 if os.environ.get("ORBIT_SOAK") == "1" else 12


def answers(*_: object) -> Done:
    return Done({"ok": True})


def stand_still(weave: Weave, seconds: float = 24 * HOUR) -> None:
    """Let time pass; a paused instance does not move."""
    weave.database.clock.advance(seconds_forward=seconds)
    assert weave.advance() + weave.work(answers) == 0


@pytest.mark.requirement("R142", "R224")
def test_r223_c048_a_result_that_comes_during_a_pause_is_kept_until_the_resume(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    (assignment,) = weave.claim()
    told = weave.pause(instance, key="k")
    assert (told["state"], told["control"]) == ("RUNNING", "PAUSING")
    found = weave.get(instance)
    assert found["pause"]["reason"] == "a test wants it"
    weave.answer(assignment, Done({"ok": True}))
    weave.advance()
    assert weave.get(instance)["control"] == "PAUSED"
    assert weave.states(instance) == {"a": "RUNNING", "b": "PENDING"}
    stand_still(weave)
    assert weave.get(instance)["control"] == "PAUSED"
    told = weave.resume(instance)
    assert (told["state"], told["control"]) == ("RUNNING", "ACTIVE")
    ran: list[str] = []

    def handlers(step: str, *_: object) -> Done:
        ran.append(step)
        return Done({"ok": True})

    weave.drive(handlers)
    assert ran == ["b"]
    found = weave.get(instance)
    assert (found["state"], found["pause"]) == ("SUCCEEDED", None)
    kinds = [kind for kind, _ in weave.history(instance) if kind.startswith("instance.")]
    assert kinds == [
        "instance.started", "instance.pausing", "instance.paused", "instance.resumed", "instance.succeeded",
    ]  # fmt: skip
    records = weave.database.transaction(lambda tx: audit_list(tx, weave.namespace_id, Page(2)))
    assert [record.operation for record in records] == ["instance.resume", "instance.pause"]
    assert weave.controls.instance_pause(weave.order("instance.pause", instance, key="k")).deduplicated


@pytest.mark.requirement("R223")
def test_c048_pause_and_completion_at_once_dispatch_nothing_before_the_resume(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    for number in range(ROUNDS):
        instance = weave.start("two", business_key=f"k{number}")
        (assignment,) = weave.claim()

        def complete(assignment: Assignment = assignment) -> None:
            weave.answer(assignment, Done({"ok": True}))
            weave.advance()

        with ThreadPoolExecutor(2) as pool:
            paused = pool.submit(weave.pause, instance)
            pool.submit(complete).result()
            assert paused.result()["control"] in {"PAUSING", "PAUSED"}
        assert_views_agree(weave, instance, f"k{number}")
        weave.advance()
        weave.database.clock.advance(seconds_forward=5)
        assert weave.advance() + weave.work(answers) == 0, "nothing begins before the resume"
        assert assert_views_agree(weave, instance, f"k{number}") == ("RUNNING", "PAUSED")
        assert weave.resume(instance)["control"] == "ACTIVE"
        assert weave.get(instance)["pause"] is None, "nothing of the pause is left over"
        ran: list[str] = []

        def handlers(step: str, *_: object, ran: list[str] = ran) -> Done:
            ran.append(step)
            return Done({"ok": True})

        weave.drive(handlers)
        assert ran == ["b"]
        assert assert_views_agree(weave, instance, f"k{number}") == ("SUCCEEDED", "ACTIVE")


def assert_views_agree(weave: Weave, instance: bytes, key: str) -> tuple[str, str]:
    """Compare the list with the instance itself, and give how it stands."""
    found = weave.get(instance)
    (listed,) = weave.instances.instances_list(weave.namespace_id, Filter(business_key=key)).instances
    same = ("state", "control", "revision", "pause", "finished_at")
    assert {name: listed[name] for name in same} == {name: found[name] for name in same}
    return found["state"], found["control"]


def test_a_waiting_task_is_held_and_its_deadlines_stand_still(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assert weave.pause(instance)["control"] == "PAUSED"
    stand_still(weave)
    weave.resume(instance)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_waits_gaps_and_budgets_go_on_with_what_was_left(weave: Weave) -> None:
    weave.publish(WAITS)
    instance = weave.start("waits")
    weave.database.clock.advance(seconds_forward=540)
    weave.pause(instance)
    stand_still(weave)
    weave.resume(instance)
    weave.database.clock.advance(seconds_forward=55)
    assert weave.work(answers) == 0
    weave.advance()
    assert weave.states(instance)["w"] == "WAITING"
    weave.database.clock.advance(seconds_forward=5)
    weave.advance()
    assert weave.states(instance)["p"] == "RUNNING"
    asked: list[int] = []

    def not_yet(_step: str, number: int, _params: Json) -> Done:
        asked.append(number)
        return Done({"ok": number == 3})

    weave.drive(not_yet)
    weave.pause(instance)
    weave.database.clock.advance(seconds_forward=24 * HOUR)
    assert weave.advance() + weave.work(not_yet) == 0
    weave.resume(instance)
    weave.drive(not_yet)
    assert asked == [1], "no catch-up: the gap goes on"
    for _ in range(2):
        weave.database.clock.advance(seconds_forward=61)
        weave.drive(not_yet)
    assert asked == [1, 2, 3]
    assert weave.get(instance)["state"] == "SUCCEEDED"


@pytest.mark.requirement("R224")
def test_c054_of_twenty_resumes_at_once_one_has_an_effect(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.pause(instance)
    orders = [weave.order("instance.resume", instance) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        told = list(pool.map(lambda order: weave.controls.instance_resume(order).data["instance"]["control"], orders))
    assert set(told) == {"ACTIVE"}
    assert [kind for kind, _ in weave.history(instance)].count("instance.resumed") == 1
    assert weave.work(answers) == 1, "the task is dispatched once"
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def unfinished(weave: Weave, instance: bytes) -> list[str]:
    query = select(task.c.state).where(task.c.source_id == instance, task.c.finished_at.is_(None))
    return [row.state for row in weave.database.transaction(lambda tx: tx.rows(query))]


def test_c054_resume_and_cancel_at_once_are_one_after_the_other(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    for number in range(ROUNDS):
        instance = weave.start("two")
        weave.pause(instance)
        calls = [weave.cancel, weave.resume] if number % 2 else [weave.resume, weave.cancel]
        with ThreadPoolExecutor(2) as pool:
            told = [pool.submit(call, instance) for call in calls]
        results = [call.exception() for call in told]
        assert all(error is None or isinstance(error, StateConflict) for error in results)
        weave.drive(answers)
        assert weave.get(instance)["state"] == "CANCELLED"
        assert weave.get(instance)["control"] == "ACTIVE"
        assert weave.states(instance) == {"a": "CANCELLED", "b": "CANCELLED"}
        assert unfinished(weave, instance) == []


def test_a_cancel_ends_the_pause_and_applies_what_came_meanwhile(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    (assignment,) = weave.claim()
    weave.pause(instance)
    weave.answer(assignment, Done({"ok": True}))
    weave.advance()
    told = weave.cancel(instance)
    assert (told["state"], told["control"]) == ("ENDING", "ACTIVE")
    weave.advance()
    assert weave.get(instance)["state"] == "CANCELLED"
    assert weave.states(instance) == {"a": "SUCCEEDED", "b": "CANCELLED"}


def test_a_recovery_during_a_pause_is_carried_out_and_its_task_held(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
    assert weave.pause(instance)["control"] == "PAUSED"
    told = weave.recover(instance, Action.RETRY, "a")
    assert (told["after"]["state"], told["after"]["control"]) == ("RUNNING", "PAUSED")
    stand_still(weave)
    weave.resume(instance)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_recovery_that_ends_the_instance_ends_its_pause(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    weave.pause(instance)
    weave.recover(instance, Action.FAIL, "a")
    found = weave.get(instance)
    assert (found["state"], found["control"], found["pause"]) == ("FAILED", "ACTIVE", None)


def test_pausing_and_resuming_what_is_so_changes_nothing(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assert weave.resume(instance)["revision"] == "1"
    revision = weave.pause(instance)["revision"]
    assert weave.pause(instance)["revision"] == revision
    with pytest.raises(StateConflict) as refused:
        weave.resume(instance, expected_revision=1)
    assert refused.value.details == {"state": "RUNNING", "current_revision": revision}
    told = weave.instances.instance_explain(weave.namespace_id, instance)
    assert told["waits_for"][0]["kind"] == "PAUSE"
    assert "a test wants it" in told["summary"]
    weave.resume(instance)
    weave.drive(answers)
    for command in (weave.pause, weave.resume):
        with pytest.raises(StateConflict):
            command(instance)


def test_an_ending_instance_is_not_paused(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.claim()
    weave.cancel(instance)
    with pytest.raises(StateConflict):
        weave.pause(instance)


@pytest.mark.requirement("R223")
@pytest.mark.parametrize("before", ["nothing", "a pause"])
def test_c050_the_old_time_out_of_a_wait_does_not_touch_an_instance_that_has_ended(weave: Weave, before: str) -> None:
    weave.publish(APPROVAL)
    instance = weave.start("approval")
    weave.database.clock.advance(seconds_forward=3)
    if before == "a pause":
        weave.pause(instance)
        weave.resume(instance)
    weave.signal(instance, "approved")
    weave.advance()
    ended, history = weave.get(instance), weave.history(instance)
    assert ended["state"] == "SUCCEEDED"
    for seconds in (12, 100_000):
        weave.database.clock.advance(seconds_forward=seconds)
        assert weave.advance() == 0
        assert (weave.get(instance), weave.history(instance)) == (ended, history)


def test_c050_an_ended_instance_is_not_touched_by_what_a_pause_had_timed(weave: Weave) -> None:
    weave.publish(WAITS)
    instance = weave.start("waits")
    weave.pause(instance)
    weave.resume(instance)
    weave.database.clock.advance(seconds_forward=601)
    weave.drive(answers)
    before = weave.get(instance)
    assert before["state"] == "SUCCEEDED"
    weave.database.clock.advance(seconds_forward=2 * HOUR)
    assert weave.advance() == 0
    assert weave.get(instance) == before


def test_a_review_during_a_pause_stands_still_once(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    (assignment,) = weave.claim()
    weave.pause(instance)
    weave.answer(assignment, Done(error=ErrorClass.UNKNOWN_OUTCOME))
    weave.advance()
    assert weave.get(instance)["control"] == "PAUSED"
    stand_still(weave)
    deadline_before = weave.get(instance)["deadline_at"]
    weave.resume(instance)
    weave.advance()
    assert weave.states(instance)["a"] == "NEEDS_REVIEW"
    assert weave.get(instance)["deadline_at"] > deadline_before
    weave.recover(instance, Action.COMPLETE, "a")
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"
