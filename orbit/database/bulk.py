"""Many rows in one statement: inserts as literals, updates and deletes as one JSON text taken apart by JSON_TABLE.

PyMySQL escapes value by value in Python, and batches nothing but INSERTs; here a batch of inserts, updates or deletes
costs the client one encoding in C and one parameter. Binary values travel as base64. Joins go always from the JSON to
the table and through its primary key: an optimizer left to itself may scan a small table, and would lock all its rows.
SQLite runs the plain statement per row in its own thread, where a statement is no round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Boolean, Integer, LargeBinary, String, Table, TextClause, bindparam, delete, text, update
from sqlalchemy.sql import Delete, Update

Rows = Sequence[Mapping[str, Any]]
# The column, or the columns together, by which a row is found.
Key = str | tuple[str, ...]


def packed_rows(rows: Rows) -> dict[str, bytes]:
    """Encode rows as these statements' one parameter: bytes, which the driver writes in hexadecimal, unescaped."""
    return {"rows": msgspec.json.encode(rows)}


def insert_literals(table: Table, rows: Rows) -> str:
    """Write the statement that inserts rows with the columns of the first one.

    Numbers are written in decimal, everything else in hexadecimal: there is nothing to escape, and the server takes the
    rows as they come, at half of what JSON_TABLE costs it.
    """
    columns = tuple(rows[0])
    values = "),(".join([",".join([_literal(row[name]) for name in columns]) for row in rows])
    # The names are columns of our own tables, never input: so in all statements of this module.
    return f"INSERT INTO {table.name} ({_names(columns)}) VALUES ({values})"  # noqa: S608


def _literal(value: Any) -> str:
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is bytes:
        return f"X'{value.hex()}'"
    if value is None:
        return "NULL"
    if kind is bool:
        return "1" if value else "0"
    assert isinstance(value, str), f"no literal for a {kind.__name__}"
    return f"X'{value.encode('utf-8').hex()}'"


@lru_cache(maxsize=256)
def update_text(table: Table, key: Key, columns: tuple[str, ...], where: tuple[str, ...]) -> TextClause:
    """Build the statement that updates rows by `key`, each with its own values."""
    keys = _key_columns(key)
    assignments = ", ".join(f"t.`{name}` = r.`{name}`" for name in columns if name not in keys)
    conditions = "".join(f" AND t.`{name}` = :w_{name}" for name in where)
    return text(f"UPDATE {_joined(table, columns)} ON {_match(table, keys)}{conditions} SET {assignments}")  # noqa: S608


@lru_cache(maxsize=64)
def delete_text(table: Table, columns: tuple[str, ...]) -> TextClause:
    """Build the statement that deletes rows by these columns, which are the whole primary key."""
    return text(f"DELETE t FROM {_joined(table, columns)} ON {_match(table, columns)}")


def _key_columns(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _match(table: Table, keys: Sequence[str]) -> str:
    # Text out of JSON_TABLE has the server's default collation, which must not mix with the column's.
    return " AND ".join(
        f"t.`{name}` = r.`{name}`" + (" COLLATE utf8mb4_bin" if isinstance(table.c[name].type, String) else "")
        for name in keys
    )


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


def _joined(table: Table, columns: Sequence[str]) -> str:
    selected = ", ".join(f"{_value(table, name)} AS `{name}`" for name in columns)
    derived = f"(SELECT {selected} FROM {_source(table, columns)}) r"  # noqa: S608
    return f"{derived} STRAIGHT_JOIN {table.name} t FORCE INDEX (PRIMARY)"


def _source(table: Table, columns: Sequence[str]) -> str:
    extracted = ", ".join(f"`{name}` {_json_type(table, name)} PATH '$.{name}'" for name in columns)
    return f"JSON_TABLE(CONVERT(:rows USING utf8mb4), '$[*]' COLUMNS({extracted})) j"


def _json_type(table: Table, column: str) -> str:
    kind = table.c[column].type
    if isinstance(kind, (Integer, Boolean)):
        return "BIGINT"
    if isinstance(kind, LargeBinary) and kind.length is not None:
        return f"VARCHAR({(kind.length + 2) // 3 * 4 + kind.length // 57}) CHARACTER SET ascii"
    return "LONGTEXT"


def _value(table: Table, column: str) -> str:
    return f"FROM_BASE64(j.`{column}`)" if isinstance(table.c[column].type, LargeBinary) else f"j.`{column}`"


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
