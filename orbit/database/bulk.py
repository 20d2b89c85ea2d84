"""One UPDATE or DELETE for many rows with different values: PyMySQL batches only INSERTs.

On MySQL and MariaDB the rows travel as one JSON text and are joined by JSON_TABLE, always from the JSON to the table
and through its primary key: an optimizer left to itself may scan a small table, and would lock every row of it. SQLite
runs the plain statement per row in its own thread, where a statement is no round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Boolean, Integer, LargeBinary, String, Table, TextClause, bindparam, delete, text, update
from sqlalchemy.sql import Delete, Update

# The column, or the columns together, by which a row is found.
Key = str | tuple[str, ...]


def joined_update(
    table: Table, key: Key, rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]
) -> tuple[TextClause, dict[str, Any]]:
    """Build the MySQL statement and its parameters; every row has the same keys, those of `key` among them."""
    columns = tuple(rows[0])
    statement = _joined_update_text(table, _key_columns(key), columns, tuple(where))
    parameters = {f"w_{name}": value for name, value in where.items()}
    return statement, {"rows": _packed_rows(table, columns, rows), **parameters}


def joined_delete(table: Table, rows: Sequence[Mapping[str, Any]]) -> tuple[TextClause, dict[str, Any]]:
    """Build the MySQL statement that deletes rows by their whole primary key, which each row holds."""
    columns = tuple(rows[0])
    return _joined_delete_text(table, columns), {"rows": _packed_rows(table, columns, rows)}


def _packed_rows(table: Table, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    packed = [
        {
            f"c{index}": _packed(table, column, value)
            for index, column in enumerate(columns)
            if (value := row[column]) is not None
        }
        for row in rows
    ]
    return msgspec.json.encode(packed).decode("utf-8")


def _packed(table: Table, column: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex() if _is_sized_binary(table, column) else value.decode("utf-8")
    return int(value) if isinstance(value, bool) else value


def _derived(table: Table, columns: Sequence[str]) -> str:
    extracted = ", ".join(f"c{index} {_json_type(table, name)} PATH '$.c{index}'" for index, name in enumerate(columns))
    selected = ", ".join(f"{_from_json(table, name, f'j.c{index}')} AS {name}" for index, name in enumerate(columns))
    # The names are columns of our own tables, never input.
    return f"(SELECT {selected} FROM JSON_TABLE(:rows, '$[*]' COLUMNS({extracted})) j) r"  # noqa: S608


@lru_cache(maxsize=256)
def _joined_update_text(
    table: Table, key: tuple[str, ...], columns: tuple[str, ...], where: tuple[str, ...]
) -> TextClause:
    assignments = ", ".join(f"t.{name} = r.{name}" for name in columns if name not in key)
    matches = " AND ".join(f"t.{name} = r.{name}{_collation(table, name)}" for name in key)
    conditions = "".join(f" AND t.{name} = :w_{name}" for name in where)
    joined = f"{_derived(table, columns)} STRAIGHT_JOIN {table.name} t FORCE INDEX (PRIMARY)"
    return text(f"UPDATE {joined} ON {matches}{conditions} SET {assignments}")  # noqa: S608


@lru_cache(maxsize=64)
def _joined_delete_text(table: Table, columns: tuple[str, ...]) -> TextClause:
    joined = f"{_derived(table, columns)} STRAIGHT_JOIN {table.name} t FORCE INDEX (PRIMARY)"
    matches = " AND ".join(f"t.{name} = r.{name}{_collation(table, name)}" for name in columns)
    return text(f"DELETE t FROM {joined} ON {matches}")


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


def _collation(table: Table, column: str) -> str:
    # Text out of JSON_TABLE has the server's default collation, which must not mix with the column's.
    return " COLLATE utf8mb4_bin" if isinstance(table.c[column].type, String) else ""


def _key_columns(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _is_sized_binary(table: Table, column: str) -> bool:
    kind = table.c[column].type
    return isinstance(kind, LargeBinary) and kind.length is not None


def single_update(table: Table, key: Key, columns: Sequence[str], where: Mapping[str, Any]) -> Update:
    """Build the statement that updates one row, its values and key bound by `b_<column>`."""
    keys = _key_columns(key)
    statement = update(table).where(*(table.c[name] == bindparam(f"b_{name}") for name in keys))
    for name, value in where.items():
        statement = statement.where(table.c[name] == value)
    return statement.values({name: bindparam(f"b_{name}") for name in columns if name not in keys})


def single_delete(table: Table, columns: Sequence[str]) -> Delete:
    """Build the statement that deletes one row, its key bound by `b_<column>`."""
    return delete(table).where(*(table.c[name] == bindparam(f"b_{name}") for name in columns))
