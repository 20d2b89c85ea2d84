"""Blocks that fail, are done once more and are undone, and items that are undone, on real databases: their rows too."""

from collections.abc import Mapping, Sequence

import pytest
from sqlalchemy import text

from engine.states import Action
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.support.weave import TYPES, Done, Weave

HEAD = """
orbit: weave/1
workflow: {name}
version: 1
input: {{type: object}}
timeout: 1d
defaults: {{queue: main, start_within: 10m, retry: {{max_attempts: 1}}}}
"""
BLOCK = (
    HEAD.format(name="block")
    + """
steps:
  - id: p
    parallel:
      branches:
        l: [{id: v, set: {n: 1}}, {id: a, task: do.a@1, input: "${ steps.v.output }"}, {id: w, set: {n: 2}}]
        r: [{id: b, task: do.b@1}]
    on_error:
      - {match: AGAIN, then: retry, max: 1, backoff: 1h}
      - match: "*"
        steps: [{id: h, task: do.c@1, input: {code: "${ error.code }", of: "${ error.step }"}}]
  - {id: z, task: do.c@1, input: "${ default(steps.w.output, null) }"}
"""
)
ITEMS = (
    HEAD.format(name="items")
    + """
on_failure: compensate
steps:
  - id: first
    task: do.c@1
    compensate: {task: undo.y@1}
  - id: each
    foreach:
      items: input.docs
      max_items: 60
      concurrency: 7
      steps:
        - {id: v, set: {name: "${ item + '!' }"}}
        - id: a
          task: do.a@1
          input: {doc: "${ item }"}
          compensate:
            task: undo.a@1
            input:
              doc: "${ item }"
              index: "${ index }"
              own: "${ default(steps.a.output, null) }"
              name: "${ default(steps.v.output.name, null) }"
              last: "${ default(steps.b.output, null) }"
        - {id: b, task: do.b@1, input: {doc: "${ item }"}, compensate: {task: undo.x@1}}
  - {id: end, fail: {code: NO_LEDGER, message: closed}}
"""
)
LOOP = (
    HEAD.format(name="loop")
    + """
steps:
  - id: each
    foreach:
      items: input.docs
      max_items: 60
      concurrency: 2
      steps: [{id: v, set: {n: "${ index }"}}, {id: a, task: do.a@1, input: "${ item }"}]
    on_error: [{match: AGAIN, then: retry, max: 1}, {match: "*", then: continue, value: []}]
output: {all: "${ steps.each.output }"}
"""
)
AGAIN = Done(error=ErrorClass.NON_RETRYABLE, code="AGAIN")


