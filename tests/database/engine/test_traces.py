"""The simulator and the engine on a real database give the same trace for the same workflow, answers and operators.

The database's clock stands still here but for the jumps of the test, so that both see the same instants.
"""

import heapq
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from definitions.graph import Graph, PollSpec, TaskSpec
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.signalling import Message
from engine.simulator import NEVER, Answer, Simulation
from engine.states import INSTANCE_TERMINAL, Action
from engine.stimulus import Outcome, Recovered
from engine.store.instances import Stored, instance_find
from orbit.clock import SECOND, Micros, seconds, to_rfc3339
from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, StateConflict
from orbit.jsontext import Json
from pulse.claim import Assignment
from pulse.states import ErrorClass
from tests.support.random_workflows import INPUTS, SENDINGS, versions
from tests.support.weave import Done, Weave

STARTED_AT: Micros = 1_800_000_000 * SECOND
OUTPUTS: list[Json] = [{"status": "DONE"}, {"status": "NEW"}, {"status": "NEW"}, {}]
WHY = "a test wants it"
RUNS = int(os.environ.get("ORBIT_TRACE_RUNS", "16"))

Sending = tuple[float, str, int, float]
Trace = list[tuple[str, str, str | None, Json]]


@dataclass(frozen=True)
class Operation:
    """What a person does, and when."""

    at: float
    verb: str
    decision: Recovered | None = None
    version: int = 0


@dataclass(frozen=True)
class Plan:
    """All that happens to one instance from outside, beside its answers."""

    sendings: Sequence[Sending] = ()
    operations: Sequence[Operation] = ()


# No instant of these is one at which anything else can happen, so both sides agree on what comes first.
INSTANTS = st.sampled_from([0.3737, 1.9191, 4.4343, 9.1717, 17.3131, 33.1919, 61.7171, 120.3131, 333.3737, 1001.9191])
DECISIONS = st.builds(
    Recovered,
    action=st.sampled_from([Action.RETRY, *Action]),
    step=st.one_of(
        st.none(),
        st.integers(1, 6).map("s{}".format),
        st.integers(1, 6).map("s{}".format),
        st.builds("s{}[{}]".format, st.integers(2, 5), st.integers(0, 2)),
    ),
    output=st.sampled_from([None, {"status": "DONE"}]),
    reason=st.just(WHY),
)
VERBS = st.sampled_from(["pause", "pause", "resume", "resume", "migrate", "migrate", "cancel", "compensate"])
OPERATIONS = st.lists(
    st.one_of(
        st.builds(Operation, INSTANTS, VERBS, st.none(), st.integers(1, 3)),
        st.builds(Operation, INSTANTS, st.just("recover"), DECISIONS),
    ),
    max_size=7,
    unique_by=lambda operation: operation.at,
)


