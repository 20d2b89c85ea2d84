"""Joins over outcomes: who wins, what becomes of the losers, what a failure means, and what `needs` wait for."""

from collections.abc import Mapping

import pytest

from definitions.graph import Graph, JoinPolicy
from engine.coverage import Item, covered_by, items_of
from engine.explain import explain
from engine.flow import Flow
from engine.instance import Failure, Instance
from engine.joining import Outcome as Ended
from engine.joining import Verdict, verdict_of
from engine.simulator import Answer, Outcomes, Refusal, Script, Simulation
from engine.states import Action, InstanceState, StepReason, StepState
from engine.stimulus import Outcome, Recovered
from orbit.clock import SECOND
from orbit.jsontext import Json
from tests.support.graphs import Block, dependent, fail, graph, parallel, poll, put, task, wait, wait_until

OK = Answer(output={"value": 1})


def scripted(answers: Mapping[str, Answer | Refusal]) -> Script:
    return lambda command: answers.get(command.step, OK)


def run(made: Graph, input_: Json = None, **answers: Answer | Refusal) -> Outcomes:
    return Simulation(Flow(made), scripted(answers), input_value=input_).run()


def recovered(made: Graph, *decisions: tuple[float, Recovered], **answers: Answer | Refusal) -> Outcomes:
    asked: dict[str, int] = {}

    def script(command: object) -> Answer | Refusal:
        step = getattr(command, "step", "")
        asked[step] = asked.get(step, 0) + 1
        return OK if asked[step] > 1 else answers.get(step, OK)

    simulation = Simulation(Flow(made), script)
    for at, decision in decisions:
        simulation.recover_at(at, decision)
    return simulation.run()


def states(outcome: Outcomes) -> dict[str, str]:
    return {name: step.state.value for name, step in outcome.instance.steps.items()}


def started(outcome: Outcomes) -> dict[str | None, float]:
    return {line.entry.step: line.at_seconds for line in outcome.trace if line.entry.kind == "step.submitted"}


def after(seconds: float, **fields: object) -> Answer:
    return Answer(output={"value": 1}, after_seconds=seconds, **fields)  # type: ignore[arg-type]


def broken(seconds: float = 1.0) -> Answer:
    return Answer(Outcome.FAILED, error=Failure("BROKEN", "broken"), after_seconds=seconds)


def race(join: str = "any", *, at_least: int = 0, **lanes: list[Block]) -> Block:
    known = lanes or {"a": [task("a1"), task("a2")], "b": [task("b1"), task("b2")], "c": [task("c1")]}
    return parallel("race", known, join, at_least=at_least)


def test_any_goes_on_with_the_first_branch_that_is_done_and_asks_the_others_to_stop() -> None:
    outcome = run(graph(race(), task("next")), a1=after(50.0), b1=after(50.0), c1=after(2.0))
    assert started(outcome)["next"] == 2.0
    assert states(outcome) == {
        "race": "SUCCEEDED",
        "a1": "CANCELLED",
        "b1": "CANCELLED",
        "c1": "SUCCEEDED",
        "a2": "CANCELLED",
        "b2": "CANCELLED",
        "race.end": "SUCCEEDED",
        "next": "SUCCEEDED",
    }
    assert outcome.instance.steps["a1"].reason is StepReason.BRANCH_LOST
    assert outcome.instance.state is InstanceState.SUCCEEDED
    joined = next(line.entry for line in outcome.trace if line.entry.step == "race.end")
    assert joined.data["branches"] == {"a": "cancelled", "b": "cancelled", "c": "done"}


def test_the_instance_does_not_end_before_its_losers_and_keeps_their_success() -> None:
    made = graph(
        race(a=[task("slow"), task("behind")], b=[task("quick")]),
        task("next"),
        output={"slow": "${ default(steps.slow.output, 'nothing') }"},
    )
    outcome = run(made, slow=after(600.0, ignores_cancel=True), quick=after(1.0))
    assert outcome.instance.finished_at == 600 * SECOND
    assert states(outcome)["slow"] == "SUCCEEDED"
    assert states(outcome)["behind"] == "CANCELLED"
    # It came by chance after the join, so no expression reads it; it is there to be compensated.
    assert outcome.output == {"slow": "nothing"}


