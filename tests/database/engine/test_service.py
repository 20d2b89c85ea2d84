"""What the API calls: start with receipts, read, list, history, explain, wait."""

import gevent
import pytest
from sqlalchemy import update

from definitions.tables import version
from engine.states import InstanceState
from engine.store.instances import Filter
from orbit.clock import from_rfc3339
from orbit.database import Database
from orbit.errors import (
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    StateConflict,
)
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.store.journal import EventChoice, Page, events_list
from tests.support.weave import Done, Weave

ONE = """
orbit: weave/1
workflow: one
version: 1
input: {type: object, properties: {n: {type: integer, minimum: 1}}, additionalProperties: false}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: a, task: do.a@1}
  - {id: w, wait: {for: 1m}}
output: {got: "${ steps.a.output }"}
"""


def answers(*_: object) -> Done:
    return Done({"ok": True})


def finish(weave: Weave) -> None:
    weave.drive(answers)
    weave.database.clock.advance(seconds_forward=60)
    weave.drive(answers)


def test_the_same_key_starts_one_instance(weave: Weave) -> None:
    weave.publish(ONE)
    first = weave.instances.instance_start(weave.request("one", {"n": 1}, "k1"))
    again = weave.instances.instance_start(weave.request("one", {"n": 1}, "k1"))
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again.subject_id == first.subject_id
    assert again.data == first.data
    with pytest.raises(IdempotencyConflict):
        weave.instances.instance_start(weave.request("one", {"n": 2}, "k1"))
    assert len(weave.instances.instances_list(weave.namespace_id, Filter()).instances) == 1


def test_the_same_key_at_the_same_time_starts_one_instance(weave: Weave) -> None:
    weave.publish(ONE)
    requests = [weave.request("one", {"n": 1}, "k1") for _ in range(4)] + [weave.request("one", {"n": 2}, "k2")]
    jobs = [gevent.spawn(weave.instances.instance_start, request) for request in requests]
    found = [job.get() for job in jobs]
    assert len({answer.subject_id for answer in found[:4]}) == 1
    assert sorted(answer.deduplicated for answer in found[:4]) == [False, True, True, True]
    assert found[4].subject_id != found[0].subject_id


def test_a_replay_wins_over_every_later_refusal(weave: Weave) -> None:
    weave.publish(ONE)
    first = weave.instances.instance_start(weave.request("one", {"n": 1}, "k1"))
    finish(weave)
    again = weave.instances.instance_start(weave.request("one", {"n": 1}, "k1"))
    assert again.data == first.data
    assert weave.get(first.subject_id)["state"] == "SUCCEEDED"


def test_a_refused_start_leaves_nothing_behind(weave: Weave) -> None:
    weave.publish(ONE)
    with pytest.raises(InvalidRequest) as refused:
        weave.instances.instance_start(weave.request("one", {"n": 0}, "k1"))
    assert refused.value.pointer == "/input/n"
    with pytest.raises(NotFound):
        weave.start("two")
    with pytest.raises(NotFound):
        weave.start("one", version=7)
    with pytest.raises(PayloadTooLarge):
        weave.start("one", {"n": 1, "text": "x" * 70_000})
    assert weave.instances.instances_list(weave.namespace_id, Filter()).instances == []
    # The same key may be sent again, corrected.
    assert not weave.instances.instance_start(weave.request("one", {"n": 1}, "k1")).deduplicated


def test_one_bad_start_of_a_batch_fails_alone(weave: Weave) -> None:
    weave.publish(ONE)
    requests = [weave.request("one", {"n": number}) for number in (1, 0, 2)]
    jobs = [gevent.spawn(weave.instances.instance_start, request) for request in requests]
    gevent.joinall(jobs)
    assert [isinstance(job.exception, InvalidRequest) for job in jobs] == [False, True, False]


def test_the_first_tasks_exist_when_the_start_is_answered(weave: Weave) -> None:
    weave.publish(ONE)
    weave.start("one", {"n": 1})
    assert weave.work(answers) == 1


