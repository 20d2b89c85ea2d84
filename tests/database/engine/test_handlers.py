"""Error handlers on a real database: what they retry, what they keep, and what they wait for."""

from typing import Any

import pytest

from engine.states import Action
from orbit.jsontext import Json
from pulse.states import ErrorClass
from pulse.tasks import task_get
from tests.support.weave import Done, Handlers, Weave

HANDLED = """
orbit: weave/1
workflow: handled
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
  - id: a
    task: do.a@1
    timeout: 1m
    attempt_timeout: 30s
    on_error:
      - {match: BUSY, then: retry, max: 1}
      - {match: STEP_TIMED_OUT, then: retry, max: 1}
      - {match: NO_STOCK, then: continue, value: {ref: none, why: "${ error.code }"}}
      - match: "*"
        steps: [{id: x, task: do.x@1, input: {error: "${ error }"}}]
  - {id: b, task: do.b@1, input: {a: "${ default(steps.a.output.ref, 'nothing') }"}}
"""
GOOD = Done({"ref": "r"})


def failed(code: str, class_: ErrorClass = ErrorClass.NON_RETRYABLE) -> Done:
    return Done(error=class_, code=code)


class Answers:
    """What the handlers answer, one task of a step after the other, and what they were asked."""

    def __init__(self, **answers: Done | None) -> None:
        self.answers: dict[str, Done | None] = answers
        self.asked: list[tuple[str, int, Json]] = []

    def __call__(self, step: str, number: int, params: Json) -> Done | None:
        self.asked.append((step, number, params))
        return self.answers.get(f"{step}{number}", GOOD)


def started(weave: Weave, handlers: Handlers) -> bytes:
    weave.publish(HANDLED)
    instance = weave.start("handled")
    weave.drive(handlers)
    return instance


def step_of(weave: Weave, instance: bytes, step: str) -> dict[str, Any]:
    listed = weave.instances.instance_steps(weave.namespace_id, instance)
    found: list[dict[str, Any]] = [each for each in listed if each["id"] == step]
    return found[0]


def task_of(weave: Weave, identifier: str) -> dict[str, Any]:
    view = weave.database.transaction(lambda tx: task_get(tx, weave.namespace_id, bytes.fromhex(identifier)))
    return view.as_json()


def test_a_handlers_retry_is_a_new_task_of_the_same_line(weave: Weave) -> None:
    answers = Answers(a1=failed("BUSY"))
    instance = started(weave, answers)
    assert [(step, number) for step, number, _ in answers.asked] == [("a", 1), ("a", 2), ("b", 1)]
    assert weave.get(instance)["state"] == "SUCCEEDED"
    step = step_of(weave, instance, "a")
    assert (step["state"], step["round"], step["retries"]) == ("SUCCEEDED", 2, 1)
    new = task_of(weave, step["task_id"])
    assert (new["retry_of"], new["operation_id"]) == (step["retry_of"], step["retry_of"])
    assert task_of(weave, step["retry_of"])["state"] == "FAILED"


def test_the_value_of_a_handler_is_read_as_the_steps_output(weave: Weave) -> None:
    answers = Answers(a1=failed("BUSY"), a2=failed("NO_STOCK"))
    instance = started(weave, answers)
    assert answers.asked[-1] == ("b", 1, {"a": "none"})
    step = step_of(weave, instance, "a")
    assert (step["state"], step["reason"], step["error"]["code"]) == ("SUCCEEDED", "HANDLED", "NO_STOCK")
    assert ("step.error_handled", "a") in weave.history(instance)


def test_the_steps_of_a_handler_run_with_its_error(weave: Weave) -> None:
    answers = Answers(a1=failed("OTHER", ErrorClass.RETRYABLE))
    instance = started(weave, answers)
    error = {"code": "OTHER", "message": "as the test wants", "class": "RETRYABLE", "details": {}, "step": "a"}
    assert answers.asked[1:] == [("x", 1, {"error": error}), ("b", 1, {"a": "nothing"})]
    assert weave.get(instance)["state"] == "SUCCEEDED"
    assert weave.states(instance)["a"] == "FAILED"


@pytest.mark.parametrize("late", [GOOD, failed("LATE"), Done(error=ErrorClass.UNKNOWN_OUTCOME)])
def test_a_handler_that_outlives_its_time_out_is_never_joined_by_a_second_task(weave: Weave, late: Done) -> None:
    answers = Answers(a1=None)
    weave.publish(HANDLED.replace("attempt_timeout: 30s", "attempt_timeout: 1m"))
    instance = weave.start("handled")
    (running,) = weave.claim()
    weave.database.clock.advance(seconds_forward=61)
    weave.drive(answers)
    assert weave.states(instance)["a"] == "RUNNING"
    assert step_of(weave, instance, "a")["reason"] == "STEP_TIMED_OUT"
    assert answers.asked == [], "nothing begins while the first may still take effect"
    weave.answer(running, late)
    weave.drive(answers)
    tasks = [number for step, number, _ in answers.asked if step == "a"]
    if late.error is ErrorClass.UNKNOWN_OUTCOME:
        assert weave.states(instance)["a"] == "NEEDS_REVIEW", "an unknown outcome never reaches a handler"
        weave.recover(instance, Action.FAIL, "a")
        weave.drive(answers)
    assert tasks == []
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_a_retry_waits_over_a_pause(weave: Weave) -> None:
    weave.publish(
        HANDLED.replace("{match: BUSY, then: retry, max: 1}", "{match: BUSY, then: retry, max: 1, backoff: 1m}")
    )
    instance = weave.start("handled")
    answers = Answers(a1=failed("BUSY"))
    weave.drive(answers)
    assert step_of(weave, instance, "a")["reason"] == "RETRY"
    weave.database.clock.advance(seconds_forward=30)
    weave.pause(instance)
    weave.database.clock.advance(seconds_forward=600)
    weave.resume(instance)
    weave.drive(answers)
    assert len(answers.asked) == 1, "half of the gap is left"
    weave.database.clock.advance(seconds_forward=31)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"
