"""Random workflows with random outcomes: whatever happens, an instance ends or waits for something that has a name.

Every advance checks the move of each state against its table and that an unfinished instance waits for something, so a
run that does not raise has passed those; here come the properties of the whole.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from definitions.graph import ChildSpec, Graph, NodeKind, PollSpec, TaskSpec
from engine import joining
from engine.command import SubmitTask
from engine.explain import explain
from engine.flow import Flow
from engine.instance import Failure, Instance, Step
from engine.items import own_name
from engine.simulator import Answer, Outcomes, Refusal, Simulation
from engine.states import (
    INSTANCE_MOVES,
    INSTANCE_TERMINAL,
    STEP_MOVES,
    STEP_TERMINAL,
    STEP_UNFINISHED,
    InstanceState,
    StepReason,
    StepState,
)
from engine.stimulus import Outcome
from orbit.clock import SECOND
from tests.support.random_workflows import INPUTS, SENDINGS, workflows

StateT = TypeVar("StateT", InstanceState, StepState)

FULL = Refusal(Failure("QUEUE_FULL", "full"))
GONE = Refusal(Failure("NOT_FOUND", "no such queue"), retryable=False)
ANSWERS = st.one_of(
    st.builds(
        Answer,
        outcome=st.sampled_from([Outcome.SUCCEEDED] * 4 + [Outcome.FAILED, Outcome.CANCELLED]),
        output=st.sampled_from([{"status": "DONE"}, {"status": "NEW"}, {}, None]),
        after_seconds=st.sampled_from([0.0, 1.0, 4.0, 30.0, 500.0]),
        reviewed_after_seconds=st.sampled_from([None, None, None, 0.0, 50.0]),
        ignores_cancel=st.booleans(),
    ),
    st.just(FULL),
    st.just(GONE),
)
SCRIPTS = st.lists(ANSWERS, min_size=1, max_size=12)


def simulate(
    made: Graph,
    answers: Sequence[Answer | Refusal],
    input_: object,
    cancel_at: float | None,
    signals: Sequence[tuple[float, str, int, float]] = (),
) -> Outcomes:
    asked = 0

    def script(_command: SubmitTask) -> Answer | Refusal:
        nonlocal asked
        asked += 1
        return answers[asked % len(answers)]

    simulation = Simulation(Flow(made), script, input_value=input_)
    for at, name, payload, lives_seconds in signals:
        simulation.signal_at(at, name, payload, lives_seconds=lives_seconds)
    if cancel_at is not None:
        simulation.cancel_at(cancel_at, "a test wants it")
    return simulation.run()


LETS_PASS = frozenset({StepReason.WHEN, StepReason.HANDLED})
CANCELS = st.sampled_from([None, None, None, 0.5, 6.0, 100.0])


@settings(max_examples=100, deadline=None)
@given(made=workflows(), answers=SCRIPTS, input_=INPUTS, cancel_at=CANCELS, signals=SENDINGS)
def test_every_instance_ends_or_waits_for_a_person(
    made: Graph,
    answers: Sequence[Answer | Refusal],
    input_: object,
    cancel_at: float | None,
    signals: Sequence[tuple[float, str, int, float]],
) -> None:
    outcome = simulate(made, answers, input_, cancel_at, signals)
    instance = outcome.instance
    if instance.state in INSTANCE_TERMINAL:
        assert not outcome.unfinished_tasks
        assert {step.state for step in instance.steps.values()} <= STEP_TERMINAL
        flow = Flow(made)
        assert set(flow.own_steps) <= instance.steps.keys()
        left = instance.steps.keys() - set(flow.own_steps)
        failed = {step.id for step in instance.steps.values() if step.state is StepState.FAILED}
        is_left_by_failure = {item.foreach for name in left if (item := flow.item_of(name))} <= failed
        assert instance.ending_as is not None or is_left_by_failure, "what is left is of an end, or of a failure"
        assert instance.finished_at is not None
    else:
        # Simulated people close every review, so only a failure can still be waited for.
        assert instance.state is InstanceState.NEEDS_RECOVERY
        assert made.on_failure == "hold" or instance.compensation is not None
        unfinished = [step for step in instance.steps.values() if step.state in STEP_UNFINISHED]
        # A foreach waits on for the item that has failed; nothing else goes on.
        assert all(step.items is not None and step.items.open for step in unfinished)
    if instance.state is InstanceState.SUCCEEDED and instance.ending_as is None:
        flow = Flow(made)
        assert not any(joining.holds(flow, step) for step in instance.steps.values())


@settings(max_examples=50, deadline=None)
@given(made=workflows(), answers=SCRIPTS, input_=INPUTS, cancel_at=CANCELS)
def test_no_task_is_submitted_twice_and_none_beyond_its_bounds(
    made: Graph, answers: Sequence[Answer | Refusal], input_: object, cancel_at: float | None
) -> None:
    submitted: list[tuple[str, int]] = []
    asked = 0

    def script(command: SubmitTask) -> Answer | Refusal:
        nonlocal asked
        asked += 1
        answer = answers[asked % len(answers)]
        if isinstance(answer, Answer):
            submitted.append((command.step, command.round))
        assert command.deadline_at >= command.start_deadline_at
        return answer

    simulation = Simulation(Flow(made), script, input_value=input_)
    if cancel_at is not None:
        simulation.cancel_at(cancel_at, "a test wants it")
    simulation.run()
    assert len(submitted) == len(set(submitted))
    with_work = {NodeKind.TASK, NodeKind.POLL, NodeKind.WORKFLOW}
    flow = Flow(made)

    def tries(name: str) -> int:
        return 1 + sum(handler.retries_max for handler in flow.nodes[name].handlers)

    most = {
        node.id: rounds_of(node.spec) * tries(node.id) * prod(map(tries, flow.faces_around(node.id)))
        for node in made.nodes
        if node.kind in with_work
    }
    for node in made.nodes:
        if node.within is not None and node.id in most:
            faces = flow.guards.all_around(node.id, node.within)
            most[node.id] = rounds_of(node.spec) * tries(node.id) * prod(map(tries, faces))
    most |= {node.id: 1 for node in flow.compensations.values()}
    counts = Counter(step for step, _ in submitted)
    assert all(count <= most[own_name(step)] for step, count in counts.items())


def rounds_of(spec: object) -> int:
    if isinstance(spec, PollSpec):
        return spec.rounds_max
    assert isinstance(spec, TaskSpec | ChildSpec)
    return 1


@settings(max_examples=40, deadline=None)
@given(made=workflows(), answers=SCRIPTS, input_=INPUTS, cancel_at=CANCELS)
def test_the_same_script_gives_the_same_trace(
    made: Graph, answers: Sequence[Answer | Refusal], input_: object, cancel_at: float | None
) -> None:
    first = simulate(made, answers, input_, cancel_at)
    again = simulate(made, answers, input_, cancel_at)
    assert first == again


@settings(max_examples=50, deadline=None)
@given(made=workflows(), input_=INPUTS)
def test_nothing_behind_a_dead_edge_runs(made: Graph, input_: object) -> None:
    outcome = simulate(made, [Answer(output={"status": "DONE"})], input_, None)
    instance = outcome.instance
    flow = Flow(made)
    for name, step in instance.steps.items():
        if flow.opener(flow.nodes[name]) in flow.lanes.blocks or step.reason is StepReason.HANDLED:
            continue  # a parallel block is judged by the outcomes of its lanes, and may go on where all were skipped
        sources = [(source, case, instance.steps.get(source.id)) for source, case in flow.incoming[name]]
        if step.state is StepState.SUCCEEDED and sources:
            assert any(
                source_step is not None
                and (source_step.state is StepState.SUCCEEDED or source_step.reason in LETS_PASS)
                and (source.kind is not NodeKind.BRANCH or source_step.chosen == case)
                and (source_step.state is not StepState.FAILED or source_step.chosen == case)
                for source, case, source_step in sources
            ), name
    if instance.state is InstanceState.SUCCEEDED:
        assert instance.finished_at is not None
        assert instance.finished_at < 1e9 * SECOND


@settings(max_examples=60, deadline=None)
@given(made=workflows(), answers=SCRIPTS, input_=INPUTS, cancel_at=CANCELS)
def test_every_move_is_in_its_table_and_every_stop_is_explained(
    made: Graph, answers: Sequence[Answer | Refusal], input_: object, cancel_at: float | None
) -> None:
    asked = 0

    def script(_command: SubmitTask) -> Answer | Refusal:
        nonlocal asked
        asked += 1
        return answers[asked % len(answers)]

    flow = Flow(made)
    simulation = Simulation(flow, script, input_value=input_)
    seen = [simulation.instance]

    def look(instance: Instance) -> None:
        before = seen[-1]
        assert instance.state in moves_from(INSTANCE_MOVES, before.state)
        gone = before.steps.keys() - instance.steps.keys()
        assert gone <= {name for name in before.steps if flow.item_of(name) or may_begin_anew(flow, name)}
        for name, step in instance.steps.items():
            if name in before.steps and not (may_begin_anew(flow, name) and is_terminal(before.steps[name])):
                was = before.steps[name].state
            else:
                was = StepState.PENDING
            assert step.state in moves_from(STEP_MOVES, was)
        refusals_are_applied = all(step.task_id is not None for step in instance.steps.values() if step.has_task)
        if instance.state not in INSTANCE_TERMINAL and refusals_are_applied:
            told = explain(flow, instance)
            assert told["waits_for"]
            assert told["summary"]
        seen.append(instance)

    simulation.observe = look
    if cancel_at is not None:
        simulation.cancel_at(cancel_at, "a test wants it")
    simulation.run()
    assert seen[-1].revision >= len({instance.revision for instance in seen}) - 1


def may_begin_anew(flow: Flow, name: str) -> bool:
    """Tell whether a step stands in a block that an error handler may do once more."""
    return any(flow.guards.faces[face].may_restart for face in flow.faces_around(name))


def is_terminal(step: Step) -> bool:
    return step.state in STEP_TERMINAL


def moves_from(table: Mapping[StateT, frozenset[StateT]], state: StateT) -> set[StateT]:
    """One advance may make several moves: what can be reached from a state, itself included."""
    reached, todo = {state}, [state]
    while todo:
        new = table[todo.pop()] - reached
        reached |= new
        todo.extend(new)
    return reached
