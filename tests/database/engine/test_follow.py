"""Instances that go on where their tasks' results are recorded; what is not plain is left to the runner."""

from collections.abc import Collection
from functools import partial
from threading import Thread

import pytest
from sqlalchemy import func, select, update

from engine.recent_outputs import RecentOutputs
from engine.store.instances import instance_lock
from engine.tables import stimulus as stimulus_table
from orbit.database import Database, Transaction
from orbit.ids import new_id
from pulse.listener import BacklogShort
from pulse.report import Outcome, Report, report
from pulse.store.lanes import LaneKey, lane_create, lanes_find
from pulse.tables import result
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

GOOD = Done({"ok": True})

READS = """
orbit: weave/1
workflow: reads
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - id: a
    task: do.a@1
    output: {type: object, required: [n], properties: {n: {type: integer}}}
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: x, task: do.x@1, input: {n: "${ steps.a.output.n }"}}]
        right: [{id: y, task: do.y@1}]
  - {id: b, task: do.b@1, input: {n: "${ steps.a.output.n + steps.x.output.n }"}}
output: {n: "${ steps.b.output.n }"}
"""

RACE = """
orbit: weave/1
workflow: race
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - id: first
    parallel:
      join: any
      branches:
        left: [{id: x, task: do.x@1}]
        right: [{id: y, task: do.y@1}]
"""


@pytest.fixture(autouse=True)
def _follow(weave: Weave) -> None:
    weave.follow()


def stimuli_count(weave: Weave) -> int:
    query = select(func.count()).select_from(stimulus_table)
    return weave.database.transaction(lambda tx: int(tx.rows(query)[0][0]))


def claimed_steps(weave: Weave) -> list[str | None]:
    return [item.task.source_step for item in weave.claim()]


def test_an_instance_runs_to_its_end_without_a_round_of_the_runner(weave: Weave) -> None:
    weave.publish(READS)
    instance = weave.start("reads")
    seen = []

    def answers(step: str, _number: int, params: object) -> Done:
        seen.append((step, params))
        return Done({"n": {"a": 3, "x": 4, "y": 5, "b": 9}[step], "long": "z" * (9000 if step == "x" else 1)})

    while weave.work(answers):
        pass
    found = weave.get(instance)
    assert (found["state"], found["output"]) == ("SUCCEEDED", {"n": 9})
    assert [step for step, _ in seen][0::3] == ["a", "b"]
    assert dict(seen)["x"] == {"n": 3}
    assert dict(seen)["b"] == {"n": 7}, "an output that is too large to be handed on is read"
    assert (weave.woken, stimuli_count(weave)) == (0, 0)
    assert weave.changed.count(instance) == 4


def test_a_small_output_that_was_recorded_here_is_not_read_again(weave: Weave) -> None:
    weave.publish(READS)
    instance = weave.start("reads")

    def answers(step: str, _number: int, _params: object) -> Done:
        return Done({"n": {"a": 3, "x": 4, "y": 5, "b": 9}[step]})

    while weave.work(answers):
        # What nobody reads may be gone.
        weave.database.transaction(lambda tx: tx.execute(update(result).values(output=None)))
    assert (weave.get(instance)["state"], weave.get(instance)["output"]) == ("SUCCEEDED", {"n": 9})


def test_what_is_remembered_of_outputs_is_bounded() -> None:
    recent = RecentOutputs()
    ids = [new_id() for _ in range(2_000)]
    for key in ids:
        recent.keep({key: key * 250})
        recent.keep({key: key * 250})
    kept = recent.found(ids)
    assert 500 < len(kept) < 1_100
    assert list(kept) == ids[-len(kept) :], "the oldest go first"
    assert all(text == key * 250 for key, text in kept.items())


def test_an_output_that_does_not_fit_fails_the_step_and_not_the_report(weave: Weave) -> None:
    weave.publish(READS)
    instance = weave.start("reads")
    assert weave.work(lambda *_: Done({"n": "three"})) == 1
    found = weave.get(instance)
    assert (found["state"], found["error"]["code"]) == ("NEEDS_RECOVERY", "OUTPUT_INVALID")


