"""What an instance undoes before it ends: which steps, in which order, when, and what holds it."""

from collections.abc import Mapping, Sequence

import pytest

from definitions.graph import Graph, Handling
from engine.command import SubmitTask
from engine.explain import explain
from engine.flow import Flow
from engine.instance import Failure
from engine.simulator import Answer, Outcomes, Refusal, Simulation
from engine.states import Action, Compensation, InstanceState, StepState
from engine.stimulus import Outcome, Recovered
from orbit.jsontext import Json
from tests.support.graphs import Block, fail, graph, parallel, poll, task, wait

DOUBT = {"effect_unknown": True}


class Scripted:
    """Answers by step, one submission after the other; whatever is not scripted succeeds."""

    def __init__(self, **answers: Sequence[Answer | Refusal]) -> None:
        self._answers = {step.replace("__", "."): list(listed) for step, listed in answers.items()}
        self.submitted: list[SubmitTask] = []

    def __call__(self, command: SubmitTask) -> Answer | Refusal:
        self.submitted.append(command)
        left = self._answers.get(command.step)
        return left.pop(0) if left else Answer(output={"by": command.step})

    @property
    def undone(self) -> list[str]:
        return [command.step for command in self.submitted if command.step.endswith(".undo")]


def broken(details: Mapping[str, Json] | None = None) -> Answer:
    return Answer(Outcome.FAILED, error=Failure("BROKEN", "broken", details))


def made(*blocks: Block, on_failure: str = "compensate", **more: object) -> Graph:
    return graph(*blocks, on_failure=on_failure, **more)  # type: ignore[arg-type]


def run(flow: Graph, script: Scripted, input_: Json = None) -> Outcomes:
    return Simulation(Flow(flow), script, input_value=input_).run()


def states(outcome: Outcomes) -> list[str]:
    kinds = ("instance.ending", "instance.compensating", "instance.needs_recovery", "instance.failed")
    return [line.entry.kind for line in outcome.trace if line.entry.kind in {*kinds, "instance.cancelled"}]


def test_what_was_done_is_undone_in_reverse_order_before_the_instance_fails() -> None:
    script = Scripted(c=[broken()])
    outcome = run(
        made(task("a").undone({"ref": "${ steps.a.output.by }"}), task("b").undone({"n": "${ input.n }"}), task("c")),
        script,
        {"n": 5},
    )
    assert script.undone == ["b.undo", "a.undo"]
    assert [command.params for command in script.submitted[-2:]] == [{"n": 5}, {"ref": "a"}]
    assert states(outcome) == ["instance.ending", "instance.compensating", "instance.failed"]
    assert (outcome.instance.state, outcome.instance.compensation) == (InstanceState.FAILED, Compensation.DONE)
    assert outcome.instance.error == Failure("BROKEN", "broken", {"step": "c"})
    assert outcome.instance.steps["a.undo"].state is StepState.SUCCEEDED


def test_the_order_is_that_of_completion_and_one_is_undone_at_a_time() -> None:
    slow, quick = Answer(after_seconds=20.0), Answer(after_seconds=2.0)
    flow = made(parallel("both", {"x": [task("a").undone()], "y": [task("b").undone()]}), task("c"))
    script = Scripted(a=[slow], b=[quick], c=[broken()], a__undo=[Answer(after_seconds=7.0)])
    outcome = run(flow, script)
    assert script.undone == ["a.undo", "b.undo"]
    begun = [line.at_seconds for line in outcome.trace if str(line.entry.step).endswith(".undo")][::2]
    assert begun == [21.0, 28.0]


def test_only_steps_with_a_possible_effect_are_undone() -> None:
    flow = made(
        task("done").undone(),
        task("skipped").undone().only_if("false"),
        task("doubted").undone().on_error("*", Handling.CONTINUE),
        task("clean").undone().on_error("*", Handling.CONTINUE),
        task("invalid").undone().on_error("*", Handling.CONTINUE),
        task("last").undone(),
        task("never").undone(),
    )
    invalid = Answer(Outcome.FAILED, error=Failure("OUTPUT_INVALID", "no"))
    script = Scripted(doubted=[broken(DOUBT)], clean=[broken()], invalid=[invalid], last=[broken()])
    outcome = run(flow, script)
    assert script.undone == ["invalid.undo", "doubted.undo", "done.undo"]
    assert outcome.instance.steps["doubted"].doubts == 1


def test_a_doubt_outlives_the_retry_that_follows_it() -> None:
    flow = made(task("a").undone(), on_failure="hold")
    simulation = Simulation(Flow(flow), script := Scripted(a=[broken(DOUBT), broken()]))
    simulation.recover_at(10.0, Recovered(Action.RETRY, "a"))
    simulation.cancel_at(20.0, "enough", compensate=True)
    outcome = simulation.run()
    assert script.undone == ["a.undo"]
    assert outcome.instance.state is InstanceState.CANCELLED


