"""Compensation on a real database: order, holds, recovery, cancel and pause, and what crashes can't double."""

from collections.abc import Sequence
from typing import Any

import pytest

from engine.states import Action
from orbit.errors import InvalidRequest, StateConflict
from orbit.jsontext import Json
from orbit.store.journal import EventChoice, Page, events_list
from pulse.states import ErrorClass
from tests.support.weave import TYPES, Done, Weave

ORDER = """
orbit: weave/1
workflow: order
version: 1
input: {type: object}
timeout: 1d
on_failure: compensate
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
  - id: a
    task: do.a@1
    compensate: {task: undo.a@1, input: {ref: "${ default(steps.a.output.ref, 'unknown') }"}, queue: other}
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: x, task: do.x@1, compensate: {task: undo.x@1}}]
        right: [{id: y, task: do.y@1, compensate: {task: undo.y@1}}]
  - {id: c, task: do.c@1}
"""
GOOD = Done({"ref": "r"})
BROKEN = Done(error=ErrorClass.NON_RETRYABLE, code="NO_LEDGER")
UNKNOWN = Done(error=ErrorClass.UNKNOWN_OUTCOME)


class Answers:
    """What the handlers answer by step and number, and what they were asked."""

    def __init__(self, **answers: Done | None) -> None:
        self.answers: dict[str, Done | None] = {key.replace("__", "."): done for key, done in answers.items()}
        self.asked: list[tuple[str, Json]] = []

    def __call__(self, step: str, number: int, params: Json) -> Done | None:
        self.asked.append((step, params))
        return self.answers.get(f"{step}{number}", GOOD)

    @property
    def undone(self) -> list[str]:
        return [step for step, _ in self.asked if step.endswith(".undo")]


@pytest.fixture
def order(weave: Weave) -> Weave:
    weave.types = (*TYPES, "undo.a", "undo.x", "undo.y")
    weave.queue("other")
    weave.publish(ORDER)
    return weave


def step_of(weave: Weave, instance: bytes, step: str) -> dict[str, Any]:
    listed = weave.instances.instance_steps(weave.namespace_id, instance)
    found: list[dict[str, Any]] = [each for each in listed if each["id"] == step]
    return found[0]


def kinds(weave: Weave, instance: bytes) -> Sequence[str]:
    return [kind for kind, _ in weave.history(instance) if kind.startswith("instance.")]


def test_a_failure_undoes_what_was_done_in_reverse_order(order: Weave) -> None:
    instance = order.start("order")
    order.drive(answers := Answers(c1=BROKEN))
    told = order.get(instance)
    assert (told["state"], told["compensation"], told["error"]["code"]) == ("FAILED", "DONE", "NO_LEDGER")
    assert set(answers.undone[:2]) == {"x.undo", "y.undo"}
    assert answers.asked[-1] == ("a.undo", {"ref": "r"}), "its output is read, on its own queue"
    assert kinds(order, instance)[1:] == ["instance.ending", "instance.compensating", "instance.failed"]
    assert step_of(order, instance, "a.undo")["state"] == "SUCCEEDED"


def test_a_review_holds_it_and_a_failed_compensation_waits_for_a_person(order: Weave) -> None:
    instance = order.start("order")
    answers = Answers(x1=UNKNOWN, y1=BROKEN, a__undo1=BROKEN)
    order.drive(answers)
    assert (order.get(instance)["state"], answers.undone) == ("ENDING", [])
    order.recover(instance, Action.COMPLETE, "x", output={"ref": "found"})
    order.drive(answers)
    assert answers.undone == ["x.undo", "a.undo"]
    held = order.get(instance)
    assert (held["state"], held["compensation"], held["ending_as"]) == ("NEEDS_RECOVERY", "BEGUN", "FAILED")
    assert held["error"]["details"]["before"]["details"]["step"] == "y"
    with pytest.raises(StateConflict, match="only a compensation"):
        order.recover(instance, Action.RETRY, "y")
    order.recover(instance, Action.RETRY, "a.undo", safety_statement=None)
    assert order.get(instance)["state"] == "COMPENSATING"
    order.drive(answers)
    assert answers.undone == ["x.undo", "a.undo", "a.undo"]
    assert (order.get(instance)["state"], order.get(instance)["error"]["code"]) == ("FAILED", "NO_LEDGER")


