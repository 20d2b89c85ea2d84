"""Compensation of the steps of items and of whole blocks: what is undone, in which order, from what is kept."""

from collections.abc import Mapping

import pytest

from definitions.graph import Graph, Handling
from engine.advance import advance
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure, Instance
from engine.simulator import Answer, Outcomes, Refusal, Simulation
from engine.states import Action, Compensation, InstanceState, StepState
from engine.stimulus import Outcome, Recovered
from orbit.clock import SECOND
from orbit.jsontext import Json
from tests.support.graphs import Block, branch, child, fail, foreach, graph, parallel, put, task

BROKEN = Failure("BROKEN", "it is broken", {"class": "NON_RETRYABLE"})
DOUBT = Failure("LOST", "nobody knows", {"class": "UNKNOWN_OUTCOME", "effect_unknown": True})
ENDS = fail("end")


class Script:
    """Answers by the id of the step, with its index or without; what was submitted with its input, in order."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[tuple[str, Json]] = []

    def __call__(self, command: SubmitTask) -> Answer:
        self.asked.append((command.step, command.params))
        own = self.answers.get(command.step.split("[")[0], Answer(output={"of": command.step}))
        return self.answers.get(command.step, own)

    @property
    def undone(self) -> list[str]:
        return [step for step, _ in self.asked if ".undo" in step]


def made(*blocks: Block) -> Graph:
    return graph(*blocks, on_failure="compensate")


def run(made: Graph, script: Script, input_: Json = None) -> Outcomes:
    return Simulation(Flow(made), script, input_value=input_).run()


def each(*steps: Block, **changes: int) -> Block:
    return foreach("e", "input", steps, **{"concurrency": 2, **changes})


def test_completed_items_are_undone_in_the_reverse_order_of_their_completion() -> None:
    script = Script({"a[0]": Answer(output=0, after_seconds=9.0), "a[2]": Answer(output=2, after_seconds=4.0)})
    outcome = run(made(each(task("a").undone()), ENDS), script, [1, 2, 3, 4])
    # The ends: a[1] at 1, a[2] at 5, a[3] at 6, a[0] at 9.
    assert script.undone == ["a.undo[0]", "a.undo[3]", "a.undo[2]", "a.undo[1]"]
    assert outcome.instance.state is InstanceState.FAILED
    assert outcome.instance.compensation is Compensation.DONE
    assert not any("[" in name for name in outcome.instance.steps)


def test_a_compensation_of_an_item_reads_the_item_its_steps_and_what_was_before() -> None:
    undo = {
        "item": "${ item }",
        "index": "${ index }",
        "own": "${ default(steps.a.output, null) }",
        "value": "${ default(steps.v.output.n, null) }",
        "before": "${ steps.first.output }",
        "later": "${ default(steps.b.output, null) }",
    }
    steps = (put("v", {"n": "${ item * 2 }"}), task("a").undone(undo), task("b"))
    script = Script({"first": Answer(output="f"), "b[1]": Answer(Outcome.FAILED, error=BROKEN)})
    run(made(task("first"), each(*steps, concurrency=1)), script, [7, 8, 9])
    told = [params for step, params in script.asked if ".undo" in step]
    assert told == [
        {"item": 8, "index": 1, "own": {"of": "a[1]"}, "value": 16, "before": "f", "later": None},
        {"item": 7, "index": 0, "own": {"of": "a[0]"}, "value": 14, "before": "f", "later": {"of": "b[0]"}},
    ]


def test_items_and_other_steps_are_undone_in_one_order() -> None:
    steps = (task("x").undone(), each(task("a").undone(), task("b").undone(), concurrency=1), task("z").undone())
    script = Script()
    run(made(*steps, ENDS), script, [1, 2])
    assert script.undone == ["z.undo", "b.undo[1]", "a.undo[1]", "b.undo[0]", "a.undo[0]", "x.undo"]


def test_of_an_item_that_failed_only_what_was_done_or_may_have_been_is_undone() -> None:
    answers = {"a[1]": Answer(Outcome.FAILED, error=DOUBT), "a[0]": Answer(Outcome.FAILED, error=BROKEN)}
    steps = task("a").undone().on_error("*", Handling.CONTINUE)
    script = Script(answers)
    run(made(each(steps), ENDS), script, [1, 2, 3])
    assert script.undone == ["a.undo[2]", "a.undo[1]"]


def test_a_foreach_of_a_thousand_items_is_undone_one_by_one_and_its_state_stays_small() -> None:
    flow = Flow(made(foreach("e", "input", [task("a").undone()], items_max=1000, concurrency=50), ENDS))
    script = Script()
    simulation = Simulation(flow, script, input_value=list(range(1000)))
    most = 0

    def look(instance: Instance) -> None:
        nonlocal most
        most = max(most, len(instance.steps))

    simulation.observe = look
    outcome = simulation.run()
    assert outcome.instance.compensation is Compensation.DONE
    assert script.undone == [f"a.undo[{index}]" for index in range(999, -1, -1)]
    assert most <= 52


def test_a_compensation_of_an_item_that_fails_waits_for_a_person_and_then_goes_on() -> None:
    flow = Flow(made(each(task("a").undone(), concurrency=1), ENDS))
    script = Script({"a.undo[1]": Answer(Outcome.FAILED, error=BROKEN)})
    simulation = Simulation(flow, script, input_value=[1, 2, 3])
    simulation.recover_at(100.0, Recovered(Action.COMPLETE, "a.undo[1]", output=None))
    outcome = simulation.run()
    assert script.undone == ["a.undo[2]", "a.undo[1]", "a.undo[0]"]
    assert outcome.instance.compensation is Compensation.DONE
    held = [line.entry for line in outcome.trace if line.entry.kind == "instance.needs_recovery"]
    assert [entry.data["error"]["details"]["step"] for entry in held] == ["a.undo[1]"]


def test_what_a_person_abandons_is_not_undone() -> None:
    flow = Flow(made(each(task("a").undone(), concurrency=1), ENDS))
    script = Script({"a.undo[1]": Answer(Outcome.FAILED, error=BROKEN)})
    simulation = Simulation(flow, script, input_value=[1, 2, 3])
    simulation.recover_at(100.0, Recovered(Action.FAIL, "a.undo[1]"))
    outcome = simulation.run()
    assert script.undone == ["a.undo[2]", "a.undo[1]"]
    assert outcome.instance.compensation is Compensation.ABANDONED


def test_a_full_queue_lets_a_compensation_of_an_item_wait_by_itself() -> None:
    flow = Flow(made(each(task("a").undone(), concurrency=1), ENDS))
    refusals = [Refusal(Failure("QUEUE_FULL", "full"))]
    script = Script()

    def answer(command: SubmitTask) -> Answer | Refusal:
        return refusals.pop() if command.step == "a.undo[1]" and refusals else script(command)

    outcome = Simulation(flow, answer, input_value=[1, 2]).run()
    assert outcome.instance.compensation is Compensation.DONE
    assert script.undone == ["a.undo[1]", "a.undo[0]"]


def test_a_late_success_of_a_step_that_was_put_away_is_undone_too_and_once() -> None:
    """Its item is done with: what it had was nothing, as far as anybody knew."""
    step = task("a").undone().on_error("*", Handling.CONTINUE)
    flow = Flow(made(each(step, concurrency=1), task("z"), ENDS))
    script = Script({"a[0]": Answer(Outcome.FAILED, error=BROKEN), "z": Answer(after_seconds=50.0)})
    simulation = Simulation(flow, script, input_value=[1, 2])
    simulation.late_success_at(20.0, "a[0]", 1)
    simulation.late_success_at(21.0, "a[1]", 1)
    outcome = simulation.run()
    assert script.undone == ["a.undo[0]", "a.undo[1]"]
    assert outcome.instance.compensation is Compensation.DONE


def test_a_cancel_while_items_run_undoes_those_that_are_done_and_those_under_way() -> None:
    flow = Flow(graph(each(task("a").undone(), task("b"))))
    script = Script({"b": Answer(after_seconds=100.0)})
    simulation = Simulation(flow, script, input_value=[1, 2, 3])
    simulation.cancel_at(150.0, "enough", compensate=True)
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.CANCELLED
    assert sorted(script.undone) == ["a.undo[0]", "a.undo[1]", "a.undo[2]"]


def test_a_child_in_an_item_is_undone() -> None:
    script = Script()
    run(made(each(child("c", {"n": 1}).undone({"n": "${ item }"})), ENDS), script, [5])
    assert [asked for asked in script.asked if ".undo" in asked[0]] == [("c.undo[0]", {"n": 5})]


# Blocks


def both(*steps: Block) -> Block:
    return parallel("p", {"x": [steps[0]], "y": [steps[1]]}).undone()


def test_a_block_is_undone_by_its_one_task_in_the_place_of_its_last_step() -> None:
    script = Script({"b": Answer(after_seconds=20.0), "c": Answer(after_seconds=5.0)})
    outer = parallel("o", {"l": [both(task("a"), task("b"))], "r": [task("c").undone()]})
    run(made(outer, task("z").undone(), ENDS), script)
    assert script.undone == ["z.undo", "p.undo", "c.undo"]


def test_a_block_in_which_nothing_was_done_is_not_undone() -> None:
    script = Script({"a": Answer(Outcome.FAILED, error=BROKEN)})
    made_ = made(branch("c", {"input.n > 1": [task("a")], "else": []}).undone(), ENDS)
    run(made_, script, {"n": 0})
    run(made_, script, {"n": 2})
    assert script.undone == []
    done = Script()
    run(made_, done, {"n": 2})
    assert done.undone == ["c.undo"]


@pytest.mark.parametrize("items", [[], [1, 2]])
def test_a_foreach_with_one_compensation_is_undone_if_an_item_has_begun(items: list[int]) -> None:
    script = Script()
    run(made(each(task("a")).undone({"all": "${ default(steps.e.output, null) }"}), ENDS), script, items)
    assert script.undone == (["e.undo"] if items else [])


def test_a_block_within_an_item_is_undone_for_that_item() -> None:
    inner = branch("c", {"item > 1": [task("a")], "else": []}).undone({"n": "${ item }"})
    script = Script()
    outcome = run(made(each(inner, concurrency=1), ENDS), script, [1, 2, 3])
    assert [asked for asked in script.asked if ".undo" in asked[0]] == [
        ("c.undo[2]", {"n": 3}),
        ("c.undo[1]", {"n": 2}),
    ]
    assert outcome.instance.finished_at == 4 * SECOND


def test_a_handled_block_that_was_given_up_is_undone_with_what_ended_in_it() -> None:
    block = both(task("a"), task("b")).on_error("*", Handling.CONTINUE)
    answers = {"a": Answer(Outcome.FAILED, error=BROKEN), "b": Answer(after_seconds=9.0, ignores_cancel=True)}
    script = Script(answers)
    outcome = run(made(block, ENDS), script)
    assert script.undone == ["p.undo"]
    assert outcome.instance.steps["p.undo"].state is StepState.SUCCEEDED


def test_nothing_of_the_ledger_is_asked_for_by_an_instance_that_does_not_undo() -> None:
    flow = Flow(graph(each(task("a").undone())))
    outcome = Simulation(flow, Script(), input_value=[1, 2]).run()
    assert outcome.instance.state is InstanceState.SUCCEEDED
    after, commands = advance(flow, outcome.instance, [], 10**9)
    assert (after, commands.effects) == (outcome.instance, ())
