"""The simulator and the engine on a real database give the same traces of parents and children.

The database's clock stands still here but for the jumps of the test, so that both see the same instants. Children run
by a definition of their own; what a trace says of an instance's id is left out, since that is made by chance.
"""

import heapq
import json
import re
import zlib
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from definitions.graph import ChildSpec, Graph, PollSpec, TaskSpec
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.signalling import Message
from engine.simulator import Answer, Outcomes, OwnRun, Simulation
from engine.states import INSTANCE_TERMINAL
from engine.stimulus import Outcome
from engine.store.instances import Filter, Stored, instance_find
from engine.tables import instance
from orbit.clock import SECOND, Micros, seconds, to_rfc3339
from orbit.database import Database, Transaction
from orbit.jsontext import Json
from pulse.claim import Assignment
from pulse.states import ErrorClass
from tests.support.graphs import child, graph, parallel, task
from tests.support.random_workflows import INPUTS, JOINS, SENDINGS, workflows
from tests.support.weave import Done, Weave

STARTED_AT: Micros = 1_800_000_000 * SECOND
OUTPUTS: list[Json] = [{"status": "DONE"}, {"status": "NEW"}, {"status": "NEW"}, {}]


@st.composite
def families(draw: st.DrawFn) -> tuple[Graph, Graph]:
    """A parent, in every other example one that is little more than a child, and the definition of its children."""
    below = draw(workflows(children=False))
    if draw(st.booleans()):
        return draw(workflows(children=True)), below
    # No timer of the child is due at its parent's: which of two instances goes first is nobody's promise.
    step = child("c", {"n": draw(st.integers(0, 6))}, draw(st.sampled_from([None, 5.37, 400.37])))
    beside = parallel("p", {"a": [step], "b": [task("b", timeout_seconds=60.0)]}, draw(JOINS), at_least=1)
    made = graph(
        task("first", timeout_seconds=60.0).undone() if draw(st.booleans()) else task("first", timeout_seconds=60.0),
        draw(st.sampled_from([step, beside])),
        output=draw(st.sampled_from([None, {"n": "${ input.n }"}])),
        timeout=draw(st.sampled_from([10.0, 200.0, 1e6])),
        on_failure=draw(st.sampled_from(["hold", "fail", "compensate"])),
    )
    return made, below


Sending = tuple[float, str, int, float]
Trace = list[tuple[str, str, str | None, Json]]
Traces = dict[str, tuple[Trace, str]]  # of an instance and its children, by the steps that lead to them, with its end
ID = re.compile(r"\b[0-9a-f]{32}\b")


