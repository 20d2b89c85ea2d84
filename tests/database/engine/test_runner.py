"""Instances on a real database: from start to end, timers, crashes, engine errors."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from definitions.graph import Graph
from definitions.graph_json import UnknownGraphFormat
from engine.advance import advance
from engine.batch import Advancer
from engine.command import Commands
from engine.flow import Flow
from engine.instance import Instance
from engine.listener import InstanceListener
from engine.ports import Flows
from engine.pulse_tasks import PulseTasks
from engine.runner import Runner
from engine.states import StepState
from engine.stimulus import Outcome, Stimulus, TaskEnded
from engine.store.steps import steps_load
from engine.store.stimuli import stimuli_insert
from engine.tables import stimulus as stimulus_table
from orbit.database import Transaction
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.support.waiting import wait_until
from tests.support.weave import Done, Weave

PAYOUT = """
orbit: weave/1
workflow: payout
version: 1
input: {type: object, required: [amount], properties: {amount: {type: number}}}
timeout: 3d
defaults: {queue: main, start_within: 1h}
steps:
  - id: a
    task: do.a@1
    input: {amount: "${ input.amount }"}
  - id: route
    branch:
      - when: steps.a.output.risk > 5
        steps: [{id: cool, wait: {for: 10m}}]
      - else: []
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: x, task: do.x@1}]
        right: [{id: y, task: do.y@1}]
  - id: p
    poll: {task: ask.p@1, input: {ref: "${ steps.x.output.ref }"}, done_when: output.status == 'DONE',
           every: 30s, max_rounds: 10, timeout: 1d}
  - id: sum
    set: {total: "${ double(input.amount) * 2.0 }"}
