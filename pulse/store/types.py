"""The rows of registered task types: what each is now, every revision that it ever had, and the marks of changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import and_, bindparam, or_, select, update

from orbit.jsontext import dumps
from pulse.tables import mark, task_type, type_revision

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class TypeRow(Struct, frozen=True):
    """A revision of a type; `content` is JSON text."""

    id: bytes
    namespace_id: bytes
    type: str
    version: int
    revision: int
    content: str
    created_at: Micros


_REVISION = select(
    type_revision.c.id,
    type_revision.c.namespace_id,
    type_revision.c.type,
    type_revision.c.version,
    type_revision.c.revision,
    type_revision.c.content,
    type_revision.c.created_at,
)
_CURRENT = _REVISION.join(task_type, task_type.c.revision_id == type_revision.c.id)
_CHANGED = _CURRENT.where(task_type.c.sequence > bindparam("after"))
_MARKS = select(mark.c.name, mark.c.value)


def marks_read(tx: Transaction) -> dict[str, int]:
    """Read all marks: a handful of rows."""
    rows: list[Any] = list(tx.rows(_MARKS))
    return {row[0]: int(row[1]) for row in rows}


def mark_raise(tx: Transaction, name: str) -> int:
    """Raise a mark by one and return it. Its lock makes changes commit in the order of the mark."""
    row = tx.row(select(mark.c.value).where(mark.c.name == name).with_for_update())
    if row is None:
        tx.insert(mark, [{"name": name, "value": 1}])
        return 1
    value = int(row.value) + 1
    tx.expect(update(mark).where(mark.c.name == name).values(value=value), count=1)
    return value


def mark_set(tx: Transaction, name: str, value: int) -> None:
    """Set a mark."""
    if tx.execute(update(mark).where(mark.c.name == name).values(value=value)) == 0:
        tx.insert(mark, [{"name": name, "value": value}])


def types_changed(tx: Transaction, *, after: int) -> list[TypeRow]:
    """Read the types that changed after a mark, as they are now."""
    return [_row(row) for row in tx.rows(_CHANGED, {"after": after})]


def revision_read(tx: Transaction, revision_id: bytes) -> TypeRow:
    """Read a revision that something refers to."""
    row = tx.row(_REVISION.where(type_revision.c.id == revision_id))
    assert row is not None, "a revision is kept as long as what refers to it"
    return _row(row)


def type_read(tx: Transaction, namespace_id: bytes, type_: str, version: int) -> TypeRow | None:
    """Read what a type is registered as now."""
    query = _CURRENT.where(
        task_type.c.namespace_id == namespace_id, task_type.c.type == type_, task_type.c.version == version
    )
    row = tx.row(query)
    return None if row is None else _row(row)


def revisions_find(tx: Transaction, namespace_id: bytes, type_: str, version: int) -> list[TypeRow]:
    """Read the revisions of a type, the newest first, at most a hundred."""
    query = _REVISION.where(
        type_revision.c.namespace_id == namespace_id, type_revision.c.type == type_, type_revision.c.version == version
    )
    return [_row(row) for row in tx.rows(query.order_by(type_revision.c.revision.desc()).limit(100))]


def types_find(
    tx: Transaction, namespace_id: bytes, *, limit: int, after: tuple[str, int] | None = None
) -> list[TypeRow]:
    """Read a page of a namespace's types, by name and version."""
    query = _CURRENT.where(task_type.c.namespace_id == namespace_id)
    if after is not None:
        name, version = after
        later = and_(task_type.c.type == name, task_type.c.version > version)
        query = query.where(or_(task_type.c.type > name, later))
    query = query.order_by(task_type.c.type, task_type.c.version).limit(limit)
    return [_row(row) for row in tx.rows(query)]


def types_verified_by(tx: Transaction, namespace_id: bytes, type_: str, version: int) -> list[tuple[str, int]]:
    """Read which types name this one as their verifier."""
    query = select(task_type.c.type, task_type.c.version).where(
        task_type.c.namespace_id == namespace_id,
        task_type.c.verify_type == type_,
        task_type.c.verify_version == version,
    )
    rows: list[Any] = list(tx.rows(query.order_by(task_type.c.type, task_type.c.version).limit(10)))
    return [(row[0], int(row[1])) for row in rows]


def type_write(
    tx: Transaction, row: TypeRow, *, sequence: int, verify_with: tuple[str, int] | None, by: tuple[str, str]
) -> None:
    """Store a revision, by (actor, reason), and make it what the type is now. The mark's lock is held."""
    actor, reason = by
    kept = {name: getattr(row, name) for name in row.__struct_fields__}
    redact = json.loads(row.content).get("redact")
    masks = None if not redact else dumps(redact).decode()
    tx.insert(type_revision, [kept | {"redact": masks, "actor": actor, "reason": reason}])
    verify_type, verify_version = verify_with or (None, None)
    values = {
        "revision_id": row.id,
        "sequence": sequence,
        "verify_type": verify_type,
        "verify_version": verify_version,
    }
    if row.revision == 1:
        named = {"namespace_id": row.namespace_id, "type": row.type, "version": row.version}
        tx.insert(task_type, [named | values])
        return
    query = update(task_type).where(
        task_type.c.namespace_id == row.namespace_id,
        task_type.c.type == row.type,
        task_type.c.version == row.version,
    )
    tx.expect(query.values(**values), count=1)


def _row(row: Any) -> TypeRow:
    return TypeRow(*tuple(row))
