"""Connections are kept, given in turn and thrown away when nobody can say where they stand."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from orbit.database import ConnectionLimits, Database, Transaction
from orbit.errors import Unavailable
from tests.support.waiting import wait_until

pytestmark = pytest.mark.databases("mariadb", "mysql")


@pytest.fixture
def narrow(database_url: str) -> Iterator[Database]:
    """A database whose pools have one connection each, for which a caller waits at most a second."""
    with closing(Database.open(database_url, ConnectionLimits(pool_size=1, connect_seconds=1))) as opened:
        yield opened


def connection_id(tx: Transaction) -> int:
    return int(tx.rows(text("SELECT CONNECTION_ID()"))[0][0])


def test_a_connection_is_used_again(narrow: Database) -> None:
    assert len({narrow.transaction(connection_id) for _ in range(5)}) == 1


def test_a_connection_is_used_again_after_its_transaction_was_rolled_back(narrow: Database) -> None:
    first = narrow.transaction(connection_id)

    def refused(tx: Transaction) -> None:
        connection_id(tx)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        narrow.transaction(refused)
    assert narrow.transaction(connection_id) == first


def test_who_finds_no_connection_free_is_told_so(narrow: Database) -> None:
    refused: list[BaseException] = []

    def other() -> None:
        try:
            narrow.transaction(connection_id)
        except Unavailable as error:
            refused.append(error)

    def hold(tx: Transaction) -> None:
        connection_id(tx)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)

    narrow.transaction(hold)
    assert [str(error) for error in refused] == ["no database connection is free"]
    # The one who gave up waits no more: what is given back is there for the next.
    assert narrow.transaction(connection_id) > 0


@pytest.mark.parametrize("ending", ["given", "dropped"])
def test_those_who_wait_get_a_connection_in_turn(database_url: str, ending: str) -> None:
    order: list[int] = []

    class Killed(BaseException):
        """As gevent kills a greenlet."""

    with closing(Database.open(database_url, ConnectionLimits(pool_size=1, connect_seconds=60))) as database:
        connections = next(iter(database._connections.values()))  # noqa: SLF001  (nobody else can see who waits)
        threads = [
            threading.Thread(target=lambda n=n: database.transaction(lambda _: order.append(n))) for n in range(3)
        ]

        def hold(tx: Transaction) -> None:
            connection_id(tx)
            for number, thread in enumerate(threads):
                thread.start()
                wait_until(lambda number=number: len(connections._waiting) == number + 1)  # type: ignore[misc]  # noqa: SLF001
            if ending == "dropped":
                raise Killed

        if ending == "dropped":
            with pytest.raises(Killed):
                database.transaction(hold)
        else:
            database.transaction(hold)
        for thread in threads:
            thread.join(60)
        assert connections.taken_count == 0
    assert order == [0, 1, 2]


def test_a_server_that_closed_all_connections_costs_nobody_an_error(database_url: str) -> None:
    with closing(Database.open(database_url, ConnectionLimits(pool_size=4))) as database:
        inside = threading.Barrier(4)
        seen: list[int] = []

        def use(tx: Transaction) -> None:
            seen.append(connection_id(tx))
            inside.wait(60)

        threads = [threading.Thread(target=lambda: database.transaction(use)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(set(seen)) == 4

        with closing(Database.open(database_url)) as other:
            for identifier in seen:
                other.transaction(lambda tx, identifier=identifier: tx.execute(text(f"KILL {identifier}")))  # type: ignore[misc]
        assert database.transaction(connection_id) not in seen
