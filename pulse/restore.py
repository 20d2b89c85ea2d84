"""After a restore: what ran when the backup was made may have run on, and everything handed out since is forgotten.

The fencing epoch is raised, so that whatever is handed out from now on is higher than all that was handed out after the
backup; outside systems that compare fencing numbers then refuse the forgotten attempts. It is taken from the clock,
since the backup does not know of other restores from it. Every live attempt of the backup is ended as lost: nobody
knows whether its worker is still there, so the recovery table judges it. Nodes must be stopped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from orbit.clock import SECOND
from pulse import limits
from pulse.catalog import FENCING_EPOCH
from pulse.lease import give_up
from pulse.store.execute import attempts_live
from pulse.store.types import mark_set, marks_read

if TYPE_CHECKING:
    from orbit.database import Database, Transaction
    from pulse.settle import Surroundings


# Epochs are seconds since 2026: with 32 bits of Starts below them fencing numbers stay within 63 bits until 2094.
_SECONDS_UNTIL_2026 = 1_767_225_600


class Restored(Struct, frozen=True):
    """What was done: the new epoch, and how many attempts were ended."""

    fencing_epoch: int
    attempts_ended: int


def after_restore(database: Database, around: Surroundings) -> Restored:
    """Raise the fencing epoch and send everything that is live through the recovery table.

    It may be run again: an epoch that is raised twice does no harm, and nothing is live any more.
    """
    epoch = database.transaction(_raise_epoch)
    ended = 0
    while True:
        live = database.transaction(lambda tx: attempts_live(tx, limit=limits.SWEEP_BATCH_MAX))
        if not live:
            return Restored(epoch, ended)
        ended += database.transaction(partial(give_up, candidates=live, around=around))


def _raise_epoch(tx: Transaction) -> int:
    epoch = max(marks_read(tx).get(FENCING_EPOCH, 1) + 1, tx.now() // SECOND - _SECONDS_UNTIL_2026)
    mark_set(tx, FENCING_EPOCH, epoch)
    return epoch