def test_a_step_whose_review_a_person_skipped_is_undone_too() -> None:
    flow = made(task("a").undone(), task("b"))
    simulation = Simulation(Flow(flow), script := Scripted(a=[Answer(reviewed_after_seconds=1e5)], b=[broken()]))
    simulation.recover_at(10.0, Recovered(Action.SKIP, "a"))
    simulation.run()
    assert script.undone == ["a.undo"]


@pytest.mark.parametrize("on_failure", ["hold", "fail"])
def test_nothing_is_undone_where_nobody_wants_it(on_failure: str) -> None:
    script = Scripted(b=[broken()])
    simulation = Simulation(Flow(made(task("a").undone(), task("b"), on_failure=on_failure)), script)
    simulation.cancel_at(50.0, "enough")
    outcome = simulation.run()
    assert script.undone == []
    assert outcome.instance.compensation is None


@pytest.mark.parametrize("on_failure", ["hold", "fail", "compensate"])
def test_a_cancel_undoes_if_it_says_so_and_ends_cancelled(on_failure: str) -> None:
    script = Scripted(b=[Answer(after_seconds=100.0)])
    simulation = Simulation(Flow(made(task("a").undone(), task("b").undone(), on_failure=on_failure)), script)
    simulation.cancel_at(50.0, "enough", compensate=True)
    outcome = simulation.run()
    assert script.undone == ["a.undo"]
    assert states(outcome) == ["instance.ending", "instance.compensating", "instance.cancelled"]
    assert outcome.instance.error == Failure("CANCELLED", "enough")


def test_undoing_waits_for_what_still_runs_and_for_reviews_and_covers_a_late_success() -> None:
    flow = made(parallel("both", {"x": [task("a").undone()], "y": [task("b").undone()], "z": [task("c")]}))
    deaf = Answer(after_seconds=300.0, ignores_cancel=True)
    reviewed = Answer(after_seconds=1.0, reviewed_after_seconds=900.0, ignores_cancel=True)
    script = Scripted(a=[deaf], b=[reviewed], c=[broken()])
    outcome = run(flow, script)
    began = next(line.at_seconds for line in outcome.trace if line.entry.kind == "instance.compensating")
    assert began == 902.0
    assert script.undone == ["b.undo", "a.undo"], "a success that nobody waited for has its effect"


def test_the_instances_time_out_leads_to_undoing_and_not_to_a_hold() -> None:
    flow = made(task("a").undone(), wait("w", 500.0), timeout=60.0)
    outcome = run(flow, script := Scripted())
    assert script.undone == ["a.undo"]
    assert outcome.instance.error is not None
    assert outcome.instance.error.code == "INSTANCE_TIMED_OUT"


def test_fail_steps_and_fail_handlers_undo_too_and_a_success_never_does() -> None:
    run(made(task("a").undone(), fail("stop")), first := Scripted())
    assert first.undone == ["a.undo"]
    handled = made(task("a").undone(), task("b").on_error("*", Handling.FAIL))
    run(handled, second := Scripted(b=[broken()]))
    assert second.undone == ["a.undo"]
    outcome = run(handled, third := Scripted())
    assert (outcome.instance.state, third.undone) == (InstanceState.SUCCEEDED, [])


def test_a_failed_compensation_waits_for_a_person_and_goes_on_after_the_retry() -> None:
    flow = made(task("a").undone(), task("b").undone(), task("c"))
    simulation = Simulation(Flow(flow), script := Scripted(c=[broken()], b__undo=[broken()]))
    simulation.recover_at(90.0, Recovered(Action.RETRY, "c"))  # what the instance ends for is no longer to be mended
    simulation.recover_at(100.0, Recovered(Action.RETRY, "b.undo"))
    outcome = simulation.run()
    assert states(outcome) == [
        "instance.ending",
        "instance.compensating",
        "instance.needs_recovery",
        "instance.failed",
    ]
    assert script.undone == ["b.undo", "b.undo", "a.undo"]
    assert script.submitted[-2].retry_of is not None
    assert outcome.instance.error == Failure("BROKEN", "broken", {"step": "c"}), "why it ends is not forgotten"


@pytest.mark.parametrize(
    ("action", "undone", "compensation"),
    [
        (Action.COMPLETE, ["b.undo", "a.undo"], Compensation.DONE),
        (Action.SKIP, ["b.undo", "a.undo"], Compensation.DONE),
        (Action.FAIL, ["b.undo"], Compensation.ABANDONED),
    ],
)
def test_what_else_a_person_may_decide_about_it(action: Action, undone: list[str], compensation: Compensation) -> None:
    flow = made(task("a").undone(), task("b").undone(), task("c"))
    simulation = Simulation(Flow(flow), script := Scripted(c=[broken()], b__undo=[broken()]))
    simulation.recover_at(100.0, Recovered(action, "b.undo"))
    outcome = simulation.run()
    assert script.undone == undone
    assert (outcome.instance.state, outcome.instance.compensation) == (InstanceState.FAILED, compensation)


