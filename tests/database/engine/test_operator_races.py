"""Operators against progress and against each other: exactly one wins, the other learns where the instance is now.

Each pair is run in both orders one after the other and, several times, at once from two nodes. What is checked is the
same each time: no answer but success and 409 with the current revision, and nothing half done.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import select

from engine.states import Action
from engine.store.instances import Filter
from engine.tables import stimulus
from orbit.errors import StateConflict
from orbit.jsontext import Json
from orbit.store.journal import Page, audit_list
from pulse.claim import Assignment
from pulse.states import ErrorClass
from pulse.tables import gate, task
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

ONE = """
orbit: weave/1
workflow: one
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
  - {id: a, task: do.a@1}
output: {by: "${ default(steps.a.output.by, 'nobody') }"}
"""
AT_ONCE = int(os.environ.get("ORBIT_RACES", "6"))
ORDERS = ["first", "last", *(["at once"] * AT_ONCE)]
UNKNOWN = Done(error=ErrorClass.UNKNOWN_OUTCOME)
BROKEN = Done(error=ErrorClass.NON_RETRYABLE)

_OF_ONE = Filter(workflow="one")

Said = Json | StateConflict


@pytest.fixture
def nodes(weave: Weave) -> Iterator[tuple[Weave, Weave]]:
    """Two nodes over one database."""
    weave.publish(ONE)
    other = Weave(weave.database, beside=weave)
    yield weave, other
    other.close()


def race(order: str, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Said, Said]:
    """Run two things in an order, or as nearly at once as two threads can; give what each came to."""
    if order == "first":
        return said(first), said(second)
    if order == "last":
        later = said(second)
        return said(first), later
    barrier = Barrier(2)

    def together(what: Callable[[], Any]) -> Said:
        barrier.wait(30)
        return said(what)

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(together, what) for what in (first, second)]
        return both[0].result(), both[1].result()


def said(what: Callable[[], Any]) -> Said:
    try:
        return what()
    except StateConflict as conflict:
        return conflict


def operations(weave: Weave, instance: bytes) -> list[str]:
    records = weave.database.transaction(lambda tx: audit_list(tx, weave.namespace_id, Page(200)))
    return sorted(record.operation for record in records if record.subject_id == instance)


def check_whole(weave: Weave, instance: bytes) -> None:
    """Nothing is half done: the views agree, an ended instance has left nothing behind, and its gate is as it is."""
    found = weave.get(instance)
    shown = list(weave.instances.instances_list(weave.namespace_id, _OF_ONE).instances)
    (listed,) = [each for each in shown if each["id"] == instance.hex()]
    assert {name: listed[name] for name in ("state", "control", "revision")} == {
        name: found[name] for name in ("state", "control", "revision")
    }
    rows = weave.database.transaction(
        lambda tx: tx.rows(select(task.c.state).where(task.c.source_id == instance, task.c.finished_at.is_(None)))
    )
    if found["finished_at"] is not None:
        assert (found["control"], list(rows)) == ("ACTIVE", [])
        left = weave.database.transaction(
            lambda tx: tx.rows(select(stimulus.c.kind).where(stimulus.c.instance_id == instance))
        )
        assert list(left) == []
    gates = weave.database.transaction(lambda tx: tx.rows(select(gate.c.is_open).where(gate.c.id == instance)))
    assert any(not row.is_open for row in gates) == (found["control"] != "ACTIVE")


def check_loser(weave: Weave, instance: bytes, conflict: StateConflict) -> None:
    assert conflict.details is not None
    assert conflict.details["current_revision"].isdecimal()
    assert int(conflict.details["current_revision"]) <= int(weave.get(instance)["revision"])
    if weave.get(instance)["finished_at"] is not None and conflict.details["state"] in {"SUCCEEDED", "CANCELLED"}:
        assert conflict.details["current_revision"] == weave.get(instance)["revision"]


def running(weave: Weave, workflow: str = "one") -> tuple[bytes, Assignment, int]:
    instance = weave.start(workflow)
    (assignment,) = weave.claim()
    return instance, assignment, int(weave.get(instance)["revision"])


def finisher(weave: Weave, assignment: Assignment, done: Done) -> Callable[[], None]:
    def finish() -> None:
        weave.answer(assignment, done)
        weave.advance()

    return finish


@pytest.mark.requirement("R224")
@pytest.mark.parametrize("order", ORDERS)
def test_a_pause_races_the_completion(nodes: tuple[Weave, Weave], order: str) -> None:
    weave, other = nodes
    instance, assignment, revision = running(weave)
    paused, _ = race(
        order,
        lambda: other.pause(instance, expected_revision=revision),
        finisher(weave, assignment, Done({"by": "worker"})),
    )
    weave.advance()
    found = weave.get(instance)
    if isinstance(paused, StateConflict):
        check_loser(weave, instance, paused)
        assert (found["state"], "instance.pause" in operations(weave, instance)) == ("SUCCEEDED", False)
    else:
        assert (found["state"], found["control"]) == ("RUNNING", "PAUSED"), "the result is kept"
        check_whole(weave, instance)
        weave.resume(instance)
        weave.advance()
    assert weave.get(instance)["output"] == {"by": "worker"}
    check_whole(weave, instance)
    assert order != "first" or not isinstance(paused, StateConflict)
    assert order != "last" or isinstance(paused, StateConflict)


@pytest.mark.parametrize("order", ORDERS)
def test_a_cancel_races_the_completion(nodes: tuple[Weave, Weave], order: str) -> None:
    weave, other = nodes
    instance, assignment, _ = running(weave)
    cancelled, _ = race(order, lambda: other.cancel(instance), finisher(weave, assignment, Done({"by": "worker"})))
    weave.advance()
    found = weave.get(instance)
    if isinstance(cancelled, StateConflict):
        check_loser(weave, instance, cancelled)
        assert cancelled.details == {"state": "SUCCEEDED", "current_revision": found["revision"]}
        assert (found["state"], found["output"]) == ("SUCCEEDED", {"by": "worker"})
    else:
        assert (found["state"], found["output"]) == ("CANCELLED", None)
        assert weave.states(instance) == {"a": "SUCCEEDED"}, "the effect is there, and is said"
    assert ("instance.cancel" in operations(weave, instance)) == (found["state"] == "CANCELLED")
    check_whole(weave, instance)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("action", [Action.COMPLETE, Action.RETRY])
def test_a_recovery_races_a_late_result(nodes: tuple[Weave, Weave], order: str, action: Action) -> None:
    """The attempt's time is over and its task under review, when its worker answers after all."""
    weave, other = nodes
    weave.publish(ONE.replace("version: 1", "version: 2").replace("do.a@1", "do.a@1, attempt_timeout: 10s"))
    instance, late, _ = running(weave)
    weave.answer(late, UNKNOWN)  # what its node says of an attempt that it has lost sight of
    weave.advance()
    revision = int(weave.get(instance)["revision"])
    assert weave.states(instance) == {"a": "NEEDS_REVIEW"}
    recovered, _ = race(
        order,
        lambda: other.recover(instance, action, "a", output={"by": "hand"}, expected_revision=revision),
        finisher(weave, late, Done({"by": "worker"})),
    )
    assert not isinstance(recovered, StateConflict), "a late report decides nothing"
    weave.drive(lambda *_: Done({"by": "again"}))
    found = weave.get(instance)
    assert (found["state"], found["output"]) == (
        "SUCCEEDED",
        {"by": "hand"} if action is Action.COMPLETE else {"by": "again"},
    )
    (decision,) = weave.recoveries.recoveries_list(weave.namespace_id, instance)
    assert [each["output"] for each in decision["superseded"]] == [{"by": "worker"}]
    check_whole(weave, instance)