def test_a_losers_failure_holds_nothing() -> None:
    slow = Answer(Outcome.FAILED, error=Failure("X", "late"), after_seconds=90.0, ignores_cancel=True)
    outcome = run(graph(race(a=[task("slow"), task("behind")], b=[task("quick")]), task("next")), slow=slow)
    assert states(outcome)["slow"] == "FAILED"
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert not any(line.entry.kind == "instance.needs_recovery" for line in outcome.trace)


def test_a_losers_review_is_awaited_and_holds_nothing_else() -> None:
    slow = after(1.0, reviewed_after_seconds=300.0)
    outcome = run(graph(race(a=[task("slow")], b=[task("quick")]), task("next")), slow=slow, quick=after(5.0))
    assert started(outcome)["next"] == 5.0
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.finished_at == 301 * SECOND


@pytest.mark.parametrize(
    ("block", "answer"),
    [
        (wait("slow", 900.0), OK),
        (wait_until("slow", "'2027-01-15T08:02:00Z'", 900.0), OK),
        (poll("slow", every_seconds=500.0, every_seconds_max=500.0), Answer(output={"status": "NEW"})),
        (task("slow"), Refusal(Failure("QUEUE_FULL", "full"))),
    ],
)
def test_a_loser_that_waits_ends_at_once(block: Block, answer: Answer | Refusal) -> None:
    outcome = run(graph(race(a=[block, task("behind")], b=[task("quick")])), slow=answer, quick=after(5.0))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.finished_at == 5 * SECOND
    assert states(outcome)["slow"] == "CANCELLED"


def test_a_losing_poll_asks_no_further_round() -> None:
    ignoring = Answer(output={"status": "NEW"}, after_seconds=30.0, ignores_cancel=True)
    outcome = run(graph(race(a=[poll("asks")], b=[task("quick")])), asks=ignoring, quick=after(5.0))
    assert states(outcome)["asks"] == "CANCELLED"
    assert outcome.instance.finished_at == 30 * SECOND


def test_a_branch_in_which_everything_is_skipped_is_not_done() -> None:
    made = graph(race(a=[task("a1").only_if("input.go")], b=[wait("b1", 7.0)]), task("next"))
    outcome = run(made, {"go": False})
    assert started(outcome) == {"next": 7.0}


def test_at_least_waits_for_so_many_and_survives_failures_that_leave_enough() -> None:
    made = graph(race("at_least", at_least=2), task("next"))
    outcome = run(made, a1=broken(1.0), b1=after(3.0), c1=after(2.0))
    assert started(outcome)["next"] == 4.0
    assert states(outcome)["a1"] == "FAILED"
    assert (states(outcome)["a2"], outcome.instance.steps["a2"].reason) == ("SKIPPED", StepReason.DEAD_PATH)
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_join_that_can_not_be_satisfied_any_more_fails_at_once_with_its_own_code() -> None:
    made = graph(race("at_least", at_least=2), task("next"))
    outcome = run(made, a1=broken(1.0), b1=broken(2.0), c1=after(60.0))
    failed = next(line for line in outcome.trace if line.entry.kind == "instance.needs_recovery")
    assert failed.at_seconds == 2.0
    assert outcome.instance.error is not None
    assert (outcome.instance.error.code, outcome.instance.state) == ("JOIN_UNSATISFIED", InstanceState.NEEDS_RECOVERY)
    assert outcome.instance.error.details == {
        "needed": 2,
        "branches": {"a": "failed", "b": "failed", "c": None},
        "step": "race.end",
    }
    assert states(outcome)["c1"] == "SUCCEEDED", "other branches go on until they settle"


def test_an_unsatisfied_join_fails_the_instance_if_that_is_its_policy() -> None:
    outcome = run(graph(race(), on_failure="fail"), a1=broken(), b1=broken(), c1=broken(9.0))
    assert outcome.instance.state is InstanceState.FAILED
    assert outcome.instance.error is not None
    assert outcome.instance.error.code == "JOIN_UNSATISFIED"


