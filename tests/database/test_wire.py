"""Answers read the short way: the same values as the driver gives, the same errors, and nothing left over."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT, FIELD_TYPE
from sqlalchemy import make_url

from orbit.database.wire import WireConnection

pytestmark = pytest.mark.databases("mariadb", "mysql")

_VALUES = [
    "'abc', '', 'é𐀀', NULL",
    "1, -1, 0, 18446744073709551615, 9223372036854775807, TRUE",
    "3.5, 3.5e0, CAST(1.25 AS DECIMAL(10, 4)), -0.0e0",
    "X'0001FF', CAST('a' AS BINARY(3)), HEX('a'), TO_BASE64('a')",
    "CAST('2026-01-02 03:04:05.000006' AS DATETIME(6)), CAST('2026-01-02' AS DATE), CAST('10:11:12' AS TIME)",
    "JSON_ARRAY(1, 'é'), JSON_QUOTE('é')",
    "REPEAT('x', 250), REPEAT('x', 251), REPEAT('x', 65535), REPEAT('x', 65536), REPEAT(X'00', 100000)",
]


@pytest.fixture
def options(database_url: str) -> dict[str, Any]:
    """How the test's database is connected to."""
    url = make_url(database_url)
    return {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": str(url.password),
        "database": url.database,
        "ssl_disabled": True,
        "read_timeout": 30,
        "client_flag": CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
    }


@pytest.fixture
def wire(options: dict[str, Any]) -> Iterator[WireConnection]:
    """A connection that reads the short way."""
    with closing(WireConnection(**options)) as connection:
        yield connection


def _as_the_driver(options: dict[str, Any], statement: str) -> list[tuple[Any, ...]]:
    with closing(pymysql.connect(**options)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _ask_for_long(wire: WireConnection) -> None:
    """Ask until a KILL, which the server carries out in its own time, is felt."""
    for _ in range(10_000):
        wire.exchange("SELECT 1")


@pytest.mark.parametrize("values", _VALUES)
def test_every_kind_of_value_is_what_the_driver_makes_of_it(
    wire: WireConnection, options: dict[str, Any], values: str
) -> None:
    statement = f"SELECT {values} UNION ALL SELECT {values}"
    known = _as_the_driver(options, statement)
    (answer,) = wire.exchange(statement)
    assert answer.rows == known
    assert [[type(value) for value in row] for row in answer.rows] == [[type(value) for value in row] for row in known]
    assert answer.matched == len(known)


def test_each_statement_has_its_answer(wire: WireConnection) -> None:
    wire.exchange("CREATE TABLE counted (id INT PRIMARY KEY, word VARCHAR(20))")
    answers = wire.exchange(
        "INSERT INTO counted VALUES (1, 'a'), (2, 'b'), (3, 'c');UPDATE counted SET word = 'a' WHERE id < 3;"
        "SELECT id FROM counted WHERE id > 7;SELECT word FROM counted ORDER BY id DESC;DELETE FROM counted;DO 1"
    )
    # A row that already is what it is set to counts as matched.
    assert [answer.matched for answer in answers] == [3, 2, 0, 3, 3, 0]
    assert [list(answer.rows) for answer in answers] == [[], [], [], [("c",), ("a",), ("a",)], [], []]


def test_more_rows_than_one_number_tells(wire: WireConnection) -> None:
    wire.exchange("CREATE TABLE many (id INT PRIMARY KEY)")
    numbers = ",".join(f"({number})" for number in range(1000))
    insert = f"INSERT INTO many VALUES {numbers}"  # noqa: S608  (numbers, made here)
    statements = (insert, "SELECT id FROM many ORDER BY id", "DELETE FROM many")
    inserted, read, deleted = wire.exchange(";".join(statements))
    assert (inserted.matched, read.matched, deleted.matched) == (1000, 1000, 1000)
    assert read.rows == [(number,) for number in range(1000)]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_error_ends_the_statements_and_not_the_connection(wire: WireConnection, where: int) -> None:
    statements = ["SELECT 1", "SELECT 2", "SELECT 3"]
    statements[where] = "SELECT nothing_of_that_name"
    with pytest.raises(pymysql.OperationalError, match="nothing_of_that_name"):
        wire.exchange(";".join(statements))
    assert [answer.rows for answer in wire.exchange("SELECT 4;SELECT 5")] == [[(4,)], [(5,)]]
    wire.rollback()


def test_an_error_within_the_rows_is_told(wire: WireConnection) -> None:
    statement = "SELECT (SELECT 1 UNION SELECT d) FROM (SELECT 1 AS d UNION ALL SELECT 2) numbers"
    with pytest.raises(pymysql.Error, match="more than 1 row"):
        wire.exchange(f"SELECT 1;{statement}")
    assert wire.exchange("SELECT 6")[0].rows == [(6,)]


def test_a_connection_that_the_server_ends_is_lost(wire: WireConnection, options: dict[str, Any]) -> None:
    ((number,),) = wire.exchange("SELECT CONNECTION_ID()")[0].rows
    with closing(pymysql.connect(**options)) as other, other.cursor() as cursor:
        cursor.execute(f"KILL {number}")
    with pytest.raises(pymysql.OperationalError) as lost:
        _ask_for_long(wire)
    assert lost.value.args[0] in {1053, 1317, 1927, 2006, 2013, 4031}
    if wire.open:
        wire.close()
    with pytest.raises(pymysql.Error):
        wire.exchange("SELECT 1")
    wire.connect()


def test_a_bug_in_the_middle_closes_the_connection(wire: WireConnection) -> None:
    wire.decoders[FIELD_TYPE.LONG] = wire.decoders[FIELD_TYPE.LONGLONG] = lambda _text: 1 // 0
    with pytest.raises(ZeroDivisionError):
        wire.exchange("SELECT CAST(1 AS SIGNED);SELECT 2")
    assert not wire.open
    wire.connect()
