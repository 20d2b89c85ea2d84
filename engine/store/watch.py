"""Statements of the watchdog: plain reads along the list of unfinished instances, and of what one of them waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from sqlalchemy import and_, bindparam, false, or_, select

from engine.states import INSTANCE_TERMINAL, INSTANCE_UNFINISHED
from engine.store.instances import Stored, stored_of
from engine.tables import instance as table
from engine.tables import stimulus
from orbit.database.ids import ids_in, through
from orbit.store.journal import EventRecord, events_insert
from orbit.tables import event, namespace
from pulse.states import UNFINISHED
from pulse.tables import gate, task

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

STUCK = "instance.stuck"


class Position(Struct, frozen=True):
    """Where a look at all unfinished instances has come to: namespace and state, then the last instance seen."""

    namespace_id: bytes = b""
    state: str = ""
    started_at: Micros = 0
    id: bytes = b""


_PAGE = (
    select(table)
    .where(
        table.c.namespace_id == bindparam("namespace_id"),
        table.c.state == bindparam("state"),
        or_(
            table.c.started_at > bindparam("started_at"),
            and_(table.c.started_at == bindparam("started_at"), table.c.id > bindparam("id")),
        ),
    )
    .order_by(table.c.namespace_id, table.c.state, table.c.started_at, table.c.id)
)
_NAMESPACES = select(namespace.c.id).order_by(namespace.c.id)
_TASKS = through(select(task.c.id, task.c.state).where(ids_in(task.c.id)), task)
_CHILDREN = through(select(table.c.id, table.c.state).where(ids_in(table.c.id)), table)
_STIMULI = select(stimulus.c.kind, stimulus.c.held).where(stimulus.c.instance_id == bindparam("instance_id"))
_OWNERS = select(stimulus.c.instance_id).where(stimulus.c.held == false(), ids_in(stimulus.c.instance_id)).distinct()
_IN_FLIGHT = select(gate.c.in_flight).where(gate.c.id == bindparam("id"))
_TOLD = select(event.c.id).where(
    event.c.subject_id == bindparam("subject_id"),
    event.c.subject_revision == bindparam("revision"),
    event.c.type == STUCK,
)
_ORPHANS = (
    select(task.c.id, task.c.source_id)
    .join(table, table.c.id == task.c.source_id)
    .where(
        task.c.source_step.is_not(None),
        task.c.state.in_(sorted(UNFINISHED)),
        table.c.state.in_(sorted(INSTANCE_TERMINAL)),
    )
    .order_by(task.c.id)
)


def unfinished_page(tx: Transaction, after: Position, *, limit: int) -> tuple[list[Stored], Position | None]:
    """Read unfinished instances without locks, and where the next page begins; None at the end of all.

    A page may be short or empty before the end: it never reaches over one state of one namespace.
    """
    namespaces = [row.id for row in tx.rows(_NAMESPACES)]
    states = sorted(state.value for state in INSTANCE_UNFINISHED)
    places = [(identifier, state) for identifier in namespaces for state in states]
    here = (after.namespace_id, after.state) if after.state else places[0] if places else None
    if here is None:
        return [], None
    if here not in places:
        return [], _following(places, here)
    bound = {"namespace_id": here[0], "state": here[1], "started_at": after.started_at, "id": after.id}
    found = [stored_of(row) for row in tx.rows(_PAGE.limit(limit), bound)]
    if len(found) < limit:
        return found, _following(places, here)
    last = found[-1].instance
    return found, Position(here[0], here[1], last.started_at, last.id)


def _following(places: Sequence[tuple[bytes, str]], here: tuple[bytes, str]) -> Position | None:
    behind = [place for place in places if place > here]
    return Position(*min(behind)) if behind else None


def unfinished_work(tx: Transaction, ids: Collection[bytes]) -> frozenset[bytes]:
    """Give those of some tasks and children that are there and have not ended."""
    if not ids:
        return frozenset()
    tasks = {row.id: row.state for row in tx.rows(_TASKS, {"ids": ids})}
    found = {identifier for identifier, state in tasks.items() if state in UNFINISHED}
    others = [identifier for identifier in ids if identifier not in tasks]
    if others:
        found |= {row.id for row in tx.rows(_CHILDREN, {"ids": others}) if row.state in INSTANCE_UNFINISHED}
    return frozenset(found)


def stimuli_waiting(tx: Transaction, instance_id: bytes) -> list[tuple[str, bool]]:
    """List the stimuli of one instance as kind and whether it is set aside. Reads all there are: for few suspects."""
    return [(row.kind, bool(row.held)) for row in tx.rows(_STIMULI, {"instance_id": instance_id})]


def stimuli_owners(tx: Transaction, instance_ids: Collection[bytes]) -> frozenset[bytes]:
    """Give those of some instances for which a stimulus waits for a runner. Reads all stimuli that there are."""
    if not instance_ids:
        return frozenset()
    return frozenset(row.instance_id for row in tx.rows(_OWNERS, {"ids": instance_ids}))


def gate_in_flight(tx: Transaction, instance_id: bytes) -> int:
    """Count what runs behind an instance's gate; 0 for one that has none."""
    row = tx.row(_IN_FLIGHT, {"id": instance_id})
    return 0 if row is None else int(row.in_flight)


def orphans_find(tx: Transaction, *, limit: int) -> list[tuple[bytes, bytes]]:
    """List unfinished tasks of instances that have ended, each with its instance. It looks through all tasks."""
    return [(row.id, row.source_id) for row in tx.rows(_ORPHANS.limit(limit))]


def stuck_tell(tx: Transaction, stored: Stored, data: str, *, now: Micros) -> bool:
    """Write the event that an instance is stuck, once for each of its revisions; say whether this was the time."""
    identifier, revision = stored.instance.id, stored.instance.revision
    if tx.rows(_TOLD, {"subject_id": identifier, "revision": revision}):
        return False
    origin = stored.origin
    event = EventRecord(origin.namespace_id, STUCK, identifier, revision, data, workflow=origin.workflow)
    events_insert(tx, [event], now=now)
    return True