def test_a_cancel_while_it_undoes_changes_what_it_becomes_and_nothing_else() -> None:
    flow = made(task("a").undone(), task("b"))
    simulation = Simulation(Flow(flow), script := Scripted(b=[broken()], a__undo=[Answer(after_seconds=50.0)]))
    simulation.cancel_at(10.0, "enough")
    outcome = simulation.run()
    assert script.undone == ["a.undo"]
    assert outcome.instance.state is InstanceState.CANCELLED
    held = Simulation(Flow(flow), Scripted(b=[broken()], a__undo=[broken()]))
    held.cancel_at(10.0, "enough")
    outcome = held.run()
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    held = Simulation(Flow(flow), Scripted(b=[broken()], a__undo=[broken()]))
    held.cancel_at(10.0, "enough")
    held.recover_at(20.0, Recovered(Action.RETRY, "a.undo"))
    outcome = held.run()
    assert (outcome.instance.state, outcome.instance.error) == (
        InstanceState.CANCELLED,
        Failure("CANCELLED", "enough"),
    )


def test_a_cancel_that_wants_undoing_may_come_while_the_instance_ends() -> None:
    flow = made(task("a").undone(), task("b"), on_failure="fail")
    simulation = Simulation(Flow(flow), script := Scripted(b=[Answer(after_seconds=90.0, ignores_cancel=True)]))
    simulation.cancel_at(10.0, "enough")
    simulation.cancel_at(20.0, "and undo it", compensate=True)
    outcome = simulation.run()
    assert script.undone == ["a.undo"]
    assert outcome.instance.state is InstanceState.CANCELLED


def test_undoing_stands_still_in_a_pause() -> None:
    flow = made(task("a").undone(), task("b").undone(), task("c"))
    simulation = Simulation(Flow(flow), Scripted(c=[broken()], b__undo=[Answer(after_seconds=10.0)]))
    simulation.pause_at(5.0, "look")
    simulation.resume_at(500.0, "go")
    outcome = simulation.run()
    begun = [line.at_seconds for line in outcome.trace if line.entry.kind == "step.submitted"][-2:]
    assert begun == [3.0, 500.0]
    assert outcome.instance.state is InstanceState.FAILED


def test_a_full_queue_and_a_time_out_are_a_compensations_business_too() -> None:
    refusal = Refusal(Failure("QUEUE_FULL", "full"))
    flow = made(task("a").undone(timeout_seconds=30.0), task("b"))
    script = Scripted(b=[broken()], a__undo=[refusal, Answer(after_seconds=99.0)])
    outcome = run(flow, script)
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.error is not None
    assert outcome.instance.error.code == "STEP_TIMED_OUT"
    assert outcome.instance.error.details == {
        "step": "a.undo",
        "before": {"code": "BROKEN", "message": "broken", "details": {"step": "b"}},
    }


def test_an_expression_without_a_value_holds_it() -> None:
    flow = made(task("a").undone({"x": "${ input.missing }"}), task("b"))
    simulation = Simulation(Flow(flow), script := Scripted(b=[broken()]), input_value={})
    simulation.recover_at(10.0, Recovered(Action.RETRY, "a.undo"))
    simulation.recover_at(20.0, Recovered(Action.SKIP, "a.undo"))
    outcome = simulation.run()
    assert script.undone == []
    assert states(outcome).count("instance.needs_recovery") == 2
    assert outcome.instance.state is InstanceState.FAILED


def test_a_poll_is_undone_once_whatever_its_rounds() -> None:
    flow = made(poll("p").undone(), task("b"))
    script = Scripted(p=[Answer(output={"status": "NEW"}), Answer(output={"status": "DONE"})], b=[broken()])
    run(flow, script)
    assert script.undone == ["p.undo"]
    doubted = made(poll("p", continue_on_round_error=True, rounds_max=2).undone())
    run(doubted, script := Scripted(p=[broken(DOUBT), broken()]))
    assert script.undone == ["p.undo"], "what a round may have done is not forgotten"


def test_an_instance_that_undoes_says_so() -> None:
    flow = Flow(made(task("a").undone(), task("b")))
    simulation = Simulation(flow, Scripted(b=[broken()]))
    seen: list[str] = []
    simulation.observe = lambda instance: seen.append(
        str(explain(flow, instance)["summary"])
        if all(step.task_id is not None for step in instance.steps.values() if step.has_task)
        else ""
    )
    simulation.run()
    assert any(text.startswith("undoes what it did, then ends as FAILED: step a.undo waits for task") for text in seen)
