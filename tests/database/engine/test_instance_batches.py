"""Batches of instances: each decided as one alone would be, refused one by one, going on after a node's death."""

import json
from typing import Any

import pytest

from engine.instance_batches import (
    CANCEL,
    MIGRATE,
    PAUSE,
    RECOVER,
    RESUME,
    InstanceChoice,
    instance_operations,
    instances_chosen,
)
from engine.states import InstanceState
from engine.store.instances import Filter
from orbit.database import Transaction
from orbit.ids import new_id
from orbit.jsontext import Json
from pulse import limits
from pulse.batches import BatchOrder, BatchRunner, Subject, batch_create, batch_read, batch_stop, items_find
from pulse.states import BatchState, ErrorClass
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

DECISION = {"evidence": {"ticket": 7}, "safety_statement": "the bank knows none of them"}


def answers(step: str, *_: Json) -> Done:
    return Done({"of": step})


def runner_of(weave: Weave) -> BatchRunner:
    runner = BatchRunner(weave.database)
    runner.operations |= instance_operations(weave.controls, weave.recoveries, weave.migrations)
    return runner


def chosen(tx: Transaction, weave: Weave, operation: str, **fields: Any) -> list[Subject]:
    queues = fields.pop("queues", None)
    wanted = Filter(workflow="two", **fields)
    choice = InstanceChoice(weave.namespace_id, operation, None, wanted, queues, limits.BATCH_SUBJECTS_MAX + 1)
    found = instances_chosen(tx, choice, weave.advancer.flows)
    return [Subject(each.instance.id, each.instance.revision) for each in found]


def create(weave: Weave, operation: str, arguments: Json = None, **fields: Any) -> bytes:
    order = BatchOrder(
        operation=operation,
        arguments={"queues": None, **(arguments or {})},
        selection={"instances": {"workflow": "two"}},
        choose=lambda tx: chosen(tx, weave, operation, **fields),
        rate_per_second=limits.BATCH_RATE_MAX,
        reason="a test",
    )
    command = weave.command("batch.create", new_id().hex())
    return weave.database.transaction(lambda tx: batch_create(tx, command, weave.actor, order)).subject_id


def state(weave: Weave, batch_id: bytes) -> BatchState:
    row = weave.database.transaction(lambda tx: batch_read(tx, weave.namespace_id, batch_id))
    assert row is not None
    return row.state


def finish(weave: Weave, batch_id: bytes) -> dict[bytes, tuple[str, Json]]:
    """Run a batch to its end and return its items' states and outcomes by instance."""
    runner = runner_of(weave)
    while state(weave, batch_id) is BatchState.RUNNING:
        runner.run_once()
        weave.database.clock.advance(seconds_forward=1)
    items = weave.database.transaction(lambda tx: items_find(tx, batch_id, limit=1000))
    return {item.subject_id: (item.state.value, json.loads(item.outcome or "null")) for item in items}


@pytest.fixture
def started(weave: Weave) -> list[bytes]:
    weave.publish(TWO_TASKS)
    return [weave.start("two") for _ in range(4)]


def test_many_are_paused_and_resumed(weave: Weave, started: list[bytes]) -> None:
    weave.pause(started[0])
    ended = finish(weave, create(weave, PAUSE))
    assert set(ended) == set(started[1:]), "what is paused is not meant"
    assert {outcome["control"] for _, outcome in ended.values()} == {"PAUSED"}
    assert set(finish(weave, create(weave, RESUME))) == set(started)
    weave.drive(answers)
    assert {weave.get(each)["state"] for each in started} == {"SUCCEEDED"}


def test_what_moved_on_between_choice_and_turn_is_paused_all_the_same(weave: Weave, started: list[bytes]) -> None:
    batch = create(weave, PAUSE)
    weave.work(answers)
    weave.advance()
    assert {said for said, _ in finish(weave, batch).values()} == {"DONE"}


def test_what_ended_meanwhile_is_refused_alone(weave: Weave, started: list[bytes]) -> None:
    batch = create(weave, CANCEL)
    weave.drive(lambda step, *_: answers(step))
    late = weave.start("two")
    ended = finish(weave, batch)
    assert late not in ended
    assert {said for said, _ in ended.values()} == {"REFUSED"}
    assert {outcome["code"] for _, outcome in ended.values()} == {"STATE_CONFLICT"}


def test_many_are_cancelled_with_an_audit_record_for_each(weave: Weave, started: list[bytes]) -> None:
    finish(weave, create(weave, CANCEL, version=1))
    weave.advance()
    assert {weave.get(each)["state"] for each in started} == {"CANCELLED"}
    assert ("instance.cancel_requested", None) in weave.history(started[0])


