"""Steps with tasks: time-outs, reviews, full queues, polls, schemas, and the instance's own time-out."""

import pytest
from msgspec.structs import replace

from definitions.graph import Graph, PollSpec
from engine.advance import advance
from engine.command import CancelTask, SubmitTask
from engine.flow import Flow
from engine.instance import ROUNDS_KEPT, Failure, Instance
from engine.polling import gap_micros
from engine.simulator import Answer, Outcomes, Refusal, Script, Simulation
from engine.states import InstanceState, StepReason, StepState
from engine.stimulus import Outcome, ReviewOpened, Started, TaskEnded
from orbit.clock import SECOND
from orbit.jsontext import Json
from tests.support.graphs import Block, graph, parallel, poll, task, task_spec, wait

FULL = Failure("QUEUE_FULL", "full")


def run(made: Graph, script: Script, input_: Json = None) -> Outcomes:
    return Simulation(Flow(made), script, input_value=input_).run()


def error_of(outcome: Outcomes, step: str) -> Failure:
    error = outcome.instance.steps[step].error
    assert error is not None
    return error


def at(outcome: Outcomes, kind: str, step: str | None = None) -> list[float]:
    return [line.at_seconds for line in outcome.trace if (line.entry.kind, line.entry.step) == (kind, step)]


def test_a_task_that_outlives_its_bound_is_asked_to_stop_and_then_waited_for() -> None:
    made = graph(task("a", timeout_seconds=30.0), task("b"))
    outcome = run(made, lambda _c: Answer(after_seconds=100.0, outcome=Outcome.FAILED, ignores_cancel=True))
    assert at(outcome, "step.cancel_requested", "a") == [30.0]
    assert at(outcome, "step.failed", "a") == [100.0]
    assert "b" not in outcome.instance.steps


def test_a_success_that_comes_after_the_bound_counts() -> None:
    made = graph(task("a", timeout_seconds=30.0))
    outcome = run(made, lambda _c: Answer(after_seconds=100.0, ignores_cancel=True))
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_task_that_stops_when_asked_has_timed_out() -> None:
    flow = Flow(graph(task("a", timeout_seconds=30.0)))
    running = started(flow)
    late, commands = advance(flow, running, [], 30 * SECOND)
    assert [type(command) for command in commands.cancels] == [CancelTask]
    assert late.steps["a"].reason is StepReason.STEP_TIMED_OUT
    after, _ = advance(flow, late, [TaskEnded("a", 1, Outcome.CANCELLED)], 31 * SECOND)
    assert after.steps["a"].error is not None
    assert after.steps["a"].error.code == "STEP_TIMED_OUT"


@pytest.mark.parametrize("code", ["DEADLINE_EXCEEDED", "STEP_TIMED_OUT"])
def test_the_deadline_of_the_task_and_the_bound_of_the_step_look_the_same(code: str) -> None:
    flow = Flow(graph(task("a", timeout_seconds=30.0)))
    stimuli = [TaskEnded("a", 1, Outcome.FAILED, Failure(code, "late"))]
    after, _ = advance(flow, started(flow), stimuli, 30 * SECOND)
    assert after.steps["a"].error is not None
    assert after.steps["a"].error.code == "STEP_TIMED_OUT"


def test_a_task_cancelled_by_nobody_fails_its_step() -> None:
    outcome = run(graph(task("a")), lambda _c: Answer(Outcome.CANCELLED))
    assert error_of(outcome, "a").code == "TASK_CANCELLED"


def test_a_review_stops_the_clocks_of_step_and_instance() -> None:
    made = graph(task("a", timeout_seconds=30.0), timeout=50.0)
    outcome = run(made, lambda _c: Answer(after_seconds=20.0, reviewed_after_seconds=1000.0, ignores_cancel=True))
    # 20 s of work, 1000 s of review, and 10 s of the bound were left.
    assert at(outcome, "step.needs_review", "a") == [20.0]
    assert at(outcome, "step.cancel_requested", "a") == [1030.0]
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.deadline_at == 1050 * SECOND


