"""Rounds of a poll are tasks, and what happens inside a round is the task layer's: seen from both sides."""

from pathlib import Path

import pytest
from sqlalchemy import select

from orbit.clock import SECOND, from_rfc3339
from orbit.jsontext import Json
from pulse.states import ErrorClass, SourceKind
from pulse.store.search import TaskFilter
from pulse.sweeps import delayed_sweep
from pulse.tables import task as task_table
from pulse.tasks import TaskView, attempts_list, tasks_list
from tests.support.weave import Done, Weave

PAYOUT = Path(__file__).parents[3] / "examples/payout/payout.yaml"
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
      retry: {max_attempts: 2, backoff: 1s}
      done_when: "output.done == true"
      every: 2s
      max_rounds: 50
      timeout: TIMEOUT
      on_round_error: ON_ERROR
"""


def publish(weave: Weave, *, on_error: str = "fail", timeout: str = "1h") -> bytes:
    weave.publish(POLL.replace("ON_ERROR", on_error).replace("TIMEOUT", timeout))
    return weave.start("asks")


def tasks_of(weave: Weave, instance: bytes) -> list[TaskView]:
    """List an instance's tasks as anybody finds them, the earliest first."""
    wanted = TaskFilter(weave.namespace_id, 200, source=(SourceKind.WORKFLOW, instance))
    return weave.database.transaction(lambda tx: tasks_list(tx, wanted))[::-1]


def pass_time(weave: Weave, seconds: float) -> None:
    weave.database.clock.advance(seconds_forward=seconds)
    delayed_sweep(weave.database, weave)


@pytest.mark.requirement("R217")
def test_r116_each_round_is_one_task_and_processing_makes_the_next_rounds(weave: Weave) -> None:
    instance = publish(weave)

    def answers(_step: str, round_: int, _params: Json) -> Done:
        return Done({"done": round_ == 3})

    for _ in range(3):
        weave.drive(answers)
        pass_time(weave, 2.1)
    assert weave.get(instance)["state"] == "SUCCEEDED"
    sources = [task.as_json()["source"] for task in tasks_of(weave, instance)]
    assert sources == [{"kind": "WORKFLOW", "id": instance.hex(), "step": "p", "round": n} for n in (1, 2, 3)]


def test_r117_a_failed_request_is_retried_within_its_round_and_no_round_gets_round_the_limit(weave: Weave) -> None:
    instance = publish(weave)

    def broken(*_: object) -> Done:
        return Done(error=ErrorClass.RETRYABLE)

    weave.drive(broken)
    pass_time(weave, 1.1)
    weave.drive(broken)
    (step,) = weave.instances.instance_steps(weave.namespace_id, instance)
    assert (step["state"], step["round"], step["error"]["code"]) == ("FAILED", 1, "BROKEN")
    (only,) = tasks_of(weave, instance)
    attempts = weave.database.transaction(lambda tx: attempts_list(tx, weave.namespace_id, only.id))
    assert [(attempt.number, attempt.state) for attempt in attempts] == [(1, "FAILED"), (2, "FAILED")]
    pass_time(weave, 3_600)
    weave.drive(broken)
    assert len(tasks_of(weave, instance)) == 1


@pytest.mark.parametrize("errors", [1, 1_000])
def test_c038_the_time_out_holds_from_the_first_round_whatever_the_checks_raise(weave: Weave, errors: int) -> None:
    """The first check raises and the others answer "not yet", or all of them raise: both end in time and say why."""
    instance = publish(weave, on_error="continue", timeout="20s")

    def checks(_step: str, round_: int, _params: Json) -> Done:
        return Done(error=ErrorClass.NON_RETRYABLE, code="AWAY") if round_ <= errors else Done({"done": False})

    for _ in range(60):
        weave.drive(checks)
        if weave.get(instance)["state"] != "RUNNING":
            break
        pass_time(weave, 1)
    (step,) = weave.instances.instance_steps(weave.namespace_id, instance)
    lasted = from_rfc3339(step["finished_at"]) - from_rfc3339(step["entered_at"])
    assert 20 * SECOND <= lasted <= 23 * SECOND
    details = step["error"]["details"]
    assert (step["state"], step["error"]["code"], details["rounds"] > 5) == ("FAILED", "POLL_EXHAUSTED", True)
    last = {"code": "AWAY", "class": "NON_RETRYABLE", "round": 1 if errors == 1 else details["rounds"]}
    assert details["last_error"] == last
    assert details["outcomes"]["FAILED"] == last["round"]


def test_r144_a_step_that_was_done_says_nothing_of_the_business_being_done(weave: Weave) -> None:
    """The bank has taken the transfer: that task has SUCCEEDED, while the instance still asks whether it is settled."""
    weave.types = ("payout.validate", "ledger.reserve", "mail.send", "bank.submit", "bank.query")
    weave.publish(PAYOUT.read_text().replace("queue: payments", "queue: main"))
    instance = weave.start("payout", {"order_id": "A-1", "amount": 9, "supplier": "acme"})
    outputs: dict[str, Json] = {"validate": {"risk": 0.1}, "submit": {"ref": "T-1"}, "settle": {"status": "PROCESSING"}}
    weave.drive(lambda step, _round, _params: Done(outputs.get(step)))
    states = weave.states(instance)
    assert (states["submit"], states["settle"]) == ("SUCCEEDED", "WAITING")
    submitted = next(task for task in tasks_of(weave, instance) if task.row.source_step == "submit")
    assert (submitted.state, weave.get(instance)["state"]) == ("SUCCEEDED", "RUNNING")
    outputs["settle"] = {"status": "REJECTED"}
    pass_time(weave, 1.1)
    weave.drive(lambda step, _round, _params: Done(outputs.get(step)))
    assert weave.states(instance)["settle"] == "FAILED"
    rows = weave.database.transaction(
        lambda tx: tx.rows(select(task_table.c.state).where(task_table.c.id == submitted.id))
    )
    assert [row.state for row in rows] == ["SUCCEEDED"], "what was done stays done"
