"""The write that keeps a cancel's intent on a task that can't be cancelled at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pulse.tables import task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction
    from pulse.store.rows import LockedTask


def cancels_store(tx: Transaction, wanted: Mapping[bytes, tuple[LockedTask, str]], *, now: Micros) -> None:
    """Keep the intent and its reason on locked, unfinished tasks; the first intent stands."""
    rows = [
        {
            "id": key,
            "cancel_requested_at": now,
            "cancel_reason": wanted[key][1],
            "revision": wanted[key][0].revision + 1,
        }
        for key in sorted(wanted)
    ]
    tx.update_many(task, rows=rows)