def test_a_review_is_never_an_error_of_the_step() -> None:
    flow = Flow(graph(task("a"), on_failure="fail"))
    reviewed, _ = advance(flow, started(flow), [ReviewOpened("a", 1, Failure("LOST", "lost"))], SECOND)
    assert reviewed.state is InstanceState.RUNNING
    assert reviewed.steps["a"].state is StepState.NEEDS_REVIEW
    assert reviewed.due_at is None, "only a person can move it"
    after, _ = advance(flow, reviewed, [TaskEnded("a", 1, Outcome.SUCCEEDED)], 9 * SECOND)
    assert after.state is InstanceState.SUCCEEDED
    assert after.steps["a"].error is None


def test_what_is_said_twice_or_about_an_earlier_task_changes_nothing() -> None:
    flow = Flow(graph(task("a"), wait("w", 60)))
    after, _ = advance(flow, started(flow), [TaskEnded("a", 1, Outcome.SUCCEEDED)], SECOND)
    again, commands = advance(
        flow, after, [TaskEnded("a", 1, Outcome.FAILED), TaskEnded("a", 7, Outcome.FAILED)], SECOND
    )
    assert again.steps == after.steps
    assert [entry.kind for entry in commands.history] == ["stimulus.superseded"] * 2


def test_a_full_queue_is_waited_for_and_then_submitted_again() -> None:
    tries: list[float] = []

    def script(command: SubmitTask) -> Answer | Refusal:
        tries.append(command.start_deadline_at / SECOND)
        return Refusal(FULL) if len(tries) < 6 else Answer()

    outcome = run(graph(task("a", start_within_seconds=600.0)), script)
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert tries == [600.0] * 6, "the time to start counts from the entry of the step"
    assert at(outcome, "step.waiting", "a") == [0.0]
    assert 10 < at(outcome, "step.succeeded", "a")[0] < 60, "the waits double"


def test_a_queue_that_stays_full_fails_the_step_when_its_time_to_start_is_over() -> None:
    outcome = run(graph(task("a", start_within_seconds=100.0)), lambda _c: Refusal(FULL))
    assert error_of(outcome, "a").code == "START_DEADLINE_EXCEEDED"
    assert at(outcome, "step.failed", "a") == [100.0]


def test_an_output_that_does_not_fit_its_schema_fails_the_step() -> None:
    schema = {"type": "object", "required": ["ref"], "properties": {"ref": {"type": "string"}}}
    made = graph(task("a", output_schema=schema), task("b"))
    good = run(made, lambda _c: Answer(output={"ref": "x"}))
    assert good.instance.state is InstanceState.SUCCEEDED
    bad = run(made, lambda _c: Answer(output={"ref": 5}))
    assert error_of(bad, "a").code == "OUTPUT_INVALID"
    details = error_of(bad, "a").details
    assert details is not None
    assert details["violations"][0]["pointer"] == "/ref"


def test_the_instances_own_time_out_ends_it_whatever_on_failure_says() -> None:
    made = graph(parallel("both", {"l": [task("a")], "r": [wait("w", 5000)]}), timeout=60.0, on_failure="hold")
    outcome = run(made, lambda _c: Answer(after_seconds=600.0))
    instance = outcome.instance
    assert instance.state is InstanceState.FAILED
    assert instance.error is not None
    assert instance.error.code == "INSTANCE_TIMED_OUT"
    assert instance.finished_at == 60 * SECOND
    assert {instance.steps[name].state for name in ("a", "w", "both.end")} == {StepState.CANCELLED}


def test_an_ended_instance_waits_for_the_task_that_does_not_stop() -> None:
    outcome = run(graph(task("a"), timeout=60.0), lambda _c: Answer(after_seconds=600.0, ignores_cancel=True))
    assert outcome.instance.state is InstanceState.FAILED
    assert outcome.instance.finished_at == 600 * SECOND
    assert outcome.instance.steps["a"].state is StepState.SUCCEEDED


