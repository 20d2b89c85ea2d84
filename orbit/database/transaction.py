"""One open transaction: the only way in which stores talk to the database."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, text

from orbit.database.bulk import (
    Key,
    Rows,
    delete_text,
    insert_literals,
    packed_rows,
    single_delete,
    single_update,
    update_text,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, Executable, Row, Table

    from orbit.clock import Micros
    from orbit.database.clock import DatabaseClock
    from orbit.database.facts import Facts

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

_NOW = text("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))")


class RunAgain(Exception):
    """What was read without a lock had changed when it was locked: roll back and run the whole transaction again."""


class Transaction:
    """Statements inside one transaction.

    A function that gets one may run more than once (a deadlock rolls everything back), also after a COMMIT whose answer
    was lost: it changes nothing but the database, and guards what it writes by receipts or by re-checking states.
    """

    def __init__(self, connection: Connection, clock: DatabaseClock, facts: Facts, *, is_sqlite: bool) -> None:
        self._connection = connection
        self._clock = clock
        self._facts = facts
        self.is_sqlite = is_sqlite
        self.callbacks: list[Callable[[], None]] = []
        self.statement_count = 0

    def rows(self, statement: Executable, parameters: Parameters = None) -> Sequence[Row[Any]]:
        """Run a query and return all its rows."""
        self.statement_count += 1
        return self._connection.execute(statement, parameters).all()

    def row(self, statement: Executable, parameters: Parameters = None) -> Row[Any] | None:
        """Run a query that finds at most one row."""
        self.statement_count += 1
        return self._connection.execute(statement, parameters).one_or_none()

    def execute(self, statement: Executable, parameters: Parameters = None) -> int:
        """Run a statement and return the number of rows that it matched."""
        self.statement_count += 1
        return self._connection.execute(statement, parameters).rowcount

    def expect(self, statement: Executable, parameters: Parameters = None, *, count: int) -> None:
        """Run a write that must match exactly `count` rows; anything else is a bug and rolls the transaction back."""
        matched = self.execute(statement, parameters)
        if matched != count:
            message = f"a write matched {matched} rows where {count} were locked"
            raise AssertionError(message)

    def insert(self, table: Table, rows: Rows) -> None:
        """Insert rows that all have the same columns, as one statement. No rows, no statement."""
        if not rows:
            return
        self.statement_count += 1
        if self.is_sqlite:
            self._connection.execute(insert(table), list(rows))
        else:
            self._connection.exec_driver_sql(insert_literals(table, rows))

    def update_many(self, table: Table, *, key: Key = "id", rows: Rows, where: Mapping[str, Any] | None = None) -> int:
        """Update rows by `key`, each with its own values, in one statement; return how many rows matched.

        `key` is a column, or several together. Every row has the same columns. `where` adds conditions that all of them
        must meet.
        """
        if not rows:
            return 0
        self.statement_count += 1
        conditions = where or {}
        if not self.is_sqlite:
            statement = update_text(table, key, tuple(rows[0]), tuple(conditions))
            bound = {f"w_{name}": value for name, value in conditions.items()}
            return self._connection.execute(statement, packed_rows(rows) | bound).rowcount
        return self._one_by_one(single_update(table, key, tuple(rows[0]), conditions), rows)

    def delete_many(self, table: Table, rows: Rows) -> int:
        """Delete rows by their whole primary key, in one statement; return how many there were."""
        if not rows:
            return 0
        self.statement_count += 1
        if not self.is_sqlite:
            return self._connection.execute(delete_text(table, tuple(rows[0])), packed_rows(rows)).rowcount
        return self._one_by_one(single_delete(table, tuple(rows[0])), rows)

    def _one_by_one(self, statement: Executable, rows: Rows) -> int:
        bound = ({f"b_{name}": value for name, value in row.items()} for row in rows)
        return sum(self._connection.execute(statement, parameters).rowcount for parameters in bound)

    def now(self) -> Micros:
        """Read the database's clock. Call it after the transaction's last lock: a time read before a wait is stale."""
        if self.is_sqlite:
            return self._clock.local_now()
        self.statement_count += 1
        return int(self._connection.execute(_NOW).scalar_one()) + self._clock.offset_micros

    def known(self, key: Hashable) -> bytes | None:
        """Return an immutable fact that this process has read before, or None."""
        return self._facts.get(key)

    def learn(self, facts: Mapping[Hashable, bytes]) -> None:
        """Remember immutable facts, once this transaction is committed."""
        self.callbacks.append(lambda: self._facts.learn(facts))

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the caller's own greenlet once this transaction is committed, and not if it is not."""
        self.callbacks.append(callback)
