"""What error handlers do to a failed step: retry, go on, run their own steps, fail; and when they must not."""

from collections.abc import Mapping, Sequence

import pytest

from definitions.graph import Graph, Handling
from engine.advance import advance
from engine.command import SubmitTask
from engine.explain import explain
from engine.flow import Flow
from engine.instance import Failure, Instance
from engine.recovery import needs_safety_statement
from engine.simulator import Answer, Outcomes, Refusal, Simulation
from engine.states import Action, InstanceState, StepReason, StepState
from engine.stimulus import LateSuccess, Outcome, Recovered, Started, TaskEnded
from orbit.clock import SECOND
from orbit.jsontext import Json
from tests.support.graphs import Block, branch, done, graph, parallel, poll, put, task, wait_until

CONTINUE, RETRY, FAIL = Handling.CONTINUE, Handling.RETRY, Handling.FAIL


def broken(code: str = "BROKEN", class_: str | None = None, **more: Json) -> Answer:
    details = {**({} if class_ is None else {"class": class_}), **more}
    return Answer(Outcome.FAILED, error=Failure(code, f"{code} it is", details or None))


class Scripted:
    """Answers by step, one submission after the other; whatever is not scripted succeeds."""

    def __init__(self, answers: Mapping[str, Sequence[Answer | Refusal]]) -> None:
        self._answers = {step: list(listed) for step, listed in answers.items()}
        self.submitted: list[SubmitTask] = []

    def __call__(self, command: SubmitTask) -> Answer | Refusal:
        self.submitted.append(command)
        left = self._answers.get(command.step)
        return left.pop(0) if left else Answer(output={"by": command.step})

    @property
    def steps(self) -> list[str]:
        return [command.step for command in self.submitted]


def run(made: Graph, script: Scripted, input_: Json = None) -> Outcomes:
    return Simulation(Flow(made), script, input_value=input_).run()


def only(block: Block, *answers: Answer | Refusal, output: Json = None) -> tuple[Outcomes, Scripted]:
    """Run one step and a task after it; the answers are the first step's."""
    script = Scripted({block.id: answers})
    return run(graph(block, task("after"), output=output), script), script


def told(outcome: Outcomes, kind: str) -> list[Mapping[str, Json]]:
    return [line.entry.data for line in outcome.trace if line.entry.kind == kind]


def test_a_retry_is_a_new_task_that_continues_the_line_of_the_failed_one() -> None:
    made = task("a").on_error("*", RETRY, retries_max=2)
    outcome, script = only(made, broken(), broken())
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert [(command.step, command.round) for command in script.submitted] == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("after", 1),
    ]
    first, second, third, _ = script.submitted
    assert first.retry_of is None
    assert (second.retry_of, third.retry_of) == (b"a:1".ljust(16, b"."), b"a:2".ljust(16, b"."))
    assert outcome.instance.steps["a"].retries == (2,)


def test_a_retry_waits_for_its_back_off_which_doubles() -> None:
    outcome, _ = only(task("a").on_error("*", RETRY, retries_max=2, backoff_seconds=10.0), broken(), broken())
    submitted = [line.at_seconds for line in outcome.trace if line.entry.kind == "step.submitted"]
    assert submitted == [0.0, 11.0, 32.0, 33.0]
    assert told(outcome, "step.waiting") == [{"reason": "RETRY"}] * 2


def test_a_retry_that_is_used_up_leaves_the_failure_to_the_next_handler() -> None:
    made = task("a").on_error("RETRYABLE", RETRY, retries_max=1).on_error("*", CONTINUE, {"gave": "${ error.code }"})
    outcome, script = only(
        made, broken(class_="RETRYABLE"), broken("OTHER", class_="RETRYABLE"), output="${ steps.a.output }"
    )
    assert outcome.output == {"gave": "OTHER"}
    assert script.steps == ["a", "a", "after"]
    assert [(data["handler"], data["then"], data["code"]) for data in told(outcome, "step.error_handled")] == [
        (1, "retry", "BROKEN"),
        (2, "continue", "OTHER"),
    ]


