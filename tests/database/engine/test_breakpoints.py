"""Breakpoints on a real database: the gate is closed in the transaction that reaches the step."""

import pytest

from orbit.errors import InvalidRequest
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

PARALLEL = """
orbit: weave/1
workflow: beside
version: 1
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - id: both
    parallel:
      branches:
        left: [{id: a, task: do.a@1}]
        right: [{id: x, task: do.x@1}, {id: b, pause_at: step, task: do.b@1}]
"""


def answers(*_: object) -> Done:
    return Done({"ok": True})


def test_a_start_names_a_step_before_which_the_instance_pauses(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two", pause_at=("b",))
    weave.drive(answers)
    found = weave.get(instance)
    assert (found["state"], found["control"]) == ("RUNNING", "PAUSED")
    assert (found["pause"]["reason"], found["pause"]["by"]) == ("pause_at step b", None)
    assert weave.states(instance) == {"a": "SUCCEEDED", "b": "WAITING"}
    told = weave.instances.instance_explain(weave.namespace_id, instance)
    assert [each["kind"] for each in told["waits_for"]] == ["PAUSE", "BREAKPOINT"]
    weave.database.clock.advance(seconds_forward=3600)
    weave.drive(answers)
    assert weave.states(instance)["b"] == "WAITING"
    weave.resume(instance)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_breakpoint_at_the_first_step_pauses_the_start(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two", pause_at=("a", "b"))
    assert weave.work(answers) == 0
    assert weave.get(instance)["control"] == "PAUSED"
    for step in ("a", "b"):
        assert weave.states(instance)[step] == "WAITING"
        weave.resume(instance)
        weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_what_runs_beside_a_breakpoint_makes_it_pausing_and_is_applied_at_the_resume(weave: Weave) -> None:
    weave.publish(PARALLEL)
    instance = weave.start("beside")
    running = {each.task.source_step: each for each in weave.claim()}
    weave.answer(running["x"], Done({}))
    weave.advance()
    assert weave.get(instance)["control"] == "PAUSING"
    weave.answer(running["a"], Done({}))
    weave.advance()
    assert weave.get(instance)["control"] == "PAUSED"
    assert weave.states(instance)["a"] == "RUNNING", "its result is kept"
    weave.resume(instance)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert [kind for kind, _ in weave.history(instance)].count("instance.pausing") == 1


def test_a_step_that_is_none_is_refused(weave: Weave) -> None:
    weave.publish(PARALLEL)
    for step in ("c", "both.end"):
        with pytest.raises(InvalidRequest) as refused:
            weave.start("beside", pause_at=("a", step))
        assert refused.value.pointer == "/pause_at/1"


def test_a_repeated_end_of_the_task_before_a_breakpoint_pauses_no_second_time(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two", pause_at=("b",))
    weave.drive(answers)
    weave.repeat_last_stimulus(instance, "a")
    weave.resume(instance)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert [kind for kind, _ in weave.history(instance)].count("instance.paused") == 1
