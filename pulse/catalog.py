"""What a node knows of registered task types, and the fencing epoch: read from the database, at most a second old.

Submitting looks up the type of every task, so that must cost no statement. A change of any type moves one mark, under
its lock; a node reads the marks at most once a second, and only if it is asked, then what changed since. So a change
counts at once where it was made and within a second elsewhere; what was accepted meanwhile keeps what was frozen.
Revisions never change: those that tasks refer to are kept as they are read. Losing all of this is harmless.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from pulse.states import RecoverySafety
from pulse.store.types import marks_read, revision_read, types_changed
from pulse.type_revision import TypeRevision

if TYPE_CHECKING:
    from orbit.database import Transaction

STALE_SECONDS = 1.0
_REVISIONS_KEPT = 10_000
# Who is overtaken this often goes on with what is known, and the next question looks again.
_LOOKS = 3

FENCING_EPOCH = "fencing_epoch"
TYPES = "task_types"


class Catalog:
    """The registered types of all namespaces, for one process."""

    def __init__(self) -> None:
        self.fencing_epoch = 1
        self._current: dict[tuple[bytes, str, int], TypeRevision] = {}
        self._revisions: OrderedDict[bytes, TypeRevision] = OrderedDict()
        self._sequence = 0
        self._looked_at = float("-inf")
        self._turn = 0

    def freshen(self, tx: Transaction) -> None:
        """Look for changes if the last look is too long ago. Call it before `current` in the same transaction."""
        if time.monotonic() - self._looked_at > STALE_SECONDS:
            self.refresh(tx)

    def refresh(self, tx: Transaction) -> None:
        """Look for changes now."""
        for _ in range(_LOOKS):
            if self._look(tx):
                return

    def _look(self, tx: Transaction) -> bool:
        """Take over what the database says; False if that may be older than what has become known here meanwhile.

        A statement lets others run: another look may end first, and who changed a type says so. Taken over all the
        same, an older view would count until the next look, or, being below our mark, pass for a restored database.
        """
        looked_at, turn = time.monotonic(), self._turn
        marks = marks_read(tx)
        sequence = marks.get(TYPES, 0)
        # A mark below ours is another database's (a restored one): then nothing that we know counts.
        known = self._sequence if sequence >= self._sequence else 0
        found = types_changed(tx, after=known) if sequence != self._sequence else []
        if turn != self._turn:
            return False
        if not known:
            self._current = {}
            self._revisions.clear()
        for row in found:
            revision = self._keep(TypeRevision(row))
            self._current[row.namespace_id, row.type, row.version] = revision
        self.fencing_epoch = marks.get(FENCING_EPOCH, 1)
        self._turn += 1
        self._sequence = sequence
        self._looked_at = looked_at
        return True

    def forget(self) -> None:
        """Look again at the next question: something was changed here. A look that is under way does not count."""
        self._turn += 1
        self._looked_at = float("-inf")

    def current(self, namespace_id: bytes, type_: str, version: int) -> TypeRevision | None:
        """Return what a type is registered as now; None if it is not."""
        return self._current.get((namespace_id, type_, version))

    def revision(self, tx: Transaction, revision_id: bytes) -> TypeRevision:
        """Return the revision that a task was accepted under."""
        found = self._revisions.get(revision_id)
        return found if found is not None else self._keep(TypeRevision(revision_read(tx, revision_id)))

    def safety(self, namespace_id: bytes, type_: str, version: int) -> RecoverySafety | None:
        """Return the safety that a type is registered with; None if it is not registered."""
        found = self.current(namespace_id, type_, version)
        return None if found is None else found.recovery

    def _keep(self, revision: TypeRevision) -> TypeRevision:
        self._revisions[revision.id] = revision
        if len(self._revisions) > _REVISIONS_KEPT:
            self._revisions.popitem(last=False)
        return revision
