"""Error handlers of blocks: what ends with the block, when the handlers begin, and what is done once more."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from definitions.graph import Graph, Handling
from engine.advance import advance
from engine.command import SubmitTask
from engine.explain import explain
from engine.flow import Flow
from engine.forking import kept_steps
from engine.instance import Failure, Instance
from engine.recovery import refusal
from engine.simulator import Answer, Outcomes, Simulation
from engine.states import Action, InstanceState, StepReason, StepState
from engine.stimulus import LateSuccess, Outcome, Recovered, ReviewOpened, Started, TaskEnded
from orbit.clock import SECOND
from orbit.jsontext import Json
from tests.support.graphs import Block, branch, done, foreach, graph, parallel, poll, put, task, wait

CONTINUE, RETRY, FAIL = Handling.CONTINUE, Handling.RETRY, Handling.FAIL
BROKEN = Failure("BROKEN", "it is broken", {"class": "NON_RETRYABLE", "details": {"disk": 3}})


class Script:
    """Answers by step, in the order in which it is asked; the last one for ever."""

    def __init__(self, **answers: Sequence[Answer]) -> None:
        self.answers = {step: list(found) for step, found in answers.items()}
        self.asked: list[tuple[float, str]] = []

    def __call__(self, command: SubmitTask) -> Answer:
        step = command.step.split("[")[0]
        found = self.answers.get(step, [Answer()])
        self.asked.append((command.deadline_at / SECOND - 3600.0, command.step))
        return found.pop(0) if len(found) > 1 else found[0]


def failing(after: float = 1.0, error: Failure = BROKEN) -> Answer:
    return Answer(Outcome.FAILED, error=error, after_seconds=after)


def stubborn(after: float, output: Json = None) -> Answer:
    return Answer(output=output, after_seconds=after, ignores_cancel=True)


def run(made: Graph, script: Script, input_: Json = None) -> Outcomes:
    return Simulation(Flow(made), script, input_value=input_).run()


def both(**branches: Sequence[Block]) -> Block:
    return parallel("p", branches)


def test_handler_steps_begin_only_when_all_in_the_block_has_ended() -> None:
    made = graph(both(a=[task("a")], b=[task("b"), task("c")]).on_error("*", [task("h")]), task("z"))
    script = Script(a=[failing()], b=[stubborn(30.0, {"x": 1})])
    outcome = run(made, script)
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert script.asked == [(0.0, "a"), (0.0, "b"), (30.0, "h"), (31.0, "z")]
    steps = outcome.instance.steps
    assert (steps["b"].state, steps["b"].reason) == (StepState.SUCCEEDED, StepReason.BLOCK_FAILED)
    assert (steps["c"].state, steps["c"].reason) == (StepState.CANCELLED, StepReason.BLOCK_FAILED)
    assert (steps["p.end"].state, steps["p.end"].reason) == (StepState.FAILED, StepReason.HANDLED)
    assert steps["z"].state is StepState.SUCCEEDED


def test_a_sibling_that_heeds_the_cancel_ends_at_once_and_a_wait_is_cancelled() -> None:
    made = graph(both(a=[task("a")], b=[task("b")], c=[wait("w", 500.0)]).on_error("*", CONTINUE), task("z"))
    script = Script(a=[failing()], b=[Answer(after_seconds=40.0)])
    outcome = run(made, script)
    assert script.asked[-1] == (1.0, "z")
    assert {outcome.instance.steps[name].state for name in ("b", "w")} == {StepState.CANCELLED}


def test_a_review_in_the_block_holds_its_handlers() -> None:
    made = graph(both(a=[task("a")], b=[task("b")]).on_error("*", [task("h")]))
    flow = Flow(made)
    script = Script(a=[failing(2.0)], b=[Answer(after_seconds=1.0, reviewed_after_seconds=100.0)])
    simulation = Simulation(flow, script)
    told: list[str] = []
    simulation.observe = lambda instance: told.append(
        ""
        if instance.state is not InstanceState.RUNNING
        or any(step.has_task and step.task_id is None for step in instance.steps.values())
        else str(explain(flow, instance)["summary"])
    )
    outcome = simulation.run()
    assert script.asked[-1] == (101.0, "h")
    assert any("p.end waits for what still runs in its block, then its handlers take BROKEN" in text for text in told)
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_person_can_only_complete_or_fail_a_review_in_a_block_that_was_given_up() -> None:
    flow = Flow(graph(both(a=[task("a")], b=[task("b")]).on_error("*", CONTINUE)))
    instance = Instance(bytes(16), InstanceState.RUNNING, 0, 0, 10**12)
    instance, _ = advance(flow, instance, [Started()], 0)
    with_tasks = {name: replace(step, task_id=bytes(16)) for name, step in instance.steps.items()}
    instance = replace(instance, steps=with_tasks)
    instance, _ = advance(flow, instance, [ReviewOpened("b", 1, BROKEN)], SECOND)
    instance, _ = advance(flow, instance, [TaskEnded("a", 1, Outcome.FAILED, BROKEN)], 2 * SECOND)
    for action in (Action.RETRY, Action.SKIP):
        said = refusal(flow, instance, Recovered(action, "b"))
        assert said is not None
        assert "a block around it has failed" in said
    for action in (Action.COMPLETE, Action.FAIL):
        assert refusal(flow, instance, Recovered(action, "b")) is None
        after, _ = advance(flow, instance, [Recovered(action, "b")], 3 * SECOND)
        if action is Action.COMPLETE:
            assert after.state is InstanceState.SUCCEEDED


def test_the_error_of_a_block_names_the_step_in_it() -> None:
    tells = [put("h", {"error": "${ error }"})]
    outcome = run(
        graph(both(a=[task("a")], b=[task("b")]).on_error("BROKEN", tells), output="${ steps.h.output }"),
        Script(a=[failing()]),
    )
    assert outcome.output == {
        "error": {
            "code": "BROKEN",
            "message": "it is broken",
            "class": "NON_RETRYABLE",
            "details": {"disk": 3},
            "step": "a",
        }
    }


def test_the_value_of_a_block_is_there_only_where_a_handler_gave_it() -> None:
    block = both(a=[task("a")]).on_error("*", CONTINUE, {"why": "${ error.code }"})
    made = graph(block, output="${ has(steps.p.output) ? steps.p.output : 'none' }")
    assert run(made, Script(a=[failing()])).output == {"why": "BROKEN"}
    assert run(made, Script()).output == "none"


def test_the_nearest_block_whose_handlers_match_takes_the_failure() -> None:
    inner = parallel("i", {"x": [task("a")], "y": [wait("w", 9.0)]}).on_error("OTHER", CONTINUE)
    made = graph(parallel("o", {"x": [inner], "y": [wait("v", 9.0)]}).on_error("BROKEN", CONTINUE), task("z"))
    script = Script(a=[failing()])
    outcome = run(made, script)
    assert script.asked[-1] == (1.0, "z")
    assert outcome.instance.steps["i.end"].state is StepState.CANCELLED
    assert outcome.instance.steps["o.end"].reason is StepReason.HANDLED


def test_a_step_s_own_handler_comes_before_that_of_its_block() -> None:
    made = graph(both(a=[task("a").on_error("*", CONTINUE)], b=[task("b")]).on_error("*", FAIL))
    outcome = run(made, Script(a=[failing()], b=[Answer(after_seconds=5.0)]))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["p.end"].state is StepState.SUCCEEDED


def test_what_no_handler_of_the_block_takes_waits_for_a_person_at_the_step() -> None:
    made = graph(both(a=[task("a")], b=[task("b")]).on_error("OTHER", CONTINUE))
    outcome = run(made, Script(a=[failing()], b=[Answer(after_seconds=5.0)]))
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.steps["b"].state is StepState.SUCCEEDED
    assert outcome.instance.steps["a"].waits_for_decision


def test_a_later_failure_that_a_handler_takes_ends_the_wait_for_a_person() -> None:
    made = graph(both(a=[task("a")], b=[task("b")]).on_error("WORSE", CONTINUE), task("z"))
    outcome = run(made, Script(a=[failing()], b=[failing(5.0, Failure("WORSE", "it is"))]))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.error is None
    kinds = [line.entry.kind for line in outcome.trace]
    assert kinds.index("instance.needs_recovery") < kinds.index("instance.recovered")


def test_fail_of_a_block_ends_the_instance_when_the_block_is_at_rest() -> None:
    made = graph(both(a=[task("a")], b=[task("b")]).on_error("*", FAIL))
    outcome = run(made, Script(a=[failing()], b=[stubborn(30.0)]))
    assert outcome.instance.state is InstanceState.FAILED
    assert outcome.instance.error is not None
    assert outcome.instance.error.code == "BROKEN"
    assert outcome.instance.finished_at == 30 * SECOND


def test_an_error_in_a_block_s_own_steps_of_a_handler_goes_to_the_block_around() -> None:
    inner = parallel("i", {"x": [task("a")]}).on_error("*", [task("h")])
    made = graph(parallel("o", {"x": [inner]}).on_error("*", CONTINUE), task("z"))
    outcome = run(made, Script(a=[failing()], h=[failing()]))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["h"].reason is StepReason.BLOCK_FAILED
    assert outcome.instance.steps["o.end"].reason is StepReason.HANDLED


# Branches


def test_a_branch_handles_the_failure_of_its_condition_and_of_its_case() -> None:
    made = graph(
        branch("c", {"input.n > 1": [task("a")], "else": []}).on_error("*", CONTINUE, "${ error.code }"),
        output="${ default(steps.c.output, 'fine') }",
    )
    assert run(made, Script(a=[failing()]), {"n": 2}).output == "BROKEN"
    assert run(made, Script(a=[failing()]), {"n": 0}).output == "fine"
    assert run(made, Script(), {}).output == "EXPRESSION_ERROR"


def test_a_branch_whose_ways_all_end_the_instance_goes_on_from_its_handler() -> None:
    block = branch("c", {"input.n > 1": [task("a"), done("r", 1)], "else": [done("q", 2)]})
    made = graph(block.on_error("*", CONTINUE), task("z"), output=3)
    # The lowering gives such a branch a join behind its ends; they are never reached by it.
    assert run(made, Script(), {"n": 2}).output == 1
    assert run(made, Script(), {"n": 0}).output == 2
    assert run(made, Script(a=[failing()]), {"n": 2}).output == 3


# Joins that take failures


def test_a_join_inside_takes_a_failure_before_a_block_around_it() -> None:
    race = parallel("r", {"x": [task("a")], "y": [task("b")]}, "any")
    made = graph(parallel("o", {"x": [race]}).on_error("*", FAIL))
    outcome = run(made, Script(a=[failing()], b=[Answer(after_seconds=3.0)]))
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_join_that_can_not_be_satisfied_is_handled_when_its_branches_have_ended() -> None:
    race = parallel("r", {"x": [task("a")], "y": [task("b")], "z": [task("c"), task("d")]}, "at_least", at_least=2)
    script = Script(a=[failing(1.0)], b=[failing(2.0)], c=[stubborn(9.0)])
    outcome = run(graph(race.on_error("JOIN_UNSATISFIED", [task("h")])), script)
    assert script.asked[-1] == (9.0, "h")
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["d"].state is StepState.CANCELLED


def test_a_block_in_a_branch_that_loses_ends_with_it() -> None:
    inner = parallel("i", {"x": [task("a")], "y": [task("b")]}).on_error("*", [task("h")])
    made = graph(parallel("r", {"x": [inner], "y": [task("c")]}, "any"), task("z"))
    script = Script(a=[failing(1.0)], b=[stubborn(9.0)], c=[Answer(after_seconds=2.0)])
    outcome = run(made, script)
    assert [step for _, step in script.asked] == ["c", "a", "b", "z"]
    assert outcome.instance.steps["i.end"].state is StepState.CANCELLED


# Retries


def test_a_retry_of_a_block_does_all_of_it_once_more_with_fresh_rounds() -> None:
    block = both(a=[put("v", {"n": 1}), task("a")], b=[poll("q")]).on_error(
        "*", RETRY, retries_max=2, backoff_seconds=10.0
    )
    script = Script(a=[failing(), Answer()], q=[Answer(output={"status": "NEW"}), Answer(output={"status": "DONE"})])
    outcome = run(graph(block, task("z")), script)
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert [step for _, step in script.asked] == ["q", "a", "q", "a", "z"]
    steps = outcome.instance.steps
    assert steps["a"].round == 2
    assert (steps["q"].round, steps["q"].poll_round) == (2, 1)
    assert steps["p.end"].retries == (1,)


def test_a_retry_that_is_used_up_lets_the_next_handler_have_the_failure() -> None:
    block = both(a=[task("a")], b=[task("b")]).on_error("*", RETRY, retries_max=2).on_error("*", CONTINUE)
    script = Script(a=[failing()])
    outcome = run(graph(block), script)
    assert [step for _, step in script.asked] == ["a", "b"] * 3
    assert outcome.instance.steps["p.end"].reason is StepReason.HANDLED


def test_a_retry_chooses_the_case_of_a_branch_anew() -> None:
    before = put("v", {"go": True})
    block = branch("c", {"input.n > 1 && has(input.n)": [task("a")], "else": []}).on_error("*", RETRY, retries_max=1)
    outcome = run(graph(before, block), Script(a=[failing(), Answer()]), {"n": 2})
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["a"].round == 2


@pytest.mark.parametrize("known_after", [False, True])
def test_no_retry_of_a_block_repeats_what_may_have_been_done(*, known_after: bool) -> None:
    doubt = Failure("LOST", "nobody knows", {"class": "UNKNOWN_OUTCOME", "effect_unknown": True})
    block = both(a=[task("a")], b=[task("b")]).on_error("*", RETRY, retries_max=3).on_error("*", [task("h")])
    # With `known_after` the doubt comes up while the block is given up already.
    ends = failing(20.0, doubt)
    b = [Answer(ends.outcome, error=doubt, after_seconds=20.0, ignores_cancel=True)]
    script = Script(a=[failing(1.0)], b=b) if known_after else Script(a=[failing(1.0, doubt)], b=[Answer()])
    outcome = run(graph(block), script)
    assert [step for _, step in script.asked] == ["a", "b", "h"]
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_late_success_ends_the_wait_for_a_retry_of_its_block() -> None:
    block = both(a=[task("a")], b=[task("b")]).on_error("*", RETRY, retries_max=3, backoff_seconds=60.0)
    flow = Flow(graph(block.on_error("*", [task("h")])))
    instance = Instance(bytes(16), InstanceState.RUNNING, 0, 0, 10**12)
    instance, _ = advance(flow, instance, [Started()], 0)
    ends = [TaskEnded("a", 1, Outcome.FAILED, BROKEN), TaskEnded("b", 1, Outcome.FAILED, BROKEN)]
    instance, _ = advance(flow, instance, ends, SECOND)
    assert instance.steps["p.end"].reason is StepReason.RETRY
    instance, commands = advance(flow, instance, [LateSuccess("a", 1)], 2 * SECOND)
    assert [submit.step for submit in commands.submits] == ["h"]


def test_a_person_retries_a_block_that_no_handler_takes_in_the_end() -> None:
    doubt = Failure("LOST", "nobody knows", {"class": "UNKNOWN_OUTCOME", "effect_unknown": True})
    flow = Flow(graph(both(a=[task("a")], b=[task("b")]).on_error("*", RETRY, retries_max=1), task("z")))
    b = [Answer(Outcome.FAILED, error=doubt, after_seconds=20.0, ignores_cancel=True), Answer()]
    script = Script(a=[failing(), Answer()], b=b)
    simulation = Simulation(flow, script)
    simulation.recover_at(100.0, Recovered(Action.RETRY, "p.end"))
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert [step for _, step in script.asked] == ["a", "b", "a", "b", "z"]


def test_a_person_skips_a_block_that_was_given_up_and_can_not_retry_one_that_is_undone() -> None:
    doubt = Failure("LOST", "nobody knows", {"class": "UNKNOWN_OUTCOME", "effect_unknown": True})
    block = both(a=[task("a")], b=[task("b").undone()]).on_error("*", RETRY, retries_max=1)
    flow = Flow(graph(block, task("z")))
    b = [Answer(Outcome.FAILED, error=doubt, after_seconds=20.0, ignores_cancel=True)]
    simulation = Simulation(flow, Script(a=[failing()], b=b))
    outcome = simulation.run()
    said = refusal(flow, outcome.instance, Recovered(Action.RETRY, "p.end"))
    assert said is not None
    assert "can be done once more" in said
    after, commands = advance(flow, outcome.instance, [Recovered(Action.SKIP, "p.end")], 10**9)
    assert [submit.step for submit in commands.submits] == ["z"]
    assert after.state is InstanceState.RUNNING


# Items


def test_steps_of_items_have_handlers_of_their_own() -> None:
    step = task("a", "${ item }").on_error("OTHER", CONTINUE).on_error("BROKEN", [put("h", {"of": "${ item }"})])
    each = foreach("e", "input", [step, put("r", {"h": "${ default(steps.h.output, null) }"})])
    outcome = run(graph(each, output="${ steps.e.output }"), Script(a=[failing(), Answer()]), [7, 8])
    assert outcome.output == [{"h": {"of": 7}}, {"h": None}]


def test_a_value_of_an_item_s_handler_reads_the_item_and_its_error() -> None:
    step = task("a").on_error("*", CONTINUE, "${ string(item) + error.step }")
    outcome = run(graph(foreach("e", "input", [step]), output="${ steps.e.output }"), Script(a=[failing()]), [7, 8])
    assert outcome.output == ["7a[0]", "8a[1]"]


def test_a_step_of_an_item_is_retried() -> None:
    step = task("a").on_error("*", RETRY, retries_max=1, backoff_seconds=5.0)
    script = Script(a=[failing(), failing(), Answer(output=1)])
    outcome = run(graph(foreach("e", "input", [step]), output="${ steps.e.output }"), script, [7, 8])
    assert outcome.output == [1, 1]
    assert [step for _, step in script.asked] == ["a[0]", "a[1]", "a[0]", "a[1]"]


def test_a_foreach_hands_the_failure_of_an_item_to_its_handlers_when_the_others_have_stopped() -> None:
    each = foreach("e", "input", [task("a"), task("b")], concurrency=2).on_error("*", [task("h", "${ error.step }")])
    script = Script(a=[failing(), stubborn(30.0)])
    outcome = run(graph(each, task("z")), script, [1, 2, 3])
    assert [step for _, step in script.asked] == ["a[0]", "a[1]", "h", "z"]
    assert script.asked[2][0] == 30.0
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert not any("[" in name for name in outcome.instance.steps)


@pytest.mark.parametrize("backoff", [0.0, 60.0])
def test_a_retry_of_a_foreach_begins_anew_only_the_items_that_were_under_way(backoff: float) -> None:
    each = foreach("e", "input", [task("a"), task("b")], concurrency=2)
    each = each.on_error("*", RETRY, retries_max=1, backoff_seconds=backoff)
    script = Script(a=[Answer(output=0), failing(3.0), Answer(output=1)])
    outcome = run(graph(each, output="${ steps.e.output }"), script, [1, 2, 3])
    asked = [step for _, step in script.asked]
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert asked == ["a[0]", "a[1]", "b[0]", "a[2]", "a[1]", "a[2]", "b[1]", "b[2]"]
    settled = outcome.settled
    assert settled["a[1]"].round == 2


def test_a_foreach_whose_list_can_not_be_read_waits_for_its_retry_and_reads_it_anew() -> None:
    each = foreach("e", "input.list", [task("a")]).on_error("*", RETRY, retries_max=1, backoff_seconds=5.0)
    simulation = Simulation(Flow(graph(each)), Script(), input_value={})
    outcome = simulation.run()
    step = outcome.instance.steps["e"]
    assert (outcome.instance.state, step.state) == (InstanceState.NEEDS_RECOVERY, StepState.FAILED)
    assert step.error is not None
    assert step.error.code == "EXPRESSION_ERROR"
    assert step.retries == (1,)
    assert step.finished_at == 5 * SECOND


def test_a_block_around_a_foreach_takes_the_failure_of_an_item() -> None:
    each = foreach("e", "input", [task("a"), wait("w", 100.0)], concurrency=2)
    made = graph(both(x=[each], y=[task("b")]).on_error("*", CONTINUE), task("z"))
    outcome = run(made, Script(a=[failing(), stubborn(8.0)], b=[stubborn(20.0)]), [1, 2, 3])
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.finished_at == 21 * SECOND
    assert outcome.instance.steps["e"].state is StepState.CANCELLED


def test_a_block_within_an_item_is_handled_for_that_item_alone() -> None:
    inner = parallel("i", {"x": [task("a")], "y": [task("b")]}).on_error("*", RETRY, retries_max=1)
    each = foreach(
        "e",
        "input",
        [inner.on_error("*", CONTINUE, "${ error.step }"), put("r", {"v": "${ default(steps.i.output, '') }"})],
    )
    script = Script(a=[failing(), Answer(), failing()])
    outcome = run(graph(each, output="${ steps.e.output }"), script, [1, 2])
    assert outcome.output == [{"v": "a[0]"}, {"v": ""}]


# What comes after


def test_a_fork_behind_a_handled_block_copies_it() -> None:
    block = both(a=[task("a")], b=[task("b"), task("c")]).on_error("*", CONTINUE)
    flow = Flow(graph(block, task("z")))
    outcome = Simulation(flow, Script(a=[failing()], b=[Answer(after_seconds=9.0)])).run()
    assert set(kept_steps(flow, outcome.instance, "z")) == {"p", "a", "b", "c", "p.end"}
    assert set(kept_steps(flow, outcome.instance, "b")) == {"p"}
