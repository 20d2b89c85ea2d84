"""What people decide about versions, on a real database: the default follows or is pinned, states move by the table."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from definitions.compiler import compile_definition
from definitions.registry import VersionContent, version_get, version_get_content, version_publish, version_to_start
from definitions.store import VersionState
from definitions.versions import VERSION_MOVES, Change, default_set, version_move, versions_diff, workflow_get
from orbit.database import Database
from orbit.errors import NotFound, StateConflict
from orbit.formats import NEWEST, StoredFormat
from orbit.ids import new_id
from orbit.store.formats import formats_finalize, formats_read
from orbit.store.journal import Actor, Page, audit_list, events_list

NAMESPACE = new_id()
ACTOR = Actor("test", new_id())


def publish(database: Database, version: int, wait: str = "1s") -> None:
    compiled = compile_definition(
        f"orbit: weave/1\nworkflow: payout\nversion: {version}\nsteps: [{{id: pause, wait: {{for: {wait}}}}}]\n"
    )
    database.transaction(lambda tx: version_publish(tx, NAMESPACE, compiled, ACTOR))


def change(expected_revision: int | None = None, reason: str = "a test wants it") -> Change:
    return Change(
        namespace_id=NAMESPACE, workflow="payout", actor=ACTOR, reason=reason, expected_revision=expected_revision
    )


def move(database: Database, number: int, state: VersionState, expected_revision: int | None = None) -> None:
    database.transaction(lambda tx: version_move(tx, change(expected_revision), number, state))


@dataclass
class Model:
    """What the rules say, in memory."""

    states: dict[int, VersionState] = field(default_factory=dict)
    default: int = 0
    pinned: bool = False

    def follow(self) -> None:
        usable = [number for number, state in self.states.items() if state is not VersionState.RETIRED]
        if not self.pinned and usable:
            self.default = max(usable)

    def publish(self, number: int) -> None:
        if number not in self.states:
            self.states[number] = VersionState.ACTIVE
            self.default = self.default or number
            self.follow()

    def move(self, number: int, state: VersionState) -> bool:
        if number not in self.states:
            return False
        if self.states[number] is state:
            return True
        if state not in VERSION_MOVES[self.states[number]]:
            return False
        if state is VersionState.RETIRED and self.pinned and self.default == number:
            return False
        self.states[number] = state
        self.follow()
        return True

    def set_default(self, number: int | None) -> bool:
        if number is None:
            self.pinned = False
            self.follow()
            return True
        if self.states.get(number, VersionState.RETIRED) is VersionState.RETIRED:
            return False
        self.default, self.pinned = number, True
        return True


@pytest.mark.parametrize("seed", range(3))
def test_random_decisions_follow_the_rules(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    publish(database, 3)
    model.publish(3)
    revision = 1
    for _ in range(60):
        number = rng.randint(1, 5)
        chosen = rng.choice(["publish", "default", "follow", *VersionState])
        before = (dict(model.states), model.default, model.pinned)
        try:
            match chosen:
                case "publish":
                    model.publish(number)
                    publish(database, number)
                    allowed = went = True
                case "default" | "follow":
                    wanted = number if chosen == "default" else None
                    allowed = model.set_default(wanted)
                    database.transaction(lambda tx, wanted=wanted: default_set(tx, change(), wanted))  # type: ignore[misc]
                    went = True
                case _:
                    allowed = model.move(number, VersionState(chosen))
                    move(database, number, VersionState(chosen))
                    went = True
        except (StateConflict, NotFound):
            went = False
        assert went is allowed, (chosen, number)
        found = database.transaction(lambda tx: workflow_get(tx, NAMESPACE, "payout"))
        assert (found.default_version, found.default_pinned) == (model.default, model.pinned)
        for each, state in model.states.items():
            assert database.transaction(lambda tx, e=each: version_get(tx, NAMESPACE, "payout", e)).state is state  # type: ignore[misc]
        revision += before != (model.states, model.default, model.pinned)
        assert found.revision == revision, "every change, and nothing else, counts"


def test_a_decision_is_audited_and_told_with_its_reason(database: Database) -> None:
    publish(database, 1)
    publish(database, 2)
    move(database, 2, VersionState.RETIRED)
    (record, *_) = database.transaction(lambda tx: audit_list(tx, NAMESPACE, Page(1)))
    assert (record.operation, record.reason, record.actor) == ("workflow.retire", "a test wants it", "test")
    assert ('"state":"ACTIVE"' in str(record.before), '"state":"RETIRED"' in str(record.after)) == (True, True)
    assert '"default_version":1' in str(record.after)
    events = database.transaction(lambda tx: events_list(tx, NAMESPACE, Page(10))).rows
    assert [event.type for event in events][:1] == ["workflow.retired"]
    with pytest.raises(StateConflict) as refused:
        database.transaction(lambda tx: version_to_start(tx, NAMESPACE, "payout", 2))
    assert "a test wants it" in str(refused.value)
    assert refused.value.details == {"state": "RETIRED", "default_version": 1}
    move(database, 1, VersionState.DEPRECATED)
    number, warning = database.transaction(lambda tx: version_to_start(tx, NAMESPACE, "payout", None))
    assert number == 1
    assert warning["code"] == "VERSION_DEPRECATED"
    assert "a test wants it" in warning["message"]
    move(database, 1, VersionState.RETIRED)
    with pytest.raises(StateConflict, match="version 1 of payout is retired"):
        database.transaction(lambda tx: version_to_start(tx, NAMESPACE, "payout", None))


@pytest.mark.requirement("R222")
def test_of_two_changes_at_the_same_revision_one_wins(database: Database) -> None:
    publish(database, 1)
    publish(database, 2)
    revision = database.transaction(lambda tx: workflow_get(tx, NAMESPACE, "payout")).revision

    def retire(number: int) -> str | None:
        try:
            move(database, number, VersionState.RETIRED, revision)
        except StateConflict as conflict:
            return str((conflict.details or {})["current_revision"])
        return None

    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(retire, (1, 2, 1, 2)))
    assert sorted(map(str, told)) == [str(revision + 1)] * 3 + ["None"]


def test_published_versions_are_compared(database: Database) -> None:
    publish(database, 1)
    publish(database, 2, wait="2s")

    def content(number: int) -> VersionContent:
        return database.transaction(lambda tx: version_get_content(tx, NAMESPACE, "payout", number))

    found = versions_diff(content(1), content(2))
    assert (found.verdict, found.at) == ("incompatible", ("pause",))
    with pytest.raises(NotFound):
        content(3)


def test_a_form_is_finalized_once_and_never_goes_back(database: Database) -> None:
    newer = {StoredFormat.GRAPH: 9, StoredFormat.STATE: 1}
    assert database.transaction(formats_read) == NEWEST
    assert database.transaction(lambda tx: formats_finalize(tx, newer)) == {StoredFormat.GRAPH: 9}
    assert database.transaction(lambda tx: formats_finalize(tx, newer)) == {}
    older = {StoredFormat.GRAPH: 2, StoredFormat.STATE: 2}
    assert database.transaction(lambda tx: formats_finalize(tx, older)) == {StoredFormat.STATE: 2}
    assert database.transaction(formats_read) == {StoredFormat.GRAPH: 9, StoredFormat.STATE: 2}
