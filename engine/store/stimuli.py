"""Statements about stimuli: pure inserts by whoever causes them, read and deleted under the instance's lock.

The probe reads plainly along the primary key, whole rows, which never change. Who holds the instance's lock takes them
away first: what another runner has applied meanwhile is then missed. One whose instance is locked elsewhere stays and
is found again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import bindparam, delete, false, select, true

from engine.instance import Failure
from engine.stimulus import (
    ChildQuiet,
    GateQuiet,
    Instructed,
    Instruction,
    LateSuccess,
    Outcome,
    ReviewClosed,
    ReviewOpened,
    SignalReceived,
    Started,
    TaskEnded,
)
from engine.tables import stimulus as table
from orbit.database import RunAgain
from orbit.database.hot import Hot
from orbit.ids import new_id
from orbit.jsontext import Json, dumps

if TYPE_CHECKING:
    from sqlalchemy import Row

    from orbit.database import Transaction

StoredStimulus = (
    Started
    | GateQuiet
    | ChildQuiet
    | TaskEnded
    | LateSuccess
    | ReviewOpened
    | ReviewClosed
    | SignalReceived
    | Instructed
)

_KINDS: Mapping[type[StoredStimulus], str] = {
    Started: "STARTED",
    GateQuiet: "GATE_QUIET",
    ChildQuiet: "CHILD_QUIET",
    TaskEnded: "TASK_ENDED",
    LateSuccess: "LATE_SUCCESS",
    ReviewOpened: "REVIEW_OPENED",
    ReviewClosed: "REVIEW_CLOSED",
    SignalReceived: "SIGNAL",
    Instructed: "INSTRUCTED",
}


class Pending(Struct, frozen=True):
    """A stored stimulus, its id and whom it concerns."""

    id: bytes
    instance_id: bytes
    stimulus: StoredStimulus


_PROBE = Hot(
    select(table)
    .where(table.c.held == false(), table.c.id > bindparam("after"))
    .order_by(table.c.held, table.c.id)
    .limit(bindparam("limit"))
)
_TAKE_ONE = delete(table).where(table.c.held == false(), table.c.id == bindparam("id"))
_HELD = select(table).where(table.c.held == true(), table.c.instance_id == bindparam("instance_id"))


def stimuli_probe(tx: Transaction, *, after: bytes, limit: int) -> list[Pending]:
    """List stimuli, the oldest first. Plain read; `after` is an id, b"" for the beginning."""
    return [_pending(row) for row in tx.rows(_PROBE, {"after": after, "limit": limit})]


def stimuli_insert(tx: Transaction, found: Sequence[tuple[bytes, StoredStimulus]]) -> None:
    """Store stimuli for instances: their existence is the wake-up."""
    tx.insert(table, [_columns(instance_id, stimulus) for instance_id, stimulus in found])


def stimuli_take(tx: Transaction, ids: Sequence[bytes]) -> None:
    """Take stimuli of locked instances away, to be applied. Raises RunAgain if another runner has applied some."""
    tx.delete_many(table, [{"held": False, "id": identifier} for identifier in ids], otherwise=RunAgain())


def stimulus_take(tx: Transaction, identifier: bytes) -> bool:
    """Take one stimulus of a locked instance away; False if somebody else has."""
    return tx.execute(_TAKE_ONE, {"id": identifier}) == 1


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
    step, number, outcome, said = "", 0, None, None
    match stimulus:
        case TaskEnded():
            step, number, outcome = stimulus.step, stimulus.round, stimulus.outcome.value
            said = None if stimulus.error is None else stimulus.error.to_json()
        case ReviewOpened():
            step, number = stimulus.step, stimulus.round
            said = None if stimulus.error is None else stimulus.error.to_json()
        case ReviewClosed() | LateSuccess():
            step, number = stimulus.step, stimulus.round
        case ChildQuiet():
            step, number, said = stimulus.step, stimulus.round, {"paused_at": stimulus.paused_at}
        case Instructed():
            outcome, said = stimulus.instruction.value, {"reason": stimulus.reason, "by": stimulus.by}
            said |= {"compensate": True} if stimulus.compensate else {}
        case SignalReceived():
            step = stimulus.name
        case Started() | GateQuiet():
            pass
    return {
        "held": False,
        "id": new_id(),
        "instance_id": instance_id,
        "kind": _KINDS[type(stimulus)],
        "step": step,
        "round": number,
        "outcome": outcome,
        "error": None if said is None else dumps(said).decode(),
    }


def _pending(row: Row[Any]) -> Pending:
    said = None if row.error is None else json.loads(row.error)
    return Pending(row.id, row.instance_id, _stimulus(row, said))


def _stimulus(row: Row[Any], said: Json) -> StoredStimulus:
    match row.kind:
        case "TASK_ENDED":
            error = None if said is None else Failure.from_json(said)
            return TaskEnded(row.step, row.round, Outcome(row.outcome), error)
        case "REVIEW_OPENED":
            return ReviewOpened(row.step, row.round, None if said is None else Failure.from_json(said))
        case "REVIEW_CLOSED":
            return ReviewClosed(row.step, row.round)
        case "LATE_SUCCESS":
            return LateSuccess(row.step, row.round)
        case "GATE_QUIET":
            return GateQuiet()
        case "CHILD_QUIET":
            return ChildQuiet(row.step, row.round, said["paused_at"])
        case "SIGNAL":
            return SignalReceived(row.step)
        case "STARTED":
            return Started()
        case kind:
            assert kind == "INSTRUCTED", f"nobody stores a stimulus {kind}"
            return Instructed(Instruction(row.outcome), said["reason"], said["by"], said.get("compensate", False))
