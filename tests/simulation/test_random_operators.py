"""Random operators against random workflows: no undocumented move, nothing stuck, no task without its instance.

That an unfinished instance waits for something with a name is checked by every advance itself.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from definitions.graph import Graph
from engine import joining
from engine.command import SubmitTask
from engine.effects import effects_of, in_order
from engine.flow import Flow, is_undoing, undone_step
from engine.instance import Failure, Instance
from engine.simulator import Answer, Outcomes, Refusal, Script, Simulation
from engine.states import (
    CONTROL_MOVES,
    INSTANCE_MOVES,
    INSTANCE_TERMINAL,
    STEP_MOVES,
    STEP_TERMINAL,
    Action,
    Compensation,
    Control,
    InstanceState,
    StepState,
)
from engine.stimulus import Outcome, Recovered
from tests.support.random_workflows import INPUTS, SENDINGS, versions

RUNS = int(os.environ.get("ORBIT_OPERATOR_RUNS", "150"))

StateT = TypeVar("StateT", InstanceState, StepState, Control)

ANSWERS = st.one_of(
    st.builds(
        Answer,
        outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED]),
        output=st.sampled_from([{"status": "DONE"}, {"status": "NEW"}, {}]),
        after_seconds=st.sampled_from([0.0, 1.0, 4.0, 30.0]),
        reviewed_after_seconds=st.sampled_from([None, None, 50.0, 5000.0]),
        ignores_cancel=st.booleans(),
    ),
    st.just(Refusal(Failure("QUEUE_FULL", "full"))),
    st.just(Refusal(Failure("NOT_FOUND", "no such queue"), retryable=False)),
)
TIMES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 6.0, 20.0, 70.0, 300.0, 900.0])
DECISIONS = st.tuples(
    TIMES,
    st.builds(
        Recovered,
        action=st.sampled_from([Action.RETRY, Action.RETRY, *Action]),
        step=st.one_of(
            st.none(),
            st.integers(1, 8).map("s{}".format),
            st.builds("s{}[{}]".format, st.integers(1, 8), st.integers(0, 4)),
        ),
        output=st.sampled_from([None, {"status": "DONE"}]),
        reason=st.just("a test wants it"),
    ),
)
PAUSES = st.lists(st.tuples(TIMES, st.booleans()), max_size=6)


@dataclass(frozen=True)
class Operators:
    """What people do, and when."""

    decisions: Sequence[tuple[float, Recovered]]
    cancel_at: float | None
    undoes: bool  # whether the cancel asks for that
    pauses: Sequence[tuple[float, bool]]  # when, and whether it is a pause or a resume
    signals: Sequence[tuple[float, str, int, float]]
    breakpoints: frozenset[str]
    resumes_after_seconds: float | None  # at a breakpoint
    migrations: Sequence[tuple[float, int]] = ()  # when, and to which version


OPERATORS = st.builds(
    Operators,
    st.lists(DECISIONS, min_size=5, max_size=40),
    st.sampled_from([None, None, None, 0.5, 6.0, 300.0]),
    st.booleans(),
    PAUSES,
    SENDINGS,
    st.frozensets(st.sampled_from(["s1", "s2", "s4", "s6"]), max_size=2),
    st.sampled_from([None, 0.0, 40.0]),
    st.lists(st.tuples(TIMES, st.integers(1, 3)), max_size=4),
)
FORKS = st.lists(st.tuples(st.integers(1, 10), st.sampled_from([None, None, 1, 2, 3]), OPERATORS), max_size=2)


@dataclass
class Seen:
    """What a run has shown."""

    submitted: list[tuple[str, int]] = field(default_factory=list)
    states: list[Instance] = field(default_factory=list)
    retries: int = 0


def run(
    versions_: Mapping[int, Flow], answers: Sequence[Answer | Refusal], input_: object, operators: Operators
) -> tuple[Simulation, Outcomes, Seen]:
    seen = Seen()
    simulation = Simulation(versions_[1], scripted(answers, seen), input_value=input_)
    simulation.instance = replace(simulation.instance, pause_at=operators.breakpoints)
    return simulation, operate(simulation, versions_, operators, seen), seen


def scripted(answers: Sequence[Answer | Refusal], seen: Seen) -> Script:
    asked = 0

    def script(command: SubmitTask) -> Answer | Refusal:
        nonlocal asked
        asked += 1
        answer = answers[asked % len(answers)]
        if isinstance(answer, Answer):
            seen.submitted.append((command.step, command.round))
        seen.retries += command.retry_of is not None
        return answer

    return script


def operate(simulation: Simulation, versions_: Mapping[int, Flow], operators: Operators, seen: Seen) -> Outcomes:
    simulation.resumes_after_seconds = operators.resumes_after_seconds
    seen.states.append(simulation.instance)
    simulation.observe = seen.states.append
    for at, decision in operators.decisions:
        simulation.recover_at(at, decision)
    for at, is_pause in operators.pauses:
        (simulation.pause_at if is_pause else simulation.resume_at)(at, "a test wants it")
    for at, name, payload, lives_seconds in operators.signals:
        simulation.signal_at(at, name, payload, lives_seconds=lives_seconds)
    for at, version in operators.migrations:
        simulation.migrate_at(at, versions_[version], "a test wants it")
    if operators.cancel_at is not None:
        simulation.cancel_at(operators.cancel_at, "a test wants it", compensate=operators.undoes)
    return simulation.run()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=RUNS, deadline=None)
@given(
    made=versions(),
    answers=st.lists(ANSWERS, min_size=1, max_size=8),
    input_=INPUTS,
    operators=OPERATORS,
    forks=FORKS,
)
def test_operators_break_nothing(
    made: Mapping[int, Graph],
    answers: Sequence[Answer | Refusal],
    input_: object,
    operators: Operators,
    forks: Sequence[tuple[int, int | None, Operators]],
) -> None:
    flows = {number: Flow(each) for number, each in made.items()}
    simulation, outcome, seen = run(flows, answers, input_, operators)
    check(simulation.flow, outcome, seen, operators)
    for number, version, others in forks:
        seen = Seen()
        script = scripted(answers, seen)
        flow = None if version is None else flows[version]
        fork = simulation.fork(f"s{number}", script, flow=flow, reason="a test wants it")
        if fork is None:
            continue
        copied = dict(fork.instance.steps)
        outcome = operate(fork, flows, others, seen)
        check(fork.flow, outcome, seen, others)
        assert not copied.keys() & {step for step, _ in seen.submitted}, "what is copied is not run again"
        assert all(outcome.instance.steps[name] == step for name, step in copied.items())
        simulation = fork  # a fork may be forked


def check(flow: Flow, outcome: Outcomes, seen: Seen, operators: Operators) -> None:
    """Check all that must hold of one run from its beginning to its end."""
    assert len(seen.submitted) == len(set(seen.submitted)), "a step's rounds are submitted once each"
    done_with: set[str] = set()
    for before, after in zip(seen.states, seen.states[1:], strict=False):
        gone = before.steps.keys() - after.steps.keys()
        done_with |= {name for name in gone if not may_begin_anew(flow, name)}
        assert not done_with & after.steps.keys(), "an item that is done with does not come back"
        check_moves(flow, before, after)
    assert all(flow.item_of(name) for name in done_with), "an entered step of the instance itself stays"
    taken = [line.entry.data["signal"] for line in outcome.trace if line.entry.kind == "signal.taken"]
    assert len(taken) == len(set(taken)) <= len(operators.signals), "a signal is taken once"
    instance = outcome.instance
    if instance.state in INSTANCE_TERMINAL:
        assert not outcome.unfinished_tasks
        assert {step.state for step in instance.steps.values()} <= STEP_TERMINAL
        assert instance.control is Control.ACTIVE
    elif instance.control is not Control.ACTIVE:
        assert instance.control is Control.PAUSED or outcome.unfinished_tasks
    else:
        # The simulated people close every review in the end, so only a failure can still be waited for.
        assert instance.state is InstanceState.NEEDS_RECOVERY
        assert instance.error is not None
    if operators.cancel_at is not None and instance.state not in INSTANCE_TERMINAL:
        assert instance.compensation is Compensation.BEGUN, "a cancelled instance ends, or a compensation has failed"
    if instance.state is InstanceState.SUCCEEDED and instance.ending_as is None:
        assert not any(joining.holds(flow, step) for step in instance.steps.values())
    check_undone(flow, outcome)


def check_moves(flow: Flow, before: Instance, after: Instance) -> None:
    """Every move stands in the tables, and nothing is due in a pause."""
    assert after.state in reached(INSTANCE_MOVES, before.state)
    assert after.revision >= before.revision
    assert after.control in reached(CONTROL_MOVES, before.control)
    assert (after.pause is None) == (after.control is Control.ACTIVE)
    if before.control is not Control.ACTIVE and after.control is not Control.ACTIVE:
        assert after.due_at is None, "nothing is due in a pause"
    for name in before.steps.keys() & after.steps.keys():
        step = before.steps[name]
        is_new = may_begin_anew(flow, name) and step.state in STEP_TERMINAL
        assert after.steps[name].state in reached(STEP_MOVES, StepState.PENDING if is_new else step.state)
        assert after.steps[name].round >= step.round or (is_new and not after.steps[name].round)


def may_begin_anew(flow: Flow, name: str) -> bool:
    """Tell whether a step stands in a block that an error handler, or a person, may do once more."""
    return any(flow.guards.faces[face].may_restart for face in flow.faces_around(name))


def check_undone(flow: Flow, outcome: Outcomes) -> None:
    """Nothing is undone that had no effect, nor before its time; what is done is undone, once, the last first."""
    instance, known = outcome.instance, {**outcome.settled, **outcome.instance.steps}
    undone = {undone_step(name): step for name, step in known.items() if is_undoing(name)}
    effects = {effect.step: effect for effect in effects_of(flow, known)}
    if instance.compensation in {None, Compensation.WANTED}:
        assert not undone
    assert undone.keys() <= effects.keys()
    if instance.compensation is Compensation.DONE:
        assert instance.state in {InstanceState.FAILED, InstanceState.CANCELLED}
        assert undone.keys() == effects.keys()
    begun = [line.entry.step for line in outcome.trace if line.entry.kind == "step.submitted"]
    order = list(dict.fromkeys(undone_step(step) for step in begun if step is not None and is_undoing(step)))
    assert order == [effect.step for effect in in_order([effects[step] for step in order])]


@settings(max_examples=30, deadline=None)
@given(made=versions(), answers=st.lists(ANSWERS, min_size=1, max_size=8), input_=INPUTS, operators=OPERATORS)
def test_the_same_operators_give_the_same_trace(
    made: Mapping[int, Graph], answers: Sequence[Answer | Refusal], input_: object, operators: Operators
) -> None:
    flows = {number: Flow(each) for number, each in made.items()}
    assert run(flows, answers, input_, operators)[1] == run(flows, answers, input_, operators)[1]


def reached(table: Mapping[StateT, frozenset[StateT]], state: StateT) -> set[StateT]:
    """One advance may make several moves: what can be reached from a state, itself included."""
    found, todo = {state}, [state]
    while todo:
        new = table[todo.pop()] - found
        found |= new
        todo.extend(new)
    return found
