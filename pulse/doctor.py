"""Examine what Pulse has stored, and repair what can be: counters, places and holders of keys, tasks that sleep.

Both may run beside nodes: a counter and its tasks are read in one snapshot, a repair adds the difference and never
sets. What is not a counter or a place is only reported: a person must see it first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pulse.store.recount import Drift, drifts_find
from pulse.store.repair import COUNTERS, KEYS, PLACES, counter_add, holders_mend, task_place, usage_add, waiters_wake

if TYPE_CHECKING:
    from orbit.database import Database, Transaction

__all__ = ["Drift", "examine", "is_repairable", "repair"]

_USAGE = frozenset({"active", "leased_unstarted"})


def examine(database: Database) -> list[Drift]:
    """Recount everything and return what differs."""
    return database.transaction(drifts_find)


def is_repairable(drift: Drift) -> bool:
    """Say whether `repair` does anything about it."""
    return drift.name in COUNTERS | PLACES | KEYS


def repair(database: Database) -> list[Drift]:
    """Repair what can be, and return what was found; examine again to see what is left."""

    def counters(tx: Transaction) -> list[Drift]:
        found = drifts_find(tx)
        _add(tx, [drift for drift in found if drift.name in COUNTERS])
        return found

    before = examine(database)
    for task_id in sorted({drift.subject for drift in before if drift.name == "key_holder"}):
        database.transaction(partial(holders_mend, task_id=task_id))
    found = database.transaction(counters)
    found += [drift for drift in before if drift.name == "key_holder"]
    for key_id in sorted({drift.subject for drift in found if drift.name in {"key_active", "key_asleep"}}):
        database.transaction(partial(waiters_wake, key_id=key_id))
    for task_id in sorted({drift.subject for drift in found if drift.name in PLACES}):
        database.transaction(partial(task_place, task_id=task_id))
    return found


def _add(tx: Transaction, drifts: Sequence[Drift]) -> None:
    """Add differences in the order of locks: gates, keys, then queues' usage, then their backlogs."""
    usages: dict[bytes, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_USAGE, 0))
    for drift in drifts:
        if drift.name in _USAGE:
            usages[drift.subject][drift.name] = drift.counted - drift.stored
    for name in ("in_flight", "key_active", "unfinished"):
        if name == "unfinished":
            for queue_id in sorted(usages):
                usage_add(tx, queue_id, **usages[queue_id])
        for drift in sorted((d for d in drifts if d.name == name), key=lambda d: d.subject):
            counter_add(tx, name, drift.subject, difference=drift.counted - drift.stored)
