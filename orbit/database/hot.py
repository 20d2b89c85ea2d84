"""Statements of the hot paths, compiled once and sent as text: SQLAlchemy describes them, PyMySQL carries them.

Executing a compiled construct costs SQLAlchemy about 0.1 ms of Python before and after the driver's own work, which on
a transaction of ten statements is more than the database needs. A `Hot` statement keeps the compiled text of MySQL or
MariaDB; only its literals are filled in. SQLite, where a statement is no round trip, runs the construct itself.

The surprising rule: a value's literal must have its column's type. Text is quoted, never hexadecimal, because a
comparison with a binary literal would pass over the index.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pymysql.converters import escape_string
from sqlalchemy import Boolean, Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement

if TYPE_CHECKING:
    from sqlalchemy import Dialect, Row


class Hot:
    """A statement of a hot path. Make it once, at the head of a store module.

    A query that `tells_time` brings the database's clock along, read after its locks are held: `Transaction.now` right
    after it costs no round trip of its own.
    """

    __slots__ = ("_compiled", "statement", "tells_time")

    def __init__(self, statement: Executable, *, tells_time: bool = False) -> None:
        self.statement = statement
        self.tells_time = tells_time
        # MySQL and MariaDB have dialects of their own, and a process may talk to both (as tests do).
        self._compiled: dict[str, Compiled] = {}

    def compiled(self, dialect: Dialect) -> Compiled:
        """Return the text for a dialect, compiled when it is first asked for."""
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = Compiled(self.statement, dialect)
        return found


# A hot query with its parameters.
Query = tuple[Hot, Mapping[str, Any]]


class Compiled:
    """A statement's text with places for its literals, and how its rows are read."""

    __slots__ = ("_converted", "_make", "_names", "_text")

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        compiled = cast("ClauseElement", statement).compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        assert not compiled.post_compile_params, "an expanding IN has no fixed text; use ids_in"
        fixed = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        self._names = tuple(name for name in compiled.binds if name not in fixed)
        # What never changes is filled in now; the signs that only formatting needs stay doubled until the second time.
        places = {name: f"%({name})s" for name in self._names}
        self._text = compiled.string % (places | {name: literal(v).replace("%", "%%") for name, v in fixed.items()})
        columns = compiled._result_columns  # noqa: SLF001  (the public result metadata needs a result)
        self._make: Callable[[Sequence[Any]], Any] = _row_maker(tuple(column.keyname for column in columns))
        self._converted = tuple(n for n, column in enumerate(columns) if isinstance(column.type, Boolean))

    def text(self, parameters: Mapping[str, Any]) -> str:
        """Fill the literals in."""
        return self._text % {name: literal(parameters[name]) for name in self._names}

    def rows(self, raw: Sequence[tuple[Any, ...]]) -> Sequence[Row[Any]]:
        """Name the values of rows as the driver gave them."""
        if self._converted:
            raw = [self._booleans(row) for row in raw]
        return cast("Sequence[Row[Any]]", list(map(self._make, raw)))

    def _booleans(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for index in self._converted:
            if values[index] is not None:
                values[index] = bool(values[index])
        return tuple(values)


def _row_maker(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    if not names:
        return tuple
    kind: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    return cast("Callable[[Sequence[Any]], Any]", kind._make)


def literal(value: Any) -> str:
    """Write a value as SQL: numbers in decimal, bytes in hexadecimal, text quoted, a collection of ids as a list."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is bytes:
        return f"X'{value.hex()}'"
    if value is None:
        return "NULL"
    if kind is bool:
        return "1" if value else "0"
    if isinstance(value, str):
        return f"'{escape_string(value)}'"
    # Locks are always taken in the order of ids.
    ids = sorted(value)
    assert ids, "an empty IN has no meaning; the caller asks nothing then"
    return "(X'" + "',X'".join([identifier.hex() for identifier in ids]) + "')"
