"""Statements about instance rows.

A row is written only under its own lock, taken by primary key in sorted order. `due_at` may be earlier than the next
timer, never later: a looked-at instance with nothing due costs one advance, while moving the column with every step
would churn its index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import bindparam, func, select, tuple_, update

from engine.instance import Failure, Instance, Pause, Step
from engine.kinship import Parent
from engine.states import Compensation, Control, Ending, InstanceState
from engine.tables import instance as table
from orbit.clock import Micros
from orbit.database.alike import Change, changes_write
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.database.packed import Packed
from orbit.formats import FIRST
from orbit.jsontext import dumps

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.database import Transaction


OF_KEY_MAX = 100


class Origin(msgspec.Struct, frozen=True):
    """What an instance was started with and keeps for life. `queues` is the starter's range, None for all.

    `format` numbers the form in which its state is stored. `root_id` is the first of its line of parents; None for one
    that has no parent.
    """

    namespace_id: bytes
    workflow: str
    version: int
    started_by: str
    labels: Mapping[str, str] | None = None
    queues: frozenset[str] | None = None
    traceparent: str | None = None
    counted: int = 0
    format: int = FIRST
    forked_from: bytes | None = None
    parent: Parent | None = None
    root_id: bytes | None = None


class Stored(msgspec.Struct, frozen=True):
    """An instance as it is stored: its origin and its state, here without steps and values."""

    origin: Origin
    instance: Instance

    def with_steps(self, steps: Mapping[str, Step]) -> Stored:
        """Add the steps, which are read by a statement of their own."""
        return Stored(self.origin, replace(self.instance, steps=steps))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which instances to list; None leaves a criterion open. Times are those of the start, `after` included."""

    workflow: str | None = None
    version: int | None = None
    state: InstanceState | None = None
    control: Control | None = None
    business_key: str | None = None
    label: tuple[str, str] | None = None
    parent_id: bytes | None = None
    started_after: Micros | None = None
    started_before: Micros | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a list that is ordered by start, newest first: what comes after this instance."""

    started_at: Micros
    id: bytes


class _InstanceRow(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a row as they travel packed; JSON is still text."""

    id: bytes
    namespace_id: bytes
    workflow: str
    version: int
    state: InstanceState
    format: int
    parent_id: bytes | None
    parent_step: str | None
    parent_round: int | None
    root_id: bytes | None
    ending_as: Ending | None
    revision: int
    control: Control
    compensation: Compensation | None
    pause: str | None
    forked_from: bytes | None
    business_key: bytes | None
    labels: str | None
    counted: int
    pause_at: str | None
    queues: str | None
    started_by: str
    traceparent: str | None
    error: str | None
    started_at: Micros
    deadline_at: Micros
    clock_stopped_at: Micros | None
    due_at: Micros | None
    finished_at: Micros | None


_PACKED = Packed(_InstanceRow, table)
_IS_KNOWN = table.c.format <= bindparam("newest")  # what is stored in a newer form is a newer node's
# Locks what is free, in the order of ids.
LOCK_FREE = Hot(
    through(select(_PACKED.column), table)
    .where(ids_in(table.c.id), _IS_KNOWN)
    .order_by(table.c.id)
    .with_for_update(skip_locked=True)
)
_DUE = Hot(
    select(table.c.id)
    .where(table.c.due_at <= bindparam("now"), _IS_KNOWN)
    .order_by(table.c.due_at, table.c.id)
    .limit(bindparam("limit"))
)
_NEXT_DUE = Hot(select(func.min(table.c.due_at)).where(table.c.due_at > bindparam("after")), tells_time=True)
_ONE = select(table).where(table.c.id == bindparam("id"), table.c.namespace_id == bindparam("namespace_id"))
FIND = Hot(_ONE)
# A key is looked back on so far: whoever uses one for ever more instances still costs the same.
_OF_KEY = (
    select(table)
    .where(table.c.namespace_id == bindparam("namespace_id"), table.c.business_key == bindparam("business_key"))
    .order_by(table.c.started_at.desc(), table.c.id.desc())
    .limit(OF_KEY_MAX)
)
_READ = through(select(table), table).where(ids_in(table.c.id))
_OF_KEYS = (
    through(select(table), table, "weave_instance_for_list_by_business_key")
    .where(tuple_(table.c.namespace_id, table.c.business_key).in_(bindparam("keys", expanding=True)))
    .order_by(table.c.started_at.desc(), table.c.id.desc())
)
_MOVE = update(table).where(table.c.id == bindparam("moved")).values(version=bindparam("to"))
_UNFINISHED = Hot(
    select(table.c.revision).where(
        table.c.id == bindparam("id"),
        table.c.namespace_id == bindparam("namespace_id"),
        table.c.finished_at.is_(None),
    )
)
_LOCK_ONE = Hot(_ONE.with_for_update())
_REVISIONS = Hot(through(select(table.c.id, table.c.revision), table).where(ids_in(table.c.id)))


