"""Waits until an instant: from the definition's text to the end of the instance, in virtual time."""

import pytest

from definitions.compiler import compile_definition
from definitions.graph import Graph, UntilSpec
from definitions.graph_json import graph_from_json, graph_to_json
from engine.flow import Flow
from engine.simulator import Answer, Outcomes, Simulation
from orbit.clock import SECOND, from_rfc3339
from orbit.jsontext import Json, dumps, parse

STARTED_AT = from_rfc3339("2027-01-15T08:00:00Z")


def text_of(wait: str) -> str:
    return (
        "orbit: weave/1\nworkflow: w\nversion: 1\non_failure: fail\n"
        "input: {type: object, properties: {n: {type: integer}, at: {type: string}, any: {}}, required: [n, at, any]}\n"
        f"steps:\n  - {{id: pause, wait: {wait}}}\n"
    )


def graph_of(wait: str) -> Graph:
    compiled = compile_definition(text_of(wait))
    assert compiled.graph is not None, compiled.render()
    return compiled.graph


def codes(wait: str) -> list[str]:
    return [finding.code.value for finding in compile_definition(text_of(wait)).findings]


def played(wait: str, at: Json) -> tuple[Outcomes, float]:
    graph = graph_from_json(parse(dumps(graph_to_json(graph_of(wait))), max_depth=64))  # as a node reads it
    value = {"n": 1, "at": at, "any": at}
    simulation = Simulation(Flow(graph), lambda _: Answer(), input_value=value, started_at=STARTED_AT)
    outcomes = simulation.run()
    finished_at = outcomes.instance.finished_at
    assert finished_at is not None
    return outcomes, (finished_at - STARTED_AT) / SECOND


@pytest.mark.parametrize(
    ("at", "seconds"),
    [
        ("2027-01-15T08:00:30Z", 30),
        ("2027-01-15T10:00:30+02:00", 30),
        ("2027-01-15T08:59:59.5Z", 3599.5),
        ("2027-01-15T09:00:00Z", 3600),
        ("2027-01-15T08:00:00Z", 0),
        ("1999-12-31T23:59:59Z", 0),
    ],
)
def test_a_wait_ends_when_its_instant_has_come(at: str, seconds: float) -> None:
    outcomes, elapsed = played("{until: input.at, timeout: 1h}", at)
    assert (outcomes.instance.state, elapsed) == ("SUCCEEDED", seconds)
    assert [line.entry.kind for line in outcomes.trace if line.entry.step] == ["step.waiting", "step.succeeded"]


def test_a_wait_fails_at_its_bound_or_goes_on_if_told_to() -> None:
    late = "2027-01-15T09:00:00.000001Z"
    failed, elapsed = played("{until: input.at, timeout: 1h}", late)
    assert (failed.instance.state, elapsed) == ("FAILED", 3600)
    assert failed.instance.error is not None
    assert failed.instance.error.code == "WAIT_TIMEOUT"
    gone_on, elapsed = played("{until: input.at, timeout: 1h, on_timeout: continue}", late)
    assert (gone_on.instance.state, elapsed) == ("SUCCEEDED", 3600)


@pytest.mark.parametrize("at", ["tomorrow", "2027-01-15T08:00:00", "2027-02-30T08:00:00Z", "", 7, None])
def test_what_is_no_instant_is_an_error_with_its_place(at: Json) -> None:
    outcomes, elapsed = played("{until: input.any, timeout: 1h}", at)
    error = outcomes.instance.error
    assert error is not None
    assert (outcomes.instance.state, error.code, elapsed) == ("FAILED", "EXPRESSION_ERROR", 0)
    assert error.details is not None
    assert (error.details["cause"], error.details["line"], error.details["column"]) == ("NO_INSTANT", 7, 31)


@pytest.mark.parametrize(
    ("at", "state", "seconds"),
    [
        ("2027-01-15T08:00:30Z", "SUCCEEDED", 600),  # it came during the pause: the wait ends once, at the resume
        ("2027-01-15T08:20:00Z", "SUCCEEDED", 1200),  # the pause does not put it off
        ("2027-01-15T09:05:00Z", "SUCCEEDED", 3900),  # beyond the bound, but for the time that the bound stood still
        ("2027-01-15T10:00:00Z", "FAILED", 3600 + 590),
    ],
)
def test_a_pause_does_not_put_an_instant_off_but_its_bound(at: str, state: str, seconds: float) -> None:
    value = {"n": 1, "at": at, "any": at}
    flow = Flow(graph_of("{until: input.at, timeout: 1h}"))
    simulation = Simulation(flow, lambda _: Answer(), input_value=value, started_at=STARTED_AT)
    simulation.pause_at(10, "a look")
    simulation.resume_at(600, "seen")
    instance = simulation.run().instance
    assert instance.finished_at is not None
    assert (instance.state, (instance.finished_at - STARTED_AT) / SECOND) == (state, seconds)


def test_the_bound_of_a_wait_is_its_timeout() -> None:
    graph = graph_of("{until: input.at, timeout: 2h}")
    assert graph.bounds.active_seconds == 7200
    spec = graph.nodes[0].spec
    assert isinstance(spec, UntilSpec)
    assert (spec.until.source, spec.timeout_seconds, spec.continue_on_timeout) == ("input.at", 7200, False)


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ("{until: input.at}", ["MISSING_KEY"]),
        ("{timeout: 1h}", ["MISSING_KEY"]),
        ("{for: 1s, until: input.at, timeout: 1h}", ["CONTRADICTION"]),
        ("{for: 1s, timeout: 1h}", ["CONTRADICTION"]),
        ("{until: input.n, timeout: 1h}", ["TYPE_MISMATCH"]),
        ("{until: input.nothing, timeout: 1h}", []),
        ('{until: "${ input.at }", timeout: 1h}', ["EXPRESSION_SYNTAX"]),
        ("{until: steps.pause.output, timeout: 1h}", ["STEP_WITHOUT_OUTPUT"]),
        ("{until: input.at, timeout: 1h, on_timeout: stop}", ["BAD_VALUE"]),
        ("{signal: s}", ["MISSING_KEY"]),
        ("{until: input.at, timeout: 1h, payload: {}}", ["CONTRADICTION"]),
        ("{for: 1h, accept_when: 'true'}", ["CONTRADICTION"]),
    ],
)
def test_what_is_wrong_with_a_wait_is_found(wait: str, expected: list[str]) -> None:
    assert codes(wait) == expected
