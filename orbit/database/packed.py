"""Hot reads: a row travels as one JSON array and becomes a struct in C.

PyMySQL decodes rows value by value in Python, a microsecond or two for each; a locked task has nearly thirty. Here the
database writes the columns of a row as the text of a JSON array, and msgspec makes the structs of a whole result in one
call, enums included. Binary columns travel as base64, from which msgspec reads bytes. MySQL and MariaDB join the text
themselves, at half of what JSON_ARRAY costs them; SQLite has JSON_ARRAY.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """The array; its clauses are the columns, `words` are those that hold nothing but an enum's plain words."""

    inherit_cache = False
    type = types.String()
    name = "packed"

    def __init__(self, columns: Sequence[Column[Any]], words: frozenset[str]) -> None:
        super().__init__(*columns)
        self.columns_packed = columns
        self.words = words


@compiles(_Array)
def _joined_text(element: _Array, compiler: SQLCompiler, **options: Any) -> str:
    parts = ", ',', ".join(
        _text_of(column, compiler.process(column, **options), is_plain=column.key in element.words)
        for column in element.columns_packed
    )
    return f"CONCAT('[', {parts}, ']')"


@compiles(_Array, "sqlite")
def _json_array(element: _Array, compiler: SQLCompiler, **options: Any) -> str:
    texts = [(column, compiler.process(column, **options)) for column in element.clauses]
    values = [f"to_base64({text})" if isinstance(column.type, LargeBinary) else text for column, text in texts]
    return f"json_array({', '.join(values)})"


def _text_of(column: Column[Any], name: str, *, is_plain: bool) -> str:
    if isinstance(column.type, Integer):
        text = name
    elif isinstance(column.type, LargeBinary):
        text = f"'\"', TO_BASE64({name}), '\"'"
    elif is_plain:
        text = f"'\"', {name}, '\"'"
    else:
        text = f"JSON_QUOTE({name})"
    if not column.nullable:
        return text
    # CONCAT of a NULL is NULL, which stands for all the parts of a value at once.
    return f"IFNULL({text if ', ' not in text else f'CONCAT({text})'}, 'null')"


class Packed(Generic[StructT]):
    """The packed columns of a table whose names are the fields of an array-like struct.

    Select `column`; give the first value of each row to `unpack`.
    """

    def __init__(self, kind: type[StructT], table: Table) -> None:
        columns = [table.c[name] for name in kind.__struct_fields__]
        hints = get_type_hints(kind, localns={"Micros": int})
        words = frozenset(name for name in kind.__struct_fields__ if _is_enum(hints[name]))
        self.column: ColumnElement[str] = _Array(columns, words).label("packed")
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def unpack(self, rows: Sequence[Row[Any]]) -> list[StructT]:
        """Make the structs of a result, in its order."""
        decoded: list[StructT] = self._decoder.decode(f"[{','.join([row[0] for row in rows])}]")
        return decoded


def _is_enum(hint: Any) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, StrEnum) for kind in (get_args(hint) or (hint,)))
