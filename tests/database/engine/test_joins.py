"""Races and dependency graphs over real tasks: losers are stopped, outlived, reviewed, and never run twice."""

from collections.abc import Sequence
from typing import Any

import pytest

from engine.states import Action
from orbit.errors import StateConflict
from orbit.jsontext import Json
from pulse.claim import Assignment
from pulse.states import ErrorClass
from pulse.tasks import task_get
from tests.support.weave import Done, Weave

HEAD = """
orbit: weave/1
workflow: race
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m, attempt_timeout: 10m, retry: {max_attempts: 1}}
steps:
  - id: race
    parallel:
"""
TAIL = """
  - {id: c, task: do.c@1}
output: {x: "${ default(steps.x.output, 'none') }"}
"""
ANY = (
    HEAD
    + """
      join: any
      branches:
        slow: [{id: x, task: do.x@1, timeout: 50s}, {id: b, task: do.b@1}]
        quick: [{id: y, task: do.y@1}]
"""
    + TAIL
)
SETTLED = ANY.replace("join: any", "join: settled")
NEEDS = (
    HEAD
    + """
      join: settled
      steps:
        - {id: x, task: do.x@1, timeout: 50s}
        - {id: y, task: do.y@1}
        - {id: b, task: do.b@1, needs: [x, y]}
"""
    + TAIL
)
GOOD = Done({"ok": True})
BROKEN = Done(error=ErrorClass.NON_RETRYABLE)
UNKNOWN = Done(error=ErrorClass.UNKNOWN_OUTCOME)


def begun(weave: Weave, text: str, workflow: str = "race") -> tuple[bytes, dict[str, Assignment]]:
    """Start an instance and get its first tasks started; nobody has answered yet."""
    weave.publish(text)
    instance = weave.start(workflow)
    weave.advance()
    return instance, {str(each.task.source_step): each for each in weave.claim()}


def steps_of(weave: Weave, instance: bytes) -> dict[str, dict[str, Any]]:
    return {step["id"]: step for step in weave.instances.instance_steps(weave.namespace_id, instance)}


def task_of(weave: Weave, instance: bytes, step: str) -> dict[str, Any]:
    task_id = bytes.fromhex(steps_of(weave, instance)[step]["task_id"])
    return weave.database.transaction(lambda tx: task_get(tx, weave.namespace_id, task_id)).as_json()


def finish(weave: Weave, **special: Done) -> Sequence[str]:
    """Let everything run on; name the steps whose tasks were run."""
    seen: list[str] = []

    def handlers(step: str, _round: int, _params: Json) -> Done:
        seen.append(step)
        return special.get(step, GOOD)

    weave.drive(handlers)
    return seen


def test_a_running_loser_is_asked_to_stop_while_the_flow_goes_on(weave: Weave) -> None:
    instance, claimed = begun(weave, ANY)
    weave.answer(claimed["y"], GOOD)
    assert finish(weave) == ["c"]
    assert weave.get(instance)["state"] == "RUNNING", "the instance does not end before its loser"
    assert weave.states(instance) == {
        "race": "SUCCEEDED",
        "x": "RUNNING",
        "b": "CANCELLED",
        "y": "SUCCEEDED",
        "race.end": "SUCCEEDED",
        "c": "SUCCEEDED",
    }
    lost = steps_of(weave, instance)["x"]
    assert lost["reason"] == "BRANCH_LOST"
    assert task_of(weave, instance, "x")["cancel_requested_at"] is not None
    (reason,) = weave.instances.instance_explain(weave.namespace_id, instance)["waits_for"]
    assert (reason["kind"], reason["step"]) == ("TASK", "x")
    assert "asked to stop (BRANCH_LOST)" in reason["text"]
    weave.answer(claimed["x"], GOOD)
    assert finish(weave) == []
    found = weave.get(instance)
    assert (found["state"], found["output"]) == ("SUCCEEDED", {"x": "none"})
    assert steps_of(weave, instance)["x"]["state"] == "SUCCEEDED", "its success is kept"


def test_a_loser_that_nobody_has_begun_is_cancelled_at_once(weave: Weave) -> None:
    weave.publish(ANY.replace("do.x@1", "do.later@1"))
    instance = weave.start("race")
    assert finish(weave) == ["y", "c"]
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert task_of(weave, instance, "x")["state"] == "CANCELLED"