def test_the_first_handler_that_matches_wins() -> None:
    made = (
        task("a")
        .on_error("OTHER", FAIL)
        .on_error("NON_RETRYABLE", CONTINUE, 1)
        .on_error("BROKEN", CONTINUE, 2)
        .on_error("*", CONTINUE, 3)
    )
    for answer, output in (
        (broken(), 1),
        (broken(class_="UNCLASSIFIED"), 2),
        (broken("X", class_="UNCLASSIFIED"), 3),
    ):
        assert only(made, answer, output="${ steps.a.output }")[0].output == output


def test_a_step_that_goes_on_counts_as_done_and_keeps_its_error() -> None:
    made = task("a").on_error("*", CONTINUE, {"why": "${ error.message }", "more": "${ error.details.n }"})
    outcome, _ = only(made, broken(class_="RETRYABLE", details={"n": 5}), output="${ steps.a.output }")
    assert outcome.output == {"why": "BROKEN it is", "more": 5}
    step = outcome.instance.steps["a"]
    assert (step.state, step.reason) == (StepState.SUCCEEDED, StepReason.HANDLED)
    assert step.error is not None
    assert step.error.code == "BROKEN"


def test_handler_steps_run_and_the_flow_goes_on_past_the_step() -> None:
    lane = [task("tell", {"code": "${ error.code }"}), put("kept", {"class": "${ error.class }"})]
    made = task("a").on_error("*", lane)
    outcome, script = only(made, broken())
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert script.steps == ["a", "tell", "after"]
    assert script.submitted[1].params == {"code": "BROKEN"}
    step = outcome.instance.steps["a"]
    assert (step.state, step.reason, step.chosen) == (StepState.FAILED, StepReason.HANDLED, "on_error.1")
    outcome, script = only(made)
    assert script.steps == ["a", "after"]
    assert outcome.instance.steps["tell"].reason is StepReason.DEAD_PATH
    assert outcome.instance.steps["a.handled"].state is StepState.SUCCEEDED


def test_a_step_with_handlers_that_is_skipped_lets_the_flow_go_on() -> None:
    made = graph(task("a").on_error("*", [task("tell")]).only_if("input.go"), task("after"))
    script = Scripted({})
    outcome = run(made, script, {"go": False})
    assert script.steps == ["after"]
    assert outcome.instance.state is InstanceState.SUCCEEDED
    inside = graph(branch("route", {"input.go": [task("a").on_error("*", [task("tell")])], "else": []}), task("after"))
    outcome = run(inside, script, {"go": False})
    assert outcome.instance.steps["a.handled"].reason is StepReason.DEAD_PATH
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_fail_ends_the_instance_though_failures_are_held() -> None:
    made = graph(
        parallel("both", {"x": [task("a").on_error("*", FAIL)], "y": [task("b")]}), task("after"), on_failure="hold"
    )
    outcome = run(made, Scripted({"a": [broken()], "b": [Answer(after_seconds=50.0)]}))
    assert outcome.instance.state is InstanceState.FAILED
    assert outcome.instance.error == Failure("BROKEN", "BROKEN it is", {"step": "a"})


def test_what_no_handler_takes_holds_the_instance_and_a_person_starts_the_handlers_anew() -> None:
    made = graph(task("a").on_error("X", RETRY, retries_max=1))
    script = Scripted({"a": [broken("X"), broken("X"), broken("X"), Answer()]})
    simulation = Simulation(Flow(made), script)
    simulation.recover_at(100.0, Recovered(Action.RETRY, "a"))
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert script.steps == ["a"] * 4


def test_a_handled_failure_is_no_persons_business() -> None:
    made = graph(task("a").on_error("*", [task("b")]))
    simulation = Simulation(Flow(made), Scripted({"a": [broken()], "b": [broken(), Answer()]}))
    for decision in (Recovered(Action.RETRY, "a"), Recovered(Action.SKIP, "a")):
        simulation.recover_at(50.0, decision)
    simulation.recover_at(60.0, Recovered(Action.RETRY, "b"))
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["a"].round == 1


