"""Two releases side by side on one database: the older one leaves alone what it does not know, and says so."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from definitions.compiler import compile_definition
from definitions.registry import version_publish
from engine.formats import StateFormats
from orbit.database import Database
from orbit.errors import StateConflict, Unavailable
from orbit.formats import StoredFormat
from orbit.store.formats import formats_finalize
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Handlers, Weave

NEWER = {StoredFormat.GRAPH: 9, StoredFormat.STATE: 2}
WAIT = """
orbit: weave/1
workflow: wait
version: 1
defaults: {queue: main}
steps:
  - {id: pause, wait: {for: 1m}}
  - {id: a, task: do.a@1}
"""


@pytest.fixture
def newer(weave: Weave, database: Database) -> Iterator[Weave]:
    """A node of the release after, beside `weave`."""
    made = Weave(database, beside=weave, formats=StateFormats(2))
    yield made
    made.close()


def good(_step: str, _round: int, _params: object) -> Done:
    return Done({})


def both(weave: Weave, newer: Weave, handlers: Handlers) -> None:
    for _ in range(20):
        if not weave.advance() + newer.advance() + newer.work(handlers):
            return


def test_until_it_is_finalized_both_releases_go_on_with_everything(weave: Weave, newer: Weave) -> None:
    newer.publish(TWO_TASKS)
    instance = newer.start("two")
    weave.drive(good)
    assert weave.get(instance)["state"] == "SUCCEEDED"


def test_an_older_node_skips_newer_instances_and_explains_it(weave: Weave, newer: Weave, database: Database) -> None:
    weave.publish(TWO_TASKS)
    weave.publish(WAIT)
    old = weave.start("wait")
    database.transaction(lambda tx: formats_finalize(tx, NEWER))
    waiting, working = newer.start("wait"), newer.start("two")
    assert weave.work(good) == 1
    database.clock.advance(seconds_forward=61)
    assert weave.advance() == 1, "its own timer, and neither a newer timer nor a newer stimulus"
    assert [weave.get(each)["revision"] for each in (waiting, working)] == ["1", "1"]
    explained = weave.instances.instance_explain(weave.namespace_id, working)
    assert explained["waits_for"] == [{"kind": "NEWER_NODE", "text": explained["summary"], "format": 2, "known": 1}]
    with pytest.raises(Unavailable, match="newer release"):
        weave.cancel(working)
    assert newer.advance() == 2
    assert weave.start("two") != working, "an older node starts in the form that it knows"
    both(weave, newer, good)
    assert {weave.get(each)["state"] for each in (old, waiting, working)} == {"SUCCEEDED"}


def test_a_newer_graph_is_published_only_when_it_is_finalized(weave: Weave, database: Database) -> None:
    compiled = compile_definition(TWO_TASKS)
    assert compiled.graph is not None
    newer = replace(compiled, graph=replace(compiled.graph, format=9))

    def publish() -> None:
        database.transaction(lambda tx: version_publish(tx, weave.namespace_id, newer, weave.actor))

    with pytest.raises(StateConflict, match="orbit db finalize"):
        publish()
    database.transaction(lambda tx: formats_finalize(tx, NEWER))
    publish()
    with pytest.raises(Unavailable, match="graph format 9"):
        weave.start("two")
