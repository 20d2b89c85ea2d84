"""What people decided about a task, as it is shown; and the late reports on which a decision may rest.

A late report moves nothing by itself. Named in a review it settles it, with what the worker sent and nothing else: so a
verdict can't name a failure and say success, and no result is typed out again by hand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.clock import to_rfc3339
from orbit.errors import InvalidRequest
from orbit.jsontext import Json
from orbit.redaction import below, masked
from pulse.policy import TaskError
from pulse.report import Outcome
from pulse.states import ErrorClass
from pulse.store.recover import LateKey, late_read, verdicts_read
from pulse.tasks import task_get

if TYPE_CHECKING:
    from orbit.database import Transaction
    from pulse.store.rows import LockedTask


class LateReport(Struct, frozen=True):
    """What a worker reported after its attempt had ended; `output` and `output_ref` are JSON text."""

    output: bytes | None
    output_ref: str | None
    error: TaskError | None


def late_report(tx: Transaction, task: LockedTask, late: LateKey | None, *, is_success: bool) -> LateReport | None:
    """Read the report that a verdict names, if it names one.

    Raises InvalidRequest if the task has no such report, or it says something else than the verdict.
    """
    if late is None:
        return None
    row = late_read(tx, task.id, late)
    if row is None:
        raise InvalidRequest("the task has no such late result", pointer="/late_result")
    if (row.outcome == Outcome.SUCCEEDED) is not is_success:
        raise InvalidRequest(f"this late result says {row.outcome}: the verdict says otherwise", pointer="/verdict")
    error = None if row.error is None else _error(json.loads(row.error))
    return LateReport(row.output, row.output_ref, error)


def _error(said: dict[str, Json]) -> TaskError:
    class_, unknown = ErrorClass(said["class"]), bool(said.get("effect_unknown"))
    return TaskError(class_, said["code"], said["message"], said.get("details"), effect_unknown=unknown)


def verdicts_list(tx: Transaction, namespace_id: bytes, task_id: bytes) -> list[dict[str, Json]]:
    """Read what was decided about a task, in order, with its evidence, and what is masked masked; raises NotFound."""
    hidden = below(task_get(tx, namespace_id, task_id).hidden, "output")
    return [
        {
            "id": row.id.hex(),
            "kind": row.kind,
            "reason": row.reason,
            "evidence": json.loads(row.evidence),
            "safety_statement": row.safety_statement,
            "output": None if row.output is None else masked(json.loads(row.output), hidden),
            "output_ref": None if row.output_ref is None else json.loads(row.output_ref),
            "late_result": (
                None
                if row.late_attempt_id is None
                else {"attempt_id": row.late_attempt_id.hex(), "message_id": row.late_message_id.hex()}
            ),
            "actor": row.actor,
            "created_at": to_rfc3339(row.created_at),
        }
        for row in verdicts_read(tx, task_id)
    ]