def test_an_instance_that_waits_for_a_person_does_not_time_out() -> None:
    made = graph(parallel("both", {"l": [task("a")], "r": [wait("w", 500)]}), timeout=60.0)
    outcome = run(made, lambda _c: Answer(Outcome.FAILED, after_seconds=10.0))
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.clock_stopped_at == 10 * SECOND
    assert outcome.instance.steps["w"].state is StepState.SUCCEEDED, "the other branch goes on until it settles"


def test_a_cancelled_instance_ends_when_its_tasks_have() -> None:
    simulation = Simulation(Flow(graph(task("a"), task("b"))), lambda _c: Answer(after_seconds=100.0))
    simulation.cancel_at(30.0, "not wanted any more")
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.CANCELLED
    assert outcome.instance.finished_at == 30 * SECOND


def polled(block: Block, *answers: Json) -> tuple[Outcomes, list[Json]]:
    asked: list[Json] = []

    def script(command: SubmitTask) -> Answer:
        asked.append(command.params)
        answer = answers[min(len(asked), len(answers)) - 1]
        return answer if isinstance(answer, Answer) else Answer(output=answer)

    return run(graph(block), script), asked


def test_a_poll_asks_in_rounds_until_it_is_done() -> None:
    outcome, asked = polled(poll("p"), {"status": "NEW"}, {"status": "NEW"}, {"status": "DONE"})
    assert asked == [{"round": 1}, {"round": 2}, {"round": 3}]
    assert outcome.instance.finished_at == 23 * SECOND, "three rounds of 1 s and two gaps of 10 s, end to start"
    log = outcome.instance.steps["p"].log
    assert log is not None
    assert log.counts == {"PROCESSING": 2, "DONE": 1}


def test_fail_when_is_looked_at_before_done_when() -> None:
    block = poll("p", "output.status == 'DONE'", "output.amount > 5")
    outcome, _ = polled(block, {"status": "DONE", "amount": 9})
    assert error_of(outcome, "p").code == "POLL_REJECTED"


def test_a_poll_past_its_rounds_is_exhausted() -> None:
    outcome, asked = polled(poll("p", rounds_max=3), {"status": "NEW"})
    assert len(asked) == 3
    error = error_of(outcome, "p")
    assert error.code == "POLL_EXHAUSTED"
    assert error.details == {"rounds": 3, "outcomes": {"PROCESSING": 3}}


def test_a_poll_past_its_time_is_exhausted_also_in_a_gap() -> None:
    outcome, asked = polled(poll("p", timeout_seconds=15.0), {"status": "NEW"})
    assert len(asked) == 2
    assert error_of(outcome, "p").code == "POLL_EXHAUSTED"
    assert at(outcome, "step.failed", "p") == [15.0]


def test_a_round_that_runs_past_the_polls_time_is_asked_to_stop() -> None:
    slow = Answer(output={"status": "NEW"}, after_seconds=100.0)
    outcome, _ = polled(poll("p", timeout_seconds=15.0), slow)
    assert error_of(outcome, "p").code == "POLL_EXHAUSTED"
    assert at(outcome, "step.failed", "p") == [15.0]


def test_a_failed_round_fails_the_poll_or_counts_as_still_processing() -> None:
    broken = Answer(Outcome.FAILED, error=Failure("NO_BANK", "closed"))
    strict, _ = polled(poll("p"), broken)
    assert error_of(strict, "p").code == "NO_BANK"
    patient, asked = polled(poll("p", continue_on_round_error=True), broken, {"status": "DONE"})
    assert len(asked) == 2
    assert patient.instance.state is InstanceState.SUCCEEDED


def test_a_round_past_its_own_deadline_is_a_failed_round_and_no_time_out_of_the_step() -> None:
    slow = Answer(after_seconds=500.0)
    outcome, _ = polled(poll("p", task=task_spec(timeout_seconds=100.0)), slow)
    assert error_of(outcome, "p").code == "DEADLINE_EXCEEDED"
    assert at(outcome, "step.failed", "p") == [100.0]


