"""Statements about stimuli: pure inserts by whoever causes them, read and deleted under the instance's lock.

The probe reads plainly along the primary key, whole rows, which never change. Who holds the instance's lock takes them
away first: what another runner has applied meanwhile is then missed. One whose instance is locked elsewhere stays and
is found again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, false, select, true

from engine.instance import Failure
from engine.stimulus import GateQuiet, Outcome, ReviewClosed, ReviewOpened, SignalReceived, TaskEnded
from engine.tables import stimulus as table
from orbit.database import RunAgain
from orbit.ids import new_id
from orbit.jsontext import dumps

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.database import Transaction

TASK_ENDED, REVIEW_OPENED, REVIEW_CLOSED = "TASK_ENDED", "REVIEW_OPENED", "REVIEW_CLOSED"
GATE_QUIET, SIGNAL = "GATE_QUIET", "SIGNAL"

StoredStimulus = GateQuiet | TaskEnded | ReviewOpened | ReviewClosed | SignalReceived


@dataclass(frozen=True, slots=True)
class Pending:
    """A stored stimulus, its id and whom it concerns."""

    id: bytes
    instance_id: bytes
    stimulus: StoredStimulus


_PROBE = (
    select(table).where(table.c.held == false(), table.c.id > bindparam("after")).order_by(table.c.held, table.c.id)
)
_HELD = select(table).where(table.c.held == true(), table.c.instance_id == bindparam("instance_id"))


def stimuli_probe(tx: Transaction, *, after: bytes, limit: int) -> list[Pending]:
    """List stimuli, the oldest first. Plain read; `after` is an id, b"" for the beginning."""
    return [_pending(row) for row in tx.rows(_PROBE.limit(limit), {"after": after})]


def stimuli_insert(tx: Transaction, found: Sequence[tuple[bytes, StoredStimulus]]) -> None:
    """Store stimuli for instances: their existence is the wake-up."""
    tx.insert(table, [_columns(instance_id, stimulus) for instance_id, stimulus in found])


def stimuli_take(tx: Transaction, ids: Sequence[bytes]) -> None:
    """Take stimuli of locked instances away, to be applied. Raises RunAgain if another runner has applied some."""
    tx.delete_many(table, [{"held": False, "id": identifier} for identifier in ids], otherwise=RunAgain())


def stimuli_hold(tx: Transaction, pending: Sequence[Pending]) -> None:
    """Set stimuli that were taken aside with their instance, out of the probe's way, until a person has looked."""
    tx.insert(table, [{**_columns(entry.instance_id, entry.stimulus), "held": True} for entry in pending])


def stimuli_release(tx: Transaction, instance_id: bytes) -> int:
    """Let the runner have what was set aside with a locked instance, in its old order; return how much it is.

    Little is ever set aside, so all of it is looked through.
    """
    found = tx.rows(_HELD, {"instance_id": instance_id})
    tx.delete_many(table, [{"held": True, "id": row.id} for row in found])
    tx.insert(table, [{**row._mapping, "held": False} for row in found])  # noqa: SLF001  (a row's public mapping)
    return len(found)


def _columns(instance_id: bytes, stimulus: StoredStimulus) -> dict[str, Any]:
    outcome = stimulus.outcome.value if isinstance(stimulus, TaskEnded) else None
    error = stimulus.error if isinstance(stimulus, TaskEnded | ReviewOpened) else None
    step, number = "", 0
    match stimulus:
        case GateQuiet():
            kind = GATE_QUIET
        case SignalReceived(name=step):
            kind = SIGNAL
        case TaskEnded(step=step, round=number):
            kind = TASK_ENDED
        case ReviewOpened(step=step, round=number):
            kind = REVIEW_OPENED
        case ReviewClosed(step=step, round=number):
            kind = REVIEW_CLOSED
    return {
        "held": False,
        "id": new_id(),
        "instance_id": instance_id,
        "kind": kind,
        "step": step,
        "round": number,
        "outcome": outcome,
        "error": None if error is None else dumps(error.to_json()).decode(),
    }


def _pending(row: Row[Any]) -> Pending:
    error = None if row.error is None else Failure.from_json(json.loads(row.error))
    stimulus: StoredStimulus
    match row.kind:
        case "TASK_ENDED":
            stimulus = TaskEnded(row.step, row.round, Outcome(row.outcome), error)
        case "REVIEW_OPENED":
            stimulus = ReviewOpened(row.step, row.round, error)
        case "GATE_QUIET":
            stimulus = GateQuiet()
        case "SIGNAL":
            stimulus = SignalReceived(row.step)
        case _:
            stimulus = ReviewClosed(row.step, row.round)
    return Pending(row.id, row.instance_id, stimulus)