def test_an_unknown_outcome_that_a_person_gave_up_is_undone_without_its_output(order: Weave) -> None:
    instance = order.start("order")
    order.drive(answers := Answers(a1=UNKNOWN, x1=BROKEN))
    order.recover(instance, Action.SKIP, "a")
    order.drive(answers)
    assert answers.asked[-1] == ("a.undo", {"ref": "unknown"})
    assert step_of(order, instance, "a")["effect_unknown"] is True
    assert order.get(instance)["state"] == "FAILED"


def test_a_cancel_with_compensation(order: Weave) -> None:
    instance = order.start("order")
    answers = Answers(x1=None)
    order.advance()
    order.work(answers)
    order.advance()
    claimed = order.claim()
    told = order.cancel(instance, compensate=True)
    assert (told["state"], told["ending_as"], told["compensation"]) == ("ENDING", "CANCELLED", "WANTED")
    for assignment in claimed:  # both have done their work before they heard of it
        order.answer(assignment, GOOD)
    order.drive(answers)
    assert sorted(answers.undone) == ["a.undo", "x.undo", "y.undo"]
    assert (order.get(instance)["state"], order.get(instance)["compensation"]) == ("CANCELLED", "DONE")


def test_a_pause_while_it_undoes(order: Weave) -> None:
    instance = order.start("order")
    answers = Answers(c1=BROKEN)
    while order.get(instance)["state"] != "COMPENSATING":
        assert order.work(answers)
        order.advance()
    assert order.pause(instance)["control"] == "PAUSED"
    order.drive(answers)
    assert answers.undone == []
    order.resume(instance)
    order.drive(answers)
    assert len(answers.undone) == 3
    assert order.get(instance)["state"] == "FAILED"


def test_a_success_after_the_end_raises_an_alarm_and_changes_nothing_else(order: Weave) -> None:
    instance = order.start("order")
    order.advance()
    (assignment,) = order.claim()
    order.answer(assignment, UNKNOWN)
    order.advance()
    order.recover(instance, Action.FAIL, "a")
    order.drive(Answers())
    before = order.get(instance)
    assert before["state"] == "FAILED"
    order.answer(assignment, GOOD)
    order.advance()
    after = order.get(instance)
    assert {**after, "revision": before["revision"]} == before
    assert order.history(instance)[-1] == ("step.effect_after_end", "a")
    choice = EventChoice(type="step.effect_after_end")
    (event,) = order.database.transaction(lambda tx: events_list(tx, order.namespace_id, Page(50), choice)).rows
    assert event.subject_id == instance
    assert '"step":"a"' in str(event.data).replace(" ", "")


def test_a_success_before_the_end_is_undone_too(order: Weave) -> None:
    instance = order.start("order")
    order.advance()
    (assignment,) = order.claim()
    order.answer(assignment, UNKNOWN)
    order.advance()
    order.recover(instance, Action.RETRY, "a")
    (second,) = order.claim()
    order.answer(assignment, GOOD)
    order.advance()
    assert ("step.late_success", "a") in order.history(instance)
    order.answer(second, BROKEN)
    order.drive(answers := Answers())
    assert answers.undone == ["a.undo"]


def test_no_fork_copies_what_was_undone(order: Weave) -> None:
    instance = order.start("order")
    order.drive(Answers(c1=BROKEN))
    with pytest.raises(StateConflict, match="step a was undone"):
        order.fork(instance, "c")
    with pytest.raises(InvalidRequest, match=r"no step a\.undo"):
        order.fork(instance, "a.undo")
    assert order.fork(instance, "a")["copied"] == []


def test_undoing_is_explained(order: Weave) -> None:
    instance = order.start("order")
    order.drive(Answers(y1=BROKEN, x1=BROKEN, a__undo1=None))
    told = order.instances.instance_explain(order.namespace_id, instance)
    assert told["summary"].startswith("undoes what it did, then ends as FAILED: step a.undo waits for task")
    assert told["waits_for"][0]["queue"] == "other"
