"""Statements about step rows: read with their instances, written as new or changed rows, one statement each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select

from engine.instance import Failure, Round, RoundLog, Step
from engine.states import StepReason, StepState
from engine.tables import step as table
from orbit.ids import to_hex
from orbit.jsontext import dumps

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.database import Transaction

_OF_INSTANCES = select(table).where(table.c.instance_id.in_(bindparam("ids", expanding=True)))


def steps_load(tx: Transaction, instance_ids: Sequence[bytes]) -> dict[bytes, dict[str, Step]]:
    """Read the entered steps of some instances, by instance and step id."""
    found: dict[bytes, dict[str, Step]] = {identifier: {} for identifier in instance_ids}
    for row in tx.rows(_OF_INSTANCES, {"ids": list(instance_ids)}):
        found[row.instance_id][row.step] = _step(row)
    return found


def steps_insert(tx: Transaction, entered: Sequence[tuple[bytes, Step]]) -> None:
    """Write steps that were entered, each with its instance's id."""
    tx.insert(table, [_columns(instance_id, step) for instance_id, step in entered])


def steps_update(tx: Transaction, changed: Sequence[tuple[bytes, Step]]) -> None:
    """Write steps of locked instances that had a row; every one of them must be there."""
    rows = [_columns(instance_id, step) for instance_id, step in changed]
    matched = tx.update_many(table, key=("instance_id", "step"), rows=rows)
    assert matched == len(rows), f"wrote {matched} of {len(rows)} steps"


def log_to_json(log: RoundLog) -> dict[str, Any]:
    """Give the JSON form of a poll's round log."""
    return {
        "first": [_round_to_json(entry) for entry in log.first],
        "last": [_round_to_json(entry) for entry in log.last],
        "counts": dict(log.counts),
    }


def _round_to_json(entry: Round) -> dict[str, Any]:
    return {
        "number": entry.number,
        "task_id": None if entry.task_id is None else to_hex(entry.task_id),
        "outcome": entry.outcome,
        "ended_at": entry.ended_at,
    }


def _log_from_json(form: Mapping[str, Any]) -> RoundLog:
    first, last = (
        tuple(
            Round(
                entry["number"],
                None if entry["task_id"] is None else bytes.fromhex(entry["task_id"]),
                entry["outcome"],
                entry["ended_at"],
            )
            for entry in form[part]
        )
        for part in ("first", "last")
    )
    return RoundLog(first, last, form["counts"])


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
        "log": None if step.log is None else dumps(log_to_json(step.log)).decode(),
    }


def _step(row: Row[Any]) -> Step:
    return Step(
        id=row.step,
        state=StepState(row.state),
        entered_at=row.entered_at,
        reason=None if row.reason is None else StepReason(row.reason),
        chosen=row.chosen,
        round=row.round,
        task_id=row.task_id,
        due_at=row.due_at,
        timeout_at=row.timeout_at,
        start_by_at=row.start_by_at,
        refused_count=row.refused_count,
        review_at=row.review_at,
        finished_at=row.finished_at,
        error=None if row.error is None else Failure.from_json(json.loads(row.error)),
        log=None if row.log is None else _log_from_json(json.loads(row.log)),
    )
