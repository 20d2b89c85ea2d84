"""Waits for signals: from the definition's text to the end of the instance, in virtual time."""

import pytest

from definitions.compiler import compile_definition
from definitions.graph import Graph, SignalSpec
from definitions.graph_json import graph_from_json, graph_to_json
from engine.explain import explain
from engine.flow import Flow
from engine.instance import Instance
from engine.simulator import Answer, Outcomes, Simulation
from engine.states import Action, InstanceState
from engine.stimulus import Recovered
from orbit.clock import SECOND
from orbit.jsontext import Json, dumps, parse

APPROVED = "{signal: approved, timeout: 1h}"
YES: Json = {"yes": True}


def text_of(*waits: str, on_failure: str = "fail", output: str = "") -> str:
    steps = "".join(f"  - {{id: w{number}, wait: {wait}}}\n" for number, wait in enumerate(waits, 1))
    return f"orbit: weave/1\nworkflow: w\nversion: 1\non_failure: {on_failure}\nsteps:\n{steps}{output}"


def graph_of(text: str) -> Graph:
    compiled = compile_definition(text)
    assert compiled.graph is not None, compiled.render()
    return graph_from_json(parse(dumps(graph_to_json(compiled.graph)), max_depth=64))  # as a node reads it


def simulation_of(*waits: str, **more: str) -> Simulation:
    return Simulation(Flow(graph_of(text_of(*waits, **more))), lambda _: Answer(), input_value={})


def elapsed(outcomes: Outcomes) -> float:
    finished_at = outcomes.instance.finished_at
    assert finished_at is not None
    return (finished_at - outcomes.instance.started_at) / SECOND


def taken(outcomes: Outcomes) -> list[tuple[str | None, Json]]:
    lines = (line.entry for line in outcomes.trace if line.entry.kind == "signal.taken")
    return [(entry.step, entry.data["signal"]) for entry in lines]


def codes(text: str) -> list[str]:
    return [finding.code.value for finding in compile_definition(text).findings]


@pytest.mark.parametrize("after", [0, 1, 3599])
def test_a_signal_ends_its_wait_and_its_payload_is_the_output(after: float) -> None:
    simulation = simulation_of(APPROVED, output='output: "${ steps.w1.output }"\n')
    simulation.signal_at(after, "approved", YES)
    outcomes = simulation.run()
    assert (outcomes.instance.state, outcomes.output, elapsed(outcomes)) == ("SUCCEEDED", YES, after)
    kinds = [line.entry.kind for line in outcomes.trace if line.entry.step]
    assert kinds == ["step.waiting", "signal.taken", "step.succeeded"]


def test_a_signal_before_its_wait_is_kept_and_ends_it_at_once() -> None:
    simulation = simulation_of("{for: 10m}", APPROVED)
    simulation.signal_at(60, "approved", YES)
    outcomes = simulation.run()
    assert (outcomes.instance.state, elapsed(outcomes)) == ("SUCCEEDED", 600)
    assert taken(outcomes) == [("w2", "signal-1")]


def test_without_a_signal_a_wait_fails_at_its_bound_or_goes_on_if_told_to() -> None:
    failed = simulation_of(APPROVED).run()
    error = failed.instance.error
    assert error is not None
    assert (failed.instance.state, error.code, elapsed(failed)) == ("FAILED", "WAIT_TIMEOUT", 3600)
    assert error.message == "no signal approved came within 1h"
    output = 'output: "${ default(steps.w1.output, null) }"\n'
    gone_on = simulation_of("{signal: approved, timeout: 1h, on_timeout: continue}", output=output).run()
    assert (gone_on.instance.state, gone_on.output, elapsed(gone_on)) == ("SUCCEEDED", None, 3600)


def test_a_signal_at_the_last_moment_wins() -> None:
    simulation = simulation_of(APPROVED)
    simulation.signal_at(3600, "approved", YES)
    outcomes = simulation.run()
    assert (outcomes.instance.state, elapsed(outcomes)) == ("SUCCEEDED", 3600)
    assert taken(outcomes) == [("w1", "signal-1")]


