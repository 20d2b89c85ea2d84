"""The database as the rest of Orbit sees it: run this function in one transaction.

Two pools, so that a burst of API calls can't starve lease renewals. A transaction that loses a deadlock or waits too
long for a lock is rolled back WHOLE and run again. On SQLite one native thread owns the only connection, so that the
hub never waits in C. Asking for a transaction inside a transaction is an assertion on every database.
"""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from enum import StrEnum
from pathlib import Path
from time import monotonic
from time import sleep as _pause  # noqa: TID251  (the back-off of a lost deadlock has nothing to wait for)
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from orbit.database.clock import DatabaseClock
from orbit.database.connect import ConnectionLimits, engine_open
from orbit.database.connections import Connections
from orbit.database.facts import Facts
from orbit.database.failures import Failure, RunAgain, classify
from orbit.database.transaction import Transaction
from orbit.errors import Unavailable
from orbit.logs import get_logger

if TYPE_CHECKING:
    from sqlalchemy import URL, RootTransaction

T = TypeVar("T")

_log = get_logger(__name__)

ATTEMPTS_MAX = 8
_BACKOFF_SECONDS = 0.005
_AWAY_ATTEMPTS_MAX = 2
# A stale connection fails at once and the next one works; a server that let us wait longer would do so again.
_AWAY_SECONDS_MAX = 2.0

_holding: ContextVar[bool] = ContextVar("orbit_database_holding", default=False)


class Pool(StrEnum):
    """Which connections a transaction uses."""

    API = "API"  # HTTP requests and operators' commands
    DISPATCH = "DISPATCH"  # claims, starts, leases, results, sweepers, the workflow runner


class Database:
    """One database, opened once a process. Open it by `Database.open`, end it by `close`."""

    def __init__(self, url: URL, connections: dict[Pool, Connections]) -> None:
        self.url = url
        self.clock = DatabaseClock()
        self._facts = Facts()
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._connections = connections
        self._lock_file: int | None = None
        self._native = _NativeThread() if self.is_sqlite else None
        self.counts = {"transactions": 0, "statements": 0, "retries": 0, "deadlocks": 0, "failures": 0}

    @classmethod
    def open(cls, url: str, limits: ConnectionLimits | None = None) -> Database:
        """Open a database by its SQLAlchemy URL; nothing is read yet.

        An SQLite file is locked against a second process: raises Unavailable if one has it.
        """
        parsed = make_url(url)
        if parsed.get_backend_name() == "mariadb":
            parsed = parsed.set(drivername="mysql+pymysql")
        bounds = limits or ConnectionLimits()
        is_sqlite = parsed.get_backend_name() == "sqlite"
        first = _connections_of(parsed, bounds)
        second = first if is_sqlite else _connections_of(parsed, bounds)
        database = cls(parsed, {Pool.API: first, Pool.DISPATCH: second})
        if is_sqlite and parsed.database and parsed.database != ":memory:":
            database._lock_file = _file_lock(Path(parsed.database))
        return database

    def close(self) -> None:
        """Close all connections and give the embedded file free."""
        for connections in set(self._connections.values()):
            if self._native is not None:
                self._native.run(connections.close)
            else:
                connections.close()
        if self._native is not None:
            self._native.end()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def transaction(self, work: Callable[[Transaction], T], *, pool: Pool = Pool.API, is_snapshot: bool = False) -> T:
        """Run `work` in one transaction and return its result after COMMIT.

        With `is_snapshot` all its plain reads see the database at one instant, that of the first of them; reads that
        lock, and writes, see what is there when they run. It is for those who compare, and may last.

        Raises whatever `work` raises (rolled back), Unavailable if the database is away or still too contended after
        eight runs. `work` may run more than once, see Transaction.
        """
        if _holding.get():
            message = "a transaction was asked for inside a transaction"
            raise AssertionError(message)
        token = _holding.set(True)
        try:
            transaction, result = self._attempts(work, self._connections[pool], is_snapshot=is_snapshot)
        finally:
            _holding.reset(token)
        for callback in transaction.callbacks:
            callback()
        return result

    def _attempts(
        self, work: Callable[[Transaction], T], connections: Connections, *, is_snapshot: bool
    ) -> tuple[Transaction, T]:
        away = 0
        for attempt in range(1, ATTEMPTS_MAX + 1):
            started = monotonic()
            try:
                if self._native is not None:
                    return self._native.run(lambda: self._once(work, connections, is_snapshot=False))
                return self._once(work, connections, is_snapshot=is_snapshot)
            except DBAPIError as error:
                failure = classify(error)
                if failure is Failure.BUG:
                    self.counts["failures"] += 1
                    raise
                self.counts["retries"] += 1
                if failure is Failure.CONTENDED:
                    self.counts["deadlocks"] += 1
                if failure is Failure.AWAY:
                    away += 1
                    connections.drop_idle()
                is_frozen = away > 0 and monotonic() - started > _AWAY_SECONDS_MAX
                if attempt == ATTEMPTS_MAX or away > _AWAY_ATTEMPTS_MAX or is_frozen:
                    self.counts["failures"] += 1
                    message = "the database is away" if away else "the database is too contended"
                    raise Unavailable(message) from error
            except RunAgain as error:
                self.counts["retries"] += 1
                if attempt == ATTEMPTS_MAX:
                    message = "the database is too contended"
                    raise Unavailable(message) from error
            _pause(random.uniform(0, _BACKOFF_SECONDS * 2**attempt))
        message = "unreachable: the last attempt returns or raises"
        raise AssertionError(message)

    def _once(
        self, work: Callable[[Transaction], T], connections: Connections, *, is_snapshot: bool
    ) -> tuple[Transaction, T]:
        try:
            connection = connections.take()
        except Unavailable:
            self.counts["failures"] += 1
            raise
        transaction = Transaction(connection, self.clock, self._facts, is_sqlite=self.is_sqlite)
        opened: RootTransaction | None = None
        try:
            opened = connection.begin()
            if is_snapshot:
                # For the next transaction of the session only; the driver has sent nothing yet that began one.
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            result = work(transaction)
            transaction.flush()
            transaction.checks_run()
            opened.commit()
        except BaseException as error:
            keep = connections.give if _is_rolled_back(opened, error) else connections.drop
            # Before the connection goes: were throwing it away to fail, what was offered would be kept for ever.
            for undo in transaction.undos:
                undo()
            keep(connection)
            raise
        connections.give(connection)
        self.counts["transactions"] += 1
        self.counts["statements"] += transaction.statement_count
        return transaction, result


