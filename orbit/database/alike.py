"""Changed rows written by few and cheap statements: rows that change in the same way share a plain UPDATE.

An UPDATE of one set of values for a list of ids costs the server a third of what a join on JSON costs it, and a batch
mostly consists of rows to which the same has happened at the same instant. What is left goes through the JSON, with no
more columns than have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import Table, bindparam, update

from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through

if TYPE_CHECKING:
    from orbit.database.transaction import Transaction

GROUPS_MAX = 6  # statements for groups; more of them than that cost more than they save
GROUP_ROWS_MIN = 4


class Change(Struct, frozen=True):
    """A row to write: its whole primary key by column, an id first, and the changed columns with their new values.

    `grown` are counters that have grown by one, with what they are now.
    """

    key: Mapping[str, Any]
    values: Mapping[str, Any]
    grown: Mapping[str, int]


def changes_write(tx: Transaction, table: Table, changes: Sequence[Change]) -> None:
    """Write changed rows, each of which must be there. Every row has the same key columns."""
    groups: dict[Any, list[Change]] = {}
    for change in changes:
        place = (tuple(change.key.values())[1:], tuple(change.values.items()), tuple(change.grown))
        groups.setdefault(place, []).append(change)
    by_size = sorted(groups.values(), key=len, reverse=True)
    alike = [group for group in by_size[:GROUPS_MAX] if len(group) >= GROUP_ROWS_MIN]
    rest = by_size[len(alike) :]
    if len(rest) == 1:
        alike, rest = by_size, []
    for group in alike:
        _write_alike(tx, table, group)
    _write_rest(tx, table, [change for group in rest for change in group])


def _write_alike(tx: Transaction, table: Table, group: Sequence[Change]) -> None:
    first = group[0]
    name, *others = first.key
    bound = {f"v_{column}": value for column, value in first.values.items()}
    bound |= {f"k_{column}": first.key[column] for column in others}
    statement = _alike(table, tuple(first.key), tuple(first.values), tuple(first.grown))
    tx.expect(statement, {"ids": [change.key[name] for change in group], **bound}, count=len(group))


def _write_rest(tx: Transaction, table: Table, rest: Sequence[Change]) -> None:
    by_columns: dict[tuple[str, ...], list[Change]] = {}
    for change in rest:
        by_columns.setdefault((*change.values, *change.grown), []).append(change)
    for group in by_columns.values():
        rows = [{**change.key, **change.values, **change.grown} for change in group]
        tx.update_many(table, key=tuple(group[0].key), rows=rows)


@lru_cache(maxsize=256)
def _alike(table: Table, key: tuple[str, ...], columns: tuple[str, ...], grown: tuple[str, ...]) -> Hot:
    name, *others = key
    conditions = [table.c[column] == bindparam(f"k_{column}") for column in others]
    statement = update(table).where(ids_in(table.c[name]), *conditions)
    values: dict[str, Any] = {column: bindparam(f"v_{column}") for column in columns}
    values |= {column: table.c[column] + 1 for column in grown}
    return Hot(through(statement.values(values), table))
