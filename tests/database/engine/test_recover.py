"""Recovery: what a person decides about a failed step, a step under review, and an instance that is held itself."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.command import Commands
from engine.flow import Flow
from engine.instance import Instance
from engine.states import Action
from engine.stimulus import Stimulus
from orbit.errors import InvalidRequest, StateConflict
from orbit.jsontext import Json
from orbit.store.journal import Page, audit_list
from pulse.claim import Assignment
from pulse.states import ErrorClass
from pulse.tasks import task_get
from tests.support.weave import Done, Handlers, Weave

THREE = """
orbit: weave/1
workflow: three
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
  - id: a
    task: do.a@1
    output: {type: object, required: [ref], properties: {ref: {type: string}}}
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: x, task: do.x@1}]
        right: [{id: y, task: do.y@1}]
  - {id: c, task: do.c@1, input: {ref: "${ steps.a.output.ref }"}}
output: {ref: "${ steps.a.output.ref }"}
"""
POLL = """
orbit: weave/1
workflow: poll
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - id: p
    poll: {task: ask.p@1, input: {n: "${ round }"}, done_when: output.ok, every: 10s, max_rounds: 2, timeout: 1h}
"""
GOOD = Done({"ref": "r", "ok": True})
BROKEN = Done(error=ErrorClass.NON_RETRYABLE, code="NO_LEDGER")
UNKNOWN = Done(error=ErrorClass.UNKNOWN_OUTCOME)


def answers(**special: Done) -> Handlers:
    return lambda step, _round, _params: special.get(step, GOOD)


def task_of(weave: Weave, instance: bytes, step: str) -> dict[str, Any]:
    (found,) = [s for s in weave.instances.instance_steps(weave.namespace_id, instance) if s["id"] == step]
    view = weave.database.transaction(lambda tx: task_get(tx, weave.namespace_id, bytes.fromhex(found["task_id"])))
    return view.as_json()


def held(weave: Weave, step: str, done: Done, text: str = THREE) -> bytes:
    weave.publish(text)
    instance = weave.start("poll" if text is POLL else "three")
    weave.drive(answers(**{step: done}))
    return instance


@pytest.mark.requirement("R141")
def test_r225_a_failed_step_is_retried_by_a_new_task(weave: Weave) -> None:
    instance = held(weave, "x", BROKEN)
    assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
    before, old = weave.get(instance), task_of(weave, instance, "x")
    dry = weave.recover(instance, Action.RETRY, "x", is_dry_run=True, safety_statement=None, key="k")
    assert (dry["before"]["state"], dry["after"]["state"]) == ("NEEDS_RECOVERY", "RUNNING")
    assert (dry["before"]["step"]["state"], dry["after"]["step"]["state"]) == ("FAILED", "RUNNING")
    assert weave.get(instance) == before
    assert weave.advance() + weave.work(answers()) == 0, "a dry run changes nothing"
    told = weave.recover(instance, Action.RETRY, "x", safety_statement=None, key="k")
    assert told["after"] | {"step": None} == dry["after"] | {"step": None}
    assert weave.get(instance)["error"] is None
    new = task_of(weave, instance, "x")
    assert (new["retry_of"], new["operation_id"], new["source"]["round"]) == (old["id"], old["id"], 2)
    assert task_of(weave, instance, "y")["state"] == "SUCCEEDED", "what is decided is not run again"
    weave.drive(answers())
    assert weave.get(instance)["state"] == "SUCCEEDED"
    (record,) = weave.database.transaction(lambda tx: audit_list(tx, weave.namespace_id, Page(1)))
    assert record.operation == "instance.recover"
    assert '"NEEDS_RECOVERY"' in str(record.before)
    assert '"RUNNING"' in str(record.after)
    assert "NO_LEDGER" in str(record.before)
    (kept,) = weave.recoveries.recoveries_list(weave.namespace_id, instance)
    assert (kept["action"], kept["step"], kept["evidence"], kept["round"]) == ("RETRY", "x", {"ticket": 7}, 1)
    assert len(kept["evidence_sha256"]) == 64


def test_r225_a_failed_step_is_completed_with_an_output_that_fits(weave: Weave) -> None:
    instance = held(weave, "a", BROKEN)
    for output in (None, {"ref": 5}, {}):
        with pytest.raises(InvalidRequest) as refused:
            weave.recover(instance, Action.COMPLETE, "a", output=output)
        assert refused.value.pointer == "/output"
    weave.recover(instance, Action.COMPLETE, "a", output={"ref": "by hand"})
    seen: list[Json] = []

    def handlers(step: str, _round: int, params: Json) -> Done:
        seen.append((step, params))
        return GOOD

    weave.drive(handlers)
    assert ("c", {"ref": "by hand"}) in seen, "the output that was given is read by later steps"
    assert weave.get(instance)["output"] == {"ref": "by hand"}
    assert sorted(step for step, _ in seen) == ["c", "x", "y"]


def test_r225_a_failed_step_is_skipped_where_nothing_needs_its_output(weave: Weave) -> None:
    instance = held(weave, "x", BROKEN)
    weave.recover(instance, Action.SKIP, "x")
    weave.drive(answers())
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert weave.states(instance)["x"] == "SKIPPED"
    other = weave.start("three")
    weave.drive(answers(a=BROKEN))
    with pytest.raises(StateConflict, match="needed by the workflow's output"):
        weave.recover(other, Action.SKIP, "a")


def test_r225_a_failed_step_ends_the_instance(weave: Weave) -> None:
    instance = held(weave, "x", BROKEN)
    weave.recover(instance, Action.FAIL, "x")
    found = weave.get(instance)
    assert (found["state"], found["error"]["code"], found["error"]["details"]["step"]) == ("FAILED", "NO_LEDGER", "x")
    with pytest.raises(StateConflict):
        weave.recover(instance, Action.RETRY, "x")


def test_two_failed_steps_are_recovered_one_by_one(weave: Weave) -> None:
    weave.publish(THREE)
    instance = weave.start("three")
    weave.drive(answers(x=BROKEN, y=BROKEN))
    weave.recover(instance, Action.RETRY, "x")
    found = weave.get(instance)
    assert (found["state"], found["error"]["details"]["step"]) == ("NEEDS_RECOVERY", "y")
    weave.drive(answers())
    assert weave.states(instance)["x"] == "SUCCEEDED"
    assert weave.states(instance)["both.end"] == "PENDING"
    weave.recover(instance, Action.COMPLETE, "y")
    weave.drive(answers())
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_retry_that_fails_again_needs_recovery_again(weave: Weave) -> None:
    instance = held(weave, "x", BROKEN)
    for number in (1, 2):
        weave.recover(instance, Action.RETRY, "x")
        weave.drive(answers(x=BROKEN))
        assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
        assert task_of(weave, instance, "x")["source"]["round"] == number + 1
    assert len({each["task_id"] for each in weave.recoveries.recoveries_list(weave.namespace_id, instance)}) == 2


@pytest.mark.requirement("R140")
@pytest.mark.parametrize(
    ("action", "state", "task_state", "code"),
    [
        (Action.RETRY, "RUNNING", "FAILED", "SUPERSEDED_BY_RECOVERY"),
        (Action.COMPLETE, "SUCCEEDED", "SUCCEEDED", None),
        (Action.FAIL, "FAILED", "FAILED", "REVIEWED_FAILED"),
        (Action.SKIP, "SKIPPED", "FAILED", "SUPERSEDED_BY_RECOVERY"),
    ],
)
def test_r225_a_review_is_settled_with_its_task(
    weave: Weave, action: Action, state: str, task_state: str, code: str | None
) -> None:
    instance = held(weave, "x", UNKNOWN)
    assert weave.states(instance)["x"] == "NEEDS_REVIEW"
    old = task_of(weave, instance, "x")["id"]
    if action is Action.RETRY:
        with pytest.raises(InvalidRequest) as refused:
            weave.recover(instance, action, "x", safety_statement=None)
        assert refused.value.pointer == "/safety_statement"
    weave.recover(instance, action, "x", output={"vouched": True} if action is Action.COMPLETE else None)
    assert weave.states(instance)["x"] == state
    view = weave.database.transaction(lambda tx: task_get(tx, weave.namespace_id, bytes.fromhex(old)))
    assert view.state == task_state
    assert (view.as_json()["error"] or {}).get("code") == code or task_state == "SUCCEEDED"
    if action is Action.FAIL:
        assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
        weave.recover(instance, Action.RETRY, "x")
    weave.drive(answers())
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert not [kind for kind, _ in weave.history(instance) if kind == "stimulus.superseded"]


def test_a_late_result_after_a_decision_is_kept_and_shown(weave: Weave) -> None:
    weave.publish(THREE)
    instance = weave.start("three")
    late: list[Assignment] = []

    def lose(step: str) -> None:
        for assignment in weave.claim():
            if assignment.task.source_step == step:
                late.append(assignment)
                weave.answer(assignment, UNKNOWN)
            else:
                weave.answer(assignment, GOOD)

    lose("a")
    weave.advance()
    weave.recover(instance, Action.RETRY, "a")
    weave.answer(late[0], Done({"ref": "late"}))
    weave.drive(answers())
    assert weave.get(instance)["output"] == {"ref": "r"}, "the late result has no effect"
    (kept,) = weave.recoveries.recoveries_list(weave.namespace_id, instance)
    assert [(each["outcome"], each["output"]) for each in kept["superseded"]] == [("SUCCEEDED", {"ref": "late"})]


@pytest.mark.requirement("R225")
def test_r141_a_decision_fits_the_step_as_it_is(weave: Weave) -> None:
    instance = held(weave, "x", BROKEN)
    with pytest.raises(InvalidRequest) as refused:
        weave.recover(instance, Action.RETRY, "nope")
    assert refused.value.pointer == "/step"
    current = weave.get(instance)["revision"]
    for step, words in (("a", "is SUCCEEDED"), ("c", "is PENDING"), (None, "which step")):
        with pytest.raises(StateConflict, match=words) as conflict:
            weave.recover(instance, Action.RETRY, step)
        assert conflict.value.details == {"state": "NEEDS_RECOVERY", "current_revision": current}
    with pytest.raises(StateConflict):
        weave.recover(instance, Action.RETRY, "x", expected_revision=1)
    branch = held_at_a_branch(weave)
    with pytest.raises(StateConflict, match="no output that could be given"):
        weave.recover(branch, Action.COMPLETE, "route")
    assert weave.get(instance)["revision"] == current


def held_at_a_branch(weave: Weave) -> bytes:
    weave.publish(
        THREE.replace("workflow: three", "workflow: branching").replace(
            "  - id: both\n",
            "  - id: route\n"
            "    branch: [{when: steps.a.output.risk > 1, steps: [{id: w, wait: {for: 1m}}]}, {else: []}]\n"
            "  - id: both\n",
        )
    )
    instance = weave.start("branching")
    weave.drive(answers())
    assert weave.states(instance)["route"] == "FAILED"
    return instance


def test_of_two_operators_at_once_one_decides(weave: Weave) -> None:
    instance = held(weave, "x", BROKEN)
    revision = int(weave.get(instance)["revision"])

    def run(action: Action) -> str:
        try:
            return str(weave.recover(instance, action, "x", expected_revision=revision)["after"]["state"])
        except StateConflict as conflict:
            return str((conflict.details or {})["current_revision"])

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(run, [Action.RETRY, Action.SKIP, Action.RETRY, Action.COMPLETE]))
    assert sorted(told) == [str(revision + 1)] * 3 + ["RUNNING"]
    weave.drive(answers())
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_retried_poll_has_all_its_rounds_again(weave: Weave) -> None:
    weave.publish(POLL)
    instance = weave.start("poll")
    asked: list[Json] = []

    def handlers(_step: str, number: int, params: Json) -> Done:
        asked.append((number, params))
        return Done({"ok": number == 4})

    def go() -> None:
        for _ in range(3):
            weave.drive(handlers)
            weave.database.clock.advance(seconds_forward=10)

    go()
    assert weave.get(instance)["error"]["code"] == "POLL_EXHAUSTED"
    weave.recover(instance, Action.RETRY, "p")
    go()
    assert asked == [(1, {"n": 1}), (2, {"n": 2}), (3, {"n": 1}), (4, {"n": 2})]
    assert weave.get(instance)["state"] == "SUCCEEDED"
    (poll,) = weave.instances.instance_steps(weave.namespace_id, instance)
    assert poll["rounds"]["counts"] == {"PROCESSING": 3, "DONE": 1}


def test_a_review_while_the_instance_ends_can_only_be_judged(weave: Weave) -> None:
    instance = held(weave, "x", UNKNOWN)
    weave.cancel(instance)
    with pytest.raises(StateConflict, match="completed or failed"):
        weave.recover(instance, Action.RETRY, "x")
    weave.recover(instance, Action.COMPLETE, "x", output=1)
    assert weave.get(instance)["state"] == "CANCELLED"
    assert weave.states(instance)["x"] == "SUCCEEDED"


def test_an_output_that_cannot_be_computed_is_given_or_computed_again(weave: Weave) -> None:
    text = THREE.replace('output: {ref: "${ steps.a.output.ref }"}', 'output: {ref: "${ steps.a.output.more }"}')
    weave.publish(text)
    first, second = weave.start("three"), weave.start("three")
    weave.drive(answers())
    assert weave.get(first)["error"]["code"] == "EXPRESSION_ERROR"
    weave.recover(first, Action.RETRY)
    assert weave.get(first)["state"] == "NEEDS_RECOVERY"
    weave.recover(first, Action.COMPLETE, output={"by": "hand"})
    found = weave.get(first)
    assert (found["state"], found["output"], found["error"]) == ("SUCCEEDED", {"by": "hand"}, None)
    weave.recover(second, Action.FAIL)
    assert weave.get(second)["state"] == "FAILED"


def break_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_flow: Flow, _instance: Instance, _stimuli: Sequence[Stimulus], _now: int) -> tuple[Instance, Commands]:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("engine.batch.advance", broken)


def test_after_an_engine_error_the_instance_goes_on_where_it_was(weave: Weave, monkeypatch: pytest.MonkeyPatch) -> None:
    weave.publish(THREE)
    running, ending = weave.start("three"), weave.start("three")
    claimed = weave.claim()
    weave.cancel(ending)
    for assignment in claimed:
        weave.answer(assignment, GOOD)
    break_advance(monkeypatch)
    weave.advance()
    monkeypatch.undo()
    for instance in (running, ending):
        assert weave.get(instance)["error"]["code"] == "ENGINE_ERROR"
    with pytest.raises(StateConflict, match="error of the engine"):
        weave.recover(running, Action.SKIP)
    assert weave.recover(running, Action.RETRY)["after"]["state"] == "RUNNING"
    assert weave.recover(ending, Action.RETRY)["after"]["state"] == "ENDING"
    weave.drive(answers())
    found = weave.get(running)
    assert (found["state"], found["error"]) == ("SUCCEEDED", None)
    found = weave.get(ending)
    assert (found["state"], found["error"]["code"]) == ("CANCELLED", "CANCELLED")


def test_a_retry_that_meets_a_full_queue_keeps_its_line(weave: Weave) -> None:
    weave.queue("other", unfinished=1)
    instance = held(weave, "x", BROKEN, THREE.replace("task: do.x@1", "task: do.x@1, queue: other"))
    old = task_of(weave, instance, "x")["id"]
    rival = weave.start("three")
    weave.work(answers())
    weave.advance()
    assert weave.states(rival)["x"] == "RUNNING"
    weave.recover(instance, Action.RETRY, "x")
    assert weave.states(instance)["x"] == "WAITING"
    weave.cancel(rival)
    weave.database.clock.advance(seconds_forward=60)
    weave.advance()
    assert task_of(weave, instance, "x")["retry_of"] == old
