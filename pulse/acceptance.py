"""Accept a batch of tasks in a transaction of its own, with what it takes of the queues' counters as the last writes.

So a backlog's row, which all submissions to a queue share, is held for the time of one COMMIT. Where the places are not
all free, or the application has quotas, the batch runs once more with the backlogs locked before its tasks are
inserted, and is granted item by item. That is dear just where much is refused, so such queues are remembered for a
moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pulse.listener import BacklogShort, Takings
from pulse.store.counters import UsageMove, backlog_take, usage_lease
from pulse.submission import Submit, tasks_submit

if TYPE_CHECKING:
    from orbit.database import Database, Transaction
    from orbit.errors import OrbitError
    from orbit.idempotency import Answer
    from pulse.settle import Surroundings

SCARCE_SECONDS = 1.0
_QUEUES_KEPT_MAX = 10_000


class Scarce:
    """The queues in which places were short a moment ago. A hint of one process: to be wrong costs a round trip."""

    def __init__(self) -> None:
        self._until: dict[tuple[bytes, str], float] = {}

    def note(self, submits: Sequence[Submit]) -> None:
        """Remember the queues of a batch that did not fit."""
        if len(self._until) > _QUEUES_KEPT_MAX:
            self._until.clear()
        until = time.monotonic() + SCARCE_SECONDS
        self._until.update(dict.fromkeys(map(_queue_of, submits), until))

    def holds_any(self, submits: Sequence[Submit]) -> bool:
        """Say whether any queue of a batch is one of them."""
        if not self._until:
            return False
        now = time.monotonic()
        return any(self._until.get(_queue_of(submit), 0.0) > now for submit in submits)


def tasks_accept(
    database: Database, submits: Sequence[Submit], around: Surroundings, scarce: Scarce
) -> list[Answer | OrbitError]:
    """Accept a batch; one outcome for each item, in order."""
    if not scarce.holds_any(submits):
        try:
            return database.transaction(lambda tx: _accept_roomy(tx, submits, around))
        except BacklogShort:
            scarce.note(submits)
    return database.transaction(lambda tx: tasks_submit(tx, submits, around))


def takings_take(tx: Transaction, takings: Takings) -> None:
    """Take what `tasks_submit` has left for later, as the last writes of a transaction.

    Raises BacklogShort where places are not all free, and RunAgain where permits are not: then nothing is handed out.
    """
    for queue_id in sorted(takings.leases):
        leases = takings.leases[queue_id]
        usage_lease(tx, queue_id, UsageMove(leases, leases), left=takings.left[queue_id], now=takings.leased_at)
    for queue_id in sorted(takings.places):
        backlog_take(tx, queue_id, takings.places[queue_id], otherwise=BacklogShort())


def _accept_roomy(tx: Transaction, submits: Sequence[Submit], around: Surroundings) -> list[Answer | OrbitError]:
    takings = Takings()
    outcomes = tasks_submit(tx, submits, around, takings=takings)
    takings_take(tx, takings)
    return outcomes


def _queue_of(submit: Submit) -> tuple[bytes, str]:
    return submit.request.namespace_id, submit.request.queue
