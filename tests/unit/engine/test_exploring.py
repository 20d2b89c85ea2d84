"""Every order in which tasks can end and timers fire: all of them, none twice, and the command that shows them."""

import json
from collections.abc import Callable
from math import factorial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from definitions.graph import Graph
from engine import joining
from engine.commands import simulate
from engine.exploring import Choice, Order, Ordered, Search, explore
from engine.flow import Flow
from engine.simulator import Answer
from engine.states import INSTANCE_TERMINAL, InstanceState
from engine.stimulus import Outcome
from tests.support.graphs import Block, dependent, fail, graph, parallel, put, task, wait
from tests.support.random_workflows import workflows

GOOD = Answer(output={"status": "DONE"})


def orders(
    made: Graph, runs_max: int = 2_000, *, cancel: bool = False, **answers: Answer
) -> tuple[list[Order], Search]:
    flow = Flow(made)

    def prepare(choice: Choice) -> Ordered:
        simulation = Ordered(flow, lambda command: answers.get(command.step, GOOD), choice, input_value={"n": 1})
        if cancel:
            simulation.cancel_at(1.0, "a test wants it")
        return simulation

    search = Search()
    return list(explore(prepare, search, runs_max=runs_max)), search


def ends(found: list[Order]) -> set[str]:
    return {order.outcomes.instance.state.value for order in found}


def side_by_side(*blocks: Block, join: str = "all") -> Block:
    return parallel("p", {f"b{number}": [block] for number, block in enumerate(blocks)}, join)


def test_one_order_is_run_once() -> None:
    found, search = orders(graph(task("a"), task("b")))
    assert (len(found), search.run_count, search.is_complete) == (1, 1, True)


def test_what_comes_to_the_same_state_is_followed_once() -> None:
    found, search = orders(graph(side_by_side(*(task(f"t{number}") for number in range(5)))))
    assert search.is_complete
    assert ends(found) == {"SUCCEEDED"}
    assert len(found) + search.merged_count == search.run_count < factorial(5)


def test_a_race_is_won_by_each_of_its_branches() -> None:
    limit = [wait("limit", 3600.0), fail("late", "LATE")]
    made = graph(
        parallel("race", {"a": [task("a")], "b": [task("b")], "c": limit}, "any"),
        put("seen", {"a": "${ has(steps.a.output) }", "b": "${ has(steps.b.output) }"}),
        output="${ steps.seen.output }",
    )
    found, search = orders(made)
    assert search.is_complete
    seen = {json.dumps(order.outcomes.output) for order in found if order.outcomes.output is not None}
    assert seen == {'{"a": true, "b": false}', '{"a": false, "b": true}'}
    assert ends(found) == {"SUCCEEDED", "FAILED"}


@pytest.mark.parametrize("join", ["all", "any", "settled"])
def test_a_join_ends_in_every_order_of_successes_and_failures(join: str) -> None:
    steps = [(task("a"), []), (task("b"), []), (task("c"), ["a"]), (task("d"), ["a", "b"])]
    found, search = orders(graph(dependent("work", steps, join), task("next")), b=Answer(Outcome.FAILED))
    assert search.is_complete
    assert ends(found) == {"NEEDS_RECOVERY" if join == "all" else "SUCCEEDED"}


def test_a_review_opens_before_it_closes_and_a_cancel_comes_at_any_point() -> None:
    reviewed = Answer(output={}, reviewed_after_seconds=50.0)
    found, search = orders(graph(side_by_side(task("a"), task("b"))), cancel=True, a=reviewed)
    assert search.is_complete
    assert ends(found) == {"SUCCEEDED", "CANCELLED"}
    for order in found:
        told = [event for event in order.events if "review" in event]
        assert told in (
            [],
            ["a goes into review"],
            ["a goes into review", "a comes out of review"],
            ["a comes out of review"],
        )


def test_a_search_stops_at_its_bound_and_says_so() -> None:
    found, search = orders(graph(side_by_side(*(task(f"t{number}") for number in range(6)))), runs_max=10)
    assert (search.run_count, search.is_complete) == (10, False)
    assert found


@settings(max_examples=40, deadline=None)
@given(made=workflows())
def test_every_order_of_every_workflow_ends_or_waits_for_a_person(made: Graph) -> None:
    flow = Flow(made)
    for order in orders(made, runs_max=25)[0]:
        instance = order.outcomes.instance
        is_held = instance.state is InstanceState.NEEDS_RECOVERY
        assert is_held or instance.state in INSTANCE_TERMINAL
        if instance.state is InstanceState.SUCCEEDED and instance.ending_as is None:
            assert not any(joining.holds(flow, step) for step in instance.steps.values())
        assert is_held or not order.outcomes.unfinished_tasks


RACE = """\
orbit: weave/1
workflow: race
version: 1
defaults: {queue: q}
steps:
  - {id: race, parallel: {join: any, branches: {a: [{id: x, task: t.x@1}], b: [{id: y, task: t.y@1}]}}}
output: {x: "${ has(steps.x.output) }"}
"""


@pytest.fixture
def explored(tmp_path: Path) -> Callable[..., str]:
    def run(script: str, *options: str) -> str:
        definition, answers = tmp_path / "race.yaml", tmp_path / "script.yaml"
        definition.write_text(RACE)
        answers.write_text(script)
        return CliRunner().invoke(simulate, [str(definition), "--script", str(answers), *options]).output

    return run


def test_the_command_shows_each_way_in_which_it_can_end(explored: Callable[..., str]) -> None:
    shown = explored("answers: {x: {}, y: {}}", "--explore", "100")
    assert "runs, all orders" in shown
    assert 'SUCCEEDED, output {"x":true}' in shown
    assert 'SUCCEEDED, output {"x":false}' in shown
    report = json.loads(explored("answers: {x: {}, y: {}}", "--explore", "100", "--json"))
    assert report["complete"] is True
    assert {end["output"]["x"] for end in report["ends"]} == {True, False}
    assert "more orders are left" in explored("answers: {x: {}, y: {}}", "--explore", "1")
    assert "there is no answer for step y" in explored("answers: {x: {}}", "--explore", "9")
