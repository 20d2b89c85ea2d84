"""The databases of one test process: one a kind, migrated once, emptied between tests.

Nothing is started or made before a test asks for it. SQLite gets a fresh copy of a migrated file for each test; on the
servers only the tables that a test left dirty are emptied.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path

import pymysql
from sqlalchemy import make_url

from migrations.upgrade import upgrade
from orbit.database import Database
from tests.support.databases import environment_name
from tests.support.guard import guard_spawn
from tests.support.servers import Kind, Server, locked

VERSION_TABLE = "alembic_version"
_FORMAT_TABLE = "orbit_format"  # what a new database may store is written by its migration, and stays
_READ_FORMATS = f"SELECT name, number, finalized_at FROM {_FORMAT_TABLE} ORDER BY name"  # noqa: S608


class DatabaseKind(StrEnum):
    """What the same tests run on."""

    SQLITE = "sqlite"
    MARIADB = "mariadb"
    MYSQL = "mysql"


class DatabaseSession:
    """One test process's databases. `run_folder` is shared by all processes of a run, whose owner is `owner_pid`."""

    def __init__(self, run_folder: Path, owner_pid: int, name: str) -> None:
        self._run_folder = run_folder
        self._owner_pid = owner_pid
        self._name = name
        self._server_databases: dict[Kind, ServerDatabase] = {}
        self._template: Path | None = None

    @contextmanager
    def fresh_url(self, kind: DatabaseKind, folder: Path) -> Iterator[str]:
        """Give the URL of a migrated, empty database; an embedded one lies in `folder`.

        Raises RuntimeError if its server can't be started.
        """
        if kind is DatabaseKind.SQLITE:
            path = folder / "orbit.db"
            shutil.copyfile(self._sqlite_template(), path)
            yield f"sqlite:///{path}"
            return
        database = self._server_database(Kind(kind))
        database.empty()
        yield database.url

    @contextmanager
    def blank_url(self, kind: DatabaseKind, folder: Path, name: str = "blank") -> Iterator[str]:
        """Give the URL of a new database without any schema, dropped afterwards."""
        if kind is DatabaseKind.SQLITE:
            yield f"sqlite:///{folder / name}.db"
            return
        database = ServerDatabase(self.server_url(Kind(kind)), f"orbit_{self._name}_{name}")
        try:
            yield database.url
        finally:
            database.drop()

    def fresh_database(self, kind: DatabaseKind, url: str) -> "tuple[Database, bool]":
        """Open `url`, or give the process's open server database back; the second value says whether to close it."""
        if kind is DatabaseKind.SQLITE:
            return Database.open(url), True
        return self._server_database(Kind(kind)).opened(), False

    def server_url(self, kind: Kind) -> str:
        """Return the URL of a server: one that runs already if the environment names it, else this run's own."""
        named = os.environ.get(environment_name(kind))
        if named:
            return named
        with locked(self._run_folder / f"{kind}.lock"):
            state = self._run_folder / kind / "server.json"
            server = Server.load(state) if state.exists() else None
            return (server or guard_spawn(kind, self._run_folder / kind, self._owner_pid)).url

    def why_missing(self, kind: DatabaseKind) -> str:
        """Say why a server can't be had, or nothing if it can."""
        try:
            self.server_url(Kind(kind))
        except RuntimeError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Close and drop what was made."""
        for database in self._server_databases.values():
            database.drop()

    def _server_database(self, kind: Kind) -> "ServerDatabase":
        if kind not in self._server_databases:
            database = ServerDatabase(self.server_url(kind), f"orbit_{self._name}")
            self._server_databases[kind] = database
            database.migrate()
        return self._server_databases[kind]

    def _sqlite_template(self) -> Path:
        if self._template is None:
            path = self._run_folder / f"template-{self._name}.db"
            upgrade(f"sqlite:///{path}")
            # The file alone must hold everything, as tests copy it without its log.
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._template = path
        return self._template


class ServerDatabase:
    """One database on a server, with a connection of its own for emptying it."""

    def __init__(self, server_url: str, name: str) -> None:
        base = make_url(server_url)
        self.url = base.set(database=name).render_as_string(hide_password=False)
        self._name = name
        self._connection = pymysql.connect(
            host=base.host or "127.0.0.1",
            port=base.port or 3306,
            user=base.username,
            password=base.password or "",
            autocommit=True,
            ssl_disabled=True,
            read_timeout=60,
        )
        self._run(f"DROP DATABASE IF EXISTS {name}")
        self._run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        self._run(f"USE {name}")
        # An open transaction of a test would make emptying wait; failing fast names the test that left it.
        self._run("SET SESSION lock_wait_timeout = 10, innodb_lock_wait_timeout = 10, foreign_key_checks = 0")
        self._dirty_query = ""
        self._formats: tuple[tuple[str, ...], ...] = ()
        self._database: Database | None = None

    def migrate(self) -> None:
        """Bring the new database to the newest schema."""
        upgrade(self.url)
        tables = [row[0] for row in self._run("SHOW TABLES") if row[0] not in {VERSION_TABLE, _FORMAT_TABLE}]
        checks = (f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in tables)  # noqa: S608
        self._dirty_query = " UNION ALL ".join(checks)
        self._formats = self._run(_READ_FORMATS)

    def opened(self) -> Database:
        """Return the database as Orbit opens it, with its clock back at zero."""
        if self._database is None:
            self._database = Database.open(self.url)
        self._database.clock.offset_micros = 0
        self._database.clock.go_on()
        return self._database

    def empty(self) -> None:
        """Empty the tables that have rows, and put the stored forms back."""
        for (name,) in self._run(self._dirty_query) if self._dirty_query else ():
            self._run(f"DELETE FROM {name}")  # noqa: S608
        if self._dirty_query and self._run(_READ_FORMATS) != self._formats:
            self._run(f"DELETE FROM {_FORMAT_TABLE}")  # noqa: S608
            for name, number, at in self._formats:
                self._run(f"INSERT INTO {_FORMAT_TABLE} VALUES ('{name}', {number}, {at})")  # noqa: S608

    def drop(self) -> None:
        """Close all connections and drop the database."""
        if self._database is not None:
            self._database.close()
        self._run(f"DROP DATABASE {self._name}")
        self._connection.close()

    def _run(self, statement: str) -> tuple[tuple[str, ...], ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return tuple(cursor.fetchall())
