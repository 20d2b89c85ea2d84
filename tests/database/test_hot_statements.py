"""Statements that travel as text: every value arrives as it was sent, and a wrong count is never committed."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import bindparam, delete, select, update

from orbit.database import Database, Transaction
from orbit.database.hot import Hot
from orbit.ids import new_id
from orbit.tables import event

_FIND = Hot(select(event.c.id, event.c.data, event.c.subject_revision).where(event.c.data == bindparam("data")))
_TOUCH = Hot(update(event).where(event.c.id == bindparam("key")).values(type=bindparam("word"), data="100 % 'd'"))
_CLEAR = Hot(delete(event))


def _row(data: str, **fields: object) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": new_id(),
        "namespace_id": new_id(),
        "type": "t",
        "subject_id": new_id(),
        "subject_revision": 1,
    }
    return {**row, "data": data, "created_at": 1, **fields}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_text_arrives_as_it_was_sent(database: Database, text: str) -> None:
    def work(tx: Transaction) -> list[str]:
        tx.execute(_CLEAR)
        tx.insert(event, [_row(text), _row(text + "x")])
        return [row.data for row in tx.rows(_FIND, {"data": text})]

    assert database.transaction(work) == [text]


_ODD_TEXTS = pytest.mark.parametrize(
    "text", ["'; DROP TABLE orbit_event; -- ", "\\", "\\'", "%s %(x)s %%", "\x00\n\r\x1a", "𐀀é", '"']
)


@_ODD_TEXTS
def test_what_all_inserted_rows_have_in_common_arrives_in_each(database: Database, text: str) -> None:
    rows = [_row(text, subject_revision=revision) for revision in (1, 2, 3)]

    def work(tx: Transaction) -> list[tuple[str, int]]:
        tx.execute(_CLEAR)
        tx.insert(event, rows)
        return sorted((row.data, row.subject_revision) for row in tx.rows(_FIND, {"data": text}))

    assert database.transaction(work) == [(text, 1), (text, 2), (text, 3)]


@_ODD_TEXTS
def test_what_each_updated_row_has_for_itself_arrives_as_it_was_sent(database: Database, text: str) -> None:
    rows = [_row("before", subject_revision=revision) for revision in (1, 2)]

    def work(tx: Transaction) -> list[tuple[str, int]]:
        tx.execute(_CLEAR)
        tx.insert(event, rows)
        tx.update_many(event, rows=[{"id": row["id"], "data": text + str(row["subject_revision"])} for row in rows])
        found = [*tx.rows(_FIND, {"data": f"{text}1"}), *tx.rows(_FIND, {"data": f"{text}2"})]
        return [(row.data, row.subject_revision) for row in found]

    assert database.transaction(work) == [(f"{text}1", 1), (f"{text}2", 2)]


@_ODD_TEXTS
def test_no_text_ends_its_literal(database: Database, text: str) -> None:
    row = _row("before")

    def work(tx: Transaction) -> object:
        tx.insert(event, [row])
        tx.expect(_TOUCH, {"key": row["id"], "word": text}, count=1)
        return tx.rows(select(event.c.type, event.c.data).where(event.c.id == row["id"]))[0]

    assert tuple(database.transaction(work)) == (text, "100 % 'd'")  # type: ignore[arg-type]


def test_a_write_that_misses_is_never_committed(database: Database) -> None:
    row = _row("kept?")

    def work(tx: Transaction) -> None:
        tx.insert(event, [row])
        tx.expect(_TOUCH, {"key": new_id(), "word": "t"}, count=1)

    with pytest.raises(AssertionError, match="matched 0 rows where 1"):
        database.transaction(work)
    assert database.transaction(lambda tx: tx.rows(select(event.c.id))) == []


def test_a_write_says_what_its_miss_means(database: Database) -> None:
    def work(tx: Transaction) -> None:
        tx.expect(_TOUCH, {"key": new_id(), "word": "t"}, count=1, otherwise=LookupError("gone"))
        tx.insert(event, [_row("after")])

    with pytest.raises(LookupError, match="gone"):
        database.transaction(work)
    assert database.transaction(lambda tx: tx.rows(select(event.c.id))) == []


def test_reads_see_the_writes_before_them(database: Database) -> None:
    rows = [_row(f"{number}", subject_revision=number) for number in range(1, 4)]

    def work(tx: Transaction) -> tuple[int, list[int]]:
        tx.insert(event, rows)
        tx.update_many(event, rows=[{"id": row["id"], "subject_revision": 7, "type": "same"} for row in rows])
        tx.delete_many(event, [{"id": rows[0]["id"]}])
        seen = tx.rows(_FIND, {"data": "2"})
        return len(tx.rows(select(event.c.id))), [row.subject_revision for row in seen]

    assert database.transaction(work) == (2, [7])


@_ODD_TEXTS
def test_a_single_row_is_written_without_a_join(database: Database, text: str) -> None:
    rows = [_row("before") for _ in range(2)]

    def work(tx: Transaction) -> None:
        tx.execute(_CLEAR)
        tx.insert(event, rows)
        tx.update_many(event, rows=[{"id": rows[0]["id"], "type": "one", "data": text}], where={"data": "before"})
        tx.delete_many(event, [{"id": rows[1]["id"]}])

    database.transaction(work)
    found = database.transaction(lambda tx: tx.rows(select(event.c.id, event.c.type, event.c.data)))
    assert [tuple(row) for row in found] == [(rows[0]["id"], "one", text)]

    def miss(tx: Transaction) -> None:
        tx.update_many(event, rows=[{"id": rows[0]["id"], "type": "two"}], where={"data": text + "?"})

    with pytest.raises(AssertionError, match="matched 0 rows where 1"):
        database.transaction(miss)


def test_rows_that_may_be_missing_are_said_to_be(database: Database) -> None:
    row = _row("there")
    database.transaction(lambda tx: tx.insert(event, [row]))
    both = [{"id": row["id"]}, {"id": new_id()}]

    def strict(tx: Transaction) -> None:
        tx.delete_many(event, both)

    with pytest.raises(AssertionError, match="matched 1 rows where 2"):
        database.transaction(strict)
    database.transaction(lambda tx: tx.delete_many(event, both, may_miss=True))
    assert database.transaction(lambda tx: tx.rows(select(event.c.id))) == []


_TIMED = Hot(_FIND.statement, tells_time=True)


@pytest.mark.databases("mariadb", "mysql")
def test_what_is_read_ahead_is_not_asked_for_again(database: Database) -> None:
    def work(tx: Transaction) -> None:
        tx.execute(_CLEAR)
        tx.insert(event, [_row("a"), _row("b")])
        tx.read_ahead([(_FIND, {"data": "a"}), (_TIMED, {"data": "b"})])
        sent = tx.statement_count
        assert [row.data for row in tx.rows(_FIND, {"data": "a"})] == ["a"]
        assert [row.data for row in tx.rows(_TIMED, {"data": "b"})] == ["b"]
        assert tx.now() > 0
        assert tx.statement_count == sent
        # Another question is another statement, and ends what was known.
        assert tx.rows(_FIND, {"data": "c"}) == []
        assert [row.data for row in tx.rows(_FIND, {"data": "a"})] == ["a"]
        assert tx.statement_count == sent + 2

    database.transaction(work)


def test_what_was_read_ahead_is_forgotten_with_the_next_write(database: Database) -> None:
    def work(tx: Transaction) -> list[list[str]]:
        seen = []
        tx.execute(_CLEAR)
        kept = _row("a")
        for change in (
            lambda: tx.insert(event, [kept]),
            lambda: tx.update_many(event, rows=[{"id": kept["id"], "data": "b"}]),
            lambda: tx.insert(event, [_row("a")]),
            lambda: tx.execute(_CLEAR),
        ):
            tx.read_ahead([(_FIND, {"data": "a"})])
            change()
            seen.append([row.data for row in tx.rows(_FIND, {"data": "a"})])
        return seen

    assert database.transaction(work) == [["a"], [], ["a"], []]
