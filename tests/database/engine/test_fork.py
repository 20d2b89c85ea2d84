"""Forks: what is copied and what runs again, on what terms, and that the copies are as good as the originals."""

import pytest
from sqlalchemy import select

from engine.states import Action
from engine.store.instances import Filter
from engine.tables import step as step_table
from orbit.errors import InvalidRequest, NotFound, StateConflict
from orbit.jsontext import Json
from pulse.states import ErrorClass
from pulse.tables import task as task_table
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

FAN = """
orbit: weave/1
workflow: fan
version: 1
input: {type: object, required: [n], properties: {n: {type: integer}}}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: a, task: do.a@1, input: {n: "${ input.n }"}}
  - {id: total, set: {twice: "${ int(input.n) * 2 }"}}
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: b, task: do.b@1}]
        right: [{id: x, task: do.x@1}]
  - {id: c, task: do.c@1, input: {a: "${ steps.a.output }", t: "${ steps.total.output.twice }"}}
output: {a: "${ steps.a.output }", c: "${ steps.c.output }"}
"""


def answers(step: str, number: int, params: Json) -> Done:
    return Done({"of": step, "round": number, "params": params})


def failing(step: str, number: int, params: Json) -> Done:
    return Done(error=ErrorClass.NON_RETRYABLE) if step == "c" else answers(step, number, params)


def forked(told: Json) -> bytes:
    return bytes.fromhex(told["instance"]["id"])


def ran(weave: Weave, instance: bytes) -> list[str]:
    """Name the steps whose tasks an instance has made itself."""
    wanted = select(task_table.c.source_step).where(task_table.c.source_id == instance)
    rows = weave.database.transaction(lambda tx: tx.rows(wanted))
    return sorted(row.source_step for row in rows)


def test_a_fork_copies_what_lies_before_and_runs_the_rest_again(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 4}, business_key="order-7")
    weave.drive(answers)
    before = weave.get(source), weave.history(source)
    told = weave.fork(source, "c")
    assert {"a", "total", "both", "b", "x"} < set(told["copied"])
    assert told["again"] == ["c"]
    fork = forked(told)
    weave.drive(answers)
    found = weave.get(fork)
    assert found["state"] == "SUCCEEDED"
    assert found["output"]["a"] == before[0]["output"]["a"]
    assert found["output"]["c"]["params"] == {"a": {"of": "a", "round": 1, "params": {"n": 4}}, "t": 8}
    assert found["forked_from"] == source.hex()
    assert found["business_key"] == "order-7"
    assert ran(weave, fork) == ["c"]
    assert (weave.get(source), weave.history(source)) == before, "the source never changes"
    assert weave.history(fork)[0] == ("instance.forked", "c")