def instances_lock(tx: Transaction, ids: Sequence[bytes], *, newest: int) -> list[Stored]:
    """Lock instances in the order of their ids; `ids` is not empty.

    Left out are those that somebody else has locked, and those in a newer form than `newest`.
    """
    return stored_packed(tx.rows(LOCK_FREE, {"ids": ids, "newest": newest}))


def stored_packed(rows: Sequence[Row[Any]]) -> list[Stored]:
    """Read instances out of the rows of LOCK_FREE."""
    return [stored_of(row) for row in _PACKED.unpack(rows)]


def instance_lock(tx: Transaction, namespace_id: bytes, identifier: bytes) -> Stored | None:
    """Lock one instance of a namespace for an operator, who waits for a runner that holds it."""
    row = tx.row(_LOCK_ONE, {"id": identifier, "namespace_id": namespace_id})
    return None if row is None else stored_of(row)


def instances_due(tx: Transaction, now: Micros, *, newest: int, limit: int) -> list[bytes]:
    """List the ids of instances to be looked at, the longest due first. Plain read, nothing is locked."""
    return [row.id for row in tx.rows(_DUE, {"now": now, "newest": newest, "limit": limit})]


def instance_due_next(tx: Transaction, *, after: Micros) -> Micros | None:
    """Give the earliest instant after another one at which an instance is due."""
    row = tx.row(_NEXT_DUE, {"after": after})
    return None if row is None else row[0]


def instance_find(tx: Transaction, namespace_id: bytes, identifier: bytes) -> Stored | None:
    """Read one instance of a namespace."""
    row = tx.row(FIND, {"id": identifier, "namespace_id": namespace_id})
    return None if row is None else stored_of(row)


def instance_revisions(tx: Transaction, ids: Sequence[bytes]) -> dict[bytes, int]:
    """Read the revisions of some instances; `ids` is not empty."""
    return {row.id: row.revision for row in tx.rows(_REVISIONS, {"ids": ids})}


def instance_unfinished(tx: Transaction, namespace_id: bytes, identifier: bytes) -> int | None:
    """Read the revision of an instance that has not ended; None for one that has, or is not there."""
    row = tx.row(_UNFINISHED, {"id": identifier, "namespace_id": namespace_id})
    return None if row is None else int(row.revision)


def instances_open(tx: Transaction, namespace_id: bytes, workflow: str, business_key: str) -> list[Stored]:
    """List a workflow's unfinished instances with a business key, among the newest that have it; without locks."""
    known = {"namespace_id": namespace_id, "business_key": business_key.encode()}
    found = (stored_of(row) for row in tx.rows(_OF_KEY, known))
    return [each for each in found if each.origin.workflow == workflow and each.instance.finished_at is None]


def instances_read(tx: Transaction, ids: Sequence[bytes]) -> dict[bytes, Stored]:
    """Read instances without locks, by id."""
    return {row.id: stored_of(row) for row in tx.rows(_READ, {"ids": ids})} if ids else {}


def instances_of_keys(tx: Transaction, keys: Sequence[tuple[bytes, str]]) -> list[Stored]:
    """Read all instances with one of these (namespace, business key), the newest first."""
    wanted = [(namespace_id, key.encode()) for namespace_id, key in keys]
    return [stored_of(row) for row in tx.rows(_OF_KEYS, {"keys": wanted})] if keys else []


def instances_insert(tx: Transaction, rows: Sequence[Stored]) -> None:
    """Store new instances."""
    tx.insert(table, [{**_origin_columns(row), "id": row.instance.id, **_columns(row.instance)} for row in rows])


