"""Transactions: what must hold on every database, however each is reached."""

import pytest
from sqlalchemy import select, text

from orbit.database import Database, Transaction
from orbit.store.tenancy import NamespaceName, namespace_ensure
from orbit.tables import application


def test_a_transaction_inside_a_transaction_is_an_assertion(database: Database) -> None:
    def outer() -> None:
        database.transaction(lambda _: database.transaction(lambda tx: tx.now()))

    with pytest.raises(AssertionError, match="inside a transaction"):
        outer()
    assert database.transaction(lambda tx: tx.now()) > 0


class Killed(BaseException):
    """As gevent kills a greenlet: no Exception, at any line."""


@pytest.mark.databases("mariadb", "mysql")
def test_c095_a_connection_left_in_the_middle_is_thrown_away(database: Database) -> None:
    named = NamespaceName("killed", "default", "test")

    def connection_id(tx: Transaction) -> int:
        return int(tx.rows(text("SELECT CONNECTION_ID()"))[0][0])

    def killed(tx: Transaction) -> None:
        namespace_ensure(tx, named)
        seen.append(connection_id(tx))
        raise Killed

    seen: list[int] = []
    with pytest.raises(Killed):
        database.transaction(killed)
    later = {database.transaction(connection_id) for _ in range(20)}
    assert seen[0] not in later
    stored = select(application.c.id).where(application.c.name == named.application)
    assert database.transaction(lambda tx: tx.rows(stored)) == []
