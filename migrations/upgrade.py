"""Bring a database's schema to this release's version, or say which version it has.

Only `upgrade` and `downgrade` write, and they hold a lock, so that two operators can't run the same revision twice.
What a revision does is in `migrations/versions`; each says by `OLD_NODES_MAY_RUN` whether nodes of the release before
it may go on running beside it.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, insert, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from orbit.database import ConnectionLimits, Database
from orbit.database.connect import engine_open
from orbit.errors import InvalidRequest, Unavailable
from orbit.formats import FIRST, NEWEST
from orbit.tables import stored_format

LOCK_SECONDS_MAX = 60
_LOCK = "orbit_migrations"
# A revision may rewrite a large table: statements have no time limit, the socket an hour's.
_LIMITS = ConnectionLimits(pool_size=1, socket_seconds=3600, lock_wait_seconds=60, statement_seconds=0)


class SchemaState(StrEnum):
    """How a database's schema stands to this release."""

    CURRENT = "CURRENT"  # the very version that this release wants
    BEHIND = "BEHIND"  # an older version that this release knows: `orbit db upgrade` brings it here
    EMPTY = "EMPTY"  # no schema at all: `orbit db upgrade` makes it
    UNKNOWN = "UNKNOWN"  # a version that this release does not know: a newer Orbit was here


@dataclass(frozen=True, slots=True)
class Revision:
    """A schema version: its name, what it brings, whether nodes of the release before may run beside it."""

    name: str
    summary: str
    old_nodes_may_run: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """What `check` found: the database's version, the release's, and the revisions between them in order."""

    state: SchemaState
    current: str | None
    head: str
    pending: tuple[Revision, ...]


def head() -> str:
    """Name the schema version that this release wants."""
    return _scripts().get_current_head() or _no_revision()


def check(database_url: str) -> Schema:
    """Read the schema's version; nothing is written, not even to make an empty SQLite file.

    Raises Unavailable if the database can't be reached, InvalidRequest if the URL is none.
    """
    with _reading(_url(database_url)) as connection:
        current = None if connection is None else MigrationContext.configure(connection).get_current_revision()
    return _compare(current)


def require_current(database_url: str) -> None:
    """Refuse a schema that is not this release's; a node calls this before it opens the database.

    Raises Unavailable, saying what to do.
    """
    schema = check(database_url)
    match schema.state:
        case SchemaState.CURRENT:
            return
        case SchemaState.EMPTY | SchemaState.BEHIND:
            found = schema.current or "empty"
            message = f"the database's schema is {found}, this release wants {schema.head}: run `orbit db upgrade`"
        case SchemaState.UNKNOWN:
            message = f"the database's schema is {schema.current}, which this release does not know: start a newer one"
    raise Unavailable(message)


def upgrade(database_url: str, *, to: str = "head") -> tuple[Revision, ...]:
    """Run all revisions up to `to` and return those that ran. Running it again does nothing.

    Raises Unavailable if the database is away, another upgrade holds the lock for a minute, another process has the
    SQLite file, or the schema is one that this release does not know.
    """
    with _writing(_url(database_url)) as connection:
        before = _compare(MigrationContext.configure(connection).get_current_revision())
        connection.rollback()
        if before.state is SchemaState.UNKNOWN:
            message = f"the database's schema is {before.current}, which this release does not know"
            raise Unavailable(message)
        command.upgrade(_config(connection), to)
        if before.state is SchemaState.EMPTY:
            _finalize(connection)
        after = _compare(MigrationContext.configure(connection).get_current_revision())
    return before.pending[: len(before.pending) - len(after.pending)]


def _finalize(connection: Connection) -> None:
    """Let a new database have the newest stored forms at once: there is no older node that would have to read it."""
    newer = [(kind.value, number) for kind, number in NEWEST.items() if number > FIRST]
    if newer and connection.dialect.has_table(connection, stored_format.name):
        now = time.time_ns() // 1_000
        rows = [{"name": name, "number": number, "finalized_at": now} for name, number in newer]
        connection.execute(insert(stored_format), rows)
        connection.commit()


def downgrade(database_url: str, *, to: str) -> None:
    """Undo revisions down to `to`, or all of them with `base`. Data that the older version has no place for is lost."""
    with _writing(_url(database_url)) as connection:
        command.downgrade(_config(connection), to)


def revisions() -> tuple[Revision, ...]:
    """List all schema versions that this release knows, oldest first."""
    return tuple(_revision(script) for script in reversed(list(_scripts().walk_revisions())))


def _compare(current: str | None) -> Schema:
    known = revisions()
    names = [revision.name for revision in known]
    if current is not None and current not in names:
        return Schema(SchemaState.UNKNOWN, current, names[-1], ())
    pending = known[names.index(current) + 1 :] if current is not None else known
    state = SchemaState.EMPTY if current is None else SchemaState.BEHIND if pending else SchemaState.CURRENT
    return Schema(state, current, names[-1], pending)


def _revision(script: Script) -> Revision:
    summary = (script.module.__doc__ or "").strip().partition("\n")[0]
    return Revision(script.revision, summary, bool(script.module.OLD_NODES_MAY_RUN))


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _no_revision() -> NoReturn:
    message = "this installation has no schema revisions"
    raise AssertionError(message)


def _url(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        url = URL.create("none")
    if url.get_backend_name() not in {"mysql", "mariadb", "sqlite"}:
        message = "the database's address has the form mysql+pymysql://user:password@host/name or sqlite:///file"
        raise InvalidRequest(message)
    if not url.database:
        message = "the database's address names no database"
        raise InvalidRequest(message)
    return url


def _connected(engine: Engine) -> Connection:
    """Connect, or say in one line why not: an operator may have mistyped the address."""
    try:
        return engine.connect()
    except DBAPIError as error:
        message = f"the database can't be reached: {error.orig}"
        raise Unavailable(message) from error


@contextmanager
def _reading(url: URL) -> Iterator[Connection | None]:
    """Give a connection that is only read from, or None if there is no SQLite file."""
    if url.get_backend_name() != "sqlite":
        engine = engine_open(url, ConnectionLimits(pool_size=1))
    elif url.database is None or not Path(url.database).exists():
        yield None
        return
    else:
        engine = create_engine(f"sqlite:///file:{Path(url.database).resolve()}?mode=ro&uri=true")
    try:
        with _connected(engine) as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def _writing(url: URL) -> Iterator[Connection]:
    """Give a connection for DDL, under the lock that keeps other upgrades (and, on SQLite, nodes) out."""
    with closing(Database.open(url.render_as_string(hide_password=False))):  # for SQLite's file lock alone
        engine = engine_open(url, _LIMITS)
        try:
            with _connected(engine) as connection:
                _lock(connection)
                yield connection
        finally:
            engine.dispose()


def _lock(connection: Connection) -> None:
    """Take the lock of this session; it is given free when the connection closes."""
    if connection.dialect.name == "sqlite":
        return
    # The lock is of the server, so its name holds the database's.
    got = connection.execute(
        text("SELECT GET_LOCK(CONCAT(:name, '.', LEFT(DATABASE(), 40)), :seconds)"),
        {"name": _LOCK, "seconds": LOCK_SECONDS_MAX},
    ).scalar()
    connection.rollback()
    if got != 1:
        message = f"another upgrade of this database is running since more than {LOCK_SECONDS_MAX} seconds"
        raise Unavailable(message)
