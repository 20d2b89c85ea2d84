"""The simulator and the engine on a real database give the same trace for the same workflow and the same answers.

The database's clock stands still here but for the jumps of the test, so that both see the same instants.
"""

import heapq
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from definitions.graph import Graph, PollSpec, TaskSpec
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.signalling import Message
from engine.simulator import Answer, Simulation
from engine.states import INSTANCE_TERMINAL
from engine.stimulus import Outcome
from engine.store.instances import Stored, instance_find
from orbit.clock import SECOND, Micros, seconds, to_rfc3339
from orbit.database import Database, Transaction
from orbit.jsontext import Json
from pulse.claim import Assignment
from pulse.states import ErrorClass
from tests.support.random_workflows import INPUTS, SENDINGS, workflows
from tests.support.weave import Done, Weave

STARTED_AT: Micros = 1_800_000_000 * SECOND
OUTPUTS: list[Json] = [{"status": "DONE"}, {"status": "NEW"}, {"status": "NEW"}, {}]

Sending = tuple[float, str, int, float]
Trace = list[tuple[str, str, str | None, Json]]


class Script:
    """Answers that depend on nothing but the seed, the step and the round; no two tasks end at the same instant."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def answer(self, step: str, number: int) -> Answer:
        drawn = zlib.crc32(f"{self.seed} {step} {number}".encode())
        outcome = Outcome.FAILED if drawn % 8 == 0 else Outcome.SUCCEEDED
        error = Failure("BROKEN", "as the test wants", {"class": "NON_RETRYABLE"})
        return Answer(
            outcome=outcome,
            output=OUTPUTS[drawn % len(OUTPUTS)],
            error=error if outcome is Outcome.FAILED else None,
            after_seconds=0.5 + (drawn // 8) / 2**29 * 40,
            ignores_cancel=True,
        )

    def __call__(self, command: SubmitTask) -> Answer:
        return self.answer(command.step, command.round)


def simulated(made: Graph, script: Script, input_: Json, sendings: Sequence[Sending]) -> tuple[Trace, str]:
    simulation = Simulation(Flow(made), script, input_value=input_, started_at=STARTED_AT)
    for at, name, payload, lives_seconds in sendings:
        simulation.signal_at(at, name, payload, lives_seconds=lives_seconds)
    outcome = simulation.run()
    trace = [
        (to_rfc3339(STARTED_AT + seconds(line.at_seconds)), line.entry.kind, line.entry.step, dict(line.entry.data))
        for line in outcome.trace
    ]
    return trace, outcome.instance.state.value


class Replay:
    """The same on a database: tasks are claimed as soon as they exist and end when the script says."""

    def __init__(self, database: Database, made: Graph, script: Script) -> None:
        self.weave = Weave(database, made)
        self.weave.types = sorted(
            {
                (node.spec.task if isinstance(node.spec, PollSpec) else node.spec).type
                for node in made.nodes
                if isinstance(node.spec, TaskSpec | PollSpec)
            }
        )
        self.script = script
        self.now = STARTED_AT
        self._ends: list[tuple[Micros, bytes, Assignment, Done]] = []
        self._sendings: list[tuple[Micros, str, Message]] = []

    def run(self, input_: Json, sendings: Sequence[Sending]) -> tuple[Trace, str]:
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
            due = [*happens, *([stored.instance.due_at] if stored.instance.due_at else [])]
            if not due:
                break
            self.now = max(self.now, min(due))
        entries = weave.instances.instance_history(weave.namespace_id, instance_id, limit=200).entries
        trace = [(entry["at"], entry["type"], entry["step"], entry["data"]) for entry in entries]
        return trace, stored.instance.state.value

    def _settle(self, instance_id: bytes) -> None:
        """Let everything happen that happens at this instant."""
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
@given(made=workflows(children=False), input_=INPUTS, seed=st.integers(0, 2**32), sendings=SENDINGS)
def test_the_simulator_and_the_database_give_the_same_trace(
    database: Database, made: Graph, input_: Json, seed: int, sendings: Sequence[Sending]
) -> None:
    # What no wait has a name for is refused by a node.
    sendings = [sending for sending in sendings if sending[1] in Flow(made).signals]
    script = Script(seed)
    with pytest.MonkeyPatch.context() as patch:
        replay = Replay(database, made, script)
        patch.setattr(Transaction, "now", lambda _tx: replay.now)
        try:
            on_database = replay.run(input_, sendings)
        finally:
            replay.weave.close()
    assert on_database == simulated(made, script, input_, sendings)
