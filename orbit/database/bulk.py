"""Many rows in one statement: inserts as literals, updates and deletes as one JSON text taken apart by JSON_TABLE.

PyMySQL escapes value by value in Python, and batches nothing but INSERTs; here a batch of updates or deletes costs the
client one encoding in C. What all rows have in common stands in the statement once, only the rest is in the JSON.
Binary values travel as base64. Joins go always from the JSON to the table and through its primary key: an optimizer
left to itself may scan a small table, and would lock all its rows. (A list of tuples for IN would be cheaper on MySQL,
but MariaDB scans the table for it.) SQLite runs the plain statement per row in its own thread, where a statement is no
round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Boolean, Integer, LargeBinary, String, Table, bindparam, delete, update
from sqlalchemy.sql import Delete, Update

from orbit.database.hot import literal

Rows = Sequence[Mapping[str, Any]]
# The column, or the columns together, by which a row is found.
Key = str | tuple[str, ...]


def insert_literals(table: Table, rows: Rows) -> str:
    """Write the statement that inserts rows with the columns of the first one.

    The server takes literals as they come, at half of what JSON_TABLE costs it.
    """
    common, own = _apart(rows)
    # Most columns of a batch hold the same in all its rows: they are written once, and each row fills in only its own.
    alike = {name: literal(value).replace("%", "%%") for name, value in common.items()}
    shape = "(" + ",".join([alike.get(name, "%s") for name in rows[0]]) + ")"
    values = ",".join([shape % tuple([literal(row[name]) for name in own]) for row in rows])
    # The names are columns of our own tables, never input: so in all statements of this module.
    return f"INSERT INTO {table.name} ({_names(tuple(rows[0]))}) VALUES {values}"


def update_text(table: Table, key: Key, rows: Rows, where: Mapping[str, Any]) -> str:
    """Write the statement that updates rows by `key`, each with its own values."""
    keys = _key_columns(key)
    if len(rows) == 1:
        return _update_one(table, keys, rows[0], where)
    common, own = _apart(rows)
    assignments = [f"t.`{name}` = {literal(value)}" for name, value in common.items() if name not in keys]
    assignments += [f"t.`{name}` = r.`{name}`" for name in own if name not in keys]
    matched = f"{_joined(table, own, rows)} ON {_match(table, keys, common)}"
    conditions = "".join(f" AND t.`{name}` = {literal(value)}" for name, value in where.items())
    return f"UPDATE {matched}{conditions} SET {', '.join(assignments)}"


def delete_text(table: Table, rows: Rows) -> str:
    """Write the statement that deletes rows by their columns, which are the whole primary key."""
    if len(rows) == 1:
        return f"DELETE FROM {table.name} WHERE {_equal(rows[0], ' AND ')}"
    common, own = _apart(rows)
    return f"DELETE t FROM {_joined(table, own, rows)} ON {_match(table, tuple(rows[0]), common)}"


def _update_one(table: Table, keys: Sequence[str], row: Mapping[str, Any], where: Mapping[str, Any]) -> str:
    """Write the update of a single row without the join, at half of what it costs on a server with little to do."""
    values = _equal({name: value for name, value in row.items() if name not in keys}, ", ")
    conditions = _equal({**{name: row[name] for name in keys}, **where}, " AND ")
    return f"UPDATE {table.name} FORCE INDEX (PRIMARY) SET {values} WHERE {conditions}"


def _equal(values: Mapping[str, Any], between: str) -> str:
    return between.join([f"`{name}` = {literal(value)}" for name, value in values.items()])


def _apart(rows: Rows) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values that all rows have in common, and the columns of which each has its own."""
    first, last = rows[0], rows[-1]
    common: dict[str, Any] = {}
    for name, value in first.items():
        # Where rows differ, the first and the last mostly do. A loop, as a generator for each column costs more.
        if last[name] == value:
            for row in rows:
                if row[name] != value:
                    break
            else:
                common[name] = value
    # Rows that are all the same have a column of their own too: the statement joins to something in any case.
    own = tuple(name for name in first if name not in common) or tuple(first)[:1]
    return {name: value for name, value in common.items() if name not in own}, own


def _key_columns(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _match(table: Table, keys: Sequence[str], common: Mapping[str, Any]) -> str:
    return " AND ".join(
        f"t.`{name}` = " + (literal(common[name]) if name in common else f"r.`{name}`" + _collation(table, name))
        for name in keys
    )


def _collation(table: Table, name: str) -> str:
    # Text out of JSON_TABLE has the server's default collation, which must not mix with the column's.
    return " COLLATE utf8mb4_bin" if isinstance(table.c[name].type, String) else ""


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


def _joined(table: Table, columns: tuple[str, ...], rows: Rows) -> str:
    packed = msgspec.json.encode([[row[name] for name in columns] for row in rows]).decode()
    selected, extracted = _columns_of(table, columns)
    # The encoding escapes control characters itself; escaping all of a long text anew would cost as much as making it.
    quoted = packed.replace("\\", "\\\\").replace("'", "\\'")
    source = f"JSON_TABLE('{quoted}', '$[*]' COLUMNS({extracted})) j"
    return f"(SELECT {selected} FROM {source}) r STRAIGHT_JOIN {table.name} t FORCE INDEX (PRIMARY)"


@lru_cache(maxsize=256)
def _columns_of(table: Table, columns: tuple[str, ...]) -> tuple[str, str]:
    selected = ", ".join(f"{_value(table, name)} AS `{name}`" for name in columns)
    paths = enumerate(columns)
    return selected, ", ".join(f"`{name}` {_json_type(table, name)} PATH '$[{place}]'" for place, name in paths)


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