def test_a_signal_that_has_expired_is_taken_by_nobody() -> None:
    simulation = simulation_of("{for: 10m}", APPROVED)
    simulation.signal_at(60, "approved", "old", lives_seconds=539)
    simulation.signal_at(1200, "approved", "new")
    outcomes = simulation.run()
    assert (outcomes.instance.state, elapsed(outcomes)) == ("SUCCEEDED", 1200)
    assert taken(outcomes) == [("w2", "signal-2")]


def test_waits_of_one_name_take_signals_in_order_and_each_once() -> None:
    steps = """\
orbit: weave/1
workflow: w
version: 1
on_failure: fail
steps:
  - id: both
    parallel:
      branches:
        late: [{id: pause, wait: {for: 10s}}, {id: second, wait: {signal: go, timeout: 1h}}]
        early: [{id: first, wait: {signal: go, timeout: 1h}}]
        other: [{id: third, wait: {signal: stop, timeout: 1h}}]
output: ["${ steps.first.output }", "${ steps.second.output }", "${ steps.third.output }"]
"""
    simulation = Simulation(Flow(graph_of(steps)), lambda _: Answer(), input_value={})
    simulation.signal_at(20, "go", 1)
    simulation.signal_at(30, "go", 2)
    simulation.signal_at(30, "stop", 3)
    simulation.signal_at(30, "go", 4)
    outcomes = simulation.run()
    assert outcomes.output == [1, 2, 3]
    assert taken(outcomes) == [("first", "signal-1"), ("second", "signal-2"), ("third", "signal-3")]


def test_a_signal_that_does_not_fit_ends_nothing_and_is_left_over() -> None:
    wait = "{signal: approved, timeout: 1h, payload: {type: object, required: [yes]}, accept_when: signal.payload.yes}"
    simulation = simulation_of(wait, output='output: "${ steps.w1.output }"\n')
    for at, payload in ((1, None), (2, {"no": 1}), (3, {"yes": False}), (4, {"yes": "perhaps"}), (9, YES)):
        simulation.signal_at(at, "approved", payload)
    outcomes = simulation.run()
    assert (outcomes.instance.state, outcomes.output, elapsed(outcomes)) == ("SUCCEEDED", YES, 9)
    refusing = simulation_of(wait)
    refusing.signal_at(1, "approved", {"yes": False})
    error = refusing.run().instance.error
    assert error is not None
    assert (error.code, error.details) == ("WAIT_TIMEOUT", {"signal": "approved", "left_over": 1, "step": "w1"})


def test_two_people_must_approve() -> None:
    waits = (
        "{signal: approved, timeout: 1h}",
        "{signal: approved, timeout: 1h, accept_when: signal.payload.by != steps.w1.output.by}",
    )
    simulation = simulation_of(*waits)
    for at, who in ((1, "ann"), (2, "ann"), (3, "bob")):
        simulation.signal_at(at, "approved", {"by": who})
    outcomes = simulation.run()
    assert (outcomes.instance.state, elapsed(outcomes)) == ("SUCCEEDED", 3)
    assert taken(outcomes) == [("w1", "signal-1"), ("w2", "signal-3")]


def test_a_pause_keeps_signals_for_the_resume_and_lets_the_bound_stand_still() -> None:
    simulation = simulation_of(APPROVED)
    simulation.pause_at(10, "a look")
    simulation.signal_at(20, "approved", YES)
    simulation.resume_at(7200, "seen")
    outcomes = simulation.run()
    assert (outcomes.instance.state, elapsed(outcomes)) == ("SUCCEEDED", 7200)
    unsent = simulation_of(APPROVED)
    unsent.pause_at(10, "a look")
    unsent.resume_at(7200, "seen")
    assert elapsed(unsent.run()) == 7200 + 3590


