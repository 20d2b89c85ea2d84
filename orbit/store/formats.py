"""Statements on stored forms: which may be written to this database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from orbit.formats import FIRST, NEWEST, StoredFormat
from orbit.tables import stored_format

if TYPE_CHECKING:
    from orbit.database import Transaction

_READ = select(stored_format.c.name, stored_format.c.number)


def formats_read(tx: Transaction) -> dict[StoredFormat, int]:
    """Read the newest form of each kind that may be written; a kind that nobody has finalized is at its first."""
    found = {row.name: int(row.number) for row in tx.rows(_READ)}
    return {kind: found.get(kind.value, FIRST) for kind in StoredFormat}


def formats_finalize(tx: Transaction, newest: Mapping[StoredFormat, int] = NEWEST) -> dict[StoredFormat, int]:
    """Let nodes write the newest forms of this release; return what was raised. A form never goes back."""
    known = {row.name: int(row.number) for row in tx.rows(_READ.with_for_update())}
    now = tx.now()
    raised = {kind: number for kind, number in newest.items() if number > known.get(kind.value, FIRST)}
    for kind, number in raised.items():
        if kind.value in known:
            statement = update(stored_format).where(stored_format.c.name == kind.value)
            tx.expect(statement.values(number=number, finalized_at=now), count=1)
        else:
            tx.insert(stored_format, [{"name": kind.value, "number": number, "finalized_at": now}])
    return raised
