"""The rows of accepted tasks: pure inserts of new ids, which wait for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pulse.tables import task

if TYPE_CHECKING:
    from orbit.database import Transaction

_OPTIONAL = (
    "start_deadline_at",
    "business_key",
    "source_id",
    "source_step",
    "source_round",
    "retry_of",
    "operation_id",
    "derived_from",
    "labels",
    "traceparent",
    "gate_id",
    "held_since",
    "concurrency_keys",
    "fairness_key",
    "fair_at",
    "recovery",
    "type_revision_id",
    "redact",
)


def tasks_insert(tx: Transaction, rows: Sequence[dict[str, Any]]) -> None:
    """Insert accepted tasks; columns that no row of the batch uses are left to their default."""
    unused = [name for name in _OPTIONAL if all(row[name] is None for row in rows)]
    for row in rows:
        for name in unused:
            del row[name]
    tx.insert(task, rows)
