"""Transactions: what must hold on every database, however each is reached."""

import pytest

from orbit.database import Database


def test_a_transaction_inside_a_transaction_is_an_assertion(database: Database) -> None:
    def outer() -> None:
        database.transaction(lambda _: database.transaction(lambda tx: tx.now()))

    with pytest.raises(AssertionError, match="inside a transaction"):
        outer()
    assert database.transaction(lambda tx: tx.now()) > 0