def test_handlers_work_beside_a_failure_that_waits_for_a_person() -> None:
    lane = [task("tell")]
    made = graph(parallel("both", {"x": [task("a")], "y": [task("b").on_error("*", lane)]}))
    late = Answer(Outcome.FAILED, error=Failure("LATE", "late"), after_seconds=30.0)
    outcome = run(made, script := Scripted({"a": [broken()], "b": [late]}))
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert script.steps == ["a", "b", "tell"]
    assert outcome.instance.steps["tell"].state is StepState.SUCCEEDED


def test_an_error_in_the_handler_itself_is_left_to_a_person() -> None:
    outcome, _ = only(task("a").on_error("*", CONTINUE, "${ error.details.none }"), broken())
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.error is not None
    assert outcome.instance.error.code == "EXPRESSION_ERROR"


@pytest.mark.parametrize(
    "answer",
    [
        broken("ATTEMPTS_EXHAUSTED", class_="UNKNOWN_OUTCOME", effect_unknown=True),
        broken("OUTPUT_INVALID"),
        Answer(Outcome.CANCELLED, error=Failure("LEASE_LOST", "lost", {"effect_unknown": True})),
    ],
)
def test_a_task_whose_effect_is_possible_is_not_retried(answer: Answer) -> None:
    outcome, script = only(task("a").on_error("*", RETRY, retries_max=5), answer)
    assert script.steps == ["a"]
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    outcome, script = only(task("a").on_error("*", RETRY, retries_max=5).on_error("*", CONTINUE), answer)
    assert script.steps == ["a", "after"], "going on starts no second task"


@pytest.mark.parametrize("ends", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED])
def test_a_handler_that_outlives_its_time_out_is_waited_for_before_any_retry(ends: Outcome) -> None:
    slow = Answer(ends, {"ok": True}, after_seconds=500.0, ignores_cancel=True)
    made = task("a", timeout_seconds=10.0).on_error("*", RETRY, retries_max=1)
    script = Scripted({"a": [slow]})
    outcome = run(graph(made), script)
    asked = [line.at_seconds for line in outcome.trace if line.entry.kind == "step.cancel_requested"]
    again = [line.at_seconds for line in outcome.trace if line.entry.kind == "step.submitted"][1:]
    assert asked == [10.0]
    assert again == ([] if ends is Outcome.SUCCEEDED else [500.0]), "its end is waited for, and a success counts"


def test_a_review_never_reaches_a_handler_and_a_persons_verdict_does() -> None:
    reviewed = Answer(after_seconds=1.0, reviewed_after_seconds=1000.0)
    made = graph(task("a").on_error("*", CONTINUE, "went on"), output="${ steps.a.output }")
    assert run(made, Scripted({"a": [reviewed]})).output is None
    simulation = Simulation(Flow(made), Scripted({"a": [reviewed]}))
    simulation.recover_at(50.0, Recovered(Action.FAIL, "a"))
    outcome = simulation.run()
    assert outcome.output == "went on"
    assert [line.at_seconds for line in outcome.trace if line.entry.kind == "step.error_handled"] == [50.0]


def test_a_poll_is_tried_again_with_all_its_rounds() -> None:
    made = poll("p", rounds_max=2).on_error("POLL_EXHAUSTED", RETRY, retries_max=1)
    outcome, script = only(made, *[Answer(output={"status": "NEW"})] * 3, Answer(output={"status": "DONE"}))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert [command.params for command in script.submitted[:4]] == [{"round": 1}, {"round": 2}] * 2


def test_time_outs_of_waits_and_errors_of_expressions_are_handled_too() -> None:
    made = graph(
        wait_until("w", "'2099-01-01T00:00:00Z'", 5.0).on_error("WAIT_TIMEOUT", [put("late", {})]),
        put("s", {"v": "${ input.missing }"}).on_error("EXPRESSION_ERROR", CONTINUE, {"v": "${ error.class }"}),
        output="${ steps.s.output.v }",
    )
    outcome = run(made, Scripted({}), {})
    assert outcome.output == "NON_RETRYABLE"
    assert outcome.instance.steps["late"].state is StepState.SUCCEEDED


