"""The figures that a scrape of the metrics reads from the database: sums over narrow counter rows only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from pulse.tables import queue_backlog, queue_usage

if TYPE_CHECKING:
    from orbit.database import Transaction

_BACKLOG = select(func.coalesce(func.sum(queue_backlog.c.unfinished), 0))
_PERMITS = select(func.coalesce(func.sum(queue_usage.c.active), 0))


@dataclass(frozen=True, slots=True)
class Figures:
    """Unfinished tasks and permits in use, over all queues of all namespaces."""

    unfinished: int
    active: int


def figures_read(tx: Transaction) -> Figures:
    """Read the figures."""
    return Figures(int(tx.rows(_BACKLOG)[0][0]), int(tx.rows(_PERMITS)[0][0]))
