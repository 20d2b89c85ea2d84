"""The migrated schema is the declared one, both ways, on every database."""

from migrations import upgrade as schema
from migrations.upgrade import SchemaState
from orbit.database import Database


def test_upgrade_and_downgrade_leave_nothing(blank_database_url: str) -> None:
    assert schema.check(blank_database_url).state is SchemaState.EMPTY
    ran = schema.upgrade(blank_database_url)
    assert ran == schema.revisions()
    assert schema.check(blank_database_url).state is SchemaState.CURRENT
    assert schema.upgrade(blank_database_url) == ()
    schema.downgrade(blank_database_url, to="base")
    assert schema.check(blank_database_url).state is SchemaState.EMPTY
    assert schema.upgrade(blank_database_url) == ran


def test_a_database_works(database: Database) -> None:
    now = database.transaction(lambda tx: tx.now())
    database.clock.advance(seconds_forward=3600)
    assert database.transaction(lambda tx: tx.now()) - now >= 3_600_000_000