def instances_update(tx: Transaction, changed: Sequence[tuple[Instance, Instance]]) -> None:
    """Write locked instances, each as it was and as it is now; every one of them must be there."""
    changes = [change for before, after in changed if (change := _change(before, after)).values or change.grown]
    changes_write(tx, table, changes)


def instance_version_write(tx: Transaction, identifier: bytes, *, version: int) -> None:
    """Let a locked instance be one of another version."""
    tx.expect(_MOVE, {"moved": identifier, "to": version}, count=1)


def _change(before: Instance, after: Instance) -> Change:
    was, now = _columns(before), _columns(after)
    grown = {"revision": after.revision} if after.revision == before.revision + 1 else {}
    values = {name: value for name, value in now.items() if value != was[name] and name not in grown}
    return Change({"id": after.id}, values, grown)


def _columns(instance: Instance) -> dict[str, Any]:
    return {
        "state": instance.state.value,
        "ending_as": None if instance.ending_as is None else instance.ending_as.value,
        "revision": instance.revision,
        "error": None if instance.error is None else dumps(instance.error.to_json()).decode(),
        "deadline_at": instance.deadline_at,
        "clock_stopped_at": instance.clock_stopped_at,
        "due_at": instance.due_at,
        "compensation": None if instance.compensation is None else instance.compensation.value,
        "control": instance.control.value,
        "pause": None if instance.pause is None else dumps(asdict(instance.pause)).decode(),
        "finished_at": instance.finished_at,
    }


def _origin_columns(row: Stored) -> dict[str, Any]:
    origin = row.origin
    key = row.instance.business_key
    return {
        "namespace_id": origin.namespace_id,
        "workflow": origin.workflow,
        "version": origin.version,
        "business_key": None if key is None else key.encode(),
        "labels": None if not origin.labels else dumps(dict(origin.labels)).decode(),
        "queues": None if origin.queues is None else dumps(sorted(origin.queues)).decode(),
        "started_by": origin.started_by,
        "traceparent": origin.traceparent,
        "counted": origin.counted,
        "pause_at": None if not row.instance.pause_at else dumps(sorted(row.instance.pause_at)).decode(),
        "format": origin.format,
        "forked_from": origin.forked_from,
        "parent_id": None if origin.parent is None else origin.parent.id,
        "parent_step": None if origin.parent is None else origin.parent.step,
        "parent_round": None if origin.parent is None else origin.parent.round,
        "root_id": origin.root_id,
        "started_at": row.instance.started_at,
    }


def _pause(form: dict[str, Any]) -> Pause:
    return Pause(**{**form, "noisy": tuple(form.get("noisy", ()))})


def stored_of(row: Row[Any] | _InstanceRow) -> Stored:
    """Read an instance out of its row."""
    origin = Origin(
        namespace_id=row.namespace_id,
        workflow=row.workflow,
        version=row.version,
        started_by=row.started_by,
        labels=None if row.labels is None else json.loads(row.labels),
        queues=None if row.queues is None else frozenset(json.loads(row.queues)),
        traceparent=row.traceparent,
        counted=row.counted,
        format=row.format,
        forked_from=row.forked_from,
        parent=None if row.parent_id is None else Parent(row.parent_id, row.parent_step or "", row.parent_round or 0),
        root_id=row.root_id,
    )
    instance = Instance(
        id=row.id,
        state=InstanceState(row.state),
        revision=row.revision,
        started_at=row.started_at,
        deadline_at=row.deadline_at,
        business_key=None if row.business_key is None else row.business_key.decode(),
        ending_as=None if row.ending_as is None else Ending(row.ending_as),
        error=None if row.error is None else Failure.from_json(json.loads(row.error)),
        clock_stopped_at=row.clock_stopped_at,
        finished_at=row.finished_at,
        due_at=row.due_at,
        compensation=None if row.compensation is None else Compensation(row.compensation),
        control=Control(row.control),
        pause_at=frozenset() if row.pause_at is None else frozenset(json.loads(row.pause_at)),
        pause=None if row.pause is None else _pause(json.loads(row.pause)),
    )
    return Stored(origin, instance)
