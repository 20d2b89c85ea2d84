"""Engines: how a connection to MySQL, MariaDB or SQLite is made and what each session is set to.

Everything a connection can wait for has a bound here: connecting, reading, writing, a lock, a statement.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from pymysql.constants import CLIENT
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.pool import StaticPool

from orbit.database.wire import WireConnection
from orbit.errors import Unavailable

if TYPE_CHECKING:
    from sqlalchemy import Dialect
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of each connection, in seconds, and the size of each of the two pools.

    A statement ends by its own limit before the socket gives up, so only a server that is frozen or cut off costs the
    whole of `socket_seconds`; that is how long a caller then waits for its 503.
    """

    pool_size: int = 8
    connect_seconds: int = 5
    socket_seconds: int = 15
    lock_wait_seconds: int = 5
    statement_seconds: int = 10


# For commands that look at every row: what they ask may take long, and nobody waits for a 503.
PATIENT = ConnectionLimits(pool_size=2, socket_seconds=3_660, statement_seconds=3_600)


def engine_open(url: URL | str, limits: ConnectionLimits) -> Engine:
    """Make an engine for one pool. Nothing is connected yet."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite_engine(parsed)
    return _mysql_engine(parsed, limits)


def _mysql_engine(url: URL, limits: ConnectionLimits) -> Engine:
    arguments: dict[str, Any] = {
        "charset": "utf8mb4",
        "connect_timeout": limits.connect_seconds,
        "read_timeout": limits.socket_seconds,
        "write_timeout": limits.socket_seconds,
        # Rows are counted as matched, not as changed, and writes travel together (see orbit.database.transaction).
        "client_flag": CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
    }
    if "unix_socket" in url.query or _is_loopback(url.host):
        # Building a TLS context costs 20 ms a connection; on loopback it protects nothing.
        arguments["ssl_disabled"] = True
    engine = create_engine(
        url,
        connect_args=arguments,
        pool_size=limits.pool_size,
        max_overflow=0,
        # Every transaction here ends by COMMIT or ROLLBACK; the pool's own ROLLBACK would be a round trip for nothing.
        pool_reset_on_return=None,
        pool_timeout=limits.connect_seconds,
        isolation_level="READ COMMITTED",
        query_cache_size=1_200,
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Dialect, _entry: ConnectionPoolEntry, positional: Any, named: Any) -> WireConnection:
        return WireConnection(*positional, **named)

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT VERSION(), @@session.character_set_database")
        version, charset = cursor.fetchone() or ("", "")
        if charset != "utf8mb4":
            message = f"the database's character set is {charset}; Orbit needs utf8mb4, which loses no character"
            raise Unavailable(message)
        is_mariadb = "MariaDB" in version
        timeout = (
            f"max_statement_time = {limits.statement_seconds}"
            if is_mariadb
            else f"max_execution_time = {limits.statement_seconds * 1000}"
        )
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(
            f"SET SESSION innodb_lock_wait_timeout = {limits.lock_wait_seconds}, {timeout},"
            " sql_mode = 'STRICT_TRANS_TABLES,ONLY_FULL_GROUP_BY,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
        )
        cursor.execute(f"SELECT @@session.{'tx_isolation' if is_mariadb else 'transaction_isolation'}")
        (isolation,) = cursor.fetchone() or ("",)
        cursor.close()
        if isolation != "READ-COMMITTED":
            message = f"the session's isolation is {isolation}; Orbit needs READ COMMITTED"
            raise Unavailable(message)

    return engine


def _is_loopback(host: str | None) -> bool:
    try:
        return host in {None, "localhost"} or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "isolation_level": None, "timeout": 5}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 5000", "foreign_keys = ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
        # What SQLite lacks of hot reads, see orbit.database.packed and orbit.database.ids.
        connection.create_function("to_base64", 1, _to_base64, deterministic=True)
        connection.create_function("from_base64", 1, b64decode, deterministic=True)

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # The driver's own BEGIN comes too late and is deferred: a read that turns into a write could deadlock.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _to_base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode("ascii")