def test_a_full_queue_for_too_long_is_an_error_like_any_other() -> None:
    refusal = Refusal(Failure("QUEUE_FULL", "full"))
    made = task("a", start_within_seconds=2.0).on_error("START_DEADLINE_EXCEEDED", RETRY, retries_max=1)
    outcome, script = only(made, refusal, refusal, refusal)
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert script.submitted[-2].retry_of is None, "what was never taken has no line to continue"


def test_handler_steps_may_end_the_instance() -> None:
    made = graph(task("a").on_error("*", [done("stop", "early")]), task("after"))
    outcome = run(made, script := Scripted({"a": [broken()]}))
    assert outcome.output == "early"
    assert script.steps == ["a"]
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_wait_for_a_retry_is_explained() -> None:
    simulation = Simulation(
        flow := Flow(graph(task("a").on_error("*", RETRY, retries_max=1, backoff_seconds=60.0))),
        Scripted({"a": [broken()]}),
    )
    seen: list[str] = []
    simulation.observe = lambda instance: seen.append(
        "" if instance.steps["a"].task_id is None else str(explain(flow, instance)["summary"])
    )
    simulation.run()
    assert any("step a is tried again by an error handler at" in text for text in seen)


@pytest.mark.parametrize("late_round", [1, 2])
def test_a_late_success_ends_the_wait_for_a_retry_that_would_do_the_same_again(late_round: int) -> None:
    flow = Flow(graph(task("a").on_error("*", RETRY, retries_max=3, backoff_seconds=60.0)))
    failed = Failure("BROKEN", "it is")
    state = Instance(bytes(16), InstanceState.RUNNING, 0, 0, 10**12)
    state, _ = advance(flow, state, [Started()], 0)
    state, _ = advance(flow, state, [TaskEnded("a", 1, Outcome.FAILED, failed)], SECOND)
    state, commands = advance(flow, state, [], 100 * SECOND)
    assert [submit.round for submit in commands.submits] == [2]
    state, _ = advance(flow, state, [TaskEnded("a", 2, Outcome.FAILED, failed)], 101 * SECOND)
    state, _ = advance(flow, state, [LateSuccess("a", late_round)], 102 * SECOND)
    state, commands = advance(flow, state, [], 1000 * SECOND)
    assert commands.submits == ()
    assert state.state is InstanceState.NEEDS_RECOVERY
    assert needs_safety_statement(flow.nodes["a"], state.steps["a"])


def test_no_handler_retries_what_has_succeeded_late_while_its_retry_ran() -> None:
    flow = Flow(graph(task("a").on_error("*", RETRY, retries_max=3)))
    failed = Failure("BROKEN", "it is")
    state = Instance(bytes(16), InstanceState.RUNNING, 0, 0, 10**12)
    state, _ = advance(flow, state, [Started()], 0)
    state, _ = advance(flow, state, [TaskEnded("a", 1, Outcome.FAILED, failed)], SECOND)
    state, _ = advance(flow, state, [LateSuccess("a", 1)], 2 * SECOND)
    assert state.steps["a"].state is StepState.RUNNING
    state, commands = advance(flow, state, [TaskEnded("a", 2, Outcome.FAILED, failed)], 3 * SECOND)
    assert (state.state, commands.submits) == (InstanceState.NEEDS_RECOVERY, ())


def test_a_retry_of_what_has_succeeded_late_needs_a_safety_statement() -> None:
    flow = Flow(graph(task("a")))
    state = Instance(bytes(16), InstanceState.RUNNING, 0, 0, 10**12)
    state, _ = advance(flow, state, [Started()], 0)
    state, _ = advance(flow, state, [TaskEnded("a", 1, Outcome.FAILED, Failure("BROKEN", "it is"))], SECOND)
    assert not needs_safety_statement(flow.nodes["a"], state.steps["a"])
    state, _ = advance(flow, state, [LateSuccess("a", 1)], 2 * SECOND)
    assert needs_safety_statement(flow.nodes["a"], state.steps["a"])