class Answers:
    """What is answered by step and round, `a[3]#1` for that of one item; what was asked, in order."""

    def __init__(self, answers: Mapping[str, Done | None] | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[tuple[str, Json]] = []

    def __call__(self, step: str, number: int, params: Json) -> Done | None:
        self.asked.append((step, params))
        return self.answers.get(f"{step}#{number}", Done({"of": step}))

    @property
    def steps(self) -> list[str]:
        return [step for step, _ in self.asked]

    @property
    def undone(self) -> list[str]:
        return [step for step in self.steps if ".undo" in step]


@pytest.fixture
def ready(weave: Weave) -> Weave:
    weave.types = (*TYPES, "undo.a", "undo.x", "undo.y")
    for definition in (BLOCK, ITEMS, LOOP):
        weave.publish(definition)
    return weave


def count(weave: Weave, table: str) -> int:
    found = weave.database.transaction(lambda tx: tx.row(text(f"SELECT COUNT(*) AS n FROM {table}")))  # noqa: S608
    assert found is not None
    return int(found.n)


def docs(number: int) -> Json:
    return {"docs": [f"d{index}" for index in range(number)]}


def by_item(undone: Sequence[str], step: str) -> list[int]:
    return [int(each.split("[")[1][:-1]) for each in undone if each.startswith(f"{step}.undo")]


def test_a_block_is_done_once_more_with_rows_and_values_as_at_the_first_time(ready: Weave) -> None:
    instance = ready.start("block")
    answers = Answers({"a#1": AGAIN})
    ready.drive(answers)
    assert ready.get(instance)["state"] == "RUNNING"
    ready.database.clock.advance(seconds_forward=3700)
    ready.drive(answers)
    assert ready.get(instance)["state"] == "SUCCEEDED"
    assert sorted(answers.steps[:2]) == ["a", "b"]
    assert sorted(answers.steps[2:4]) == ["a", "b"]
    assert answers.asked[4:] == [("z", {"n": 2})]
    steps = {each["id"]: each for each in ready.instances.instance_steps(ready.namespace_id, instance)}
    assert (steps["a"]["round"], steps["p.end"]["retries"]) == (2, 1)
    assert steps["a"]["retry_of"] is None


def test_the_handler_of_a_block_begins_when_its_last_task_has_ended(ready: Weave) -> None:
    instance = ready.start("block")
    ready.advance()
    claimed = {str(each.task.source_step): each for each in ready.claim()}
    ready.answer(claimed["a"], Done(error=ErrorClass.NON_RETRYABLE, code="OTHER"))
    ready.drive(waiting := Answers())
    assert waiting.asked == []
    ready.answer(claimed["b"], Done({}))
    ready.drive(answers := Answers())
    assert answers.asked == [("h", {"code": "OTHER", "of": "a"}), ("z", None)]
    assert ready.states(instance)["b"] == "SUCCEEDED"
    assert ready.get(instance)["state"] == "SUCCEEDED"


def test_a_retried_foreach_keeps_what_is_done_and_begins_anew_what_was_under_way(ready: Weave) -> None:
    instance = ready.start("loop", docs(5))
    ready.drive(answers := Answers({"a[3]#1": AGAIN}))
    got = ready.get(instance)
    assert (got["state"], len(got["output"]["all"])) == ("SUCCEEDED", 5)
    assert answers.steps.count("a[3]") == 2
    assert answers.steps.count("a[0]") == 1
    assert (count(ready, "weave_step"), count(ready, "weave_item")) == (1, 5)


def test_items_are_undone_in_reverse_from_a_ledger_that_is_empty_in_the_end(ready: Weave) -> None:
    instance = ready.start("items", docs(40))
    ready.drive(answers := Answers())
    told = ready.get(instance)
    assert (told["state"], told["compensation"], told["error"]["code"]) == ("FAILED", "DONE", "NO_LEDGER")
    assert sorted(by_item(answers.undone, "a")) == sorted(by_item(answers.undone, "b")) == list(range(40))
    ended = [step for step in answers.steps if ".undo" not in step]
    assert answers.undone[-1] == "first.undo"
    places = {step: place for place, step in enumerate(answers.undone)}
    assert all(places[f"b.undo[{index}]"] < places[f"a.undo[{index}]"] for index in range(40))
    assert len(ended) == 81
    asked = dict(answers.asked)
    assert asked["a.undo[3]"] == {
        "doc": "d3",
        "index": 3,
        "own": {"of": "a[3]"},
        "name": "d3!",
        "last": {"of": "b[3]"},
    }
    assert count(ready, "weave_effect") == 0
    # The state of the instance itself, and one row for each item and each compensation of one.
    assert (count(ready, "weave_step"), count(ready, "weave_item")) == (4, 120)
    (item,) = [
        each
        for each in ready.instances.instance_items(ready.namespace_id, instance, "each").items
        if each["index"] == 3
    ]
    assert [(step["id"], step["state"]) for step in item["steps"]][-2:] == [
        ("a.undo[3]", "SUCCEEDED"),
        ("b.undo[3]", "SUCCEEDED"),
    ]


def test_a_compensation_of_an_item_is_recovered_by_its_name(ready: Weave) -> None:
    instance = ready.start("items", docs(4))
    answers = Answers({"a.undo[2]#1": Done(error=ErrorClass.NON_RETRYABLE, code="NO")})
    ready.drive(answers)
    held = ready.get(instance)
    assert (held["state"], held["error"]["details"]["step"]) == ("NEEDS_RECOVERY", "a.undo[2]")
    left = count(ready, "weave_effect")
    assert left
    ready.recover(instance, Action.RETRY, "a.undo[2]", safety_statement=None)
    ready.drive(answers)
    assert ready.get(instance)["compensation"] == "DONE"
    assert answers.undone.count("a.undo[2]") == 2
    assert count(ready, "weave_effect") == 0


def test_what_succeeded_needs_no_ledger_to_be_read(ready: Weave) -> None:
    instance = ready.start("items", docs(3))
    ready.drive(answers := Answers({"b[1]#1": Done(error=ErrorClass.NON_RETRYABLE, code="NO")}))
    assert ready.get(instance)["compensation"] == "DONE"
    assert sorted(by_item(answers.undone, "a")) == [0, 1, 2]
    assert sorted(by_item(answers.undone, "b")) == [0, 2]
