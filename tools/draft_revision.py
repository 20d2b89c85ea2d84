"""Draft the revision that makes the tables of one module, as text on standard output.

    python -m tools.draft_revision pulse.tables 0002_pulse 0001_foundation > migrations/versions/0002_pulse.py

The draft is to be read, given its docstring and formatted (`make format`); once released a revision is never drafted
again. It names every constraint as the naming convention does, so that what runs and what is declared are the same.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from orbit.database import metadata


def column_type(column: "sa.Column[Any]") -> str:
    """Write a column's type as a call of `orbit.database.columns`."""
    words = column.type.compile(mysql.dialect()).split()
    name, _, length = words[0].rstrip(")").partition("(")
    plain = {"BIGINT": "counter()", "INTEGER": "small_int()", "BOOL": "flag()", "MEDIUMTEXT": "text()"}
    match name, length:
        case "BIGINT", _ if column.name.endswith("_at"):
            return "kinds.instant()"
        case "BINARY", "16":
            return "kinds.identifier()"
        case "BINARY", "32":
            return "kinds.digest()"
        case "VARBINARY", _:
            return f"kinds.exact_key({length})"
        case "VARCHAR", _:
            return f"kinds.word({length})"
        case "MEDIUMBLOB", _:
            return "kinds.payload()"
        case _:
            return f"kinds.{plain[name]}"


def column_text(column: "sa.Column[Any]") -> str:
    """Write a column."""
    parts = [repr(column.name), column_type(column)]
    if column.primary_key and len(column.table.primary_key) == 1:
        parts.append("primary_key=True")
        if column.autoincrement != "auto":
            parts.append(f"autoincrement={column.autoincrement!r}")
    elif not column.nullable:
        parts.append("nullable=False")
    if column.server_default is not None:
        default = column.server_default.arg  # type: ignore[attr-defined]
        parts.append(
            f"server_default={default!r}" if isinstance(default, str) else f'server_default=sa.text("{default}")'
        )
    parts.append(f"comment={column.comment!r}")
    return f"sa.Column({', '.join(parts)})"


def constraint_texts(table: sa.Table) -> Iterator[str]:
    """Write the table's constraints that columns do not carry, in the order in which they were declared."""
    for constraint in sorted(table.constraints, key=lambda each: each._creation_order):  # noqa: SLF001
        match constraint:
            case sa.PrimaryKeyConstraint() if len(constraint) > 1:
                columns = ", ".join(repr(column.name) for column in constraint.columns)
                yield f"sa.PrimaryKeyConstraint({columns}, name={_name(constraint)})"
            case sa.CheckConstraint():
                yield f"sa.CheckConstraint({str(constraint.sqltext)!r}, name={_name(constraint)})"
            case sa.UniqueConstraint():
                columns = ", ".join(repr(column.name) for column in constraint.columns)
                yield f"sa.UniqueConstraint({columns}, name={_name(constraint)})"
            case sa.ForeignKeyConstraint():
                targets = [element.target_fullname for element in constraint.elements]
                yield f"sa.ForeignKeyConstraint({constraint.column_keys!r}, {targets!r}, name={_name(constraint)})"
            case _:
                continue


def _name(constraint: sa.Constraint) -> str:
    """Write the convention's name, exactly: op.f keeps Alembic from applying the convention a second time."""
    return f"op.f({mysql.dialect().identifier_preparer.format_constraint(constraint)!r})"


def table_text(table: sa.Table) -> Iterator[str]:
    """Write the function that makes a table."""
    yield f"def _{table.name}() -> None:"
    yield "    op.create_table("
    yield f"        {table.name!r},"
    for column in table.columns:
        yield f"        {column_text(column)},"
    for text in constraint_texts(table):
        yield f"        {text},"
    yield f"        comment={table.comment!r},"
    yield "        **TABLE_OPTIONS,"
    yield "    )"
    for index in sorted(table.indexes, key=lambda each: str(each.name)):
        expressions = [
            repr(expression.name) if isinstance(expression, sa.Column) else f'sa.text("{expression}")'
            for expression in index.expressions
        ]
        unique = ", unique=True" if index.unique else ""
        yield f"    op.create_index({str(index.name)!r}, {table.name!r}, [{', '.join(expressions)}]{unique})"


def main(module: str, revision: str, previous: str) -> None:
    """Print the draft."""
    before = set(metadata.tables)
    importlib.import_module(module)
    tables = [table for name, table in metadata.tables.items() if name not in before]
    lines = [
        f'"""Make the tables of `{module.rpartition(".")[0]}`."""',
        "",
        "import sqlalchemy as sa",
        "from alembic import op",
        "",
        "from orbit.database import TABLE_OPTIONS",
        "from orbit.database import columns as kinds",
        "",
        f"revision = {revision!r}",
        f"down_revision = {None if previous == '-' else previous!r}",
        "",
        "# It only adds tables.",
        "OLD_NODES_MAY_RUN = True",
        "",
        "",
        "def upgrade() -> None:",
        '    """Make the tables."""',
        *(f"    _{table.name}()" for table in tables),
        "",
        "",
        "def downgrade() -> None:",
        '    """Drop the tables with all that is in them."""',
        *(f"    op.drop_table({table.name!r})" for table in reversed(tables)),
    ]
    for table in tables:
        lines += ["", "", *table_text(table)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
