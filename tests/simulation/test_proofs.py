"""What publishing proves holds when the definition runs: random YAML definitions, simulated with worst-case answers.

No instance exceeds its bounds, nor does any of its children, none reads the output of a step that has none, and each
ends. The proof itself is held to notice bounds that are wrong by one.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from definitions import bounds
from definitions.bounds import Bounds, Rounds
from engine.playing import Outcomes
from engine.states import INSTANCE_TERMINAL
from tests.support.random_definitions import family
from tests.support.worst_cases import WorstCase, violations

EXAMPLES = 10_000 if os.environ.get("ORBIT_SOAK") == "1" else 150


def proof(seed: int, depth: int, answers: list[int], *, generations: int = 0) -> tuple[Outcomes, list[str]]:
    """Run a random definition at its worst; tell how it came out and which bounds were passed."""
    made = family(seed, depth, generations=generations)
    flags = [bool(seed >> bit & 1) for bit in range(8)]
    worst = WorstCase(made.graphs, answers, signals=[number * 40.0 for number in range(len(answers))])
    used, outcome = worst.run(made.graph, flags)
    return outcome, [f"{made.text}{each}" for each in violations(used, outcome)]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@given(
    seed=st.integers(0, 2**40),
    depth=st.sampled_from([0, 0, 1, 2]),
    answers=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    generations=st.sampled_from([0, 0, 1, 2]),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_publishing_proves_holds_in_every_run(seed: int, depth: int, answers: list[int], generations: int) -> None:
    outcome, passed = proof(seed, depth, answers, generations=generations)
    assert passed == []
    _assert_ended(outcome)


def _assert_ended(outcome: Outcomes) -> None:
    assert outcome.instance.state in INSTANCE_TERMINAL
    errors = [
        line.entry.data
        for line in outcome.trace
        if "NO_SUCH_FIELD" in str(line.entry.data) and "steps" in str(line.entry.data)
    ]
    assert errors == []
    for child in outcome.children:
        _assert_ended(child.outcomes)


_poll, _task, _child, _times = bounds.poll, bounds.task, bounds.child, bounds.times


def _poll_without(**less: Callable[[Bounds, Rounds], float]) -> Callable[..., Bounds]:
    def wrong(round_bounds: Bounds, rounds: Rounds, *, timeout_seconds: float) -> Bounds:
        right = _poll(round_bounds, rounds, timeout_seconds=timeout_seconds)
        change: dict[str, Any] = {
            name: getattr(right, name) - count(round_bounds, rounds) for name, count in less.items()
        }
        return replace(right, **change)

    return wrong


WRONG: dict[str, tuple[str, Callable[..., Bounds]]] = {
    "a poll's last round has no time": ("poll", _poll_without(active_seconds=lambda each, _: each.active_seconds)),
    "a poll's last round has no overrun": ("poll", _poll_without(active_seconds=lambda _each, _rounds: 5.0)),
    "a poll's last gap has no time": ("poll", _poll_without(active_seconds=lambda _, rounds: rounds.every_seconds)),
    "a poll's last round is no task": ("poll", _poll_without(tasks=lambda _each, _rounds: 1)),
    "a poll's last round is no round": ("poll", _poll_without(rounds=lambda _each, _rounds: 1)),
    "a poll's last round has no attempts": ("poll", _poll_without(attempts=lambda each, _: each.attempts)),
    "a poll's last round stores nothing": ("poll", _poll_without(stored_bytes=lambda each, _: each.stored_bytes)),
    "a child has no tasks": ("child", lambda inner: replace(_child(inner), tasks=0)),
    "a child stores nothing": ("child", lambda _: bounds.record()),
    "undoing has no time": ("times", lambda part, count: replace(_times(part, count), active_seconds=0.0)),
    "one of what undoes is no task": ("times", lambda part, count: _times(part, count - 1)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_proof_notices_a_bound_that_is_wrong_by_one(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made = WRONG[wrong]
    monkeypatch.setattr(bounds, name, made)
    generations = 1 if name == "child" else 0
    tries = ((seed, answers) for seed in range(400) for answers in ([3], [2], [3, 2]))
    assert any(proof(seed, 0, answers, generations=generations)[1] for seed, answers in tries)