def test_settled_waits_for_all_and_a_failure_is_an_outcome() -> None:
    made = graph(
        race("settled", a=[task("a1"), task("a2")], b=[task("b1")], c=[task("c1").only_if("false")]),
        put("seen", {"a1": "${ has(steps.a1.output) }", "b1": "${ has(steps.b1.output) }"}),
        output="${ steps.seen.output }",
    )
    outcome = run(made, a1=broken(1.0), b1=after(30.0))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.finished_at == 30 * SECOND
    assert outcome.output == {"a1": False, "b1": True}
    joined = next(line.entry for line in outcome.trace if line.entry.step == "race.end")
    assert joined.data["branches"] == {"a": "failed", "b": "done", "c": "skipped"}


def test_settled_waits_for_what_runs_beside_a_failure_in_the_same_branch() -> None:
    lane = [parallel("inner", {"x": [task("x1"), task("x2")], "y": [task("y1"), task("y2")]}), task("behind")]
    outcome = run(graph(race("settled", a=lane, b=[task("b1")]), task("next")), x1=broken(1.0), y1=after(20.0))
    assert started(outcome)["next"] == 21.0, "y2 has ended too"
    assert states(outcome)["inner.end"] == states(outcome)["behind"] == states(outcome)["x2"] == "SKIPPED"


def test_the_branches_of_a_nested_block_lose_with_the_branch_around_them() -> None:
    inner = parallel("inner", {"x": [task("x1"), task("x2")], "y": [wait("y1", 500.0), task("y2")]}, "settled")
    outcome = run(graph(race(a=[inner, task("behind")], b=[task("quick")])), x1=after(60.0, ignores_cancel=True))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.finished_at == 60 * SECOND
    found = states(outcome)
    assert found["x1"] == "SUCCEEDED"
    assert {found[name] for name in ("x2", "y1", "y2", "inner.end", "behind")} == {"CANCELLED"}


def test_a_failed_inner_join_is_a_failure_of_the_branch_around_it() -> None:
    inner = parallel("inner", {"x": [task("x1")], "y": [task("y1")]}, "any")
    made = graph(race("settled", a=[inner, task("behind")], b=[task("b1")]), task("next"))
    outcome = run(made, x1=broken(), y1=broken())
    assert states(outcome)["inner.end"] == "FAILED"
    assert states(outcome)["behind"] == "SKIPPED"
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_step_that_ends_the_instance_ends_it_from_within_a_race() -> None:
    made = graph(race(a=[task("a1")], b=[wait("limit", 60.0), fail("late", "TOO_LATE")]))
    outcome = run(made, a1=after(100.0))
    assert outcome.instance.error is not None
    assert (outcome.instance.state, outcome.instance.error.code) == (InstanceState.FAILED, "TOO_LATE")
    assert run(made, a1=after(10.0)).instance.finished_at == 10 * SECOND


def test_a_race_that_is_skipped_is_skipped_as_a_whole() -> None:
    outcome = run(graph(race().only_if("false"), task("next")))
    assert set(states(outcome).values()) == {"SKIPPED", "SUCCEEDED"}
    assert started(outcome) == {"next": 0.0}


# Needs


def diamond(join: str = "all", **fields: int) -> Block:
    steps = [(task("a"), []), (task("b"), ["a"]), (task("c"), ["a"]), (task("d"), ["b", "c"]), (task("e"), [])]
    return dependent("work", steps, join, **fields)


def test_a_step_starts_when_all_that_it_needs_has_ended() -> None:
    outcome = run(graph(diamond(), task("next")), a=after(2.0), b=after(3.0), c=after(10.0), e=after(1.0))
    assert started(outcome) == {"a": 0.0, "e": 0.0, "b": 2.0, "c": 2.0, "d": 12.0, "next": 13.0}


def test_a_step_runs_if_one_need_is_done_and_is_skipped_if_all_are() -> None:
    steps = [
        (task("a").only_if("input.go"), []),
        (task("b"), []),
        (task("only_a"), ["a"]),
        (task("both"), ["a", "b"]),
        (task("behind"), ["only_a"]),
    ]
    outcome = run(graph(dependent("work", steps), task("next")), {"go": False})
    assert states(outcome) == {
        "work": "SUCCEEDED",
        "a": "SKIPPED",
        "only_a": "SKIPPED",
        "behind": "SKIPPED",
        "b": "SUCCEEDED",
        "both": "SUCCEEDED",
        "work.end": "SUCCEEDED",
        "next": "SUCCEEDED",
    }


