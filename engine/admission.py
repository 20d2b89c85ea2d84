"""What a start has to settle before its instance exists: its business key, and the signals that wait for that key.

Only workflows that care are asked: those that wait for signals. All others pay nothing.

The surprising rule: the key's row is locked even if nothing waits there, so that a signal which is sent at the same
time is either seen here or finds the instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.store.business_keys import BusinessKey, business_keys_lock, business_keys_use
from engine.store.signals import signals_adopt, signals_of_keys

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class Entrant:
    """A start with a business key: the id that its instance will have, and the names of signals that it takes."""

    key: BusinessKey
    instance_id: bytes
    takes: frozenset[str]


def admit(tx: Transaction, entrants: Sequence[Entrant]) -> None:
    """Lock the keys of starts and give the instances what waits for them, in the order of the starts."""
    if not entrants:
        return
    business_keys_lock(tx, [entrant.key for entrant in entrants])
    business_keys_use(tx, {entrant.key.address: entrant.instance_id for entrant in entrants})
    _adopt(tx, entrants)


def _adopt(tx: Transaction, entrants: Sequence[Entrant]) -> None:
    waiting = signals_of_keys(tx, sorted({entrant.key.address for entrant in entrants if entrant.takes}))
    if not waiting:
        return
    now = tx.now()
    adopted = []
    for signal in waiting:
        takers = (
            entrant.instance_id
            for entrant in entrants
            if entrant.key.address == signal.waits_for and signal.name in entrant.takes
        )
        taker = next(takers, None) if signal.expires_at > now else None
        if taker is not None:
            adopted.append((signal.id, taker))
    signals_adopt(tx, adopted)