def test_a_fork_of_a_held_instance_begins_at_its_failed_step_without_a_safety_statement(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.drive(failing)
    assert weave.get(source)["state"] == "NEEDS_RECOVERY"
    fork = forked(weave.fork(source, "c", safety_statement=None))
    weave.drive(answers)
    assert weave.get(fork)["state"] == "SUCCEEDED"
    assert weave.get(source)["state"] == "NEEDS_RECOVERY"
    assert ran(weave, fork) == ["c"]


def test_what_ran_behind_the_step_needs_a_safety_statement(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.drive(answers)
    with pytest.raises(InvalidRequest) as refused:
        weave.fork(source, "b", safety_statement=None)
    assert refused.value.details == {"pointer": "/safety_statement"}
    fork = forked(weave.fork(source, "b"))
    weave.drive(answers)
    assert ran(weave, fork) == ["b", "c"], "the other branch is copied"


def test_a_failed_step_beside_the_chosen_one_runs_again_too(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.drive(lambda step, *rest: Done(error=ErrorClass.NON_RETRYABLE) if step == "x" else answers(step, *rest))
    assert weave.states(source)["b"] == "SUCCEEDED"
    fork = forked(weave.fork(source, "b"))
    weave.drive(answers)
    assert weave.get(fork)["state"] == "SUCCEEDED"
    assert ran(weave, fork) == ["b", "c", "x"]


def test_a_fork_of_a_cancelled_instance_goes_on_where_it_was_cut_off(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    source = weave.start("two")
    weave.work(answers)
    weave.advance()
    weave.cancel(source)
    weave.drive(answers)
    assert weave.get(source)["state"] == "CANCELLED"
    fork = forked(weave.fork(source, "b"))
    weave.drive(answers)
    assert weave.get(fork)["state"] == "SUCCEEDED"
    assert ran(weave, fork) == ["b"]


def test_a_fork_can_be_forked_and_recovered(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.drive(failing)
    fork = forked(weave.fork(source, "c"))
    weave.drive(failing)
    weave.recover(fork, Action.RETRY, "c")
    again = forked(weave.fork(source, "c"))
    weave.drive(answers)
    third = forked(weave.fork(fork, "c"))
    weave.drive(answers)
    assert [weave.get(each)["state"] for each in (fork, again, third)] == ["SUCCEEDED"] * 3
    assert weave.get(third)["output"]["a"] == weave.get(fork)["output"]["a"]


def test_who_can_not_be_forked_is_told_why(weave: Weave) -> None:
    weave.publish(FAN)
    running = weave.start("fan", {"n": 1})
    with pytest.raises(StateConflict) as refused:
        weave.fork(running, "a")
    assert refused.value.details is not None
    assert refused.value.details["current_revision"] == weave.get(running)["revision"]
    with pytest.raises(InvalidRequest):
        weave.fork(running, "nothing")
    with pytest.raises(NotFound):
        weave.fork(running, "a", queues=frozenset({"other"}))
    # The left branch still runs while the right one has failed.
    weave.drive(
        lambda step, *rest: None if step == "b" else failing("c", *rest) if step == "x" else answers(step, *rest)
    )
    assert weave.get(running)["state"] == "NEEDS_RECOVERY"
    with pytest.raises(StateConflict, match="step b still has an unfinished task"):
        weave.fork(running, "x")


def test_a_step_that_was_never_reached_is_no_beginning(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.cancel(source)
    weave.drive(answers)
    with pytest.raises(StateConflict, match="never came to step c"):
        weave.fork(source, "c")


def test_a_dry_run_of_a_fork_changes_nothing(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.drive(answers)
    told = weave.fork(source, "c", is_dry_run=True)
    assert told["instance"] is None
    assert told["again"] == ["c"]
    rows = weave.database.transaction(lambda tx: tx.rows(select(step_table.c.instance_id).distinct()))
    assert [row.instance_id for row in rows] == [source]


def test_the_same_fork_again_is_the_same_fork(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 1})
    weave.drive(answers)
    assert weave.fork(source, "c", key="k")["instance"] == weave.fork(source, "c", key="k")["instance"]


def test_a_fork_may_go_to_a_version_in_which_the_copied_steps_are_the_same(weave: Weave) -> None:
    weave.publish(FAN)
    source = weave.start("fan", {"n": 3})
    weave.drive(failing)
    weave.publish(FAN.replace("version: 1", "version: 2").replace("{id: c, task: do.c@1,", "{id: c, task: do.y@1,"))
    weave.publish(FAN.replace("version: 1", "version: 3").replace("* 2", "* 3"))
    with pytest.raises(StateConflict) as refused:
        weave.fork(source, "c", version=3)
    assert refused.value.details is not None
    assert [reason["step"] for reason in refused.value.details["reasons"]] == ["total"]
    fork = forked(weave.fork(source, "c", version=2))
    weave.drive(answers)
    assert (weave.get(fork)["state"], weave.get(fork)["version"]) == ("SUCCEEDED", 2)


FAMILY = """
orbit: weave/1
workflow: parent
version: 1
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: c, workflow: two}
  - {id: x, task: do.x@1}
"""


def test_a_fork_of_a_child_stands_alone(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    weave.publish(FAMILY)
    parent = weave.start("parent")
    weave.drive(lambda step, *rest: Done(error=ErrorClass.NON_RETRYABLE) if step == "b" else answers(step, *rest))
    listed = weave.instances.instances_list(weave.namespace_id, Filter(workflow="two")).instances
    (child,) = [bytes.fromhex(each["id"]) for each in listed]
    assert weave.get(child)["state"] == "NEEDS_RECOVERY"
    fork = forked(weave.fork(child, "b"))
    before = weave.history(parent)
    weave.drive(answers)
    assert weave.get(fork)["state"] == "SUCCEEDED"
    assert weave.get(fork)["parent"] is None
    assert weave.history(parent) == before, "it waits for its own child"
    weave.recover(child, Action.RETRY, "b")
    weave.drive(answers)
    assert weave.get(parent)["state"] == "SUCCEEDED"
    again = forked(weave.fork(parent, "x"))
    weave.drive(answers)
    assert weave.get(again)["state"] == "SUCCEEDED"
    assert ran(weave, again) == ["x"], "the child's result is copied"
