"""What publishing proves holds when the definition runs: random YAML definitions, simulated with worst-case answers.

No instance exceeds its bounds, none reads the output of a step that has none, and each ends.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from definitions.graph import TaskSpec
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.simulator import Answer, Refusal, Simulation
from engine.states import INSTANCE_TERMINAL
from engine.stimulus import Outcome
from orbit.clock import SECOND
from tests.support.random_definitions import definition

EXAMPLES = 10_000 if os.environ.get("ORBIT_SOAK") == "1" else 150


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(
    seed=st.integers(0, 2**40),
    depth=st.sampled_from([0, 0, 1, 2]),
    answers=st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_publishing_proves_holds_in_every_run(seed: int, depth: int, answers: list[int]) -> None:
    _, graph = definition(seed, depth)
    running: dict[tuple[str, int], float] = {}  # when each task ends
    most_at_once = 0
    taken: list[tuple[str, int]] = []
    refused = 0

    def script(command: SubmitTask) -> Answer | Refusal:
        nonlocal refused, most_at_once
        kind = answers[(len(taken) + refused) % len(answers)]
        if kind == 0 and refused % 5 != 4:
            refused += 1
            return Refusal(Failure("QUEUE_FULL", "full"))
        taken.append((command.step, command.round))
        spec = command.spec
        assert isinstance(spec, TaskSpec), "these definitions have no children"
        longest = spec.timeout_seconds + spec.attempt_timeout_seconds
        now = command.deadline_at / SECOND - spec.timeout_seconds
        running[command.step, command.round] = now + longest
        most_at_once = max(most_at_once, sum(ends_at > now + 1e-6 for ends_at in running.values()))
        late = Answer(output={"done": kind == 1}, after_seconds=longest, ignores_cancel=True)
        failed = Answer(Outcome.FAILED, error=Failure("X", "failed"), after_seconds=longest, ignores_cancel=True)
        return failed if kind == 2 else late

    flags = [bool(seed >> bit & 1) for bit in range(8)]
    simulation = Simulation(Flow(graph), script, input_value={"flags": flags})
    for number in answers:
        simulation.signal_at(number * 40.0, "go", number)
    outcome = simulation.run()
    assert outcome.instance.state in INSTANCE_TERMINAL
    assert len(taken) <= graph.bounds.tasks
    assert most_at_once <= graph.bounds.concurrent_tasks
    assert max((line.at_seconds for line in outcome.trace), default=0.0) <= graph.bounds.active_seconds + 1e-6
    errors = [
        line.entry.data
        for line in outcome.trace
        if "NO_SUCH_FIELD" in str(line.entry.data) and "steps" in str(line.entry.data)
    ]
    assert errors == []