def test_what_waits_already_is_applied_first(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assignment = weave.claim()[0]
    weave.repeat_last_stimulus(instance, "nobody")
    weave.answer(assignment, GOOD)
    assert stimuli_count(weave) == 2
    assert weave.woken == 1
    weave.advance()
    kinds = [kind for kind, _ in weave.history(instance)]
    assert kinds.index("stimulus.superseded") < kinds.index("step.succeeded")
    assert claimed_steps(weave) == ["b"]


def test_a_paused_instance_is_left_to_the_runner(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assignment = weave.claim()[0]
    assert weave.pause(instance)["control"] == "PAUSING"
    weave.answer(assignment, GOOD)
    weave.advance()
    assert weave.get(instance)["control"] == "PAUSED"
    weave.resume(instance)
    weave.advance()
    assert claimed_steps(weave) == ["b"]


def test_losers_are_asked_to_stop_by_the_runner(weave: Weave) -> None:
    weave.publish(RACE)
    instance = weave.start("race")
    first, second = weave.claim()
    weave.answer(first, GOOD)
    assert stimuli_count(weave) == 1
    weave.advance()
    weave.answer(second, GOOD)
    weave.advance()
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_an_advance_that_raises_spoils_no_result(weave: Weave, monkeypatch: pytest.MonkeyPatch) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assignment = weave.claim()[0]

    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("engine.batch.advance", broken)
    weave.answer(assignment, GOOD)
    assert stimuli_count(weave) == 1
    weave.advance()
    assert weave.get(instance)["error"]["code"] == "ENGINE_ERROR"


def test_lanes_that_another_node_makes_first_are_found_when_the_transaction_runs_again(
    weave: Weave, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if weave.database.is_sqlite:
        pytest.skip("one connection holds everything")
    weave.publish(READS)
    weave.start("reads")
    assignment = weave.claim()[0]
    other = Database.open(weave.database.url.render_as_string(hide_password=False))
    found: list[int] = []

    def find(tx: Transaction, keys: Collection[LaneKey]) -> dict[LaneKey, bytes]:
        lanes = lanes_find(tx, keys)
        for key in set(keys) - lanes.keys():
            made = partial(lane_create, key=key, now=tx.now())
            worker = Thread(target=other.transaction, args=(made,))
            worker.start()
            worker.join(30)
        found.append(len(lanes))
        return lanes

    monkeypatch.setattr("pulse.submission.lanes_find", find)
    weave.answer(assignment, Done({"n": 3}))
    other.close()
    assert found == [0, 2], "the lanes were not there, then they were"
    assert (stimuli_count(weave), caplog.records) == (0, [])
    assert sorted(map(str, claimed_steps(weave))) == ["x", "y"]


def test_a_full_queue_sends_the_end_back_to_be_told(database: Database) -> None:
    weave = Weave(database)
    weave.follow()
    weave.queue(unfinished=1)
    weave.queue("other", unfinished=1)
    weave.publish(TWO_TASKS.replace("task: do.b@1", "task: do.b@1, queue: other"))
    other = TWO_TASKS.replace("workflow: two", "workflow: rival")
    weave.publish(other.replace("task: do.a@1", "task: do.a@1, queue: other"))
    rival, instance = weave.start("rival"), weave.start("two")
    claimed = {item.task.source_id: item for item in weave.claim()}
    said = Report(
        message_id=new_id(),
        attempt_id=claimed[instance].attempt_id,
        token=claimed[instance].token,
        outcome=Outcome.SUCCEEDED,
        output=b"{}",
    )
    with pytest.raises(BacklogShort):
        database.transaction(lambda tx: report(tx, [said], weave, weave.follower))
    weave.answer(claimed[instance], GOOD)
    weave.advance()
    assert weave.states(instance)["b"] == "WAITING"
    weave.answer(claimed[rival], GOOD)
    assert weave.states(rival)["b"] == "RUNNING", "its own task's place is free for the next one"
    weave.close()


def test_an_instance_that_somebody_holds_is_waited_for_by_nobody(weave: Weave) -> None:
    if weave.database.is_sqlite:
        pytest.skip("one connection holds everything")
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assignment = weave.claim()[0]
    other = Database.open(weave.database.url.render_as_string(hide_password=False))

    def hold(tx: Transaction) -> None:
        assert instance_lock(tx, weave.namespace_id, instance) is not None
        worker = Thread(target=weave.answer, args=(assignment, GOOD))
        worker.start()
        worker.join(30)
        assert not worker.is_alive()

    other.transaction(hold)
    other.close()
    assert stimuli_count(weave) == 1
    weave.advance()
    assert claimed_steps(weave) == ["b"]