def test_held_instances_are_recovered_at_the_step_that_has_failed(weave: Weave, started: list[bytes]) -> None:
    weave.drive(lambda step, *_: Done(error=ErrorClass.NON_RETRYABLE) if step == "b" else answers(step))
    batch = create(weave, RECOVER, {"action": "RETRY", **DECISION}, state=InstanceState.NEEDS_RECOVERY)
    weave.cancel(started[0])
    ended = finish(weave, batch)
    assert [ended[each][0] for each in started] == ["REFUSED", "DONE", "DONE", "DONE"]
    weave.drive(answers)
    assert [weave.get(each)["state"] for each in started] == ["CANCELLED"] + ["SUCCEEDED"] * 3
    recoveries = weave.recoveries.recoveries_list(weave.namespace_id, started[1])
    assert [each["evidence"] for each in recoveries] == [{"ticket": 7}]


def test_many_are_migrated_and_those_that_have_begun_what_differs_are_told_why(
    weave: Weave, started: list[bytes]
) -> None:
    weave.pause(started[1])  # it stays before its second step
    weave.work(answers)
    weave.advance()
    weave.publish(TWO_TASKS.replace("version: 1", "version: 2").replace("do.b@1", "do.y@1"))
    ended = finish(weave, create(weave, MIGRATE, {"version": 2}))
    assert [ended[each][0] for each in started] == ["REFUSED", "DONE", "REFUSED", "REFUSED"]
    assert [reason["step"] for reason in ended[started[0]][1]["details"]["reasons"]] == ["b"]
    weave.resume(started[1])
    weave.drive(answers)
    assert [weave.get(each)["version"] for each in started] == [1, 2, 1, 1]
    assert {weave.get(each)["state"] for each in started} == {"SUCCEEDED"}


def test_what_is_out_of_the_creators_range_is_not_chosen_and_not_done(weave: Weave, started: list[bytes]) -> None:
    here = frozenset({"main"})
    assert len(weave.database.transaction(lambda tx: chosen(tx, weave, CANCEL, queues=here))) == len(started)
    assert weave.database.transaction(lambda tx: chosen(tx, weave, CANCEL, queues=frozenset({"other"}))) == []
    ended = finish(weave, create(weave, CANCEL, {"queues": ["other"]}))
    assert {outcome["code"] for _, outcome in ended.values()} == {"NOT_FOUND"}


def test_a_batch_goes_on_after_the_death_of_the_node_that_had_begun_it(weave: Weave, started: list[bytes]) -> None:
    """A node dies with a chunk that it has taken and half done; another one does the rest, and nothing twice."""
    batch = create(weave, PAUSE)
    runner = runner_of(weave)
    done: list[bytes] = []
    operation = runner.operations[PAUSE]

    class DiesAtTheThird:
        def apply(self, tx: Transaction, order: Any, subject: Subject) -> Json:
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(subject.id)
            return operation.apply(tx, order, subject)

    runner.operations[PAUSE] = DiesAtTheThird()
    with pytest.raises(KeyboardInterrupt):
        runner.run_once()
    assert [weave.get(each)["control"] for each in started] == ["PAUSED", "PAUSED", "ACTIVE", "ACTIVE"]
    revisions = [weave.get(each)["revision"] for each in started[:2]]
    weave.database.clock.advance(seconds_forward=60)
    assert {said for said, _ in finish(weave, batch).values()} == {"DONE"}
    assert [weave.get(each)["revision"] for each in started[:2]] == revisions
    assert {weave.get(each)["control"] for each in started} == {"PAUSED"}


def test_a_stopped_batch_leaves_the_rest_alone(weave: Weave, started: list[bytes]) -> None:
    batch = create(weave, PAUSE)
    command = weave.command("batch.stop", "stop")
    weave.database.transaction(lambda tx: batch_stop(tx, command, weave.actor, batch_id=batch, reason="a test"))
    runner_of(weave).run_once()
    assert {weave.get(each)["control"] for each in started} == {"ACTIVE"}


UNDONE = TWO_TASKS.replace("do.a@1", "do.a@1, compensate: {task: do.x@1}", 1)


@pytest.mark.parametrize("more", [{}, {"compensate": True}])
def test_many_are_cancelled_and_undo_what_they_did_if_so_said(weave: Weave, more: dict[str, bool]) -> None:
    weave.publish(UNDONE)
    ids = [weave.start("two") for _ in range(3)]
    weave.work(answers)
    weave.advance()
    undone: list[str] = []

    def handlers(step: str, *_: Json) -> Done:
        undone.append(step)
        return answers(step)

    assert {said for said, _ in finish(weave, create(weave, CANCEL, more)).values()} == {"DONE"}
    weave.drive(handlers)
    assert undone == (["a.undo"] * 3 if more else [])
    assert {(weave.get(each)["state"], weave.get(each)["compensation"]) for each in ids} == {
        ("CANCELLED", "DONE" if more else None)
    }


def test_what_undoes_can_be_paused_with_the_others(weave: Weave) -> None:
    weave.publish(UNDONE)
    one = weave.start("two")
    weave.work(answers)
    weave.advance()
    weave.cancel(one, compensate=True)
    weave.advance()
    assert weave.get(one)["state"] == "COMPENSATING"
    assert set(finish(weave, create(weave, PAUSE))) == {one}
    assert weave.get(one)["control"] == "PAUSED"