def test_a_wait_that_failed_can_be_tried_again_or_completed_by_a_person() -> None:
    retried = simulation_of(APPROVED, on_failure="hold")
    retried.recover_at(4000, Recovered(Action.RETRY, "w1"))
    retried.signal_at(5000, "approved", YES)
    outcomes = retried.run()
    assert (outcomes.instance.state, elapsed(outcomes)) == ("SUCCEEDED", 5000)
    completed = simulation_of(APPROVED, on_failure="hold", output='output: "${ steps.w1.output }"\n')
    completed.recover_at(4000, Recovered(Action.COMPLETE, "w1", {"by": "hand"}))
    assert completed.run().output == {"by": "hand"}


def test_a_signal_after_the_end_and_after_a_cancel_changes_nothing() -> None:
    simulation = simulation_of(APPROVED)
    simulation.cancel_at(5, "no more")
    simulation.signal_at(5, "approved", YES)
    outcomes = simulation.run()
    assert outcomes.instance.state == "CANCELLED"
    assert not taken(outcomes)


def test_a_waiting_instance_says_for_which_signal_and_until_when() -> None:
    seen: list[Instance] = []
    graph = graph_of(text_of(APPROVED))
    simulation = Simulation(Flow(graph), lambda _: Answer(), input_value={}, started_at=1_800_000_000 * SECOND)
    simulation.observe = seen.append
    simulation.run()
    assert seen[0].state is InstanceState.RUNNING
    told = explain(Flow(graph), seen[0])
    assert told["summary"] == "step w1 waits for signal approved until 2027-01-15T09:00:00.000000Z"
    assert told["waits_for"][0]["kind"] == "SIGNAL"
    assert told["waits_for"][0]["signal"] == "approved"


def test_what_a_wait_says_is_in_the_graph_and_its_bounds() -> None:
    wait = "{signal: s, timeout: 2h, on_timeout: continue, payload: {type: string}, accept_when: signal.payload != ''}"
    graph = graph_of(text_of(wait))
    spec = graph.nodes[0].spec
    assert isinstance(spec, SignalSpec)
    assert spec.accept_when is not None
    assert (spec.signal, spec.timeout_seconds, spec.continue_on_timeout) == ("s", 7200, True)
    assert (spec.payload_schema, spec.accept_when.source) == ({"type": "string"}, "signal.payload != ''")
    assert graph.bounds.active_seconds == 7200
    assert graph.bounds.stored_bytes > 2 * 64 * 1024


@pytest.mark.parametrize(
    ("wait", "output", "expected"),
    [
        ("{signal: s}", "", ["MISSING_KEY"]),
        ("{signal: 7, timeout: 1h}", "", ["WRONG_TYPE"]),
        ("{signal: a b, timeout: 1h}", "", ["BAD_NAME"]),
        ("{signal: s, for: 1h, timeout: 1h}", "", ["CONTRADICTION"]),
        ("{signal: s, timeout: 1h, payload: {type: nothing}}", "", ["SCHEMA_INVALID"]),
        ("{signal: s, timeout: 1h, accept_when: signal.payload.yes + 1 == 2}", "", []),
        ("{signal: s, timeout: 1h, accept_when: signal.payload}", "", []),
        ("{signal: s, timeout: 1h, accept_when: signal.id}", "", ["CONDITION_NOT_BOOLEAN"]),
        ("{signal: s, timeout: 1h, accept_when: signal.from == ''}", "", ["UNKNOWN_FIELD"]),
        ("{signal: s, timeout: 1h, accept_when: steps.w1.output.yes}", "", ["UNCERTAIN_REFERENCE"]),
        (
            "{signal: s, timeout: 1h, payload: {type: object, properties: {n: {type: integer}}, required: [n]}}",
            'output: "${ steps.w1.output.n + 1 }"',
            [],
        ),
        ("{signal: s, timeout: 1h}", 'output: "${ signal.payload }"', ["UNKNOWN_NAME"]),
        ("{signal: s, timeout: 1h, on_timeout: continue}", 'output: "${ steps.w1.output }"', ["UNCERTAIN_REFERENCE"]),
        ("{signal: s, timeout: 1h, on_timeout: continue}", 'output: "${ has(steps.w1.output) }"', []),
    ],
)
def test_what_is_wrong_with_a_wait_is_found(wait: str, output: str, expected: list[str]) -> None:
    assert codes(text_of(wait, output=f"{output}\n")) == expected