def test_a_stopped_round_that_reports_a_failure_is_counted_as_one() -> None:
    flow = Flow(graph(poll("a", timeout_seconds=15.0)))
    late, _ = advance(flow, started(flow), [], 15 * SECOND)
    assert late.steps["a"].reason is StepReason.STEP_TIMED_OUT
    stopped, _ = advance(flow, late, [TaskEnded("a", 1, Outcome.CANCELLED)], 16 * SECOND)
    broken, _ = advance(flow, late, [TaskEnded("a", 1, Outcome.FAILED, Failure("NO_BANK", "closed"))], 16 * SECOND)
    for after, counts in ((stopped, {"CANCELLED": 1}), (broken, {"FAILED": 1})):
        step = after.steps["a"]
        assert step.error is not None
        assert step.error.code == "POLL_EXHAUSTED"
        assert step.log is not None
        assert step.log.counts == counts


def test_rounds_that_fail_for_ever_exhaust_the_poll() -> None:
    broken = Answer(Outcome.FAILED, error=Failure("NO_BANK", "closed"))
    outcome, asked = polled(poll("p", continue_on_round_error=True, rounds_max=4), broken)
    assert len(asked) == 4
    assert error_of(outcome, "p").code == "POLL_EXHAUSTED"


def test_an_error_in_a_polls_condition_fails_the_step() -> None:
    outcome, _ = polled(poll("p"), {"other": 1})
    assert error_of(outcome, "p").code == "EXPRESSION_ERROR"


def test_the_output_of_a_poll_is_its_last_answer() -> None:
    made = graph(poll("p"), output={"at": "${ steps.p.output.at }"})
    answers = iter([{"status": "NEW", "at": 1}, {"status": "DONE", "at": 2}])
    outcome = run(made, lambda _c: Answer(output=next(answers)))
    assert outcome.output == {"at": 2}


def test_the_log_of_a_poll_stays_bounded() -> None:
    outcome, asked = polled(poll("p", rounds_max=10_000, timeout_seconds=1e7), {"status": "NEW"})
    assert len(asked) == 10_000
    log = outcome.instance.steps["p"].log
    assert log is not None
    assert [entry.number for entry in log.first] == [1, 2, 3, 4, 5]
    assert [entry.number for entry in log.last] == [9996, 9997, 9998, 9999, 10_000]
    assert len(log.first) == len(log.last) == ROUNDS_KEPT
    assert log.counts == {"PROCESSING": 10_000}
    assert len(outcome.trace) < 10, "rounds do not flood the history"


@pytest.mark.parametrize(("ended", "seconds"), [(1, 10.0), (2, 20.0), (3, 40.0), (7, 600.0), (10_000, 600.0)])
def test_the_gap_grows_to_its_cap_and_never_overflows(ended: int, seconds: float) -> None:
    spec = poll("p", backoff=2.0).spec
    assert isinstance(spec, PollSpec)
    assert gap_micros(spec, ended) == pytest.approx(seconds * SECOND)


def started(flow: Flow) -> Instance:
    """Start an instance whose first step is a task, as the shell would: the task has an id."""
    fresh = Instance(bytes(16), InstanceState.RUNNING, 0, 0, int(flow.graph.timeout_seconds * SECOND))
    instance, commands = advance(flow, fresh, [Started()], 0)
    assert len(commands.submits) == 1
    return replace(instance, steps={**instance.steps, "a": replace(instance.steps["a"], task_id=bytes(16))})


def test_advancing_with_nothing_to_do_changes_nothing() -> None:
    flow = Flow(graph(task("a")))
    before = started(flow)
    after, commands = advance(flow, before, [], 5 * SECOND)
    assert after == before
    assert not commands.steps
    assert not commands.history


def test_tasks_of_polls_and_steps_carry_their_bounds() -> None:
    seen: list[SubmitTask] = []

    def script(command: SubmitTask) -> Answer:
        seen.append(command)
        return Answer(output={"status": "DONE"})

    spec = task_spec(start_within_seconds=50.0, timeout_seconds=200.0)
    run(graph(task("a", start_within_seconds=900.0, timeout_seconds=300.0), poll("p", task=spec)), script)
    assert [(c.start_deadline_at // SECOND, c.deadline_at // SECOND) for c in seen] == [(300, 300), (51, 201)]