def test_an_instance_keeps_the_queue_range_of_its_starter(weave: Weave) -> None:
    weave.publish(ONE)
    inside = weave.start("one", {"n": 1}, queues=frozenset({"main", "other"}))
    outside = weave.start("one", {"n": 1}, queues=frozenset({"other"}))
    finish(weave)
    assert weave.get(inside)["state"] == "SUCCEEDED"
    found = weave.get(outside)
    assert found["state"] == "NEEDS_RECOVERY"
    assert found["error"]["code"] == "NOT_FOUND"


def test_a_full_queue_makes_the_step_wait_and_say_so(database: Database) -> None:
    weave = Weave(database)
    weave.queue(unfinished=1)
    weave.publish(ONE)
    first, second = weave.start("one", {"n": 1}), weave.start("one", {"n": 1})
    assert weave.states(second)["a"] == "WAITING"
    told = weave.instances.instance_explain(weave.namespace_id, second)
    assert told["waits_for"][0]["kind"] == "QUEUE_FULL"
    assert told["waits_for"][0]["queue"] == "main"
    weave.drive(answers)
    is_due = from_rfc3339(told["waits_for"][0]["until"]) <= database.transaction(lambda tx: tx.now())
    assert is_due or weave.states(second)["a"] == "WAITING", "it tries again in its own time"
    database.clock.advance(seconds_forward=2)
    weave.drive(answers)
    assert weave.states(second)["a"] == "SUCCEEDED"
    database.clock.advance(seconds_forward=60)
    weave.drive(answers)
    assert [weave.get(instance)["state"] for instance in (first, second)] == ["SUCCEEDED"] * 2
    weave.close()


def test_a_queue_that_stays_full_fails_the_step_in_the_end(database: Database) -> None:
    weave = Weave(database)
    weave.queue(unfinished=1)
    weave.publish(ONE)
    weave.start("one", {"n": 1})
    second = weave.start("one", {"n": 1})
    for _ in range(25):
        weave.advance()
        database.clock.advance(seconds_forward=30)
    assert weave.get(second)["error"]["code"] == "START_DEADLINE_EXCEEDED"
    weave.close()


def test_lists_filter_and_their_cursor_is_stable(weave: Weave) -> None:
    weave.publish(ONE)
    weave.publish(ONE.replace("version: 1", "version: 2"))
    started = [weave.start("one", {"n": 1}, version=1, business_key=f"B{number % 2}") for number in range(5)]
    newer = weave.start("one", {"n": 1})

    def ids(**wanted: Json) -> list[str]:
        listed = weave.instances.instances_list(weave.namespace_id, Filter(**wanted)).instances
        return [entry["id"] for entry in listed]

    assert len(ids()) == 6
    assert ids(version=2) == [newer.hex()]
    assert set(ids(business_key="B1")) == {started[1].hex(), started[3].hex()}
    assert ids(workflow="other") == []
    assert len(ids(workflow="one", state=InstanceState.RUNNING)) == 6
    assert ids(state=InstanceState.FAILED) == []
    seen: list[str] = []
    place = None
    for _ in range(4):
        page = weave.instances.instances_list(weave.namespace_id, Filter(), after=place, limit=2)
        seen += [entry["id"] for entry in page.instances]
        place = page.next_place
        weave.start("one", {"n": 1})
        if place is None:
            break
    assert seen == ids()[-6:], "what is started meanwhile moves no page"
    assert place is None or seen[-1] == started[0].hex()


def test_the_history_is_read_in_pages_in_order(weave: Weave) -> None:
    weave.publish(ONE)
    instance = weave.start("one", {"n": 1})
    finish(weave)
    whole = weave.instances.instance_history(weave.namespace_id, instance).entries
    assert [(entry["type"], entry["step"]) for entry in whole] == [
        ("instance.started", None),
        ("step.submitted", "a"),
        ("step.succeeded", "a"),
        ("step.waiting", "w"),
        ("step.succeeded", "w"),
        ("instance.succeeded", None),
    ]
    paged: list[Json] = []
    after = 0
    while True:
        page = weave.instances.instance_history(weave.namespace_id, instance, after_revision=after, limit=1)
        paged += page.entries
        if page.next_revision is None:
            break
        after = page.next_revision
    assert paged == whole


