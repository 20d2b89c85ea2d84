"""`id IN (…)` for a hot batch: one bound parameter, whatever its length.

SQLAlchemy's own expanding IN renders a name and escapes a value for each id in Python. PyMySQL writes a tuple of bytes
as a list of literals by itself, so on MySQL the statement keeps one place for the whole batch; on SQLite the ids travel
as one JSON array.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Dialect, Select, Table, Update, bindparam, types
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class _Ids(types.TypeDecorator[Collection[bytes]]):
    """A collection of ids as one parameter, in sorted order: locks are always taken in the order of ids."""

    impl = types.LargeBinary
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return what turns the ids into the driver's parameter."""
        return _sqlite_parameter if dialect.name == "sqlite" else _mysql_parameter


def _mysql_parameter(ids: Collection[bytes]) -> tuple[bytes, ...]:
    assert ids, "an empty IN has no meaning; the caller asks nothing then"
    return tuple(sorted(ids))


def _sqlite_parameter(ids: Collection[bytes]) -> str:
    return msgspec.json.encode(sorted(ids)).decode("ascii")


class _IsIn(FunctionElement[Any]):
    """The condition; its clauses are the column and the parameter.

    It must not be of type Boolean: for a database without one SQLAlchemy writes `… IN (…) = 1`, which no index serves.
    """

    inherit_cache = True
    type = types.NullType()
    name = "ids_in"


@compiles(_IsIn)
def _in_literals(element: _IsIn, compiler: SQLCompiler, **options: Any) -> str:
    column, ids = element.clauses
    return f"{compiler.process(column, **options)} IN {compiler.process(ids, **options)}"


@compiles(_IsIn, "sqlite")
def _in_json(element: _IsIn, compiler: SQLCompiler, **options: Any) -> str:
    column, ids = (compiler.process(clause, **options) for clause in element.clauses)
    # The name is a column of our own tables, never input.
    return f"{column} IN (SELECT from_base64(value) FROM json_each({ids}))"  # noqa: S608


def ids_in(column: ColumnElement[bytes], name: str = "ids") -> ColumnElement[bool]:
    """Say that a column's id is one of those bound as `name`: a collection of bytes that is not empty."""
    return _IsIn(column, bindparam(name, type_=_Ids()))


StatementT = TypeVar("StatementT", Select[Any], Update)


def through(statement: StatementT, table: Table, index: str = "PRIMARY") -> StatementT:
    """Make MySQL and MariaDB find the rows of `table` through an index, its primary key unless another is named.

    Left to itself an optimizer whose statistics lag behind (a young or quickly grown table) scans the whole table for
    an IN of some hundred ids: slow, and a locking statement then locks every row.
    """
    hint = f"FORCE INDEX ({index})"
    for dialect in ("mysql", "mariadb"):
        if isinstance(statement, Select):
            statement = statement.with_hint(table, hint, dialect)
        else:
            statement = statement.with_hint(hint, table, dialect)
    return statement
