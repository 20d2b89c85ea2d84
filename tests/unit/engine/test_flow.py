"""Where the flow goes: branches, joins, skips, dead paths, ends."""

import pytest

from definitions.graph import Graph
from engine.flow import Flow
from engine.instance import Failure
from engine.simulator import Answer, Outcomes, Refusal, Script, Simulation
from engine.states import InstanceState, StepReason, StepState
from engine.stimulus import Outcome
from orbit.jsontext import Json
from tests.support.graphs import branch, done, fail, graph, parallel, poll, put, task, wait


def always(_command: object) -> Answer:
    return Answer(output={"value": 1})


def run(made: Graph, script: Script = always, input_: Json = None) -> Outcomes:
    return Simulation(Flow(made), script, input_value=input_).run()


def states(outcome: Outcomes) -> dict[str, str]:
    return {name: step.state.value for name, step in outcome.instance.steps.items()}


def failing(*names: str) -> Script:
    return lambda command: Answer(Outcome.FAILED) if command.step in names else Answer(output={})


def test_steps_run_in_order_and_hand_on_their_outputs() -> None:
    made = graph(
        task("a"),
        task("b", {"from_a": "${ steps.a.output.value }", "n": "${ input.n }"}),
        output={"b": "${ steps.b.output }"},
    )
    seen: list[Json] = []

    def script(command: object) -> Answer:
        seen.append(getattr(command, "params", None))
        return Answer(output={"value": len(seen)})

    outcome = run(made, script, {"n": 7})
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert seen == [None, {"from_a": 1, "n": 7}]
    assert outcome.output == {"b": {"value": 2}}


def test_a_branch_takes_the_first_case_that_holds_and_skips_the_others() -> None:
    made = graph(
        branch("route", {"input.n > 10": [task("big")], "input.n > 5": [task("middle")], "else": []}), task("after")
    )
    found = states(run(made, input_={"n": 11}))
    assert found == {
        "route": "SUCCEEDED",
        "big": "SUCCEEDED",
        "middle": "SKIPPED",
        "route.end": "SUCCEEDED",
        "after": "SUCCEEDED",
    }


def test_an_empty_case_leads_on_behind_the_block() -> None:
    made = graph(branch("route", {"input.n > 10": [task("big"), task("bigger")], "else": []}), task("after"))
    outcome = run(made, input_={"n": 1})
    assert outcome.instance.steps["bigger"].reason is StepReason.DEAD_PATH
    assert outcome.instance.steps["after"].state is StepState.SUCCEEDED
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_branch_without_a_case_that_holds_fails() -> None:
    outcome = run(graph(branch("route", {"input.n > 10": [task("big")]})), input_={"n": 1})
    error = outcome.instance.steps["route"].error
    assert error is not None
    assert error.code == "NO_CASE_HOLDS"
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY


def test_parallel_branches_start_together_and_join_when_all_have_ended() -> None:
    made = graph(parallel("both", {"l": [task("x")], "r": [task("y"), task("z")]}), task("after"))
    outcome = run(made, lambda c: Answer(after_seconds={"x": 9.0, "y": 2.0, "z": 3.0, "after": 1.0}[c.step]))
    starts = {line.entry.step: line.at_seconds for line in outcome.trace if line.entry.kind == "step.submitted"}
    assert starts == {"x": 0.0, "y": 0.0, "z": 2.0, "after": 9.0}


def test_a_step_skipped_by_its_own_condition_lets_the_flow_go_on() -> None:
    made = graph(task("a").only_if("input.n > 3"), task("b"))
    outcome = run(made, input_={"n": 1})
    assert states(outcome) == {"a": "SKIPPED", "b": "SUCCEEDED"}


@pytest.mark.parametrize("kind", ["branch", "parallel"])
def test_a_block_skipped_by_its_own_condition_runs_nothing_inside_and_lets_the_flow_go_on(kind: str) -> None:
    inside = {"input.n > 0": [task("x")], "else": [task("y")]}
    block = branch("block", inside) if kind == "branch" else parallel("block", {"l": [task("x")], "r": [task("y")]})
    outcome = run(graph(block.only_if("input.n > 3"), task("after")), input_={"n": 1})
    steps = outcome.instance.steps
    assert {steps["x"].reason, steps["y"].reason} == {StepReason.DEAD_PATH}
    assert steps["block.end"].reason is StepReason.WHEN
    assert steps["after"].state is StepState.SUCCEEDED


