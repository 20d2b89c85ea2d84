"""Breakpoints in virtual time: the instance pauses before a step, once, and goes on when it is resumed."""

import pytest

from definitions.compiler import compile_definition
from engine.flow import Flow
from engine.instance import Instance
from engine.simulator import Answer, Outcomes, Simulation
from engine.states import Action, Control
from engine.stimulus import Outcome, Recovered
from orbit.clock import SECOND

HEAD = "orbit: weave/1\nworkflow: w\nversion: 1\ntimeout: 1d\ndefaults: {queue: q}\nsteps:\n"
KINDS = {
    "task": "task: t.a@1",
    "wait": "wait: {for: 1s}",
    "signal": "wait: {signal: go, timeout: 1h}",
    "set": "set: {v: 1}",
    "poll": "poll: {task: t.p@1, done_when: 'true', every: 1s, max_rounds: 2, timeout: 1h}",
    "branch": "branch: [{else: [{id: inner, set: {v: 1}}]}]",
    "parallel": "parallel: {branches: {one: [{id: inner, set: {v: 1}}]}}",
    "return": "return: {}",
}


def simulation_of(steps: str) -> Simulation:
    compiled = compile_definition(HEAD + steps)
    assert compiled.graph is not None, compiled.render()
    return Simulation(Flow(compiled.graph), lambda _: Answer(output={}), input_value={})


def kinds(outcomes: Outcomes) -> list[str]:
    return [line.entry.kind for line in outcomes.trace]


@pytest.mark.parametrize("kind", KINDS)
def test_the_instance_pauses_before_a_step_of_any_kind_and_goes_on(kind: str) -> None:
    simulation = simulation_of(f"  - {{id: first, set: {{v: 1}}}}\n  - {{id: s, pause_at: step, {KINDS[kind]}}}\n")
    simulation.resumes_after_seconds = 100
    simulation.signal_at(0, "go", 1)
    outcomes = simulation.run()
    assert outcomes.instance.state == "SUCCEEDED"
    assert kinds(outcomes)[:5] == [
        "instance.started", "step.succeeded", "step.waiting", "instance.paused", "instance.resumed",
    ]  # fmt: skip
    paused = next(line for line in outcomes.trace if line.entry.kind == "instance.paused")
    assert paused.entry.data == {"reason": "pause_at step s", "by": None}
    assert outcomes.trace[4].at_seconds == 100
    assert kinds(outcomes).count("instance.paused") == 1


def test_nothing_begins_at_a_breakpoint_until_somebody_resumes() -> None:
    simulation = simulation_of("  - {id: s, pause_at: step, task: t.a@1}\n")
    simulation.resumes_after_seconds = None
    outcomes = simulation.run()
    assert (outcomes.instance.control, outcomes.instance.due_at) == (Control.PAUSED, None)
    assert outcomes.instance.steps["s"].reason == "BREAKPOINT"
    assert not outcomes.unfinished_tasks
    assert outcomes.instance.state == "RUNNING"


def test_what_runs_beside_a_breakpoint_is_waited_for() -> None:
    steps = """\
  - id: both
    parallel:
      branches:
        left: [{id: slow, task: t.a@1}]
        right: [{id: s, pause_at: step, task: t.b@1}]
"""
    seen: list[Instance] = []
    simulation = simulation_of(steps)
    simulation.resumes_after_seconds = 50
    simulation.observe = seen.append
    outcomes = simulation.run()
    controls = [instance.control for instance in seen]
    assert list(dict.fromkeys(each for each in controls if each != "ACTIVE")) == [Control.PAUSING, Control.PAUSED]
    assert outcomes.instance.state == "SUCCEEDED"


def test_a_skipped_step_is_no_breakpoint_and_a_retry_pauses_no_second_time() -> None:
    skipped = simulation_of("  - {id: s, pause_at: step, when: '1 > 2', set: {v: 1}}\n").run()
    assert "instance.paused" not in kinds(skipped)
    answers = iter([Answer(Outcome.FAILED), Answer()])
    compiled = compile_definition(f"{HEAD}  - {{id: s, pause_at: step, task: t.a@1}}\n")
    assert compiled.graph is not None
    simulation = Simulation(Flow(compiled.graph), lambda _: next(answers), input_value={})
    simulation.recover_at(60, Recovered(Action.RETRY, "s"))
    outcomes = simulation.run()
    assert outcomes.instance.state == "SUCCEEDED"
    assert kinds(outcomes).count("instance.paused") == 1


def test_time_stands_still_at_a_breakpoint() -> None:
    simulation = simulation_of(
        "  - id: both\n    parallel:\n      branches:\n        left: [{id: w, wait: {for: 1h}}]\n"
        "        right: [{id: s, pause_at: step, set: {v: 1}}]\n"
    )
    simulation.resumes_after_seconds = 86_400 * 3
    outcomes = simulation.run()
    finished_at = outcomes.instance.finished_at
    assert finished_at is not None
    assert finished_at / SECOND == 86_400 * 3 + 3600
    assert outcomes.instance.state == "SUCCEEDED"


def test_a_cancel_at_a_breakpoint_ends_the_pause_and_the_instance() -> None:
    simulation = simulation_of("  - {id: s, pause_at: step, task: t.a@1}\n")
    simulation.resumes_after_seconds = None
    simulation.cancel_at(5, "no more")
    instance = simulation.run().instance
    assert (instance.state, instance.control) == ("CANCELLED", "ACTIVE")


def test_only_the_word_step_is_a_breakpoint() -> None:
    compiled = compile_definition(HEAD + "  - {id: s, pause_at: round, set: {v: 1}}\n")
    assert [finding.code for finding in compiled.findings] == ["BAD_VALUE"]
