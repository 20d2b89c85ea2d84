"""Which statements run, and how a server would run them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from orbit.database import Database, Transaction


@contextmanager
def recorded() -> Iterator[list[tuple[str, Any]]]:
    """Keep the statements that are run meanwhile, as they are sent."""
    statements: list[tuple[str, Any]] = []

    def keep(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        statements.append((statement, parameters))

    send = Transaction._send  # noqa: SLF001  (hot statements pass SQLAlchemy by)

    def keep_hot(tx: Transaction, texts: Sequence[str]) -> Any:
        statements.extend((text.replace("%", "%%"), ()) for text in texts)
        return send(tx, texts)

    event.listen(Engine, "before_cursor_execute", keep)
    Transaction._send = keep_hot  # type: ignore[method-assign, assignment]  # noqa: SLF001
    try:
        yield statements
    finally:
        Transaction._send = send  # type: ignore[method-assign]  # noqa: SLF001
        event.remove(Engine, "before_cursor_execute", keep)


def plans(database: Database, statement: str, parameters: Any) -> list[dict[str, Any]]:
    """Ask the server how it would run a statement: a row for each table. A server's own default may be another form."""

    def work(tx: Transaction) -> list[dict[str, Any]]:
        connection = tx._connection  # noqa: SLF001  (the statement is sent as it was)
        rows = connection.exec_driver_sql(f"EXPLAIN FORMAT=TRADITIONAL {statement}", parameters)
        return [dict(row._mapping) for row in rows]  # noqa: SLF001

    return database.transaction(work)
