"""Register task types: what may be repeated, what params and results look like, what holds where a task says nothing.

Each registration is a revision; tasks refer to the one under which they were accepted, so a change never touches what
is under way. A verifier must be registered as REPLAY_SAFE, and stays that while a type names it: so a verification is
never verified itself. Registering is by PUT: the same content again, at the revision that it made, changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbit.canonical import canonical
from orbit.clock import to_rfc3339
from orbit.errors import InvalidRequest, NotFound, StateConflict
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.redaction import path_read
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert
from pulse.catalog import TYPES, Catalog
from pulse.requests import PolicyWish, policy_of
from pulse.states import RecoverySafety
from pulse.store.types import TypeRow, mark_raise, revisions_find, type_read, type_write, types_find, types_verified_by
from pulse.type_revision import ROOTS, TypeKey, TypeRevision, schemas_check, type_key

if TYPE_CHECKING:
    from orbit.database import Transaction

__all__ = ["TypeChange", "task_type_get", "task_type_put", "task_types_list", "type_json"]


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A type as it shall be, on top of the revision that the caller has seen (0: it is not registered yet).

    `content` has the fields of the request that are not left out: recovery, verify_with, params_schema, params_schemas,
    result_schema, defaults, redact.
    """

    key: TypeKey
    expected_revision: int
    reason: str
    content: dict[str, Json]


@dataclass(frozen=True, slots=True)
class TypePut:
    """What a PUT came to: the type as it is now, and whether it was made, changed or left as it was."""

    type: dict[str, Json]
    is_new: bool
    is_unchanged: bool


def task_type_put(tx: Transaction, namespace_id: bytes, actor: Actor, change: TypeChange, catalog: Catalog) -> TypePut:
    """Register a type or change it, with audit and event; the same again at the revision that it made is a replay.

    Raises InvalidRequest with a pointer, StateConflict with the current revision, or for a verifier that is in use.
    """
    _check(change)
    key = change.key
    # The mark comes first: changes of types are rare, and one after the other nothing about them can race.
    sequence = mark_raise(tx, TYPES)
    before = type_read(tx, namespace_id, key.type, key.version)
    current = 0 if before is None else before.revision
    text = dumps(change.content).decode()
    if before is not None and current == change.expected_revision + 1 and _is_same(before, change.content):
        return TypePut(type_json(before), is_new=False, is_unchanged=True)
    if current != change.expected_revision:
        message = "the task type has changed; read it again" if current else "the task type is not registered"
        raise StateConflict(message, details={"current_revision": str(current)})
    verifier = _verifier(tx, namespace_id, change)
    now = tx.now()
    row = TypeRow(new_id(), namespace_id, key.type, key.version, current + 1, text, now)
    named = None if verifier is None else (verifier.type, verifier.version)
    type_write(tx, row, sequence=sequence, verify_with=named, by=(actor.name, change.reason))
    record = AuditRecord(
        namespace_id=namespace_id,
        actor=actor,
        operation="task_type.put",
        subject_kind="task_type",
        subject_id=row.id,
        reason=change.reason,
        before=None if before is None else type_json(before),
        after=type_json(row),
    )
    audit_insert(tx, record, now=now)
    data = dumps({"type": key.type, "version": key.version}).decode()
    events_insert(tx, [EventRecord(namespace_id, "task_type.registered", row.id, row.revision, data)], now=now)
    tx.after_commit(catalog.forget)
    return TypePut(type_json(row), is_new=current == 0, is_unchanged=False)


def task_type_get(tx: Transaction, namespace_id: bytes, key: TypeKey) -> dict[str, Json]:
    """Read a type with its earlier revisions; raises NotFound."""
    revisions = revisions_find(tx, namespace_id, key.type, key.version)
    if not revisions:
        raise NotFound("no such task type")
    earlier = [{"revision": str(row.revision), "created_at": to_rfc3339(row.created_at)} for row in revisions[1:]]
    return type_json(revisions[0]) | {"earlier": earlier}


def task_types_list(
    tx: Transaction, namespace_id: bytes, *, limit: int, after: tuple[str, int] | None = None
) -> list[TypeRow]:
    """Read a page of the registered types, by name and version."""
    return types_find(tx, namespace_id, limit=limit, after=after)


def type_json(row: TypeRow) -> dict[str, Json]:
    """Write a type as it is shown."""
    content = json.loads(row.content)
    return {
        "id": row.id.hex(),
        "type": row.type,
        "version": row.version,
        "revision": str(row.revision),
        "recovery": content["recovery"],
        "verify_with": content.get("verify_with"),
        "params_schema": content.get("params_schema"),
        "params_schemas": content.get("params_schemas") or {},
        "result_schema": content.get("result_schema"),
        "defaults": content.get("defaults") or {},
        "redact": content.get("redact") or [],
        "created_at": to_rfc3339(row.created_at),
    }


def _is_same(before: TypeRow, content: dict[str, Json]) -> bool:
    return canonical(json.loads(before.content)) == canonical(content)


def _check(change: TypeChange) -> None:
    content = change.content
    is_verified = content["recovery"] == RecoverySafety.VERIFY
    if is_verified and "verify_with" not in content:
        raise InvalidRequest("VERIFY needs the type that verifies", pointer="/verify_with")
    if not is_verified and "verify_with" in content:
        raise InvalidRequest("only VERIFY has a type that verifies", pointer="/verify_with")
    schemas_check(content)
    for index, path in enumerate(content.get("redact") or ()):
        path_read(path, roots=ROOTS, pointer=f"/redact/{index}")
    trial = TypeRevision(TypeRow(b"", b"", change.key.type, change.key.version, 1, dumps(content).decode(), 0))
    try:
        policy_of(PolicyWish(), trial.policy)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, pointer=f"/defaults{error.pointer}") from None


def _verifier(tx: Transaction, namespace_id: bytes, change: TypeChange) -> TypeKey | None:
    """Check who verifies whom: the named verifier is REPLAY_SAFE, and this type stays it while others name it."""
    if change.content["recovery"] != RecoverySafety.REPLAY_SAFE:
        users = types_verified_by(tx, namespace_id, change.key.type, change.key.version)
        if users:
            named = ", ".join(TypeKey(*user).text() for user in users)
            raise StateConflict(f"it verifies {named} and so must stay REPLAY_SAFE")
    text = change.content.get("verify_with")
    if text is None:
        return None
    verifier = type_key(text, pointer="/verify_with")
    row = type_read(tx, namespace_id, verifier.type, verifier.version)
    if row is None or json.loads(row.content)["recovery"] != RecoverySafety.REPLAY_SAFE:
        raise InvalidRequest(f"{text} is not registered as REPLAY_SAFE", pointer="/verify_with")
    return verifier
