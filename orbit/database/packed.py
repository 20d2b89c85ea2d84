"""Hot reads: a row travels as one JSON array and becomes a struct in C.

PyMySQL decodes rows value by value in Python, a microsecond or two for each; a locked task has nearly thirty. Here the
database packs the columns of a row by JSON_ARRAY (MySQL, MariaDB and SQLite have it), and msgspec makes the structs of
a whole result in one call, enums included. Binary columns travel as base64, from which msgspec reads bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from sqlalchemy import ColumnElement, LargeBinary, func

if TYPE_CHECKING:
    from sqlalchemy import Row, Table

StructT = TypeVar("StructT", bound=msgspec.Struct)


class Packed(Generic[StructT]):
    """The packed columns of a table whose names are the fields of an array-like struct.

    Select `column`; give the first value of each row to `unpack`.
    """

    def __init__(self, kind: type[StructT], table: Table) -> None:
        columns = [table.c[name] for name in kind.__struct_fields__]
        values = [func.to_base64(column) if isinstance(column.type, LargeBinary) else column for column in columns]
        self.column: ColumnElement[str] = func.json_array(*values).label("packed")
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def unpack(self, rows: Sequence[Row[Any]]) -> list[StructT]:
        """Make the structs of a result, in its order."""
        decoded: list[StructT] = self._decoder.decode(f"[{','.join([row[0] for row in rows])}]")
        return decoded
