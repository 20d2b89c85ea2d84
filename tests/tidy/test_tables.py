"""Every table and column says what it is for, and has the house's names."""

import re

import pytest
from sqlalchemy import Table

from orbit.database import TABLE_OPTIONS, metadata
from tests.support.declared import import_tables

PREFIXES = ("orbit_", "pulse_", "weave_")


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    """Every declared table."""
    import_tables()
    return list(metadata.tables.values())


def test_r086_every_table_and_column_has_a_comment(tables: list[Table]) -> None:
    assert len(tables) > 5
    silent = [table.name for table in tables if not table.comment]
    silent += [f"{table.name}.{column.name}" for table in tables for column in table.columns if not column.comment]
    assert silent == []


def test_names_start_with_their_package(tables: list[Table]) -> None:
    assert [table.name for table in tables if not table.name.startswith(PREFIXES)] == []
    foreign = [
        f"{index.name} of {table.name}"
        for table in tables
        for index in table.indexes
        if not str(index.name).startswith(f"{table.name}_")
    ]
    assert foreign == []


def test_every_table_is_transactional_and_compares_bytes(tables: list[Table]) -> None:
    """Without these options a server's defaults would decide."""
    for table in tables:
        assert {name: table.kwargs[name] for name in TABLE_OPTIONS if name in table.kwargs} == TABLE_OPTIONS, table.name


def test_instants_are_named_as_such(tables: list[Table]) -> None:
    doubtful = [
        f"{table.name}.{column.name}"
        for table in tables
        for column in table.columns
        if re.search(r"_(time|date|ts|timestamp|seconds_at)$", column.name)
    ]
    assert doubtful == []