output: {total: "${ steps.sum.output.total }", at: "${ steps.p.output.at }"}
"""


def answers(_step: str, _round: int, params: Json) -> Done:
    return Done(
        {"risk": params.get("amount", 0) if isinstance(params, dict) else 0, "ref": "r1", "status": "DONE", "at": 3}
    )


def test_an_instance_goes_from_start_to_end(weave: Weave) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 7.5}, business_key="B-1", labels={"team": "money"})
    weave.drive(answers)
    assert weave.states(instance)["cool"] == "WAITING"
    weave.database.clock.advance(seconds_forward=600)
    weave.drive(answers)
    found = weave.get(instance)
    assert found["state"] == "SUCCEEDED"
    assert found["output"] == {"total": 15.0, "at": 3}
    assert found["input"] == {"amount": 7.5}
    assert (found["business_key"], found["labels"]) == ("B-1", {"team": "money"})
    assert set(weave.states(instance).values()) == {"SUCCEEDED"}
    kinds = [kind for kind, _ in weave.history(instance)]
    assert (kinds[0], kinds[-1]) == ("instance.started", "instance.succeeded")


def test_rounds_of_a_poll_are_tasks_of_their_own(weave: Weave) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 1})
    asked: list[int] = []

    def handlers(step: str, number: int, params: Json) -> Done:
        if step == "p":
            assert params == {"ref": "r1"}
            asked.append(number)
        return Done({"risk": 0, "ref": "r1", "status": "DONE" if number == 3 else "NEW", "at": number})

    for _ in range(5):
        weave.drive(handlers)
        weave.database.clock.advance(seconds_forward=30)
    assert asked == [1, 2, 3]
    assert weave.get(instance)["output"]["at"] == 3
    poll = weave.instances.instance_steps(weave.namespace_id, instance)[-2]
    assert poll["rounds"]["counts"] == {"PROCESSING": 2, "DONE": 1}
    tasks = [entry["task_id"] for entry in poll["rounds"]["first"]]
    assert len(set(tasks)) == 3
    assert poll["task_id"] == tasks[-1]


def test_a_failed_task_holds_the_instance_and_says_so(weave: Weave) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 1})

    broken = Done(error=ErrorClass.NON_RETRYABLE, code="NO_LEDGER")
    weave.drive(lambda step, _round, _params: broken if step == "x" else Done({"risk": 0}))
    found = weave.get(instance)
    assert found["state"] == "NEEDS_RECOVERY"
    assert found["error"]["code"] == "NO_LEDGER"
    assert found["error"]["details"]["step"] == "x"
    told = weave.instances.instance_explain(weave.namespace_id, instance)
    assert told["waits_for"][0]["kind"] == "RECOVERY"


def test_an_unknown_outcome_is_waited_for(weave: Weave) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 1})
    weave.drive(lambda *_: Done(error=ErrorClass.UNKNOWN_OUTCOME))
    assert weave.states(instance)["a"] == "NEEDS_REVIEW"
    assert weave.get(instance)["state"] == "RUNNING"
    told = weave.instances.instance_explain(weave.namespace_id, instance)
    assert told["waits_for"][0]["kind"] == "REVIEW"
    weave.database.clock.advance(seconds_forward=30 * 86_400)
    weave.drive(answers)
    assert weave.states(instance)["a"] == "NEEDS_REVIEW", "a review has no time limit"


def test_an_instance_that_times_out_stops_its_tasks_and_ends(weave: Weave) -> None:
    weave.publish(PAYOUT.replace("timeout: 3d", "timeout: 2d"))
    instance = weave.start("payout", {"amount": 1})
    weave.drive(lambda *_: None)
    weave.database.clock.advance(seconds_forward=2 * 86_400)
    weave.advance()
    found = weave.get(instance)
    assert found["state"] == "ENDING"
    assert found["error"]["code"] == "INSTANCE_TIMED_OUT"
    assert "asked to stop" in weave.instances.instance_explain(weave.namespace_id, instance)["summary"]


def test_a_waiting_task_of_an_ended_instance_is_cancelled(weave: Weave) -> None:
    weave.publish(PAYOUT.replace("timeout: 3d", "timeout: 2d"))
    instance = weave.start("payout", {"amount": 1})
    weave.database.clock.advance(seconds_forward=2 * 86_400)
    weave.advance()
    assert weave.get(instance)["state"] == "FAILED"
    assert weave.states(instance)["a"] == "CANCELLED"
    assert weave.work(answers) == 0


def test_another_runner_goes_on_where_one_has_died(weave: Weave) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 1})
    weave.work(answers)
    weave.runner = Runner(weave.database, weave.advancer)
    weave.drive(answers)
    weave.runner = Runner(weave.database, weave.advancer)
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_many_instances_go_in_one_batch_with_few_statements(weave: Weave) -> None:
    weave.publish(PAYOUT)
    started = [weave.start("payout", {"amount": 1}) for _ in range(40)]
    assert weave.work(answers) == 40
    before = dict(weave.database.counts)
    weave.runner.due_in(0)
    assert weave.runner.run_once() == 40
    counts = weave.database.counts
    assert counts["transactions"] - before["transactions"] == 1
    assert counts["statements"] - before["statements"] < 40
    weave.drive(answers)
    assert {weave.get(instance)["state"] for instance in started} == {"SUCCEEDED"}


def break_advance(monkeypatch: pytest.MonkeyPatch, bad: bytes) -> None:
    """Plant a bug that only one instance meets."""

    def buggy(flow: Flow, instance: Instance, stimuli: Sequence[Stimulus], now: int) -> tuple[Instance, Commands]:
        if instance.id == bad:
            raise ZeroDivisionError("planted")
        return advance(flow, instance, stimuli, now)

    monkeypatch.setattr("engine.batch.advance", buggy)


def stimuli_of(weave: Weave, *, held: bool) -> list[bytes]:
    query = select(stimulus_table.c.instance_id).where(stimulus_table.c.held == held)
    return [row.instance_id for row in weave.database.transaction(lambda tx: tx.rows(query))]


def test_an_engine_error_sets_one_instance_aside_and_loses_nothing(
    weave: Weave, monkeypatch: pytest.MonkeyPatch
) -> None:
    weave.publish(PAYOUT)
    good, bad = weave.start("payout", {"amount": 1}), weave.start("payout", {"amount": 1})
    break_advance(monkeypatch, bad)
    weave.drive(answers)
    assert weave.get(good)["state"] == "SUCCEEDED"
    found = weave.get(bad)
    assert found["state"] == "NEEDS_RECOVERY"
    assert found["error"]["code"] == "ENGINE_ERROR"
    assert "planted" in found["error"]["message"]
    assert stimuli_of(weave, held=True) == [bad]
    assert stimuli_of(weave, held=False) == []


def test_what_comes_for_an_instance_set_aside_is_kept_and_not_applied(
    weave: Weave, monkeypatch: pytest.MonkeyPatch
) -> None:
    weave.publish(PAYOUT)
    bad = weave.start("payout", {"amount": 1})
    weave.drive(lambda step, number, params: answers(step, number, params) if step == "a" else None)
    (left, right) = weave.database.transaction(lambda tx: running_of(tx, bad))
    assert left != right
    break_advance(monkeypatch, bad)
    weave.database.clock.advance(seconds_forward=5 * 86_400)
    weave.advance()
    revision = weave.get(bad)["revision"]
    monkeypatch.undo()
    weave.database.transaction(lambda tx: stimuli_insert(tx, [(bad, TaskEnded("x", 1, Outcome.SUCCEEDED))]))
    assert weave.advance() == 0
    assert stimuli_of(weave, held=True) == [bad]
    assert weave.get(bad)["revision"] == revision


def running_of(tx: Transaction, instance_id: bytes) -> list[bytes]:
    steps = steps_load(tx, [instance_id])[instance_id].values()
    return [step.task_id for step in steps if step.state is StepState.RUNNING and step.task_id is not None]


def test_a_batch_that_fails_in_the_database_is_split_down_to_the_one(
    weave: Weave, monkeypatch: pytest.MonkeyPatch
) -> None:
    weave.publish(PAYOUT)
    started = [weave.start("payout", {"amount": 1}) for _ in range(5)]
    bad = started[2]
    weave.work(answers)

    def oversized(flow: Flow, instance: Instance, stimuli: Sequence[Stimulus], now: int) -> tuple[Instance, Commands]:
        after, commands = advance(flow, instance, stimuli, now)
        if instance.id == bad:
            # Refused by a constraint of the table, so it is the whole transaction that fails.
            after = replace(after, revision=-1)
        return after, commands

    monkeypatch.setattr("engine.batch.advance", oversized)
    weave.drive(answers)
    states = [weave.get(instance)["state"] for instance in started]
    assert states == ["SUCCEEDED", "SUCCEEDED", "NEEDS_RECOVERY", "SUCCEEDED", "SUCCEEDED"]
    assert stimuli_of(weave, held=True) == [bad]


def test_an_instance_of_a_newer_node_is_left_to_it(weave: Weave, monkeypatch: pytest.MonkeyPatch) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 1})
    weave.work(answers)

    def newer(*_: object) -> Graph:
        raise UnknownGraphFormat(2)

    old = Runner(weave.database, Advancer(Flows(newer), PulseTasks(weave)))
    old.due_in(0)
    assert old.run_once() == 0
    assert weave.get(instance)["state"] == "RUNNING"
    assert stimuli_of(weave, held=False) == [instance]
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_the_loop_runs_by_itself_and_stops(weave: Weave) -> None:
    weave.publish(PAYOUT.replace("every: 30s", "every: 200ms"))
    weave.listeners[:] = [InstanceListener(weave.runner.wake)]
    instance = weave.start("payout", {"amount": 1})
    weave.runner.start()

    def handlers(_step: str, number: int, _params: Json) -> Done:
        return Done({"risk": 0, "ref": "r", "status": "NEW" if number < 3 else "DONE", "at": number})

    def is_over() -> bool:
        weave.work(handlers)
        return bool(weave.get(instance)["state"] == "SUCCEEDED")

    wait_until(is_over)
    weave.runner.stop()
    assert weave.changed.count(instance) >= 5


def test_the_loop_outlives_whatever_happens_in_a_round(weave: Weave, monkeypatch: pytest.MonkeyPatch) -> None:
    weave.publish(PAYOUT)
    instance = weave.start("payout", {"amount": 1})
    weave.work(answers)
    failed: list[int] = []

    def failing(*_: object, **__: object) -> None:
        failed.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr("engine.runner.stimuli_probe", failing)
    assert weave.runner.run_once() == 0
    assert failed
    monkeypatch.undo()
    weave.drive(answers)
    assert weave.get(instance)["state"] == "SUCCEEDED"