@pytest.mark.parametrize("answer", [BROKEN, UNKNOWN])
def test_a_losers_failure_or_review_is_no_failure_of_the_instance(weave: Weave, answer: Done) -> None:
    instance, claimed = begun(weave, ANY)
    weave.answer(claimed["y"], GOOD)
    weave.advance()
    weave.answer(claimed["x"], answer)
    finish(weave)
    if answer is UNKNOWN:
        assert weave.get(instance)["state"] == "RUNNING"
        assert weave.states(instance)["x"] == "NEEDS_REVIEW"
        for action in (Action.RETRY, Action.SKIP):
            with pytest.raises(StateConflict, match="its branch has lost the join"):
                weave.recover(instance, action, "x")
        weave.recover(instance, Action.FAIL, "x")
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert weave.states(instance)["x"] == "FAILED"
    assert not any(kind == "instance.needs_recovery" for kind, _ in weave.history(instance))


@pytest.mark.parametrize("text", [ANY, SETTLED, NEEDS], ids=["any", "settled", "needs"])
def test_a_handler_that_outlives_its_time_out_is_waited_for_and_never_doubled(weave: Weave, text: str) -> None:
    instance, claimed = begun(weave, text)
    weave.database.clock.advance(seconds_forward=60)
    weave.advance()
    assert steps_of(weave, instance)["x"]["reason"] == "STEP_TIMED_OUT"
    assert "race.end" not in [step for kind, step in weave.history(instance) if kind == "step.succeeded"]
    weave.answer(claimed["y"], GOOD)
    ran = finish(weave)
    assert ran == (["c"] if text is ANY else []), "nothing goes on that depends on the open outcome"
    assert steps_of(weave, instance)["x"]["round"] == 1
    weave.answer(claimed["x"], GOOD)
    ran = finish(weave)
    assert "x" not in ran, "no second task for a step whose first may still take effect"
    assert ran == {ANY: [], SETTLED: ["b", "c"], NEEDS: ["b", "c"]}[text]
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert steps_of(weave, instance)["x"]["round"] == 1


@pytest.mark.parametrize("text", [SETTLED, NEEDS], ids=["settled", "needs"])
def test_an_unknown_outcome_holds_the_join_until_a_person_has_settled_it(weave: Weave, text: str) -> None:
    instance, claimed = begun(weave, text)
    weave.answer(claimed["x"], UNKNOWN)
    weave.answer(claimed["y"], GOOD)
    assert finish(weave) == []
    reasons = weave.instances.instance_explain(weave.namespace_id, instance)["waits_for"]
    assert [reason["kind"] for reason in reasons] == ["REVIEW", "JOIN"]
    assert reasons[1]["needed"] == len(reasons[1]["branches"])
    weave.recover(instance, Action.FAIL, "x")
    assert finish(weave) == ["c"]
    assert weave.states(instance)["b"] == "SKIPPED"
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_failed_join_is_recovered_by_a_retry_in_one_of_its_branches(weave: Weave) -> None:
    instance, claimed = begun(weave, ANY)
    weave.answer(claimed["x"], BROKEN)
    weave.answer(claimed["y"], BROKEN)
    finish(weave)
    found = weave.get(instance)
    assert (found["state"], found["error"]["code"]) == ("NEEDS_RECOVERY", "JOIN_UNSATISFIED")
    with pytest.raises(StateConflict, match=r"retry what has failed in them \(x, y\)"):
        weave.recover(instance, Action.RETRY, "race.end")
    weave.recover(instance, Action.RETRY, "x")
    joined = steps_of(weave, instance)["race.end"]
    assert (joined["state"], joined["reason"]) == ("WAITING", "JOIN")
    reasons = weave.instances.instance_explain(weave.namespace_id, instance)["waits_for"]
    assert [reason["kind"] for reason in reasons] == ["TASK", "JOIN"]
    assert finish(weave) == ["x", "b", "c"]
    found = weave.get(instance)
    assert (found["state"], found["output"]) == ("SUCCEEDED", {"x": {"ok": True}})
    assert weave.states(instance)["y"] == "FAILED"
    with pytest.raises(StateConflict):
        weave.recover(instance, Action.RETRY, "y")


