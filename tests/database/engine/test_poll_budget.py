"""A poll's budget is the step's own: set once, counted in rounds, untouched by what happens inside a round.

Each test is a defect that sensors of a well-known scheduler have had: apache/airflow#11887 and #30572 (the time-out
began anew with each retry), #30289 (back-off was dead when the sensor was rescheduled), #32512 (the time-out was lost
when the first poke raised), #19346 and #21585 (an attempt's own time-out was not applied).
"""

import pytest
from sqlalchemy import select

from engine.tables import step as step_table
from orbit.database import Database
from orbit.jsontext import Json
from pulse.states import ErrorClass
from pulse.sweeps import DeadlineSweep, delayed_sweep
from pulse.tables import task as task_table
from tests.support.weave import Done, Handlers, Weave

POLL = """
orbit: weave/1
workflow: asks
version: 1
timeout: 2d
defaults: {queue: main, start_within: 10m}
steps:
  - id: p
    poll:
      task: ask.p@1
      retry: {max_attempts: 3, backoff: 1s}
      attempt_timeout: 20s
      done_when: "output.done == true"
      every: 60s
      backoff: 2
      max_every: 1h
      max_rounds: 4
      timeout: 1h
"""
MINUTE = 60_000_000


@pytest.fixture
def instance(weave: Weave) -> bytes:
    weave.publish(POLL)
    return weave.start("asks")


def step_of(weave: Weave, instance: bytes) -> Json:
    (found,) = weave.instances.instance_steps(weave.namespace_id, instance)
    return found


def end_of(weave: Weave, instance: bytes) -> str:
    return str(step_of(weave, instance)["timeout_at"])


def pass_time(weave: Weave, seconds: float, handlers: Handlers) -> None:
    """Let time pass, and everything happen that is due then."""
    weave.database.clock.advance(seconds_forward=seconds)
    delayed_sweep(weave.database, weave)
    DeadlineSweep(weave.database, weave).run_once()
    weave.drive(handlers)


def processing(*_: object) -> Done:
    return Done({"done": False})


def broken(*_: object) -> Done:
    return Done(error=ErrorClass.RETRYABLE)


def gap(weave: Weave, instance: bytes) -> float:
    """Say how long the poll waits for its next round, in minutes."""
    steps = weave.database.transaction(
        lambda tx: tx.rows(select(step_table.c.due_at).where(step_table.c.instance_id == instance))
    )
    return float(round((steps[0].due_at - weave.database.transaction(lambda tx: tx.now())) / MINUTE, 1))


def test_retries_of_a_rounds_request_do_not_begin_the_time_out_anew(weave: Weave, instance: bytes) -> None:
    end = end_of(weave, instance)
    weave.drive(broken)
    for _ in range(2):
        pass_time(weave, 2, processing if _ else broken)
    assert step_of(weave, instance)["rounds"]["counts"] == {"PROCESSING": 1}
    assert end_of(weave, instance) == end


def test_retries_of_a_rounds_request_are_no_rounds(weave: Weave, instance: bytes) -> None:
    weave.drive(broken)
    pass_time(weave, 2, broken)
    pass_time(weave, 3, processing)
    found = step_of(weave, instance)
    assert (found["round"], found["state"]) == (1, "WAITING")
    row = weave.database.transaction(lambda tx: tx.rows(select(task_table.c.starts_count)))[0]
    assert row.starts_count == 3


def test_the_back_off_follows_the_rounds_and_no_retry_resets_or_feeds_it(weave: Weave, instance: bytes) -> None:
    weave.drive(processing)
    gaps = [gap(weave, instance)]
    for minutes in (1, 2, 4):
        pass_time(weave, minutes * 60 + 1, broken)
        pass_time(weave, 2, processing)
        found = step_of(weave, instance)
        if found["state"] == "WAITING":
            gaps.append(gap(weave, instance))
    assert gaps == [1.0, 2.0, 4.0]
    assert (found["state"], found["error"]["code"]) == ("FAILED", "POLL_EXHAUSTED"), "after its fourth round"


def test_the_time_out_holds_from_the_first_round_on_even_if_that_raises(weave: Weave, instance: bytes) -> None:
    end = end_of(weave, instance)
    assert end != "None", "it is set before anything has been asked"
    weave.drive(broken)
    assert end_of(weave, instance) == end
    weave.database.clock.advance(seconds_forward=2)
    delayed_sweep(weave.database, weave)
    (running,) = weave.claim()
    weave.database.clock.advance(seconds_forward=3600)
    weave.advance()
    assert (step_of(weave, instance)["state"], step_of(weave, instance)["reason"]) == ("RUNNING", "STEP_TIMED_OUT")
    weave.answer(running, processing())
    weave.advance()
    assert step_of(weave, instance)["error"]["code"] == "POLL_EXHAUSTED"


def test_an_attempt_has_a_time_out_of_its_own_within_the_polls(weave: Weave, instance: bytes) -> None:
    row = weave.database.transaction(
        lambda tx: tx.rows(select(task_table.c.attempt_timeout_micros, task_table.c.deadline_at))
    )[0]
    now = weave.database.transaction(lambda tx: tx.now())
    assert row.attempt_timeout_micros == 20_000_000
    assert row.deadline_at <= now + 3600_000_000


def test_a_pause_costs_the_poll_nothing(weave: Weave, instance: bytes) -> None:
    weave.drive(processing)
    before = gap(weave, instance)
    weave.pause(instance)
    pass_time(weave, 2 * 3600, processing)
    weave.resume(instance)
    assert gap(weave, instance) == pytest.approx(before, abs=0.1)
    pass_time(weave, 61, processing)
    found = step_of(weave, instance)
    assert (found["round"], found["state"]) == (2, "WAITING"), "one round for the gap, none for the pause"


def test_another_node_goes_on_with_what_is_left(weave: Weave, instance: bytes, database: Database) -> None:
    weave.drive(processing)
    end, before = end_of(weave, instance), gap(weave, instance)
    other = Weave(database, beside=weave)
    try:
        other.drive(processing)
        assert (end_of(other, instance), gap(other, instance)) == (end, before)
        pass_time(other, 61, processing)
        assert step_of(other, instance)["round"] == 2
        assert end_of(other, instance) == end
    finally:
        other.close()


def test_neither_bound_is_passed_however_the_two_meet(weave: Weave, instance: bytes) -> None:
    for minutes in (0, 1, 2, 4, 8):
        pass_time(weave, minutes * 60 + 1, processing)
    found = step_of(weave, instance)
    assert (found["state"], found["error"]["code"], found["round"]) == ("FAILED", "POLL_EXHAUSTED", 4)
    assert found["error"]["details"] == {"rounds": 4, "outcomes": {"PROCESSING": 4}}