def _connections_of(url: URL, limits: ConnectionLimits) -> Connections:
    return Connections(engine_open(url, limits), size=limits.pool_size, wait_seconds=limits.connect_seconds)


def _is_rolled_back(opened: RootTransaction | None, error: BaseException) -> bool:
    """Roll back; say no if nobody can say where the connection stands.

    After a COMMIT that failed, a greenlet killed inside a call, or a ROLLBACK that failed, the connection may be half
    read or still hold its transaction: its next user would commit somebody else's work.
    """
    if opened is None or not opened.is_active or not isinstance(error, Exception):
        return False
    try:
        opened.rollback()
    except Exception:  # noqa: BLE001  (the first error is the one to raise)
        _log.warning("database.rollback_failed")
        return False
    return True


class _NativeThread:
    """The single native thread that owns an embedded database."""

    def __init__(self) -> None:
        self._apply: Callable[[Callable[[], Any]], Any]
        if _is_patched():
            from gevent.threadpool import ThreadPool  # noqa: PLC0415  (only a node has gevent in its process)

            pool = ThreadPool(1)
            self._apply, self.end = pool.apply, pool.kill
            return
        executor = ThreadPoolExecutor(1, thread_name_prefix="orbit-sqlite")
        self._apply, self.end = lambda work: executor.submit(work).result(), executor.shutdown

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` there, wait for it and return its result or raise its error."""
        # The context goes along, so that a transaction asked for in there is known to be inside one, not a dead wait.
        context = copy_context()

        def guarded() -> tuple[T, None] | tuple[None, BaseException]:
            # Handed over, not raised: gevent prints whatever a pool's task raises, and a refusal is no news.
            try:
                return context.run(work), None
            except BaseException as error:  # noqa: BLE001  (it is raised below, in the caller)
                return None, error

        result, error = self._apply(guarded)
        if error is not None:
            raise error
        return cast("T", result)


def _is_patched() -> bool:
    try:
        from gevent.monkey import is_module_patched  # noqa: PLC0415  (the SDK runs without gevent)
    except ImportError:
        return False
    return bool(is_module_patched("socket"))


def _file_lock(path: Path) -> int:
    """Lock the file beside the database, so that a second process is refused instead of waiting for every write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_suffix(path.suffix + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        message = f"{path} is in use by another process"
        raise Unavailable(message) from None
    return descriptor
