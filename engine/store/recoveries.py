"""Statements about people's decisions: written with the advance that they make, never changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select

from engine.tables import recovery as table
from orbit.clock import Micros
from orbit.ids import new_id

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One decision; `evidence` is JSON text, `round` and `task_id` are the step's when it was made."""

    instance_id: bytes
    revision: int
    action: str
    step: str | None
    round: int
    task_id: bytes | None
    safety_statement: str | None
    evidence: str
    evidence_digest: bytes
    reason: str
    actor: str
    created_at: Micros


_OF_INSTANCE = select(table).where(table.c.instance_id == bindparam("instance_id")).order_by(table.c.id)


def recovery_insert(tx: Transaction, recovery: Recovery) -> None:
    """Keep a decision."""
    tx.insert(table, [{"id": new_id(), **asdict(recovery)}])


def recoveries_list(tx: Transaction, instance_id: bytes, *, limit: int) -> list[Recovery]:
    """Read the first decisions about an instance, in order."""
    rows = tx.rows(_OF_INSTANCE.limit(limit), {"instance_id": instance_id})
    return [
        Recovery(**{name: value for name, value in row._mapping.items() if name != "id"})  # noqa: SLF001  (public)
        for row in rows
    ]