def test_a_graph_in_which_every_step_is_skipped_lets_the_flow_go_on() -> None:
    steps = [(task("a").only_if("false"), []), (task("b"), ["a"])]
    for join in ("all", "settled"):
        outcome = run(graph(dependent("work", steps, join), task("next")))
        assert outcome.instance.state is InstanceState.SUCCEEDED
        assert list(started(outcome)) == ["next"]


def test_nothing_that_needs_a_failed_step_runs_and_the_join_judges_it_as_failed() -> None:
    outcome = run(graph(diamond("settled"), task("next")), b=broken(), c=after(20.0))
    assert states(outcome)["d"] == "SKIPPED"
    assert started(outcome)["next"] == 21.0
    joined = next(line.entry for line in outcome.trace if line.entry.step == "work.end")
    assert joined.data["branches"] == {"a": "done", "b": "failed", "c": "done", "d": "failed", "e": "done"}


def test_a_failure_in_a_graph_that_needs_all_holds_it_and_a_retry_goes_on() -> None:
    held = run(graph(diamond()), b=broken())
    assert held.instance.state is InstanceState.NEEDS_RECOVERY
    assert "d" not in held.instance.steps
    outcome = recovered(graph(diamond()), (50.0, Recovered(Action.RETRY, "b")), b=broken())
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert states(outcome)["d"] == "SUCCEEDED"


def test_at_least_counts_the_steps_of_a_graph() -> None:
    outcome = run(graph(diamond("at_least", at_least=3), task("next")), a=after(1.0), b=after(2.0), c=after(90.0))
    assert started(outcome)["next"] == 3.0, "e, a and b"
    assert (states(outcome)["c"], states(outcome)["d"]) == ("CANCELLED", "CANCELLED")


def test_a_need_may_be_a_whole_block() -> None:
    steps = [(race(), []), (task("late"), ["race"])]
    outcome = run(graph(dependent("work", steps)), c1=after(2.0), a1=after(9.0), b1=after(9.0))
    assert started(outcome)["late"] == 2.0


# Recovery


def test_a_retry_of_a_failed_step_recomputes_the_join() -> None:
    made = graph(race(a=[task("a1"), task("a2")], b=[task("b1")]), task("next"))
    outcome = recovered(made, (50.0, Recovered(Action.RETRY, "a1")), a1=broken(), b1=broken())
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert {name: states(outcome)[name] for name in ("a1", "a2", "b1", "race.end")} == {
        "a1": "SUCCEEDED",
        "a2": "SUCCEEDED",
        "b1": "FAILED",
        "race.end": "SUCCEEDED",
    }


def test_a_retry_that_fails_again_holds_the_instance_again() -> None:
    made = graph(race(a=[task("a1")], b=[task("b1")]))
    simulation = Simulation(Flow(made), lambda _command: broken())
    simulation.recover_at(50.0, Recovered(Action.RETRY, "a1"))
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert sum(line.entry.kind == "instance.needs_recovery" for line in outcome.trace) == 2


def test_a_retry_reopens_the_joins_around_it_from_the_inside_out() -> None:
    inner = parallel("inner", {"x": [task("x1")], "y": [task("y1")]}, "any")
    made = graph(race("at_least", at_least=2, a=[inner], b=[task("b1")]), task("next"))
    outcome = recovered(made, (50.0, Recovered(Action.RETRY, "y1")), x1=broken(), y1=broken())
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert states(outcome)["inner.end"] == states(outcome)["race.end"] == "SUCCEEDED"


