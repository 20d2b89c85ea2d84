"""The migrated schema is the declared one, both ways, on every database; whoever reads it changes nothing."""

import re
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from migrations import upgrade as schema
from migrations.upgrade import SchemaState
from orbit.database import Database, metadata
from orbit.errors import Unavailable
from orbit.formats import StoredFormat
from orbit.store.formats import formats_read
from tests.support.declared import import_tables
from tests.support.sessions import VERSION_TABLE, DatabaseKind

BEFORE_FORMATS = "0010_pulse_batches"


def described(url: str) -> dict[str, object]:
    """Describe every table in the server's own words, in no order of its lines: an added column stands at the end."""
    database = sa.create_engine(url)
    with database.connect() as connection:
        inspector = sa.inspect(connection)
        names = [name for name in inspector.get_table_names() if name != VERSION_TABLE]
        if connection.dialect.name == "sqlite":
            found: dict[str, object] = {name: embedded_table(inspector, name) for name in names}
        else:
            found = {name: server_table(connection, name) for name in names}
    database.dispose()
    return found


def server_table(connection: sa.Connection, name: str) -> list[str]:
    text = connection.execute(sa.text(f"SHOW CREATE TABLE {name}")).one()[1]
    return sorted(re.sub(r",$", "", line.strip()) for line in text.splitlines())


def embedded_table(inspector: sa.Inspector, name: str) -> list[object]:
    columns = [{**column, "type": str(column["type"])} for column in inspector.get_columns(name)]
    return [
        sorted(columns, key=str),
        inspector.get_pk_constraint(name),
        sorted(inspector.get_indexes(name), key=str),
        sorted(inspector.get_unique_constraints(name), key=str),
        sorted(inspector.get_check_constraints(name), key=str),
        sorted(inspector.get_foreign_keys(name), key=str),
    ]


def test_the_migrated_schema_is_the_declared_one(blank_database_url: str, other_blank_database_url: str) -> None:
    import_tables()
    schema.upgrade(blank_database_url)
    other = sa.create_engine(other_blank_database_url)
    metadata.create_all(other)
    other.dispose()
    migrated, declared = described(blank_database_url), described(other_blank_database_url)
    assert set(migrated) == set(declared)
    for name, table in declared.items():
        assert migrated[name] == table


def test_each_revision_goes_up_and_down(blank_database_url: str) -> None:
    assert schema.check(blank_database_url).state is SchemaState.EMPTY
    before = described(blank_database_url)
    snapshots = []
    for revision in schema.revisions():
        snapshots.append(before)
        assert schema.upgrade(blank_database_url, to=revision.name) == (revision,)
        before = described(blank_database_url)
        assert before != snapshots[-1]
    assert schema.check(blank_database_url).state is SchemaState.CURRENT
    assert schema.upgrade(blank_database_url) == ()
    names = ["base", *(revision.name for revision in schema.revisions())]
    for name, snapshot in reversed(list(zip(names, snapshots, strict=False))):
        schema.downgrade(blank_database_url, to=name)
        assert described(blank_database_url) == snapshot
    assert schema.check(blank_database_url).state is SchemaState.EMPTY
    assert schema.upgrade(blank_database_url) == schema.revisions()


def test_a_node_refuses_a_schema_that_it_does_not_know(blank_database_url: str) -> None:
    with pytest.raises(Unavailable, match="orbit db upgrade"):
        schema.require_current(blank_database_url)
    schema.upgrade(blank_database_url)
    schema.require_current(blank_database_url)
    database = sa.create_engine(blank_database_url)
    with database.begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999_future'"))  # noqa: S608
    database.dispose()
    assert schema.check(blank_database_url).state is SchemaState.UNKNOWN
    with pytest.raises(Unavailable, match="9999_future, which this release does not know"):
        schema.require_current(blank_database_url)
    with pytest.raises(Unavailable, match="does not know"):
        schema.upgrade(blank_database_url)


def test_a_schema_behind_says_what_an_upgrade_would_do(blank_database_url: str) -> None:
    first, *rest = schema.revisions()
    schema.upgrade(blank_database_url, to=first.name)
    found = schema.check(blank_database_url)
    assert found.state is SchemaState.BEHIND
    assert found.current == first.name
    assert found.pending == tuple(rest)
    with pytest.raises(Unavailable, match=f"{first.name}, this release wants {schema.head()}"):
        schema.require_current(blank_database_url)


@pytest.mark.databases("sqlite")
def test_a_check_does_not_even_make_an_empty_file(blank_database_url: str, short_folder: Path) -> None:
    assert schema.check(blank_database_url).state is SchemaState.EMPTY
    assert list(short_folder.iterdir()) == []


@pytest.mark.databases("mariadb", "mysql")
def test_two_upgrades_at_once_run_each_revision_once(
    blank_database_url: str, database_kind: DatabaseKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_SECONDS_MAX", 1)
    database = sa.create_engine(blank_database_url)
    with closing(database.connect()) as other:
        assert other.execute(sa.text("SELECT GET_LOCK(CONCAT('orbit_migrations.', LEFT(DATABASE(), 40)), 0)")).scalar()
        with pytest.raises(Unavailable, match="another upgrade"):
            schema.upgrade(blank_database_url)
    database.dispose()
    assert schema.upgrade(blank_database_url) == schema.revisions()


def test_each_revision_says_whether_old_nodes_may_run_beside_it() -> None:
    for revision in schema.revisions():
        assert revision.summary.endswith(".")
        assert isinstance(revision.old_nodes_may_run, bool)
        assert re.fullmatch(r"\d{4}_[a-z_]+", revision.name)


def test_a_new_database_has_the_newest_forms_and_a_used_one_waits(
    blank_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = {StoredFormat.GRAPH: 2, StoredFormat.STATE: 1}
    monkeypatch.setattr(schema, "NEWEST", newest)
    schema.upgrade(blank_database_url)

    def written() -> dict[StoredFormat, int]:
        with closing(Database.open(blank_database_url)) as database:
            return database.transaction(formats_read)

    assert written() == newest
    schema.downgrade(blank_database_url, to=BEFORE_FORMATS)
    schema.upgrade(blank_database_url)
    assert written() == {StoredFormat.GRAPH: 1, StoredFormat.STATE: 1}
