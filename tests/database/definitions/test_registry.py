"""Publishing on a real database: immutable versions, found again by number, the same on all three."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from definitions.compiler import Compiled, compile_definition
from definitions.graph import TaskSpec
from definitions.registry import (
    VersionState,
    graph_load,
    version_get,
    version_get_content,
    version_publish,
    version_to_start,
    versions_list,
    workflows_list,
)
from orbit.database import Database, Transaction
from orbit.errors import DefinitionInvalid, NotFound, VersionConflict
from orbit.ids import new_id
from orbit.store.journal import Actor, Page, audit_list, events_list

NAMESPACE, OTHER = new_id(), new_id()
ACTOR = Actor("test", new_id())


def definition(version: int = 1, *, workflow: str = "payout", wait: str = "1s") -> Compiled:
    text = (
        f"orbit: weave/1\nworkflow: {workflow}\nversion: {version}\ntitle: Títle {version}\ndefaults: {{queue: q}}\n"
        f"steps:\n  - {{id: pause, wait: {{for: {wait}}}}}\n"
        "  - {id: pay, task: t.pay@1, input: {text: '${ input.name } €', big: 3544790567247868102}}\n"
    )
    compiled = compile_definition(text)
    assert compiled.graph is not None, compiled.render()
    return compiled


@pytest.mark.requirement("R222")
def test_r222_a_version_is_published_once_and_never_changed(database: Database) -> None:
    first = database.transaction(lambda tx: version_publish(tx, NAMESPACE, definition(), ACTOR))
    again = database.transaction(lambda tx: version_publish(tx, NAMESPACE, definition(), ACTOR))
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again.version == first.version
    with pytest.raises(VersionConflict) as caught:
        database.transaction(lambda tx: version_publish(tx, NAMESPACE, definition(wait="2s"), ACTOR))
    details = caught.value.details
    assert details is not None
    assert details["first_difference"] == {
        "line": 7,
        "published": "  - {id: pause, wait: {for: 1s}}",
        "sent": "  - {id: pause, wait: {for: 2s}}",
    }
    assert details["diff"] == {
        "verdict": "incompatible",  # every instance has begun its first step
        "at": ["pause"],
        "mapping": {},
        "reasons": [
            {"step": None, "what": "timeout_seconds", "old": "12607.0", "new": "12608.0"},
            {"step": "pause", "what": "for_seconds", "old": "1.0", "new": "2.0"},
        ],
    }
    stored = database.transaction(lambda tx: version_get_content(tx, NAMESPACE, "payout", 1))
    assert stored.source == definition().source.encode()


def test_the_stored_graph_is_the_compiled_one(database: Database) -> None:
    compiled = definition()
    database.transaction(lambda tx: version_publish(tx, NAMESPACE, compiled, ACTOR))
    graph = database.transaction(lambda tx: graph_load(tx, NAMESPACE, "payout", 1))
    assert graph == compiled.graph
    spec = graph.nodes[1].spec
    assert isinstance(spec, TaskSpec)
    assert spec.input.render({"input": {"name": "Ann"}}) == {"text": "Ann €", "big": 3544790567247868102}


def test_the_default_version_is_the_highest_published(database: Database) -> None:
    def publish(version: int) -> None:
        database.transaction(lambda tx: version_publish(tx, NAMESPACE, definition(version), ACTOR))

    for version, default in ((2, 2), (1, 2), (5, 5), (3, 5)):
        publish(version)
        found = database.transaction(lambda tx: version_get(tx, NAMESPACE, "payout", None))
        assert (found.version, found.state, found.title) == (default, VersionState.ACTIVE, f"Títle {default}")
        assert database.transaction(lambda tx: version_to_start(tx, NAMESPACE, "payout", None)).number == default
    listed = database.transaction(lambda tx: versions_list(tx, NAMESPACE, "payout", limit=3))
    assert [version.version for version in listed] == [5, 3, 2]
    listed = database.transaction(lambda tx: versions_list(tx, NAMESPACE, "payout", limit=3, below=2))
    assert [version.version for version in listed] == [1]


def test_another_namespace_sees_nothing(database: Database) -> None:
    database.transaction(lambda tx: version_publish(tx, NAMESPACE, definition(), ACTOR))

    def missing(tx: Transaction) -> None:
        for read in (
            lambda: version_get(tx, OTHER, "payout", None),
            lambda: version_get(tx, OTHER, "payout", 1),
            lambda: version_get_content(tx, OTHER, "payout", 1),
            lambda: versions_list(tx, OTHER, "payout", limit=10),
            lambda: graph_load(tx, NAMESPACE, "payout", 2),
            lambda: version_to_start(tx, NAMESPACE, "Payout", None),
        ):
            with pytest.raises(NotFound):
                read()

    database.transaction(missing)
    assert database.transaction(lambda tx: workflows_list(tx, OTHER, limit=10)) == []
    other = database.transaction(lambda tx: version_publish(tx, OTHER, definition(wait="9s"), ACTOR))
    assert not other.deduplicated


def test_workflows_are_listed_by_name(database: Database) -> None:
    for name in ("b", "a", "c"):
        compiled = definition(workflow=name)
        database.transaction(lambda tx, compiled=compiled: version_publish(tx, NAMESPACE, compiled, ACTOR))  # type: ignore[misc]
    names = database.transaction(lambda tx: [each.workflow.name for each in workflows_list(tx, NAMESPACE, limit=2)])
    rest = database.transaction(
        lambda tx: [each.workflow.name for each in workflows_list(tx, NAMESPACE, limit=2, after_name=names[-1])]
    )
    assert (names, rest) == (["a", "b"], ["c"])


def test_a_definition_with_findings_is_refused_with_all_of_them(database: Database) -> None:
    compiled = compile_definition("orbit: weave/1\nworkflow: a b\nversion: 0\nsteps: []\n")
    with pytest.raises(DefinitionInvalid) as caught:
        database.transaction(lambda tx: version_publish(tx, NAMESPACE, compiled, ACTOR))
    assert caught.value.details is not None
    found = [finding["code"] for finding in caught.value.details["findings"]]
    assert found == ["BAD_NAME", "OUT_OF_RANGE", "EMPTY_STEPS"]


def test_publishing_is_audited_and_told_once(database: Database) -> None:
    for _ in range(2):
        database.transaction(lambda tx: version_publish(tx, NAMESPACE, definition(), ACTOR))
    audit = database.transaction(lambda tx: audit_list(tx, NAMESPACE, Page(10)))
    events = database.transaction(lambda tx: events_list(tx, NAMESPACE, Page(10))).rows
    assert [(row.operation, row.actor) for row in audit] == [("workflow.publish", "test")]
    assert [(row.type, row.data) for row in events] == [("workflow.published", '{"workflow":"payout","version":1}')]


def test_two_publications_at_once_make_one_version(database: Database) -> None:
    definitions = [definition(wait=wait) for wait in ("1s", "1s", "1s", "2s", "2s", "2s")]
    with ThreadPoolExecutor(len(definitions)) as threads:
        found = sorted(threads.map(lambda compiled: _outcome(database, compiled), definitions))
    # Whoever was first, the same content twice more is the same version and the other content is refused.
    assert found == ["conflict"] * 3 + ["deduplicated"] * 2 + ["published"]
    assert len(database.transaction(lambda tx: versions_list(tx, NAMESPACE, "payout", limit=10))) == 1


def _outcome(database: Database, compiled: Compiled) -> str:
    try:
        published = database.transaction(lambda tx: version_publish(tx, NAMESPACE, compiled, ACTOR))
    except VersionConflict:
        return "conflict"
    return "deduplicated" if published.deduplicated else "published"
