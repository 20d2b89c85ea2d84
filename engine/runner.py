"""The loop that moves instances: find those with stimuli or due timers; lock, advance, write them in one transaction.

Nothing is kept between rounds but hints (when to look for due timers, where the probe begins): a runner that dies loses
nothing, and any number of runners may work on one database, because an instance is advanced only under its row's lock
and a locked one is left to its holder.

The surprising rule: the first read takes no lock and may be stale. Instances are read again under their locks; stimuli,
which never change, are taken away there, and one that is missing was applied meanwhile: then the round begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from engine.batch import Advancer, Held, hold, is_held_by_engine, is_set_aside, next_due
from engine.children import token
from engine.flow import Flow
from engine.obeying import begins_alone, obey
from engine.stimulus import ChildQuiet, GateQuiet, Instructed, Started, Stimulus, TaskEnded
from engine.store.instances import Stored, instance_due_next, instances_due, instances_lock
from engine.store.steps import steps_load
from engine.store.stimuli import Pending, stimuli_probe, stimuli_take
from engine.work import Work
from orbit.clock import SECOND, Micros
from orbit.database import Database, Pool
from orbit.errors import Unavailable
from orbit.logs import get_logger

if TYPE_CHECKING:
    from orbit.database import Transaction

INSTANCES_MAX = 256
STIMULI_MAX = 512
BUSY_SECONDS = 0.01
IDLE_SECONDS = 0.25
AWAY_SECONDS = 1.0
_BEGINNING = b""
# A probe leaves out what it has just seen: deleted rows lie there until the database has purged them.
BEGIN_KEPT_SECONDS = 0.25

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe found: instances by id, and the stimuli that named them."""

    instance_ids: tuple[bytes, ...]
    stimuli: tuple[Pending, ...]
    next_begin: bytes = _BEGINNING  # where the next probe may begin
    is_full: bool = False  # there may be more


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did: ids of changed instances, how many instances it looked at, the next timer that it knows."""

    changed: tuple[bytes, ...]
    looked_at: int
    due_in_micros: Micros | None


@dataclass(slots=True)
class _Parted:
    """What is to be done with locked instances: what is set aside, and what is advanced by which stimuli."""

    held: list[Held] = field(default_factory=list)
    active: list[tuple[Stored, list[Pending], list[Stimulus]]] = field(default_factory=list)


def _parted(locked: Sequence[Stored], pending: dict[bytes, list[Pending]]) -> _Parted:
    """Part what is set aside with its stimuli from what is advanced; a pause hears only that it has become quiet."""
    parted = _Parted()
    for stored in locked:
        entries = pending[stored.instance.id]
        if not is_set_aside(stored.instance):
            parted.active.append((stored, entries, [_plain(entry) for entry in entries]))
        else:
            quiet = [entry for entry in entries if isinstance(entry.stimulus, GateQuiet | ChildQuiet)]
            heard = [*map(_plain, quiet), *_ended_children(stored, entries)]
            if heard and not is_held_by_engine(stored.instance):
                parted.active.append((stored, quiet, heard))
                entries = [entry for entry in entries if entry not in quiet]
            parted.held.append(Held(stored, entries, None))
    return parted


def _instructed(found: Found) -> dict[bytes, Pending]:
    """Find the first instruction for each instance that has one: what else came for it waits until it is obeyed."""
    instructions = [entry for entry in found.stimuli if isinstance(entry.stimulus, Instructed)]
    return {entry.instance_id: entry for entry in reversed(instructions)}


def _beginning_alone(locked: Sequence[Stored], flows: Mapping[bytes, Flow], found: Found) -> dict[bytes, Pending]:
    """Find the children that have to begin in a transaction of their own."""
    started = {entry.instance_id: entry for entry in found.stimuli if isinstance(entry.stimulus, Started)}
    if not started:
        return {}
    return {
        identifier: started[identifier]
        for stored in locked
        if (identifier := stored.instance.id) in started
        and not is_set_aside(stored.instance)
        and begins_alone(stored, flows[identifier])
    }


def _plain(entry: Pending) -> Stimulus:
    assert not isinstance(entry.stimulus, Instructed), "an instruction is no stimulus of the core"
    return entry.stimulus


def _ended_children(stored: Stored, entries: Sequence[Pending]) -> list[ChildQuiet]:
    """List the children whose end is set aside and on whose quiet a pause still waits: an end is quiet too."""
    pause = stored.instance.pause
    if pause is None or not pause.noisy:
        return []
    ended = [entry.stimulus for entry in entries if isinstance(entry.stimulus, TaskEnded)]
    return [
        ChildQuiet(each.step, each.round, pause.paused_at)
        for each in ended
        if token(each.step, each.round) in pause.noisy
    ]


def _taken(tx: Transaction, locked: Sequence[Stored], found: Found) -> dict[bytes, list[Pending]]:
    """Take the stimuli of locked instances, by instance. Raises RunAgain if another runner was first."""
    by_instance: dict[bytes, list[Pending]] = {stored.instance.id: [] for stored in locked}
    mine = [entry for entry in found.stimuli if entry.instance_id in by_instance]
    stimuli_take(tx, [entry.id for entry in mine])
    for entry in mine:
        by_instance[entry.instance_id].append(entry)
    return by_instance


class Runner:
    """One process's runner. `on_changed` is told after COMMIT which instances have changed."""

    def __init__(
        self, database: Database, advancer: Advancer, *, on_changed: Callable[[Sequence[bytes]], None] | None = None
    ) -> None:
        self._database = database
        self._advancer = advancer
        self._on_changed = on_changed or (lambda _ids: None)
        self._woken = Event()
        self._stopping = False
        self._greenlet: gevent.Greenlet[[], None] | None = None
        self._found = Found((), ())
        self._instructed: tuple[Pending, ...] = ()
        self._begin = _BEGINNING
        self._begun_at = 0.0
        self._look_for_due_at = 0.0

    def start(self) -> None:
        """Begin to run, in a greenlet of its own."""
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """Finish the current round, then end. A greenlet inside a database call is waited for, never killed."""
        self._stopping = True
        self._woken.set()
        if self._greenlet is not None:
            self._greenlet.join()

    def wake(self) -> None:
        """Look now: a stimulus was committed by this process."""
        self._woken.set()

    def due_in(self, micros: Micros) -> None:
        """Look for due timers no later than in that time: an instance with a timer was committed by this process."""
        if self._arm(micros):
            self._woken.set()

    def _arm(self, micros: Micros) -> bool:
        at = time.monotonic() + max(micros, 0) / SECOND
        is_earlier = at < self._look_for_due_at
        if is_earlier:
            self._look_for_due_at = at
        return is_earlier

    def run_once(self) -> int:
        """Run one round; return how many instances it looked at. Raises Unavailable if the database is away."""
        started = time.monotonic()
        self._found = Found((), ())
        is_due_time = started >= self._look_for_due_at
        if started >= self._begun_at + BEGIN_KEPT_SECONDS:
            self._begin, self._begun_at = _BEGINNING, started
        try:
            done = self._database.transaction(lambda tx: self._round(tx, is_due_time=is_due_time), pool=Pool.DISPATCH)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001  (whatever one instance does, the others go on)
            _log.exception("runner.batch_failed", extra={"instances": len(self._found.instance_ids)})
            self._isolate(self._found, error)
            return len(self._found.instance_ids)
        self._obey()
        self._begin = self._found.next_begin
        if is_due_time:
            self._look_for_due_at = time.monotonic() + IDLE_SECONDS
        if done.due_in_micros is not None:
            self._arm(done.due_in_micros)
        if done.changed:
            self._on_changed(done.changed)
        return done.looked_at

    def _loop(self) -> None:
        pause = BUSY_SECONDS
        while not self._stopping:
            self._woken.clear()
            try:
                looked_at = self.run_once()
            except Unavailable:
                self._woken.wait(AWAY_SECONDS)
                continue
            except Exception:  # noqa: BLE001  (without this loop all instances of the node would stand still, unseen)
                _log.exception("runner.round_failed")
                self._woken.wait(AWAY_SECONDS)
                continue
            if looked_at:
                pause = BUSY_SECONDS
                if self._found.is_full:
                    continue
            until_due = max(self._look_for_due_at - time.monotonic(), 0.001)
            self._woken.wait(min(pause, until_due))
            pause = min(pause * 2, IDLE_SECONDS)

    def _round(self, tx: Transaction, *, is_due_time: bool) -> Round:
        found, due_in = self.probe(tx, is_due_time=is_due_time)
        self._found = found
        if not found.instance_ids:
            return Round((), 0, due_in)
        works, now = self.advance(tx, found)
        changed = tuple(work.instance.id for work in works if work.instance.revision != work.stored.instance.revision)
        due_at = next_due(works)
        if due_at is not None:
            due_in = min(due_at - now, due_in) if due_in is not None else due_at - now
        return Round(changed, len(works) + len(self._instructed), due_in)

    def probe(self, tx: Transaction, *, is_due_time: bool) -> tuple[Found, Micros | None]:
        """Find instances to look at, without locks, and say in how many microseconds the next timer is due."""
        stimuli = stimuli_probe(tx, after=self._begin, limit=STIMULI_MAX)
        instances = dict.fromkeys(entry.instance_id for entry in stimuli)
        due_in: Micros | None = None
        is_full = len(stimuli) == STIMULI_MAX
        if is_due_time:
            due_at, now = instance_due_next(tx, after=0), tx.now()
            if due_at is not None and due_at <= now:
                due = instances_due(tx, now, newest=self._advancer.formats.newest, limit=INSTANCES_MAX)
                instances |= dict.fromkeys(due)
                is_full = is_full or len(due) == INSTANCES_MAX
                due_at = instance_due_next(tx, after=now) if len(due) < INSTANCES_MAX else now
            due_in = None if due_at is None else due_at - now
        chosen = tuple(instances)[:INSTANCES_MAX]
        is_full = is_full or len(instances) > INSTANCES_MAX
        wanted = frozenset(chosen)
        named = tuple(entry for entry in stimuli if entry.instance_id in wanted)
        is_whole = len(stimuli) == STIMULI_MAX and len(named) == len(stimuli)
        return Found(chosen, named, stimuli[-1].id if is_whole else _BEGINNING, is_full), due_in

    def advance(self, tx: Transaction, found: Found) -> tuple[list[Work], Micros]:
        """Lock what was found, read it again, advance it and write; what others hold or have done is left out."""
        newest = self._advancer.formats.newest
        instructed = _instructed(found)
        self._instructed = tuple(instructed.values())
        ids = [identifier for identifier in found.instance_ids if identifier not in instructed]
        flows, locked = self._readable(tx, instances_lock(tx, ids, newest=newest) if ids else [])
        alone = _beginning_alone(locked, flows, found)
        if alone:
            self._instructed += tuple(alone.values())
            locked = [stored for stored in locked if stored.instance.id not in alone]
        parted = _parted(locked, _taken(tx, locked, found))
        steps = steps_load(tx, [stored.instance.id for stored, _, _ in parted.active]) if parted.active else {}
        works = []
        for stored, entries, stimuli in parted.active:
            identifier = stored.instance.id
            works.append(Work(stored.with_steps(steps[identifier]), flows[identifier], stimuli, entries))
        now = tx.now()
        hold(tx, parted.held, now=now)
        self._advancer.run(tx, works, now=now)
        return works, now

    def _readable(self, tx: Transaction, locked: Sequence[Stored]) -> tuple[dict[bytes, Flow], list[Stored]]:
        """Find the flows of instances; what a newer node has published is left to it."""
        flows: dict[bytes, Flow] = {}
        for stored in locked:
            origin, identifier = stored.origin, stored.instance.id
            try:
                flows[identifier] = self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version)
            except Unavailable as newer:
                _log.warning("instance.left_to_newer_node", extra={"instance_id": identifier, "error": newer.message})
        return flows, [stored for stored in locked if stored.instance.id in flows]

    def _isolate(self, found: Found, error: Exception) -> None:
        """Run a failed batch again in halves, down to the one instance that fails, and hold that one."""
        ids = found.instance_ids
        if len(ids) <= 1:
            if ids:
                self._hold(found, error)
            return
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            part = Found(half, found.stimuli)
            try:
                self._database.transaction(partial(self.advance, found=part), pool=Pool.DISPATCH)
            except Unavailable:
                raise
            except Exception as failed:  # noqa: BLE001  (as in run_once)
                self._isolate(part, failed)
            else:
                self._on_changed(half)
                self._obey()

    def _obey(self) -> None:
        """Carry out what parents have told the instances of this round, one by one."""
        for entry in self._instructed:
            try:
                work = self._database.transaction(
                    partial(obey, advancer=self._advancer, entry=entry), pool=Pool.DISPATCH
                )
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001  (as in run_once)
                _log.exception("runner.instruction_failed", extra={"instance_id": entry.instance_id})
                self._hold(Found((entry.instance_id,), (entry,)), error)
                continue
            if work is not None:
                self._on_changed([entry.instance_id])
                if work.instance.due_at is not None:
                    self._look_for_due_at = 0.0
        self._instructed = ()

    def _hold(self, found: Found, error: Exception) -> None:
        def hold_one(tx: Transaction) -> None:
            locked = instances_lock(tx, found.instance_ids, newest=self._advancer.formats.newest)
            pending = _taken(tx, locked, found)
            hold(tx, [Held(stored, pending[stored.instance.id], error) for stored in locked], now=tx.now())

        self._database.transaction(hold_one, pool=Pool.DISPATCH)
        self._on_changed(found.instance_ids)
