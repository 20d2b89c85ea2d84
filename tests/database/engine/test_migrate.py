"""Migration: who may change the version, what moves with it, and that it is all or nothing."""

import pytest

from engine.states import Action
from orbit.clock import from_rfc3339
from orbit.errors import NotFound, StateConflict
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

POLL = """
orbit: weave/1
workflow: asks
version: 1
timeout: 2d
defaults: {queue: main, start_within: 10m}
steps:
  - id: p
    poll: {task: ask.p@1, done_when: "output.done == true", every: 60s, max_rounds: 5, timeout: 1h}
  - {id: b, task: do.b@1}
"""
FORK = """
orbit: weave/1
workflow: wide
version: 1
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: a, task: do.a@1}]
        right: [{id: b, task: do.b@1}]
  - {id: c, task: do.c@1}
"""


def answers(step: str, *_: Json) -> Done:
    return Done({"of": step, "done": False})


def version_of(text: str, number: int, **changes: str) -> str:
    text = text.replace("version: 1", f"version: {number}")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def refused(weave: Weave, instance: bytes, version: int) -> Json:
    before = weave.get(instance), weave.history(instance)
    with pytest.raises(StateConflict) as conflict:
        weave.migrate(instance, version)
    assert (weave.get(instance), weave.history(instance)) == before, "all or nothing"
    assert conflict.value.details is not None
    assert conflict.value.details["current_revision"] == before[0]["revision"]
    return conflict.value.details


