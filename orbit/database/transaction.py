"""One open transaction: the only way in which stores talk to the database."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pymysql
from msgspec import Struct
from sqlalchemy import CursorResult, Executable, insert
from sqlalchemy.exc import DBAPIError

from orbit.database.bulk import Key, Rows, delete_text, insert_literals, single_delete, single_update, update_text
from orbit.database.hot import Hot, Query
from orbit.database.wire import Answer, WireConnection

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row, Table

    from orbit.clock import Micros
    from orbit.database.clock import DatabaseClock
    from orbit.database.facts import Facts

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

Statement = Executable | Hot

MemoryT = TypeVar("MemoryT")

_NOW = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"


# A transaction that has lasted longer is asked about before it commits, see `Transaction.check_if_late`.
LATE_SECONDS = 1.5

# More text than this is not kept waiting: a packet stays far below the servers' limits.
_LENGTH_MAX = 2**20


class _Write(Struct, frozen=True):
    """A write on its way: how many rows it must match (None: any number), and what to raise if it does not."""

    text: str
    count: int | None = None
    otherwise: Exception | None = None


class Transaction:
    """Statements inside one transaction.

    A function that gets one may run more than once (a deadlock rolls everything back), also after a COMMIT whose answer
    was lost: it changes nothing but the database, and guards what it writes by receipts or by re-checking states.

    Writes that nobody waits for an answer of are sent together, with the next read or before COMMIT: what latency is
    made of is round trips. Their errors, a duplicate key or a wrong count, come then.
    """

    def __init__(self, connection: Connection, clock: DatabaseClock, facts: Facts, *, is_sqlite: bool) -> None:
        self._connection = connection
        self._clock = clock
        self._facts = facts
        self._writes: list[_Write] = []
        self._writes_length = 0
        self._now: Micros | None = None
        self._ahead: dict[str, Sequence[Row[Any]]] = {}
        self._checks: list[Callable[[Transaction], None]] = []
        self._began = monotonic()
        self.is_sqlite = is_sqlite
        self.callbacks: list[Callable[[], None]] = []
        self.undos: list[Callable[[], None]] = []
        self.statement_count = 0

    def rows(self, statement: Statement, parameters: Parameters = None) -> Sequence[Row[Any]]:
        """Run a query and return all its rows."""
        if type(statement) is Hot and not self.is_sqlite:
            query = (statement, _single(parameters))
            known = self._ahead.get(self._text(query)) if self._ahead else None
            return self.rows_each([query])[0] if known is None else known
        return self._run(statement, parameters).all()

    def read_ahead(self, queries: Sequence[Query]) -> None:
        """Run hot queries in one round trip that are about to be asked for one by one.

        `rows` then gives what was read here for the same statement and parameters, until anything else is sent or
        written. One that `tells_time` stands last.
        """
        if not self.is_sqlite:
            found = self.rows_each(queries)
            self._ahead = dict(zip(map(self._text, queries), found, strict=True))

    def rows_each(self, queries: Sequence[Query]) -> list[Sequence[Row[Any]]]:
        """Run queries one after the other, in one round trip, and return the rows of each."""
        if self.is_sqlite:
            return [self._run(statement, parameters).all() for statement, parameters in queries]
        compiled = [statement.compiled(self._connection.dialect) for statement, _ in queries]
        texts = [each.text(parameters) for each, (_, parameters) in zip(compiled, queries, strict=True)]
        tells_time = queries[-1][0].tells_time
        answers = self._send_behind_writes([*texts, _NOW] if tells_time else texts)
        if tells_time:
            self._now = int(answers[-1].rows[0][0])
        return [each.rows(answer.rows) for each, answer in zip(compiled, answers, strict=False)]

    def row(self, statement: Statement, parameters: Parameters = None) -> Row[Any] | None:
        """Run a query that finds at most one row."""
        rows = self.rows(statement, parameters)
        assert len(rows) <= 1, f"{len(rows)} rows where one at most was expected"
        return rows[0] if rows else None

    def execute(self, statement: Statement, parameters: Parameters = None) -> int:
        """Run a statement and return the number of rows that it matched."""
        if type(statement) is Hot and not self.is_sqlite:
            text = statement.compiled(self._connection.dialect).text(_single(parameters))
            return self._send_behind_writes([text])[0].matched
        return self._run(statement, parameters).rowcount

    def expect(
        self, statement: Statement, parameters: Parameters = None, *, count: int, otherwise: Exception | None = None
    ) -> None:
        """Run a write that must match exactly `count` rows.

        Anything else rolls the transaction back: a bug, unless `otherwise` is what to raise then.
        """
        if type(statement) is Hot and not self.is_sqlite:
            text = statement.compiled(self._connection.dialect).text(_single(parameters))
            self._later(_Write(text, count, otherwise))
        else:
            _check(count, self._run(statement, parameters).rowcount, otherwise)

    def insert(self, table: Table, rows: Rows) -> None:
        """Insert rows that all have the same columns, as one statement. No rows, no statement."""
        if not rows:
            return
        if self.is_sqlite:
            self._run(insert(table), list(rows))
        else:
            self._later(_Write(insert_literals(table, rows)))

    def update_many(
        self,
        table: Table,
        *,
        key: Key = "id",
        rows: Rows,
        where: Mapping[str, Any] | None = None,
        may_miss: bool = False,
    ) -> None:
        """Update rows by `key`, each with its own values, in one statement.

        `key` is a column, or several together. Every row has the same columns. `where` adds conditions that all of them
        must meet. Each of them must be there, unless some `may_miss`.
        """
        if not rows:
            return
        conditions = where or {}
        count = None if may_miss else len(rows)
        if not self.is_sqlite:
            self._later(_Write(update_text(table, key, rows, conditions), count))
            return
        self._one_by_one(single_update(table, key, tuple(rows[0]), conditions), rows, count)

    def delete_many(
        self, table: Table, rows: Rows, *, may_miss: bool = False, otherwise: Exception | None = None
    ) -> None:
        """Delete rows by their whole primary key, in one statement.

        Each must be there, or `otherwise` is raised as by `expect`; unless some `may_miss`.
        """
        if not rows:
            return
        count = None if may_miss else len(rows)
        if not self.is_sqlite:
            self._later(_Write(delete_text(table, rows), count, otherwise))
            return
        self._one_by_one(single_delete(table, tuple(rows[0])), rows, count, otherwise)

    def flush(self) -> None:
        """Send the writes that wait."""
        if self._writes:
            self._send_behind_writes([])

    def _send_behind_writes(self, texts: Sequence[str]) -> list[Answer]:
        """Send the writes that wait and then these statements, as one packet; return the answers to the latter."""
        writes, self._writes, self._writes_length = self._writes, [], 0
        answers = self._send([*(write.text for write in writes), *texts])
        for write, answer in zip(writes, answers, strict=False):
            if write.count is not None:
                _check(write.count, answer.matched, write.otherwise)
        return answers[len(writes) :]

    def _text(self, query: Query) -> str:
        statement, parameters = query
        return statement.compiled(self._connection.dialect).text(parameters)

    def _later(self, write: _Write) -> None:
        self._ahead = {}
        self._writes.append(write)
        self._writes_length += len(write.text)
        if self._writes_length > _LENGTH_MAX:
            self.flush()

    def _one_by_one(
        self, statement: Executable, rows: Rows, count: int | None, otherwise: Exception | None = None
    ) -> None:
        self.statement_count += 1
        bound = ({f"b_{name}": value for name, value in row.items()} for row in rows)
        matched = sum(self._connection.execute(statement, parameters).rowcount for parameters in bound)
        if count is not None:
            _check(count, matched, otherwise)

    def _run(self, statement: Statement, parameters: Parameters) -> CursorResult[Any]:
        self.flush()
        self._now = None
        self._ahead = {}
        self.statement_count += 1
        construct = statement.statement if isinstance(statement, Hot) else statement
        return cast("CursorResult[Any]", self._connection.execute(construct, parameters))

    def _send(self, texts: Sequence[str]) -> list[Answer]:
        """Send statements that are text already, as one packet; errors look as SQLAlchemy's do."""
        self.statement_count += len(texts)
        self._now = None
        self._ahead = {}
        wire = cast("WireConnection", self._connection.connection.dbapi_connection)
        try:
            answers = wire.exchange(";".join(texts))
        except pymysql.Error as error:
            raise DBAPIError.instance(texts[0][:200], None, error, pymysql.Error) from error
        assert len(answers) == len(texts), f"{len(answers)} answers to {len(texts)} statements"
        return answers

    def now(self) -> Micros:
        """Read the database's clock. Call it after the transaction's last lock: a time read before a wait is stale."""
        if self.is_sqlite:
            return self._clock.local_now()
        if self._now is None or self._writes:
            # A write that is still to be sent may have to wait for a lock: the clock is read behind it.
            self._now = int(self._send_behind_writes([_NOW])[0].rows[0][0])
        return self._clock.shown(self._now)

    def known(self, key: Hashable) -> bytes | None:
        """Return an immutable fact that this process has read before, or None."""
        return self._facts.get(key)

    def learn(self, facts: Mapping[Hashable, bytes]) -> None:
        """Remember immutable facts, once this transaction is committed."""
        self.callbacks.append(lambda: self._facts.learn(facts))

    def memory(self, kind: type[MemoryT]) -> MemoryT:
        """Return what this process remembers of one kind from transaction to transaction; made when first asked for."""
        return self._facts.memory(kind)

    def check_if_late(self, check: Callable[[Transaction], None]) -> None:
        """Call `check` right before COMMIT if this transaction has lasted over 1.5 seconds; it may raise RunAgain.

        It is for writers whose decision others rely on within a known time: a slow one has to look again.
        """
        self._checks.append(check)

    def checks_run(self) -> None:
        """Ask the checks if it is late. The database calls it when everything but COMMIT has been sent."""
        if self._checks and monotonic() - self._began > LATE_SECONDS:
            for check in self._checks:
                check(self)

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the caller's own greenlet once this transaction is committed, and not if it is not."""
        self.callbacks.append(callback)

    def after_rollback(self, callback: Callable[[], None]) -> None:
        """Call `callback` if this run of the transaction is not known to be committed. It must not raise."""
        self.undos.append(callback)


def _single(parameters: Parameters) -> Mapping[str, Any]:
    assert parameters is None or isinstance(parameters, Mapping), "a hot statement runs once"
    return parameters or {}


def _check(wanted: int, matched: int, otherwise: Exception | None) -> None:
    if matched != wanted:
        raise otherwise or AssertionError(f"a write matched {matched} rows where {wanted} were locked")
