"""The tables of moves: complete, without dead ends but the terminal states."""

from engine.instance import ROUNDS_KEPT, Round, RoundLog
from engine.states import (
    INSTANCE_MOVES,
    INSTANCE_TERMINAL,
    INSTANCE_UNFINISHED,
    STEP_MOVES,
    STEP_TERMINAL,
    STEP_UNFINISHED,
    InstanceState,
    StepState,
)
from tools import state_diagrams


def test_every_state_has_its_moves_and_terminal_ones_have_none() -> None:
    assert INSTANCE_MOVES.keys() == set(InstanceState)
    assert STEP_MOVES.keys() == set(StepState)
    assert all(not INSTANCE_MOVES[state] for state in INSTANCE_TERMINAL)
    # A failed step is left by a person's decision only.
    assert all(not STEP_MOVES[state] for state in STEP_TERMINAL - {StepState.FAILED})
    assert all(INSTANCE_MOVES[state] for state in INSTANCE_UNFINISHED)
    assert all(STEP_MOVES[state] for state in STEP_UNFINISHED | {StepState.PENDING})


def test_every_unfinished_instance_can_end() -> None:
    # Cancel and fail must work from everywhere, so ENDING is one move away, or its end is decided already.
    ends = {InstanceState.ENDING, InstanceState.COMPENSATING}
    assert all(ends & (INSTANCE_MOVES[state] | {state}) for state in INSTANCE_UNFINISHED)
    assert InstanceState.SUCCEEDED not in INSTANCE_MOVES[InstanceState.COMPENSATING]
    assert INSTANCE_MOVES[InstanceState.ENDING] >= INSTANCE_TERMINAL


def test_every_entered_step_can_be_cancelled_and_only_an_ended_instance_is_left_by_nobody() -> None:
    assert all(StepState.CANCELLED in STEP_MOVES[state] for state in STEP_UNFINISHED | {StepState.PENDING})
    assert not STEP_UNFINISHED & STEP_TERMINAL


def test_a_round_log_keeps_its_ends_and_counts_all() -> None:
    log = RoundLog()
    for number in range(1, 31):
        log = log.with_round(Round(number, None, "PROCESSING" if number % 3 else "FAILED", number))
    assert [entry.number for entry in log.first] == list(range(1, ROUNDS_KEPT + 1))
    assert [entry.number for entry in log.last] == list(range(31 - ROUNDS_KEPT, 31))
    assert log.counts == {"PROCESSING": 20, "FAILED": 10}


def test_the_documents_draw_the_tables() -> None:
    """`python -m tools.state_diagrams` writes them."""
    assert state_diagrams.PAGE.read_text(encoding="utf-8") == state_diagrams.page()
