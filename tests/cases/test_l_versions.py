"""Area l of the public failures: definitions that change while instances of them run."""

from collections.abc import Iterator

import pytest

from definitions.store import VersionState
from definitions.versions import Change, version_move
from engine.formats import StateFormats
from engine.states import Action
from orbit.database import Database
from orbit.errors import StateConflict, VersionConflict
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.support.weave import Done, Weave

HEAD = (
    "orbit: weave/1\nworkflow: n\nversion: {}\ninput: {{type: object}}\n"
    "defaults: {{queue: main, retry: {{max_attempts: 1}}}}\nsteps:\n"
)


@pytest.fixture
def weave(database: Database) -> Iterator[Weave]:
    made = Weave(database)
    made.queue()
    yield made
    made.close()


def text(version: int, *steps: str) -> str:
    return HEAD.format(version) + "".join(f"  - {{{step}}}\n" for step in steps)


A, B = "id: a, task: do.a@1, input: {v: 1}", "id: b, task: do.b@1"


def retire(weave: Weave, number: int) -> None:
    change = Change(namespace_id=weave.namespace_id, workflow="n", actor=weave.actor, reason="it is wrong")
    weave.database.transaction(lambda tx: version_move(tx, change, number, VersionState.RETIRED))


def test_c147_an_instance_stays_on_its_version_over_publications_and_restarts(weave: Weave, database: Database) -> None:
    weave.publish(text(1, A, B))
    first = weave.start("n")
    running = weave.claim()
    weave.publish(text(2, A.replace("v: 1", "v: 2"), "id: x, task: do.x@1", "id: c, task: do.c@1"))
    second = weave.start("n")
    again = Weave(database, beside=weave)  # the engine starts anew
    seen: list[tuple[str, Json]] = []

    def handlers(step: str, _round: int, params: Json) -> Done:
        seen.append((step, params))
        return Done({})

    for assignment in running:
        again.answer(assignment, Done({}))
    again.drive(handlers)
    found = [again.get(each) for each in (first, second)]
    assert [(each["state"], each["version"]) for each in found] == [("SUCCEEDED", 1), ("SUCCEEDED", 2)]
    assert sorted(step for step, _ in seen) == ["a", "b", "c", "x"]
    assert ("a", {"v": 2}) in seen
    assert list(again.states(first)) == ["a", "b"], "read later it still shows the graph of its version"
    graphs = [again.instances.instance_graph(again.namespace_id, each)[0] for each in (first, second)]
    assert [[node.id for node in graph.nodes] for graph in graphs] == [["a", "b"], ["a", "x", "c"]]
    again.close()


def test_c149_what_waits_goes_on_under_a_newer_build_and_its_own_version(weave: Weave, database: Database) -> None:
    kinds = {
        "parked": (20, "id: w, wait: {signal: approved, timeout: 1d}"),
        "polled": (5, "id: p, poll: {task: ask.p@1, done_when: output.ok, every: 10s, max_rounds: 9, timeout: 1h}"),
        "worked": (5, A),
    }
    ids = []
    for name, (count, step) in kinds.items():
        weave.publish(text(1, step, B).replace("workflow: n", f"workflow: {name}"))
        ids += [weave.start(name) for _ in range(count)]
    running = weave.claim()
    assert sorted(str(each.task.source_step) for each in running) == ["a"] * 5 + ["p"] * 5
    weave.publish(text(2, B).replace("workflow: n", "workflow: parked"))
    again = Weave(database, beside=weave, formats=StateFormats(2))  # a newer build
    for instance in ids[:20]:
        again.signal(instance, "approved", {"by": "ann"})
    for assignment in running:
        again.answer(assignment, Done({"ok": False}))
    for seconds in (0, 11):
        database.clock.advance(seconds_forward=seconds)
        again.drive(lambda *_: Done({"ok": True}))
    assert {(each["state"], each["version"]) for each in map(again.get, ids)} == {("SUCCEEDED", 1)}
    again.close()


def test_c151_a_recovery_goes_on_with_a_retired_version_and_a_new_start_takes_the_default(weave: Weave) -> None:
    weave.publish(text(1, A, B))
    first = weave.start("n")
    weave.drive(lambda step, *_: Done({}) if step == "a" else Done(error=ErrorClass.NON_RETRYABLE))
    assert weave.get(first)["state"] == "NEEDS_RECOVERY"
    weave.publish(text(2, A))
    retire(weave, 1)
    weave.recover(first, Action.RETRY, "b")
    seen: list[str] = []

    def handlers(step: str, *_: object) -> Done:
        seen.append(step)
        return Done({})

    weave.drive(handlers)
    assert (weave.get(first)["state"], seen) == ("SUCCEEDED", ["b"])
    with pytest.raises(StateConflict, match="retired and takes no new instances: it is wrong") as refused:
        weave.start("n", version=1)
    assert refused.value.details is not None
    assert refused.value.details["default_version"] == 2, "the way out"
    assert weave.get(weave.start("n"))["version"] == 2


def test_c154_a_published_number_keeps_its_content(weave: Weave) -> None:
    weave.publish(text(3, A, B))
    running = weave.start("n")
    with pytest.raises(VersionConflict) as refused:
        weave.publish(text(3, A.replace("v: 1", "v: 2"), B))
    assert refused.value.details is not None
    assert refused.value.details["diff"]["at"] == ["a"]
    weave.publish(text(2, B))
    assert weave.get(weave.start("n"))["version"] == 3, "a lower number is stored and does not become the default"
    retire(weave, 3)  # a version can't be deleted; nothing more can be done to it
    seen: list[tuple[str, Json]] = []

    def handlers(step: str, _round: int, params: Json) -> Done:
        seen.append((step, params))
        return Done({})

    weave.drive(handlers)
    assert weave.get(running)["state"] == "SUCCEEDED"
    assert ("a", {"v": 1}) in seen
