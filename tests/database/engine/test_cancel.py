"""Cancel: from every unfinished state to CANCELLED, once, audited; never for what has ended otherwise."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from engine.instance import Instance
from orbit.errors import NotFound, StateConflict
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.store.journal import Page, audit_list
from orbit.tables import event
from pulse.states import ErrorClass
from pulse.tables import task
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

WAITS = TWO_TASKS.replace("workflow: two", "workflow: waits").replace(
    "{id: b, task: do.b@1}", "{id: b, wait: {for: 10m}}"
)


def answers(*_: object) -> Done:
    return Done({"ok": True})


def unfinished(weave: Weave) -> list[str]:
    rows = weave.database.transaction(lambda tx: tx.rows(select(task.c.state).where(task.c.finished_at.is_(None))))
    return [row.state for row in rows]


def test_a_waiting_task_is_cancelled_at_once_and_the_instance_ends(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    assert weave.cancel(instance, key="k")["state"] == "ENDING"
    weave.advance()
    found = weave.get(instance)
    assert (found["state"], found["error"]) == ("CANCELLED", {"code": "CANCELLED", "message": "a test wants it"})
    assert weave.states(instance) == {"a": "CANCELLED", "b": "CANCELLED"}
    assert unfinished(weave) == []
    assert weave.work(answers) == 0
    replayed = weave.controls.instance_cancel(weave.order("instance.cancel", instance, key="k"))
    assert (replayed.deduplicated, replayed.data["instance"]["state"]) == (True, "ENDING")
    (record,) = weave.database.transaction(lambda tx: audit_list(tx, weave.namespace_id, Page(10)))[:1]
    assert (record.operation, record.subject_id, record.reason) == ("instance.cancel", instance, "a test wants it")
    assert '"RUNNING"' in str(record.before)
    assert '"ENDING"' in str(record.after)


def test_a_running_task_is_asked_to_stop_and_waited_for(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    (assignment,) = weave.claim()
    told = weave.cancel(instance)
    assert (told["state"], told["ending_as"]) == ("ENDING", "CANCELLED")
    revision = told["revision"]
    assert weave.cancel(instance)["revision"] == revision, "cancelling again changes nothing"
    weave.advance()
    assert weave.get(instance)["state"] == "ENDING"
    weave.answer(assignment, Done({"ok": True}))
    weave.advance()
    assert weave.get(instance)["state"] == "CANCELLED"
    assert weave.states(instance) == {"a": "SUCCEEDED", "b": "CANCELLED"}, "a success that came anyway is kept"
    assert weave.cancel(instance)["state"] == "CANCELLED"


def test_a_wait_ends_in_the_request_itself(weave: Weave) -> None:
    weave.publish(WAITS)
    instance = weave.start("waits")
    weave.drive(answers)
    assert weave.states(instance)["b"] == "WAITING"
    assert weave.cancel(instance)["state"] == "CANCELLED"
    weave.database.clock.advance(seconds_forward=3600)
    assert weave.advance() == 0


def test_an_instance_that_needs_recovery_can_be_cancelled(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
    assert weave.cancel(instance)["state"] == "CANCELLED"
    assert weave.states(instance) == {"a": "FAILED", "b": "CANCELLED"}


def test_an_instance_with_an_open_review_ends_after_it(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(lambda *_: Done(error=ErrorClass.UNKNOWN_OUTCOME))
    assert weave.cancel(instance)["state"] == "ENDING"
    weave.advance()
    assert weave.get(instance)["state"] == "ENDING"
    assert weave.states(instance)["a"] == "NEEDS_REVIEW"
    told = weave.instances.instance_explain(weave.namespace_id, instance)
    assert told["waits_for"][0]["kind"] == "REVIEW"


def test_an_end_that_is_on_its_way_becomes_a_cancel(weave: Weave) -> None:
    weave.publish(TWO_TASKS.replace("timeout: 1d", "timeout: 2h"))
    instance = weave.start("two")
    (assignment,) = weave.claim()
    weave.database.clock.advance(seconds_forward=2 * 3600)
    weave.advance()
    assert weave.get(instance)["ending_as"] == "FAILED"
    assert weave.cancel(instance)["ending_as"] == "CANCELLED"
    weave.answer(assignment, Done({"ok": True}))
    weave.advance()
    assert weave.get(instance)["state"] == "CANCELLED"


def test_what_an_engine_error_has_set_aside_is_applied_after_a_cancel(
    weave: Weave, monkeypatch: pytest.MonkeyPatch
) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.work(answers)

    def broken(*_: object) -> tuple[Instance, object]:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("engine.batch.advance", broken)
    weave.advance()
    assert weave.get(instance)["error"]["code"] == "ENGINE_ERROR"
    with pytest.raises(ZeroDivisionError):
        weave.cancel(instance)
    assert weave.get(instance)["error"]["code"] == "ENGINE_ERROR", "a command that fails changes nothing"
    monkeypatch.undo()
    assert weave.cancel(instance)["state"] == "ENDING"
    weave.advance()
    assert weave.get(instance)["state"] == "CANCELLED"
    assert weave.states(instance) == {"a": "SUCCEEDED", "b": "CANCELLED"}


def test_what_has_ended_is_not_cancelled(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.drive(answers)
    before = weave.get(instance)
    with pytest.raises(StateConflict) as refused:
        weave.cancel(instance)
    assert refused.value.details == {"state": "SUCCEEDED", "current_revision": before["revision"]}
    assert weave.get(instance) == before
    for missing in (new_id(), weave.start("two")):
        with pytest.raises(NotFound):
            weave.cancel(missing, queues=frozenset({"other"}))


def test_a_stale_revision_is_told_the_current_one(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    weave.work(answers)
    weave.advance()
    current = weave.get(instance)["revision"]
    with pytest.raises(StateConflict) as refused:
        weave.cancel(instance, expected_revision=1)
    assert refused.value.details == {"state": "RUNNING", "current_revision": current}
    assert weave.get(instance)["state"] == "RUNNING"
    assert weave.cancel(instance, expected_revision=int(current))["state"] == "ENDING"


def test_of_many_operators_at_once_one_cancels(weave: Weave) -> None:
    weave.publish(TWO_TASKS)
    instance = weave.start("two")
    revision = int(weave.get(instance)["revision"])
    orders = [weave.order("instance.cancel", instance, expected_revision=revision) for _ in range(8)]

    def run(index: int) -> Json:
        try:
            return weave.controls.instance_cancel(orders[index]).data["instance"]["state"]
        except StateConflict as conflict:
            return (conflict.details or {})["current_revision"]

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(run, range(8)))
    assert sorted(told, key=str) == [str(revision + 1)] * 7 + ["ENDING"]


@pytest.mark.parametrize("first", ["result", "cancel"])
def test_cancel_and_completion_have_one_winner(weave: Weave, first: str) -> None:
    weave.publish(TWO_TASKS.replace("  - {id: b, task: do.b@1}\n", ""))
    instance = weave.start("two")
    (assignment,) = weave.claim()
    if first == "cancel":
        weave.cancel(instance)
        weave.answer(assignment, Done())
    else:
        weave.answer(assignment, Done())
        weave.advance()
        with pytest.raises(StateConflict):
            weave.cancel(instance)
    weave.advance()
    assert weave.get(instance)["state"] == ("CANCELLED" if first == "cancel" else "SUCCEEDED")
    assert unfinished(weave) == []
    assert ends(weave, instance) == [f"instance.{weave.get(instance)['state'].lower()}"]


def ends(weave: Weave, instance: bytes) -> Sequence[str]:
    rows = weave.database.transaction(lambda tx: tx.rows(select(event.c.type).where(event.c.subject_id == instance)))
    return [row.type for row in rows if row.type in {"instance.succeeded", "instance.failed", "instance.cancelled"}]
