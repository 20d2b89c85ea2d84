"""A family that ends undoes what all of it did: running children by themselves, ended ones by their parents' tasks."""

from typing import Any

import pytest

from engine.states import Action
from engine.store.instances import Filter
from pulse.claim import Assignment
from pulse.states import ErrorClass
from tests.database.engine.test_compensating import Answers
from tests.support.weave import TYPES, Done, Weave

HEAD = """
orbit: weave/1
workflow: {}
version: 1
input: {{type: object}}
timeout: 1d
on_failure: {}
defaults: {{queue: main, start_within: 10m, retry: {{max_attempts: 1}}}}
steps:
"""
CHILD = HEAD.format("child", "hold") + (
    "  - {id: x, task: do.x@1, compensate: {task: undo.x@1}}\n  - {id: gap, wait: {for: 1h}}\n"
)
PARENT = HEAD.format("parent", "hold") + (
    "  - {id: a, task: do.a@1, compensate: {task: undo.a@1}}\n"
    "  - {id: c, workflow: child, compensate: {task: undo.y@1}}\n"
    "  - {id: b, task: do.b@1}\n"
)
BARE = HEAD.format("parent", "hold") + "  - {id: c, workflow: child}\n"
TOP = HEAD.format("top", "compensate") + (
    "  - id: both\n    parallel:\n      branches:\n        left: [{id: m, workflow: parent}]\n"
    "        right: [{id: y, task: do.y@1}]\n"
)
GOOD = Done({})


@pytest.fixture
def family(weave: Weave) -> Weave:
    weave.types = (*TYPES, "undo.a", "undo.x", "undo.y")
    return weave


def started(weave: Weave, *texts: str, answers: Answers) -> bytes:
    for text in texts:
        weave.publish(text)
    top = weave.start(texts[-1].split("workflow: ")[1].split("\n")[0])
    weave.drive(answers)
    return top


def child_of(weave: Weave, instance: bytes) -> dict[str, Any]:
    (found,) = weave.instances.instances_list(weave.namespace_id, Filter(parent_id=instance)).instances
    return dict(found)


def identifier(found: dict[str, Any]) -> bytes:
    return bytes.fromhex(found["id"])


def test_a_running_child_undoes_first_and_its_parent_does_not_undo_it_again(family: Weave) -> None:
    answers = Answers()
    parent = started(family, CHILD, PARENT, answers=answers)
    family.cancel(parent, compensate=True)
    family.drive(answers)
    child = child_of(family, parent)
    assert answers.undone == ["x.undo", "a.undo"], "what was done last is undone first, and nothing twice"
    assert (child["state"], child["compensation"]) == ("CANCELLED", "DONE")
    found = family.get(parent)
    assert (found["state"], found["compensation"]) == ("CANCELLED", "DONE")
    steps = {each["id"]: each for each in family.instances.instance_steps(family.namespace_id, parent)}
    assert steps["c"]["error"]["details"]["undone"] is True


def test_without_compensation_a_child_is_only_cancelled(family: Weave) -> None:
    answers = Answers()
    parent = started(family, CHILD, PARENT, answers=answers)
    family.cancel(parent)
    family.drive(answers)
    assert (child_of(family, parent)["state"], answers.undone) == ("CANCELLED", [])
    assert family.get(parent)["compensation"] is None


def test_a_parent_with_nothing_of_its_own_to_undo_passes_the_wish_on(family: Weave) -> None:
    answers = Answers()
    parent = started(family, CHILD, BARE, answers=answers)
    family.cancel(parent, compensate=True)
    family.drive(answers)
    assert answers.undone == ["x.undo"]
    assert family.get(parent)["state"] == "CANCELLED"


def test_the_wish_may_come_while_the_family_ends_already(family: Weave) -> None:
    answers = Answers(x1=None)
    for text in (CHILD, PARENT):
        family.publish(text)
    parent = family.start("parent")
    for _ in range(4):
        family.advance()
        family.work(answers)
    family.advance()
    family.cancel(parent)
    family.advance()
    assert child_of(family, parent)["state"] == "ENDING"
    revision = family.cancel(parent, compensate=True)["revision"]
    assert family.cancel(parent, compensate=True)["revision"] == revision, "wished once"
    family.advance()
    assert child_of(family, parent)["compensation"] == "WANTED"


def test_a_child_that_has_succeeded_is_undone_by_the_task_of_its_step(family: Weave) -> None:
    answers = Answers(b1=None)
    parent = started(family, CHILD.replace("wait: {for: 1h}", "wait: {for: 1s}"), PARENT, answers=answers)
    family.database.clock.advance(seconds_forward=2)
    family.advance()
    (last,) = family.claim()
    assert child_of(family, parent)["state"] == "SUCCEEDED"
    family.cancel(parent, compensate=True)
    family.answer(last, GOOD)
    family.drive(answers)
    assert answers.undone == ["c.undo", "a.undo"]
    assert child_of(family, parent)["state"] == "SUCCEEDED", "what has ended never changes"


def test_a_failure_at_the_top_undoes_the_whole_family_from_below(family: Weave) -> None:
    answers = Answers()
    for text in (CHILD, PARENT, TOP):
        family.publish(text)
    top = family.start("top")
    family.advance()
    failing: list[Assignment] = []
    for _ in range(4):
        for each in family.claim():
            if each.task.source_step == "y":
                failing.append(each)
            else:
                family.answer(each, GOOD)
        family.advance()
    middle = child_of(family, top)
    assert child_of(family, identifier(middle))["state"] == "RUNNING", "it waits in its gap"
    family.answer(failing[0], Done(error=ErrorClass.NON_RETRYABLE, code="NO_LEDGER"))
    family.drive(answers)
    assert answers.undone == ["x.undo", "a.undo"]
    found = family.get(top)
    assert (found["state"], found["error"]["code"]) == ("FAILED", "NO_LEDGER")
    assert family.get(identifier(middle))["state"] == "CANCELLED"


def test_a_childs_failed_undoing_holds_the_family_until_a_person_has_decided(family: Weave) -> None:
    answers = Answers(x__undo1=Done(error=ErrorClass.NON_RETRYABLE))
    parent = started(family, CHILD, PARENT, answers=answers)
    family.cancel(parent, compensate=True)
    family.drive(answers)
    child = child_of(family, parent)
    assert (child["state"], family.get(parent)["state"]) == ("NEEDS_RECOVERY", "ENDING")
    assert answers.undone == ["x.undo"], "nothing of the parent before its child has ended"
    told = family.instances.instance_explain(family.namespace_id, parent)
    assert [(each["kind"], each["child_id"]) for each in told["waits_for"]] == [("CHILD", child["id"])]
    family.recover(identifier(child), Action.RETRY, "x.undo")
    answers.answers.clear()
    family.drive(answers)
    assert answers.undone == ["x.undo", "x.undo", "a.undo"]
    assert family.get(parent)["state"] == "CANCELLED"


def test_a_child_whose_undoing_was_given_up_is_undone_by_its_parent(family: Weave) -> None:
    answers = Answers(x__undo1=Done(error=ErrorClass.NON_RETRYABLE))
    parent = started(family, CHILD, PARENT, answers=answers)
    family.cancel(parent, compensate=True)
    family.drive(answers)
    family.recover(identifier(child_of(family, parent)), Action.FAIL, "x.undo")
    answers.answers.clear()
    family.drive(answers)
    assert answers.undone == ["x.undo", "c.undo", "a.undo"]
    assert family.get(parent)["state"] == "CANCELLED"