class Script:
    """Answers that depend on nothing but the seed, the step and the round; no two tasks end at the same instant."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def answer(self, step: str, number: int) -> Answer:
        drawn = zlib.crc32(f"{self.seed} {step} {number}".encode())
        outcome = Outcome.FAILED if drawn % 8 == 0 else Outcome.SUCCEEDED
        error = Failure("BROKEN", "as the test wants", {"class": "NON_RETRYABLE"})
        is_unknown = drawn % 8 == 1 and drawn % 3 == 0
        if is_unknown:
            error = Failure("BROKEN", "as the test wants", {"class": "UNKNOWN_OUTCOME", "effect_unknown": True})
        return Answer(
            outcome=outcome,
            output=OUTPUTS[drawn % len(OUTPUTS)],
            error=error if outcome is Outcome.FAILED or is_unknown else None,
            after_seconds=0.5 + (drawn // 8) / 2**29 * 40,
            reviewed_after_seconds=NEVER if is_unknown else None,
            ignores_cancel=True,
        )

    def __call__(self, command: SubmitTask) -> Answer:
        return self.answer(command.step, command.round)


def plan_simulation(simulation: Simulation, flows: Mapping[int, Flow], plan: Plan) -> None:
    for at, name, payload, lives_seconds in plan.sendings:
        simulation.signal_at(at, name, payload, lives_seconds=lives_seconds)
    for operation in plan.operations:
        match operation.verb:
            case "pause":
                simulation.pause_at(operation.at, WHY)
            case "resume":
                simulation.resume_at(operation.at, WHY)
            case "migrate":
                simulation.migrate_at(operation.at, flows[operation.version], WHY)
            case "recover":
                assert operation.decision is not None
                simulation.recover_at(operation.at, operation.decision)
            case verb:
                simulation.cancel_at(operation.at, WHY, compensate=verb == "compensate")


def traced(simulation: Simulation) -> tuple[Trace, str]:
    started_at = simulation.instance.started_at
    outcome = simulation.run()
    trace = [
        (to_rfc3339(started_at + seconds(line.at_seconds)), line.entry.kind, line.entry.step, bare(line.entry.data))
        for line in outcome.trace
    ]
    return trace, outcome.instance.state.value


def bare(data: Mapping[str, Json]) -> Json:
    """Leave out who, and which instance: the simulator has neither."""
    return {name: value for name, value in data.items() if name not in {"by", "source"}}


class Replay:
    """The same on a database: tasks are claimed as soon as they exist and end when the script says."""

    def __init__(self, database: Database, graphs: Mapping[int, Graph], script: Script) -> None:
        self.weave = Weave(database, graphs)
        nodes = [node for made in graphs.values() for node in made.nodes]
        specs = [node.spec.task if isinstance(node.spec, PollSpec) else node.spec for node in nodes]
        specs += [node.compensate for node in nodes]
        self.weave.types = sorted({spec.type for spec in specs if isinstance(spec, TaskSpec)})
        self.script = script
        self.now = STARTED_AT
        self._ends: list[tuple[Micros, bytes, Assignment, Done]] = []
        self._sendings: list[tuple[Micros, str, Message]] = []
        self._operations: list[tuple[Micros, int, Operation]] = []

    def start(self, input_: Json, plan: Plan) -> bytes:
        """Start the instance, perhaps with a signal."""
        self.weave.queue()
        first = self._plan(plan)
        return self.weave.start("any", input_, signal=first)

    def fork(self, source: bytes, step: str, version: int | None, plan: Plan) -> bytes | None:
        """Fork an instance where it stands; None if that is refused."""
        try:
            told = self.weave.fork(source, step, version=version)
        except (StateConflict, InvalidRequest):
            return None
        self._sendings, self._operations = [], []  # what was planned for the source came too late for it
        self._plan(plan)
        return bytes.fromhex(told["instance"]["id"])

    def run(self, instance_id: bytes) -> tuple[Trace, str]:
        """Let everything happen until nothing can any more."""
        while True:
            self._settle(instance_id)
            stored = self._find(instance_id)
            if stored.instance.state in INSTANCE_TERMINAL:
                break
            heads = (self._ends[:1], self._sendings[:1], self._operations[:1])
            due = [head[0][0] for head in heads if head]
            due += [stored.instance.due_at] if stored.instance.due_at else []
            if not due:
                break
            self.now = max(self.now, min(due))
        return self._trace(instance_id), stored.instance.state.value

    def _plan(self, plan: Plan) -> Message | None:
        """Plan what happens from now on; give the signal that a start carries."""
        first = None
        for number, (at, name, payload, lives_seconds) in enumerate(plan.sendings, 1):
            message = Message(name, payload, f"signal-{number}", seconds(lives_seconds))
            if not at:
                first = message
            else:
                heapq.heappush(self._sendings, (self.now + seconds(at), name, message))
        for number, operation in enumerate(plan.operations):
            heapq.heappush(self._operations, (self.now + seconds(operation.at), number, operation))
        return first

    def _trace(self, instance_id: bytes) -> Trace:
        trace: Trace = []
        after = 0
        while True:
            page = self.weave.instances.instance_history(
                self.weave.namespace_id, instance_id, after_revision=after, limit=200
            )
            trace += [(entry["at"], entry["type"], entry["step"], bare(entry["data"])) for entry in page.entries]
            if page.next_revision is None:
                return trace
            after = page.next_revision

    def _settle(self, instance_id: bytes) -> None:
        """Let everything happen that happens at this instant."""
        while self._operations and self._operations[0][0] <= self.now:
            with suppress(StateConflict, InvalidRequest):
                self._operate(instance_id, heapq.heappop(self._operations)[2])
        while self._sendings and self._sendings[0][0] <= self.now:
            _, name, message = heapq.heappop(self._sendings)
            more = {"signal": message.signal, "lives_micros": message.lives_micros}
            self.weave.signal(instance_id, name, message.payload, **more)
        while self._ends and self._ends[0][0] <= self.now:
            _, _, assignment, done = heapq.heappop(self._ends)
            self.weave.answer(assignment, done)
        self.weave.advance()
        for assignment in self.weave.claim():
            step, number = assignment.task.source_step, assignment.task.source_round
            assert step is not None
            assert number is not None
            answer = self.script.answer(step, number)
            error = ErrorClass.NON_RETRYABLE if answer.outcome is Outcome.FAILED else None
            if answer.reviewed_after_seconds == NEVER:
                error = ErrorClass.UNKNOWN_OUTCOME
            end = (self.now + seconds(answer.after_seconds), assignment.attempt_id)
            heapq.heappush(self._ends, (*end, assignment, Done(answer.output, error)))

    def _operate(self, instance_id: bytes, operation: Operation) -> None:
        weave, decision = self.weave, operation.decision
        match operation.verb:
            case "pause":
                weave.pause(instance_id)
            case "resume":
                weave.resume(instance_id)
            case "migrate":
                weave.migrate(instance_id, operation.version)
            case "recover":
                assert decision is not None
                weave.recover(instance_id, decision.action, decision.step, output=decision.output)
            case verb:
                weave.cancel(instance_id, compensate=verb == "compensate")

    def _find(self, instance_id: bytes) -> Stored:
        found = self.weave.database.transaction(lambda tx: instance_find(tx, self.weave.namespace_id, instance_id))
        assert found is not None
        return found


@dataclass(frozen=True)
class Case:
    """An instance with its outside, and a fork of what becomes of it: from the step of that number, with a version."""

    input: Json
    seed: int
    plan: Plan
    fork_from: int
    fork_version: int | None
    again: Plan


PLANS = st.builds(Plan, SENDINGS, OPERATIONS)
CASES = st.builds(
    Case,
    INPUTS,
    st.integers(0, 2**32),
    PLANS,
    st.integers(0, 8),
    st.sampled_from([None, None, 2]),
    st.builds(Plan, st.just(()), OPERATIONS),
)


@settings(
    max_examples=RUNS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=versions(children=False), case=CASES)
def test_the_simulator_and_the_database_give_the_same_trace(
    database: Database, made: Mapping[int, Graph], case: Case
) -> None:
    script = Script(case.seed)
    flows = {number: Flow(each) for number, each in made.items()}
    # What no wait has a name for is refused by a node.
    sendings = [sending for sending in case.plan.sendings if sending[1] in flows[1].signals]
    plan = Plan(sendings, case.plan.operations)
    simulation = Simulation(flows[1], script, input_value=case.input, started_at=STARTED_AT)
    plan_simulation(simulation, flows, plan)
    simulated = [traced(simulation)]
    step = flows[1].own_steps[case.fork_from % len(flows[1].own_steps)]
    flow = None if case.fork_version is None else flows[case.fork_version]
    forked = simulation.fork(step, script, flow=flow, reason=WHY)
    if forked is not None:
        plan_simulation(forked, flows, case.again)
        simulated.append(traced(forked))

    with pytest.MonkeyPatch.context() as patch:
        replay = Replay(database, made, script)
        if case.seed % 2:
            replay.weave.follow()
        patch.setattr(Transaction, "now", lambda _tx: replay.now)
        try:
            source = replay.start(case.input, plan)
            on_database = [replay.run(source)]
            replay.now = max(replay.now, simulation.now)
            fork_id = replay.fork(source, step, case.fork_version, case.again)
            if fork_id is not None:
                on_database.append(replay.run(fork_id))
        finally:
            replay.weave.close()
    assert on_database == simulated