def test_a_dead_path_runs_through_nested_blocks_to_its_join() -> None:
    inner = parallel("inner", {"l": [task("x"), wait("w", 5)], "r": [branch("deep", {"else": [poll("p")]})]})
    made = graph(branch("route", {"input.go": [inner], "else": [put("note", {"taken": False})]}), task("after"))
    outcome = run(made, input_={"go": False})
    found = states(outcome)
    dead = {"inner", "x", "w", "deep", "p", "deep.end", "inner.end"}
    assert {name for name, state in found.items() if state == "SKIPPED"} == dead
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_join_never_goes_on_past_a_failed_branch() -> None:
    made = graph(parallel("both", {"l": [task("x")], "r": [task("y"), task("z")]}), task("after"))
    outcome = run(made, failing("x"))
    assert states(outcome) == {"both": "SUCCEEDED", "x": "FAILED", "y": "SUCCEEDED", "z": "SUCCEEDED"}
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.error is not None
    assert outcome.instance.error.details == {"step": "x"}


def test_a_failure_ends_the_instance_where_the_definition_says_so() -> None:
    made = graph(parallel("both", {"l": [task("x")], "r": [wait("w", 60)]}), task("after"), on_failure="fail")
    outcome = run(made, failing("x"))
    assert outcome.instance.state is InstanceState.FAILED
    assert states(outcome) == {
        "both": "SUCCEEDED",
        "x": "FAILED",
        "w": "CANCELLED",
        "both.end": "CANCELLED",
        "after": "CANCELLED",
    }


def test_fail_ends_the_instance_and_stops_what_still_runs() -> None:
    slow = task("slow", timeout_seconds=7200.0)
    made = graph(parallel("both", {"l": [slow], "r": [wait("w", 5), fail("stop", "NO_MONEY", "only ${ input.n }")]}))
    outcome = run(made, lambda _c: Answer(after_seconds=3600.0), {"n": 3})
    instance = outcome.instance
    assert instance.state is InstanceState.FAILED
    assert instance.error is not None
    assert (instance.error.code, instance.error.message) == ("NO_MONEY", "only 3")
    assert states(outcome)["slow"] == "CANCELLED"
    assert outcome.trace[-1].at_seconds == 5.0


def test_return_ends_the_instance_with_its_output_after_the_last_task() -> None:
    made = graph(
        parallel("both", {"l": [task("slow")], "r": [wait("w", 5), done("enough", {"n": "${ input.n }"})]}),
        output={"never": True},
    )
    outcome = run(made, lambda _c: Answer(after_seconds=60.0, ignores_cancel=True), {"n": 3})
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.output == {"n": 3}
    assert states(outcome)["slow"] == "SUCCEEDED", "a success that came anyway is kept"
    assert outcome.trace[-1].at_seconds == 60.0


def test_a_task_that_was_to_be_submitted_when_the_instance_ends_is_not_submitted() -> None:
    made = graph(parallel("both", {"l": [task("x")], "r": [fail("stop")]}))
    asked: list[object] = []

    def script(command: object) -> Answer:
        asked.append(command)
        return Answer()

    outcome = run(made, script)
    assert asked == []
    assert states(outcome) == {"both": "SUCCEEDED", "x": "CANCELLED", "stop": "FAILED", "both.end": "CANCELLED"}


def test_an_error_in_an_expression_fails_the_step_and_names_the_place() -> None:
    outcome = run(graph(task("a"), put("b", {"x": "${ steps.a.output.missing }"})))
    error = outcome.instance.steps["b"].error
    assert error is not None
    assert error.code == "EXPRESSION_ERROR"
    assert error.details is not None
    assert set(error.details) == {"cause", "line", "column", "expression"}
    assert error.details["cause"] == "NO_SUCH_FIELD"


@pytest.mark.parametrize("root", ["input", "instance", "steps.a.output"])
def test_an_expression_that_finds_no_field_says_which_and_where(root: str) -> None:
    outcome = run(graph(task("a"), put("b", {"x": f"${{ {root}.missing }}"})), input_={})
    error = outcome.instance.steps["b"].error
    assert error is not None
    assert "`missing`" in error.message, "it is the field that is missing, and not the whole value"


def test_an_error_in_the_output_holds_the_instance() -> None:
    outcome = run(graph(task("a"), output={"x": "${ steps.a.output.missing }"}))
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.error is not None
    assert outcome.instance.error.code == "EXPRESSION_ERROR"


def test_the_output_of_a_skipped_step_is_absent() -> None:
    made = graph(
        task("a").only_if("input.n > 3"),
        put("b", {"x": "${ default(steps.a.output.value, 'none') }", "y": "${ has(steps.a.output) }"}),
        output={"b": "${ steps.b.output }"},
    )
    assert run(made, input_={"n": 1}).output == {"b": {"x": "none", "y": False}}
    assert run(made, input_={"n": 5}).output == {"b": {"x": 1, "y": True}}


def test_a_refused_submission_that_can_never_succeed_fails_the_step() -> None:
    made = graph(task("a"))
    outcome = run(made, lambda _c: Refusal(Failure("NOT_FOUND", "no such queue"), retryable=False))
    error = outcome.instance.steps["a"].error
    assert error is not None
    assert error.code == "NOT_FOUND"
    assert not outcome.unfinished_tasks