PAIRS: dict[str, tuple[Callable[[Weave, bytes, int], Json], ...]] = {
    "pause": (lambda weave, one, at: weave.pause(one, expected_revision=at),),
    "cancel": (lambda weave, one, at: weave.cancel(one, expected_revision=at),),
    "retry": (lambda weave, one, at: weave.recover(one, Action.RETRY, "a", expected_revision=at),),
    "complete": (lambda weave, one, at: weave.recover(one, Action.COMPLETE, "a", output={}, expected_revision=at),),
    "fail": (lambda weave, one, at: weave.recover(one, Action.FAIL, "a", expected_revision=at),),
    "migrate": (lambda weave, one, at: weave.migrate(one, 2, expected_revision=at),),
}


@pytest.mark.requirement("R224")
@pytest.mark.parametrize("second", PAIRS)
@pytest.mark.parametrize("first", PAIRS)
def test_of_two_operators_at_the_same_revision_one_wins(nodes: tuple[Weave, Weave], first: str, second: str) -> None:
    weave, other = nodes
    weave.publish(ONE.replace("version: 1", "version: 2") + "# the same, but newer\n")
    instance = weave.start("one", version=1)
    weave.drive(lambda *_: BROKEN)
    revision = int(weave.get(instance)["revision"])
    (one,), (two,) = PAIRS[first], PAIRS[second]
    told = race("at once", lambda: one(weave, instance, revision), lambda: two(other, instance, revision))
    refused = [each for each in told if isinstance(each, StateConflict)]
    assert len(refused) == 1, "exactly one wins"
    now = weave.get(instance)
    assert refused[0].details == {"state": now["state"], "current_revision": now["revision"]}
    assert len([each for each in operations(weave, instance) if each != "instance.start"]) == 1
    check_whole(weave, instance)
    weave.resume(instance) if now["control"] == "PAUSED" else None
    weave.cancel(instance) if now["finished_at"] is None else None
    weave.drive(lambda *_: Done({}))
    check_whole(weave, instance)


def test_of_two_forks_at_once_with_one_key_there_is_one(nodes: tuple[Weave, Weave]) -> None:
    weave, other = nodes
    weave.publish(TWO_TASKS)
    source = weave.start("two")
    weave.drive(lambda *_: Done({}))
    told = race("at once", lambda: weave.fork(source, "b", key="k"), lambda: other.fork(source, "b", key="k"))
    ids = {each["instance"]["id"] for each in told if not isinstance(each, StateConflict)}
    assert len(ids) == 1