def test_an_instance_goes_on_with_the_version_that_changes_what_lies_ahead(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.publish(version_of(TWO_TASKS, 2).replace("do.b@1", "do.y@1"))
    assert weave.get(instance)["version"] == 1
    told = weave.migrate(instance, 2)
    assert (told["from_version"], told["to_version"], told["verdict"]) == (1, 2, "safe-at")
    weave.drive(answers)
    found = weave.get(instance)
    assert (found["state"], found["version"]) == ("SUCCEEDED", 2)
    assert ("instance.migrated", None) in weave.history(instance)


def test_what_has_begun_may_not_change(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.publish(version_of(TWO_TASKS, 2).replace("do.a@1", "do.x@1"))
    details = refused(weave, instance, 2)
    assert [reason["step"] for reason in details["reasons"]] == ["a"]
    assert details["verdict"] == "incompatible"
    weave.drive(answers)
    assert weave.get(instance)["version"] == 1


def test_a_title_and_a_place_change_nothing(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.publish(version_of(TWO_TASKS, 2).replace("{id: a,", "{id: a, title: The first,"))
    assert weave.migrate(instance, 2)["verdict"] == "same"
    assert weave.migrate(instance, 2)["verdict"] == "same", "it is there already"


def test_a_branch_may_not_be_added_to_a_block_that_has_begun(weave: Weave) -> None:
    weave.publish(FORK)
    instance = weave.start("wide")
    more = "right: [{id: b, task: do.b@1}]\n        third: [{id: x, task: do.x@1}]"
    weave.publish(version_of(FORK, 2).replace("right: [{id: b, task: do.b@1}]", more))
    assert {reason["step"] for reason in refused(weave, instance, 2)["reasons"]} == {"both"}


def test_a_step_at_the_end_of_a_branch_that_has_ended_begins_at_once(weave: Weave) -> None:
    weave.publish(FORK)
    instance = weave.start("wide")
    weave.drive(lambda step, *_: answers(step) if step == "a" else None)
    more = "left: [{id: a, task: do.a@1}, {id: x, task: do.x@1}]"
    weave.publish(version_of(FORK, 2).replace("left: [{id: a, task: do.a@1}]", more))
    weave.migrate(instance, 2)
    assert weave.states(instance)["x"] == "RUNNING"
    assert weave.states(instance)["c"] == "PENDING"


def test_a_poll_in_its_gap_may_change_its_bounds_if_what_was_spent_fits(weave: Weave) -> None:
    weave.publish(POLL)
    instance = weave.start("asks")
    for _ in range(3):
        weave.drive(answers)
        weave.database.clock.advance(seconds_forward=61)
    weave.drive(answers)
    assert weave.states(instance)["p"] == "WAITING"
    weave.publish(version_of(POLL, 2, **{"max_rounds: 5": "max_rounds: 4"}))
    weave.publish(version_of(POLL, 3, **{"max_rounds: 5": "max_rounds: 6", "timeout: 1h": "timeout: 2h"}))
    weave.publish(version_of(POLL, 4, **{"timeout: 1h": "timeout: 2m"}))
    weave.publish(version_of(POLL, 5, **{"done == true": "done == false"}))
    assert "4 rounds have been asked" in refused(weave, instance, 2)["reasons"][0]["what"]
    assert "longer than its new time-out" in refused(weave, instance, 4)["reasons"][0]["what"]
    assert [reason["what"] for reason in refused(weave, instance, 5)["reasons"]] == ["done_when"]

    def end() -> int:
        steps = weave.instances.instance_steps(weave.namespace_id, instance)
        return from_rfc3339(next(step["timeout_at"] for step in steps if step["id"] == "p"))

    was = end()
    weave.migrate(instance, 3)
    assert end() - was == 3_600_000_000
    for _ in range(5):
        weave.database.clock.advance(seconds_forward=61)
        weave.drive(answers)
    steps = weave.instances.instance_steps(weave.namespace_id, instance)
    assert (steps[0]["state"], steps[0]["error"]["code"]) == ("FAILED", "POLL_EXHAUSTED")
    assert steps[0]["error"]["details"]["rounds"] == 6


def test_a_poll_whose_round_is_under_way_may_not_change(weave: Weave) -> None:
    weave.publish(POLL)
    instance = weave.start("asks")
    weave.publish(version_of(POLL, 2, **{"max_rounds: 5": "max_rounds: 6"}))
    assert [reason["what"] for reason in refused(weave, instance, 2)["reasons"]] == ["rounds_max"]


def test_the_instances_own_time_out_moves_with_the_version(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    before = from_rfc3339(weave.get(instance)["deadline_at"])
    weave.publish(version_of(TWO_TASKS, 2).replace("timeout: 1d", "timeout: 2d"))
    weave.publish(version_of(TWO_TASKS, 3).replace("timeout: 1d", "timeout: 25h"))
    weave.migrate(instance, 2)
    assert from_rfc3339(weave.get(instance)["deadline_at"]) - before == 86_400_000_000
    weave.database.clock.advance(seconds_forward=26 * 3600)
    assert "longer than the new time-out" in refused(weave, instance, 3)["reasons"][0]["what"]


def test_who_ends_or_has_ended_keeps_the_version(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    weave.publish(version_of(TWO_TASKS, 2).replace("do.b@1", "do.y@1"))
    ending, ended = weave.start("two", version=1), weave.start("two", version=1)
    weave.claim()
    weave.cancel(ending)
    assert weave.get(ending)["state"] == "ENDING"
    refused(weave, ending, 2)
    done = weave.start("two", version=1)
    weave.cancel(done)
    weave.advance()
    assert weave.get(done)["state"] == "CANCELLED"
    refused(weave, done, 2)
    assert weave.get(ended)["state"] == "RUNNING"


def test_a_version_that_is_not_there_is_not_found(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    with pytest.raises(NotFound):
        weave.migrate(instance, 7)


def test_a_held_instance_is_migrated_and_then_recovered(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(lambda step, *_: Done(error=ErrorClass.NON_RETRYABLE) if step == "b" else answers(step))
    weave.publish(version_of(TWO_TASKS, 2) + "  - {id: c, task: do.c@1}\n")
    weave.migrate(instance, 2)
    assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
    weave.recover(instance, Action.RETRY, "b")
    weave.drive(answers)
    assert weave.states(instance) == {"a": "SUCCEEDED", "b": "SUCCEEDED", "c": "SUCCEEDED"}


def test_a_paused_instance_is_migrated_and_goes_on_when_it_is_resumed(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.pause(instance)
    weave.publish(version_of(TWO_TASKS, 2).replace("do.b@1", "do.y@1"))
    weave.migrate(instance, 2)
    assert weave.get(instance)["control"] == "PAUSED"
    weave.resume(instance)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_dry_run_of_a_migration_changes_nothing(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.publish(version_of(TWO_TASKS, 2).replace("do.b@1", "do.y@1"))
    before = weave.get(instance)
    assert weave.migrate(instance, 2, is_dry_run=True)["dry_run"] is True
    assert weave.get(instance) == before
