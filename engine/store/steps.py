"""Statements about step rows: read with their instances, written as new or changed rows, one statement each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select

from engine.instance import Step
from engine.tables import step as table
from orbit.database.alike import Change, changes_write
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through
from orbit.database.packed import Packed
from orbit.jsontext import dumps

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.database import Transaction


_PACKED = Packed(Step, table, columns={"id": "step"}, nested=frozenset({"error", "log", "items", "retries"}))
_SELECT = through(select(table.c.instance_id, _PACKED.column), table).where(ids_in(table.c.instance_id))
OF_INSTANCES = Hot(_SELECT)
# Read behind the locks of the instances, it brings the clock along.
_OF_LOCKED = Hot(_SELECT, tells_time=True)
_NULLABLE = tuple(column.name for column in table.c if column.nullable)


def steps_load(tx: Transaction, instance_ids: Sequence[bytes]) -> dict[bytes, dict[str, Step]]:
    """Read the entered steps of some instances, by instance and step id."""
    return steps_of(instance_ids, tx.rows(_OF_LOCKED, {"ids": instance_ids}) if instance_ids else [])


def steps_of(instance_ids: Collection[bytes], rows: Sequence[Row[Any]]) -> dict[bytes, dict[str, Step]]:
    """Read steps out of the rows of OF_INSTANCES, by instance and step id."""
    found: dict[bytes, dict[str, Step]] = {identifier: {} for identifier in instance_ids}
    for row, step in zip(rows, _PACKED.unpack_texts([row.packed for row in rows]), strict=True):
        found[row.instance_id][step.id] = step
    return found


def steps_insert(tx: Transaction, entered: Sequence[tuple[bytes, Step]]) -> None:
    """Write steps that were entered, each with its instance's id."""
    rows = [_columns(instance_id, step) for instance_id, step in entered]
    # Most columns are empty in most steps: what is empty in all of them is left to the column's default.
    empty = [name for name in _NULLABLE if all(row[name] is None for row in rows)]
    for row in rows:
        for name in empty:
            del row[name]
    tx.insert(table, rows)


def steps_update(tx: Transaction, changed: Sequence[tuple[bytes, Step, Step]]) -> None:
    """Write steps of locked instances, each as it was and as it is now; every one of them must be there."""
    changes = [_change(instance_id, before, after) for instance_id, before, after in changed if before != after]
    changes_write(tx, table, changes)


def _change(instance_id: bytes, before: Step, after: Step) -> Change:
    values = _values(after)
    was, now = msgspec.structs.astuple(before), msgspec.structs.astuple(after)
    names = [name for name, old, new in zip(Step.__struct_fields__, was, now, strict=True) if old != new]
    key = {"instance_id": instance_id, "step": after.id}
    return Change(key, {name: values[name] for name in names}, {})


def steps_delete(tx: Transaction, steps: Sequence[tuple[bytes, str]]) -> None:
    """Delete steps of locked instances, each with its instance's id; every one of them must be there."""
    tx.delete_many(table, [{"instance_id": instance_id, "step": step} for instance_id, step in steps])


def _columns(instance_id: bytes, step: Step) -> dict[str, Any]:
    return {"instance_id": instance_id, "step": step.id, **_values(step)}


def _values(step: Step) -> dict[str, Any]:
    return {
        "state": step.state.value,
        "reason": None if step.reason is None else step.reason.value,
        "chosen": step.chosen,
        "round": step.round,
        "task_id": step.task_id,
        "due_at": step.due_at,
        "timeout_at": step.timeout_at,
        "start_by_at": step.start_by_at,
        "refused_count": step.refused_count,
        "review_at": step.review_at,
        "entered_at": step.entered_at,
        "finished_at": step.finished_at,
        "error": None if step.error is None else dumps(step.error.to_json()).decode(),
        "rounds_before": step.rounds_before,
        "retry_of": step.retry_of,
        "items": None if step.items is None else msgspec.json.encode(step.items).decode(),
        "retries": None if step.retries is None else dumps(list(step.retries)).decode(),
        "doubts": step.doubts,
        "log": None if step.log is None else msgspec.json.encode(step.log).decode(),
    }
