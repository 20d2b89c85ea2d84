"""Statements about step rows: read with their instances, written as new or changed rows, one statement each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import ColumnElement, LargeBinary, func, select

from engine.instance import Step
from engine.tables import step as table
from orbit.database.ids import ids_in, through
from orbit.jsontext import dumps

if TYPE_CHECKING:
    from orbit.database import Transaction


def _packed(name: str) -> ColumnElement[Any]:
    column = table.c["step" if name == "id" else name]
    if name in {"error", "log"}:
        return func.json_extract(column, "$")  # nested as JSON, not as the text of it
    return func.to_base64(column) if isinstance(column.type, LargeBinary) else column


# A row travels as one JSON array in the order of the struct's fields, and becomes a step in C.
_OF_INSTANCES = through(
    select(table.c.instance_id, func.json_array(*map(_packed, Step.__struct_fields__)).label("packed")), table
).where(ids_in(table.c.instance_id))
_DECODER = msgspec.json.Decoder(list[Step])


def steps_load(tx: Transaction, instance_ids: Sequence[bytes]) -> dict[bytes, dict[str, Step]]:
    """Read the entered steps of some instances, by instance and step id."""
    found: dict[bytes, dict[str, Step]] = {identifier: {} for identifier in instance_ids}
    if not instance_ids:
        return found
    rows = tx.rows(_OF_INSTANCES, {"ids": instance_ids})
    steps = _DECODER.decode(f"[{','.join([row.packed for row in rows])}]")
    for row, step in zip(rows, steps, strict=True):
        found[row.instance_id][step.id] = step
    return found


def steps_insert(tx: Transaction, entered: Sequence[tuple[bytes, Step]]) -> None:
    """Write steps that were entered, each with its instance's id."""
    tx.insert(table, [_columns(instance_id, step) for instance_id, step in entered])


def steps_update(tx: Transaction, changed: Sequence[tuple[bytes, Step]]) -> None:
    """Write steps of locked instances that had a row; every one of them must be there."""
    rows = [_columns(instance_id, step) for instance_id, step in changed]
    matched = tx.update_many(table, key=("instance_id", "step"), rows=rows)
    assert matched == len(rows), f"wrote {matched} of {len(rows)} steps"


def _columns(instance_id: bytes, step: Step) -> dict[str, Any]:
    return {
        "instance_id": instance_id,
        "step": step.id,
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
        "log": None if step.log is None else msgspec.json.encode(step.log).decode(),
    }
