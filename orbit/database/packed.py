"""Hot reads: a row travels as one JSON array and becomes a struct in C.

PyMySQL decodes rows value by value in Python, a microsecond or two for each; a locked task has nearly thirty. Here the
database writes the columns of a row as the text of a JSON array, and msgspec makes the structs of a whole result in one
call, enums included. Binary columns travel as base64, from which msgspec reads bytes. MySQL and MariaDB join the text
themselves, at half of what JSON_ARRAY costs them; SQLite has JSON_ARRAY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_type_hints

import msgspec
from sqlalchemy import Column, ColumnElement, Integer, LargeBinary, types
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from sqlalchemy import Row, Table

StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Array(FunctionElement[str]):
    """The array; its clauses are the columns.

    `plain` are those that hold nothing but an enum's plain words, `nested` those whose text is JSON itself.
    """

    inherit_cache = False
    type = types.String()
    name = "packed"

    def __init__(self, columns: Sequence[Column[Any]], plain: frozenset[str], nested: frozenset[str]) -> None:
        super().__init__(*columns)
        self.columns_packed = columns
        self.plain = plain
        self.nested = nested


@compiles(_Array)
def _joined_text(element: _Array, compiler: SQLCompiler, **options: Any) -> str:
    parts = ", ',', ".join(
        _text_of(element, column, compiler.process(column, **options)) for column in element.columns_packed
    )
    return f"CONCAT('[', {parts}, ']')"


@compiles(_Array, "sqlite")
def _json_array(element: _Array, compiler: SQLCompiler, **options: Any) -> str:
    texts = [(column, compiler.process(column, **options)) for column in element.clauses]
    values = [
        f"json({text})"
        if column.key in element.nested
        else f"to_base64({text})"
        if isinstance(column.type, LargeBinary)
        else text
        for column, text in texts
    ]
    return f"json_array({', '.join(values)})"


def _text_of(element: _Array, column: Column[Any], name: str) -> str:
    if isinstance(column.type, Integer) or column.key in element.nested:
        text = name
    elif isinstance(column.type, LargeBinary):
        text = f"'\"', TO_BASE64({name}), '\"'"
    elif column.key in element.plain:
        text = f"'\"', {name}, '\"'"
    else:
        text = f"JSON_QUOTE({name})"
    if not column.nullable:
        return text
    # CONCAT of a NULL is NULL, which stands for all the parts of a value at once.
    return f"IFNULL({text if ', ' not in text else f'CONCAT({text})'}, 'null')"


class Packed(Generic[StructT]):
    """The packed columns of a table whose names are the fields of an array-like struct.

    A field has another column where `columns` says so; the text of those in `nested` is JSON, and becomes what it says.
    Select `column`, and give the values of all rows to `unpack`.
    """

    def __init__(
        self,
        kind: type[StructT],
        table: Table,
        *,
        columns: Mapping[str, str] | None = None,
        nested: frozenset[str] = frozenset(),
    ) -> None:
        renamed = columns or {}
        hints = get_type_hints(kind, localns={"Micros": int})
        packed = {name: table.c[renamed.get(name, name)] for name in kind.__struct_fields__}
        plain = frozenset(column.key for name, column in packed.items() if _is_enum(hints[name]))
        self.column: ColumnElement[str] = _Array(list(packed.values()), plain, nested).label("packed")
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def unpack(self, rows: Sequence[Row[Any]]) -> list[StructT]:
        """Make the structs of a result, in its order, out of the first value of each row."""
        return self.unpack_texts([row[0] for row in rows])

    def unpack_texts(self, texts: Sequence[str]) -> list[StructT]:
        """Make structs out of packed values."""
        decoded: list[StructT] = self._decoder.decode(f"[{','.join(texts)}]")
        return decoded


def _is_enum(hint: Any) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, StrEnum) for kind in (get_args(hint) or (hint,)))
