"""Task types: register, change, read, list. What a type means for tasks is Pulse's.

The surprising rule: a PUT needs no idempotency key. It names the revision that it builds on, and the very same content
sent again at the revision that it made is answered as a replay.
"""

from __future__ import annotations

import re

from api.calls import Call, Operation, Reply
from api.models.fields import NAME_PATTERN, UINT64_MAX
from api.models.task_types import PutTaskType, TaskType, TaskTypeResult, TaskTypeWithHistory
from api.parameters import CURSOR, LIMIT
from api.queries import cursor_text
from orbit.access import Scope
from orbit.database import Database
from orbit.errors import InvalidRequest, NotFound
from orbit.jsontext import Json
from pulse.node import PulseNode
from pulse.task_types import TypeChange, task_type_get, task_type_put, task_types_list, type_json
from pulse.type_revision import TypeKey

_MISSING = "no such task type"
_NAME = re.compile(NAME_PATTERN)
_VERSION = re.compile(r"[1-9][0-9]{0,9}")
_NOT_CONTENT = frozenset({"expected_revision", "reason"})


class TaskTypes:
    """The task type resource."""

    def __init__(self, database: Database, pulse: PulseNode) -> None:
        self._database = database
        self._catalog = pulse.catalog

    def operations(self) -> list[Operation]:
        """Declare what can be done with task types."""
        path = "/v1/task-types/{type}/{version}"
        return [
            Operation(
                "PUT", path, "Register a task type or change it", self.put, Scope.TASK_TYPES_MANAGE, TaskTypeResult,
                PutTaskType, creates=True,
            ),
            Operation("GET", path, "Read a task type with its earlier revisions", self.get, Scope.TASK_TYPES_READ,
                      TaskTypeWithHistory),
            Operation(
                "GET", "/v1/task-types", "List task types, by name and version", self.list_page, Scope.TASK_TYPES_READ,
                TaskType, query=(LIMIT, CURSOR), is_page=True,
            ),
        ]  # fmt: skip

    def put(self, call: Call) -> Reply:
        """Register a type; it holds in all queues, so the range must be all of them."""
        call.caller.require_all_queues()
        body = call.model(PutTaskType)
        key = _key(call)
        if key is None:
            raise InvalidRequest(
                "a task type is named by 1 to 128 letters, digits and `_ . : -`, its version by a number"
            )
        change = TypeChange(key, _revision(body.expected_revision), body.reason, _content(call.value))
        done = self._database.transaction(
            lambda tx: task_type_put(tx, call.namespace_id, call.actor, change, self._catalog)
        )
        data = {"deduplicated": done.is_unchanged, "task_type": done.type}
        return call.data(data, status=201 if done.is_new else 200)

    def get(self, call: Call) -> Reply:
        """Read a type."""
        key = _key(call)
        if key is None:
            raise NotFound(_MISSING)
        return call.data(self._database.transaction(lambda tx: task_type_get(tx, call.namespace_id, key)))

    def list_page(self, call: Call) -> Reply:
        """List types."""
        limit, parts = call.query.limit(), call.query.cursor_parts(2)
        after: tuple[str, int] | None = None
        if parts is not None:
            name, version = parts
            if not isinstance(name, str) or not isinstance(version, int) or isinstance(version, bool):
                raise call.query.refused("cursor", "this is not a cursor of this list")
            after = (name[:128], max(0, min(version, 2**31)))
        rows = self._database.transaction(lambda tx: task_types_list(tx, call.namespace_id, limit=limit, after=after))
        cursor = cursor_text([rows[-1].type, rows[-1].version]) if len(rows) == limit else None
        return call.page([type_json(row) for row in rows], cursor)


def _key(call: Call) -> TypeKey | None:
    name, version = call.path["type"], call.path["version"]
    if not _NAME.match(name) or not _VERSION.fullmatch(version) or int(version) >= 2**31:
        return None
    return TypeKey(name, int(version))


def _revision(text: str) -> int:
    value = int(text)
    if value > UINT64_MAX:
        raise InvalidRequest("a revision is an unsigned 64-bit number", pointer="/expected_revision")
    return value


def _content(value: Json) -> dict[str, Json]:
    """Return what is registered: the fields that were not left out, null counting as left out but in a schema."""
    content: dict[str, Json] = {}
    for name, said in value.items():
        if name in _NOT_CONTENT or said is None:
            continue
        content[name] = _without_nulls(said) if name == "defaults" else said
    return content


def _without_nulls(value: dict[str, Json]) -> dict[str, Json]:
    return {
        key: _without_nulls(inner) if isinstance(inner, dict) else inner
        for key, inner in value.items()
        if inner is not None
    }