class Script:
    """Answers that depend on nothing but the seed, the step and the round; no two tasks end at the same instant."""

    def __init__(self, seed: int, child: Flow | None = None, family: str = "") -> None:
        self.seed = seed
        self.child = child
        self.family = family  # of a child, the steps that lead to it

    def answer(self, step: str, number: int) -> Answer:
        drawn = zlib.crc32(f"{self.seed} {self.family}{step} {number}".encode())
        outcome = Outcome.FAILED if drawn % 8 == 0 else Outcome.SUCCEEDED
        error = Failure("BROKEN", "as the test wants", {"class": "NON_RETRYABLE"})
        return Answer(
            outcome=outcome,
            output=OUTPUTS[drawn % len(OUTPUTS)],
            error=error if outcome is Outcome.FAILED else None,
            after_seconds=0.5 + (drawn // 8) / 2**29 * 40,
            ignores_cancel=True,
        )

    def of(self, family: str) -> "Script":
        return Script(self.seed, self.child, family)

    def __call__(self, command: SubmitTask) -> Answer | OwnRun:
        if isinstance(command.spec, ChildSpec):
            assert self.child is not None, "a child has a definition"
            return OwnRun(self.child, self.of, lambda _child: None)
        return self.answer(command.step, command.round)


def simulated(made: Graph, script: Script, input_: Json, sendings: Sequence[Sending]) -> Traces:
    simulation = Simulation(Flow(made), script, input_value=input_, started_at=STARTED_AT)
    for at, name, payload, lives_seconds in sendings:
        simulation.signal_at(at, name, payload, lives_seconds=lives_seconds)
    return dict(traces_of("", simulation.run()))


def traces_of(family: str, outcome: Outcomes) -> Iterator[tuple[str, tuple[Trace, str]]]:
    started_at = outcome.instance.started_at
    yield (
        family,
        (
            [
                (
                    to_rfc3339(started_at + seconds(line.at_seconds)),
                    line.entry.kind,
                    line.entry.step,
                    without_ids(dict(line.entry.data)),
                )
                for line in outcome.trace
            ],
            outcome.instance.state.value,
        ),
    )
    for below in outcome.children:
        yield from traces_of(f"{family}{below.step}/", below.outcomes)


def without_ids(data: Json) -> Json:
    return json.loads(ID.sub("an id", json.dumps(data)))


class Replay:
    """The same on a database: tasks are claimed as soon as they exist and end when the script says."""

    def __init__(self, database: Database, made: Graph, script: Script, child: Graph | None = None) -> None:
        graphs = [made] if child is None else [made, child]
        self.weave = Weave(database, made, children={} if child is None else {"child": child})
        self._families: dict[bytes, str] = {}
        nodes = [node for graph in graphs for node in Flow(graph).nodes.values()]
        specs = [node.spec.task if isinstance(node.spec, PollSpec) else node.spec for node in nodes]
        self.weave.types = sorted({spec.type for spec in specs if isinstance(spec, TaskSpec)})
        self.script = script
        self.now = STARTED_AT
        self._ends: list[tuple[Micros, bytes, Assignment, Done]] = []
        self._sendings: list[tuple[Micros, str, Message]] = []

    def run(self, input_: Json, sendings: Sequence[Sending]) -> Traces:
        weave = self.weave
        weave.queue()
        first = None
        for number, (at, name, payload, lives_seconds) in enumerate(sendings, 1):
            message = Message(name, payload, f"signal-{number}", seconds(lives_seconds))
            if not at:
                first = message
            else:
                heapq.heappush(self._sendings, (STARTED_AT + seconds(at), name, message))
        instance_id = weave.start("any", input_, signal=first)
        while True:
            self._settle(instance_id)
            stored = self._find(instance_id)
            if stored.instance.state in INSTANCE_TERMINAL:
                break
            happens = [*(end[0] for end in self._ends[:1]), *(sending[0] for sending in self._sendings[:1])]
            due = [*happens, *self._due()]
            if not due:
                break
            self.now = max(self.now, min(due))
        return dict(self._traces("", instance_id))

    def _traces(self, family: str, instance_id: bytes) -> Iterator[tuple[str, tuple[Trace, str]]]:
        weave = self.weave
        entries = weave.instances.instance_history(weave.namespace_id, instance_id, limit=200).entries
        trace = [(entry["at"], entry["type"], entry["step"], without_ids(entry["data"])) for entry in entries]
        yield family, (trace, self._find(instance_id).instance.state.value)
        found = weave.instances.instances_list(weave.namespace_id, Filter(parent_id=instance_id)).instances
        for below in found:
            yield from self._traces(f"{family}{below['parent']['step']}/", bytes.fromhex(below["id"]))

    def _due(self) -> list[Micros]:
        due = select(instance.c.due_at).where(instance.c.due_at.is_not(None))
        return [row.due_at for row in self.weave.database.transaction(lambda tx: tx.rows(due))]

    def _family(self, instance_id: bytes) -> str:
        if instance_id not in self._families:
            parent = self._find(instance_id).origin.parent
            self._families[instance_id] = "" if parent is None else f"{self._family(parent.id)}{parent.step}/"
        return self._families[instance_id]

    def _settle(self, instance_id: bytes) -> None:
        """Let everything happen that happens at this instant."""
        while self._sendings and self._sendings[0][0] <= self.now:
            _, name, message = heapq.heappop(self._sendings)
            more = {"signal": message.signal, "lives_micros": message.lives_micros}
            self.weave.signal(instance_id, name, message.payload, **more)
        while self._ends and self._ends[0][0] <= self.now:
            _, _, assignment, done = heapq.heappop(self._ends)
            self.weave.answer(assignment, done)
        looked_at = 1
        while looked_at:
            self.weave.runner.due_in(0)
            looked_at = self.weave.runner.run_once()
            self._claim()  # after each round, or what a later one cancels would never have run

    def _claim(self) -> None:
        for assignment in self.weave.claim():
            step, number, owner = (
                assignment.task.source_step, assignment.task.source_round, assignment.task.source_id
            )  # fmt: skip
            assert step is not None
            assert number is not None
            assert owner is not None
            answer = self.script.of(self._family(owner)).answer(step, number)
            error = ErrorClass.NON_RETRYABLE if answer.outcome is Outcome.FAILED else None
            end = (self.now + seconds(answer.after_seconds), assignment.attempt_id)
            heapq.heappush(self._ends, (*end, assignment, Done(answer.output, error)))

    def _find(self, instance_id: bytes) -> Stored:
        found = self.weave.database.transaction(lambda tx: instance_find(tx, self.weave.namespace_id, instance_id))
        assert found is not None
        return found


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(family=families(), input_=INPUTS, seed=st.integers(0, 2**32), sendings=SENDINGS)
def test_a_family_has_the_same_traces_in_the_simulator_and_on_the_database(
    database: Database, family: tuple[Graph, Graph], input_: Json, seed: int, sendings: Sequence[Sending]
) -> None:
    made, below = family
    # What no wait has a name for is refused by a node.
    sendings = [sending for sending in sendings if sending[1] in Flow(made).signals]
    script = Script(seed, Flow(below))
    with pytest.MonkeyPatch.context() as patch:
        replay = Replay(database, made, script, below)
        patch.setattr(Transaction, "now", lambda _tx: replay.now)
        try:
            on_database = replay.run(input_, sendings)
        finally:
            replay.weave.close()
    assert on_database == simulated(made, script, input_, sendings)