def test_another_namespace_finds_nothing(weave: Weave) -> None:
    weave.publish(ONE)
    instance = weave.start("one", {"n": 1})
    other = bytes(15) + b"\x01"
    for read in (
        weave.instances.instance_get,
        weave.instances.instance_steps,
        weave.instances.instance_history,
        weave.instances.instance_explain,
    ):
        with pytest.raises(NotFound):
            read(other, instance)
    assert weave.instances.instances_list(other, Filter()).instances == []


def test_a_reader_waits_for_the_next_revision(weave: Weave) -> None:
    weave.publish(ONE)
    instance = weave.start("one", {"n": 1})
    revision = int(weave.get(instance)["revision"])
    job = gevent.spawn(
        weave.instances.instance_get, weave.namespace_id, instance, wait_seconds=20.0, after_revision=revision
    )
    job.join(timeout=0.05)
    assert not job.ready()
    weave.drive(answers)
    found = job.get(timeout=60)
    assert int(found["revision"]) > revision


def test_a_reader_of_an_ended_instance_does_not_wait(weave: Weave) -> None:
    weave.publish(ONE)
    instance = weave.start("one", {"n": 1})
    finish(weave)
    found = weave.instances.instance_get(weave.namespace_id, instance, wait_seconds=20.0)
    assert (found["state"], found["output"]) == ("SUCCEEDED", {"got": {"ok": True}})
    stale = weave.instances.instance_get(weave.namespace_id, instance, wait_seconds=20.0, after_revision=10_000)
    assert stale == found


def test_who_waits_for_an_end_sleeps_through_the_way_there(weave: Weave) -> None:
    instance, watchers = new_id(), weave.watchers
    with watchers.watch(instance, awaits_end=True) as end, watchers.watch(instance) as change:
        watchers.instances_moved([instance])
        assert (end.wait(1, 0.0), change.wait(1, 0.0)) == (False, True)
        watchers.instances_changed([instance])
        assert (end.wait(1, 0.0), change.wait(1, 0.0)) == (True, True)


def test_a_workflow_that_is_retired_takes_no_starts(weave: Weave) -> None:
    weave.publish(ONE)
    first = weave.start("one", {"n": 1})
    retire(weave)
    with pytest.raises(StateConflict):
        weave.start("one", {"n": 1})
    finish(weave)
    assert weave.get(first)["state"] == "SUCCEEDED", "a running instance goes on"


def retire(weave: Weave) -> None:
    statement = update(version).values(state="RETIRED")
    weave.database.transaction(lambda tx: tx.execute(statement))


def test_what_becomes_of_an_instance_is_an_event(weave: Weave) -> None:
    weave.publish(ONE)
    good, bad = weave.start("one", {"n": 1}), weave.start("one", {"n": 1}, queues=frozenset())
    finish(weave)

    def events_of(instance: bytes) -> list[tuple[str, Json]]:
        page = Page(100)
        found = weave.database.transaction(
            lambda tx: events_list(tx, weave.namespace_id, page, EventChoice(subject_id=instance))
        )
        return sorted((event.type, event.subject_revision) for event in found.rows)

    assert events_of(good) == [("instance.started", 1), ("instance.succeeded", 3)]
    assert [kind for kind, _ in events_of(bad)] == ["instance.needs_recovery", "instance.started"]


def test_the_explanation_of_a_task_says_what_pulse_says_of_it(weave: Weave) -> None:
    weave.publish(ONE)
    instance = weave.start("one", {"n": 1})
    (reason,) = weave.instances.instance_explain(weave.namespace_id, instance)["waits_for"]
    assert (reason["kind"], reason["task_state"], reason["wait_reason"]) == ("TASK", "WAITING", "NO_COMPATIBLE_WORKER")
    assert "NO_COMPATIBLE_WORKER" in reason["text"]
    weave.claim()
    (reason,) = weave.instances.instance_explain(weave.namespace_id, instance)["waits_for"]
    assert (reason["task_state"], reason["wait_reason"]) == ("RUNNING", None)