def test_a_join_itself_is_skipped_or_failed_and_never_retried() -> None:
    made = graph(race("at_least", at_least=3), task("next"))
    for action in (Action.RETRY, Action.COMPLETE):
        refused = recovered(made, (50.0, Recovered(action, "race.end")), a1=broken())
        assert refused.instance.state is InstanceState.NEEDS_RECOVERY
    outcome = recovered(made, (50.0, Recovered(Action.SKIP, "race.end")), a1=broken(), b2=after(500.0))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert started(outcome)["next"] == 50.0
    assert (states(outcome)["a2"], states(outcome)["b2"]) == ("SKIPPED", "CANCELLED")
    failed = recovered(made, (50.0, Recovered(Action.FAIL, "race.end")), a1=broken())
    assert failed.instance.state is InstanceState.FAILED


def test_a_failure_that_a_join_has_gone_past_is_no_longer_recovered() -> None:
    made = graph(race("settled", a=[task("a1")], b=[task("b1")]), task("next"))
    outcome = recovered(made, (50.0, Recovered(Action.RETRY, "a1")), a1=broken(), next=broken())
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert states(outcome)["a1"] == "FAILED"
    assert outcome.instance.error is not None
    assert (outcome.instance.error.details or {})["step"] == "next"


# Judging and seeing

D, S, F, C, OPEN = Ended.DONE, Ended.SKIPPED, Ended.FAILED, Ended.CANCELLED, None


@pytest.mark.parametrize(
    ("policy", "needed", "outcomes", "verdict"),
    [
        (JoinPolicy.ALL, 0, [D, S], Verdict.SATISFIED),
        (JoinPolicy.ALL, 0, [D, F], Verdict.UNSATISFIED),
        (JoinPolicy.ALL, 0, [D, OPEN], Verdict.OPEN),
        (JoinPolicy.ANY, 1, [OPEN, D], Verdict.SATISFIED),
        (JoinPolicy.ANY, 1, [S, F], Verdict.UNSATISFIED),
        (JoinPolicy.ANY, 1, [S, OPEN], Verdict.OPEN),
        (JoinPolicy.AT_LEAST, 2, [D, F, OPEN], Verdict.OPEN),
        (JoinPolicy.AT_LEAST, 2, [D, F, C], Verdict.UNSATISFIED),
        (JoinPolicy.AT_LEAST, 2, [D, OPEN, D], Verdict.SATISFIED),
        (JoinPolicy.SETTLED, 0, [S, F], Verdict.SATISFIED),
        (JoinPolicy.SETTLED, 0, [D, OPEN], Verdict.OPEN),
    ],
)
def test_joins_are_judged_over_outcomes(
    policy: JoinPolicy, needed: int, outcomes: list[Ended | None], verdict: Verdict
) -> None:
    assert verdict_of(policy, needed, {str(index): each for index, each in enumerate(outcomes)}) is verdict


def test_an_explanation_names_the_join_and_how_far_it_is() -> None:
    flow = Flow(graph(race("at_least", at_least=2)))
    seen: list[Instance] = []
    simulation = Simulation(flow, scripted({"a1": after(50.0), "b1": after(60.0), "c1": after(2.0)}))
    simulation.observe = seen.append
    simulation.run()
    told = next(explain(flow, each) for each in seen if "c1" in each.steps and each.steps["c1"].finished_at)
    joins = [reason for reason in told["waits_for"] if reason["kind"] == "JOIN"]
    assert joins == [
        {
            "kind": "JOIN",
            "step": "race",
            "policy": "at_least",
            "needed": 2,
            "branches": {"a": None, "b": None, "c": "done"},
            "text": "waits for the join of race (at_least): 1 of 2 needed branches are done, there are 3; open: a, b",
        }
    ]


def test_a_failed_join_is_something_to_cover() -> None:
    made = graph(race())
    assert Item("race", "unsatisfied") in items_of(made)
    assert Item("race", "unsatisfied") not in items_of(graph(race("settled")))
    good, bad = run(made), run(made, a1=broken(), b1=broken(), c1=broken())
    assert Item("race", "unsatisfied") not in covered_by(made, good.trace)
    assert Item("race", "unsatisfied") in covered_by(made, bad.trace)


def test_a_cancelled_instance_ends_every_branch() -> None:
    simulation = Simulation(Flow(graph(race())), lambda _command: after(50.0))
    simulation.cancel_at(5.0, "a test wants it")
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.CANCELLED
    assert {step.state for name, step in outcome.instance.steps.items() if name != "race"} == {StepState.CANCELLED}