def test_a_failed_join_is_skipped_and_what_still_runs_in_it_loses(weave: Weave) -> None:
    text = ANY.replace("join: any", "join: {at_least: 2}")
    instance, claimed = begun(weave, text)
    weave.answer(claimed["y"], BROKEN)
    weave.advance()
    assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
    weave.recover(instance, Action.SKIP, "race.end")
    assert finish(weave) == ["c"]
    assert weave.get(instance)["state"] == "RUNNING"
    weave.answer(claimed["x"], GOOD)
    finish(weave)
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert weave.states(instance)["b"] == "CANCELLED"


def test_a_pause_keeps_what_decides_a_join_until_it_is_over(weave: Weave) -> None:
    instance, claimed = begun(weave, ANY)
    weave.pause(instance)
    weave.answer(claimed["y"], GOOD)
    assert finish(weave) == []
    assert weave.states(instance)["race.end"] == "PENDING"
    weave.answer(claimed["x"], GOOD)
    finish(weave)
    assert weave.get(instance)["control"] == "PAUSED"
    weave.resume(instance)
    assert finish(weave) == ["c"]
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_cancel_ends_losers_with_everything_else(weave: Weave) -> None:
    instance, claimed = begun(weave, ANY)
    weave.answer(claimed["y"], GOOD)
    weave.advance()
    weave.cancel(instance)
    weave.answer(claimed["x"], GOOD)
    finish(weave)
    assert weave.get(instance)["state"] == "CANCELLED"


def test_a_fork_copies_a_decided_join_with_its_failures_and_losers(weave: Weave) -> None:
    for text in (SETTLED, ANY.replace("workflow: race", "workflow: other")):
        instance, claimed = begun(weave, text, text.split("workflow: ")[1].split()[0])
        weave.answer(claimed["x"], BROKEN)
        weave.answer(claimed["y"], GOOD)
        finish(weave)
        assert weave.get(instance)["state"] == "SUCCEEDED"
        told = weave.fork(instance, "c")
        assert told["again"] == ["c"]
        assert finish(weave) == ["c"]
        fork = bytes.fromhex(told["instance"]["id"])
        assert weave.get(fork)["state"] == "SUCCEEDED"
        assert weave.states(fork) == weave.states(instance)


def test_a_fork_from_within_a_block_judges_its_join_again(weave: Weave) -> None:
    instance, claimed = begun(weave, SETTLED)
    weave.answer(claimed["x"], BROKEN)
    weave.answer(claimed["y"], GOOD)
    finish(weave)
    fork = bytes.fromhex(weave.fork(instance, "y")["instance"]["id"])
    assert sorted(finish(weave)) == ["b", "c", "x", "y"], "what failed beside it runs again too"
    assert weave.get(fork)["state"] == "SUCCEEDED"
    assert weave.states(fork)["b"] == "SUCCEEDED"


CHILD = """
orbit: weave/1
workflow: child
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: a, task: do.a@1}
  - {id: b, task: do.b@1}
output: {ok: true}
"""


def test_a_losing_child_is_cancelled_and_awaited_like_a_task(weave: Weave) -> None:
    weave.publish(CHILD)
    race = ANY.replace("{id: x, task: do.x@1, timeout: 50s}", "{id: x, workflow: child, input: {}}")
    instance, claimed = begun(weave, race)
    assert sorted(claimed) == ["a", "y"]
    child = bytes.fromhex(steps_of(weave, instance)["x"]["child_id"])
    weave.answer(claimed["y"], GOOD)
    assert finish(weave) == ["c"]
    assert (weave.get(child)["state"], weave.get(instance)["state"]) == ("ENDING", "RUNNING")
    assert steps_of(weave, instance)["x"]["reason"] == "BRANCH_LOST"
    weave.answer(claimed["a"], GOOD)
    assert finish(weave) == []
    assert (weave.get(child)["state"], weave.get(instance)["state"]) == ("CANCELLED", "SUCCEEDED")
    assert weave.states(instance)["x"] == "CANCELLED"
