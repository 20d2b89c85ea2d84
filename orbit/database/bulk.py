"""One UPDATE for many rows with different values: PyMySQL batches only INSERTs, so a batch of updates is one statement.

On MySQL and MariaDB the rows travel as one JSON text and are joined by JSON_TABLE; SQLite runs the plain statement per
row in its own thread, where a statement is no round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Boolean, Integer, LargeBinary, Table, TextClause, bindparam, text, update
from sqlalchemy.sql import Update


def joined_update(
    table: Table, key: str, rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]
) -> tuple[TextClause, dict[str, Any]]:
    """Build the MySQL statement and its parameters; every row has the same keys, `key` among them."""
    columns = tuple(rows[0])
    statement = _joined_update_text(table, key, columns, tuple(where))
    packed = [
        {
            f"c{index}": _packed(table, column, value)
            for index, column in enumerate(columns)
            if (value := row[column]) is not None
        }
        for row in rows
    ]
    parameters = {f"w_{name}": value for name, value in where.items()}
    return statement, {"rows": msgspec.json.encode(packed).decode("utf-8"), **parameters}


def _packed(table: Table, column: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex() if _is_sized_binary(table, column) else value.decode("utf-8")
    return int(value) if isinstance(value, bool) else value


@lru_cache(maxsize=256)
def _joined_update_text(table: Table, key: str, columns: tuple[str, ...], where: tuple[str, ...]) -> TextClause:
    extracted = ", ".join(f"c{index} {_json_type(table, name)} PATH '$.c{index}'" for index, name in enumerate(columns))
    values = {name: _from_json(table, name, f"j.c{index}") for index, name in enumerate(columns)}
    selected = ", ".join(f"{value} AS {name}" for name, value in values.items())
    assignments = ", ".join(f"t.{name} = r.{name}" for name in columns if name != key)
    conditions = "".join(f" AND t.{name} = :w_{name}" for name in where)
    # The names are columns of our own tables, never input.
    return text(
        f"UPDATE {table.name} t JOIN (SELECT {selected} FROM JSON_TABLE(:rows, '$[*]' COLUMNS({extracted})) j) r"  # noqa: S608
        f" ON t.{key} = r.{key}{conditions} SET {assignments}"
    )


def _json_type(table: Table, column: str) -> str:
    kind = table.c[column].type
    if isinstance(kind, (Integer, Boolean)):
        return "BIGINT"
    if _is_sized_binary(table, column):
        return f"VARCHAR({2 * (getattr(kind, 'length', None) or 0)}) CHARACTER SET ascii"
    return "LONGTEXT"


def _from_json(table: Table, column: str, source: str) -> str:
    # A payload is JSON text already: only ids, hashes and keys need hexadecimal digits.
    return f"UNHEX({source})" if _is_sized_binary(table, column) else source


def _is_sized_binary(table: Table, column: str) -> bool:
    kind = table.c[column].type
    return isinstance(kind, LargeBinary) and kind.length is not None


def single_update(table: Table, key: str, columns: Sequence[str], where: Mapping[str, Any]) -> Update:
    """Build the statement that updates one row, its values and key bound by `b_<column>`."""
    statement = update(table).where(table.c[key] == bindparam(f"b_{key}"))
    for name, value in where.items():
        statement = statement.where(table.c[name] == value)
    return statement.values({name: bindparam(f"b_{name}") for name in columns if name != key})
