"""The dispatcher of one node: matches what is ready with the room of the workers connected here.

One greenlet claims, one batch at a time, for all sessions together. It is woken by what this process commits; what
other processes commit is found by a probe whose interval adapts. Nothing here is a fact: a node that dies loses only
hints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from orbit.database import Pool
from orbit.errors import OrbitError
from orbit.ids import new_id
from orbit.logs import get_logger
from pulse import limits
from pulse.arrivals import NOTHING_NEW, Arrivals
from pulse.catalog import Catalog
from pulse.claim import Demand, claim
from pulse.lease import Held
from pulse.placement import Seat
from pulse.sessions import CancelNotice, HandlerRefusal, Offer, Outbox, Place, Session, SessionHello
from pulse.store.lanes import lanes_of
from pulse.store.session import NewSession, session_end, session_insert, sessions_seen, sessions_unresponsive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbit.clock import Micros
    from orbit.database import Database, Transaction
    from pulse.claim import Assignment, Claimed
    from pulse.settle import Surroundings
    from pulse.states import RecoverySafety

_log = get_logger(__name__)

_LANES_REFRESH_SECONDS = 1.0
_WATERMARK_SECONDS = 0.25
_GATHER_SECONDS = 0.004
_LOOK_AT_ALL_SECONDS_MIN = 0.05
_VAIN_SECONDS = 1.0


class Dispatcher:
    """Claims for this node's sessions. `start` and `stop` it; sessions attach and detach at any time."""

    def __init__(
        self,
        database: Database,
        node: str,
        around: Surroundings,
        give_back: Callable[[Sequence[Held]], object],
    ) -> None:
        self.node = node
        self._catalog = around.catalog
        self.sessions: dict[bytes, Session] = {}
        self.claimed_count = 0
        self._database = database
        self._give_back = give_back
        self._on_keys_free = around.on_keys_free
        self._look_min = 1
        self._wake = Event()
        self._stopping = Event()
        self._known_lanes: set[bytes] = set()
        self._lanes_at = 0.0
        self._watermarks: dict[bytes, tuple[Micros, float]] = {}
        self._arrived: dict[bytes, Arrivals] = {}  # since the last claim began
        self._stirred: set[bytes] = set()
        self._emptied: dict[bytes, _Emptied] = {}
        self._offered_in_vain: dict[bytes, float] = {}
        self._looked_at_all = 0.0
        self._interval = limits.PROBE_SECONDS_MIN
        self._seen_at = time.monotonic()
        self._shown_silent: set[bytes] = set()
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin to claim."""
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """End the loop; a claim in flight is finished first."""
        self._stopping.set()
        self._wake.set()
        if self._greenlet is not None:
            self._greenlet.join()

    def drain(self, *, spread_ms: int) -> None:
        """Claim nothing more and ask every worker to go elsewhere."""
        for session in list(self.sessions.values()):
            session.is_draining = True
            session.outbox.drain(spread_ms)

    def attach(self, hello: SessionHello, outbox: Outbox) -> Session:
        """Record a worker's connection. It gets tasks once `open` is called, after its welcome.

        A handler that contradicts what its type is registered as is left out; the session's `refused` tells which.
        """
        self._database.transaction(self._catalog.refresh, pool=Pool.DISPATCH)
        hello, refused = _admitted(hello, self._catalog)
        session = Session(new_id(), hello, outbox)
        session.refused = refused
        made = NewSession(
            id=session.id,
            namespace_id=hello.namespace_id,
            credential_id=hello.credential_id,
            worker=hello.worker,
            node=self.node,
            handlers=tuple(f"{handler.type}@{handler.version}" for handler in hello.handlers),
            queues=tuple(sorted(hello.queues)),
            capacity=hello.capacity,
        )

        def work(tx: Transaction) -> Mapping[bytes, tuple[Place, RecoverySafety]]:
            session_insert(tx, made)
            return _lanes(tx, hello)

        session.serve(self._database.transaction(work, pool=Pool.DISPATCH))
        return session

    def open(self, session: Session) -> None:
        """Let a session get tasks."""
        self.sessions[session.id] = session
        self._known_lanes.update(session.lanes)
        self._stirred.update(session.lanes)
        self.wake()

    def detach(self, session: Session) -> None:
        """Forget a connection that ended. Its attempts go on: leases run out, or the worker comes back."""
        self.sessions.pop(session.id, None)
        try:
            self._database.transaction(lambda tx: session_end(tx, session.id), pool=Pool.DISPATCH)
        except OrbitError:
            _log.warning("session.end_unrecorded", extra={"session_id": session.id})

    def capacity(self, session: Session, capacity: int) -> None:
        """Set a session's declared room."""
        session.set_capacity(capacity)
        self.wake()

    def offer(self, lanes: Mapping[bytes, int]) -> Offer | None:
        """Offer room for so many new tasks of lanes that stood empty when this node last looked, as far as it goes.

        What has come into these lanes since then is claimed in a moment: the room that it needs is offered to nobody.
        """
        late = time.monotonic() - _VAIN_SECONDS
        fit = {
            lane_id: self._emptied[lane_id].came
            for lane_id in lanes.keys() & self._emptied.keys()
            if self._offered_in_vain.get(lane_id, late) <= late
        }
        if not fit or self._stopping.is_set():
            return None
        owed = sum(fit.values())
        wanted = min(sum(lanes[lane_id] for lane_id in fit), limits.CLAIM_BATCH_MAX)
        seats: list[Seat] = []
        for session in self.sessions.values():
            served = {lane_id: session.lanes[lane_id] for lane_id in fit.keys() & session.lanes.keys()}
            free = session.room() if served else 0
            room = min(free - min(owed, free), wanted)
            owed -= min(owed, free)
            if room:
                session.reserve(room)
                seats.append(Seat(session.id, room, served, session.hello.namespace_id))
        return _Offer(self, fit, seats) if seats else None

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    def on_ready(self, lanes: Mapping[bytes, Arrivals]) -> None:
        """Hear of lanes with something to claim, from a transaction of this process."""
        now = time.monotonic()
        for lane_id, arrivals in lanes.items():
            emptied = self._emptied.get(lane_id)
            # Room that came free is no news for a lane that was emptied with room left; others' work is the probe's.
            if arrivals.count or emptied is None or now - emptied.at > limits.PROBE_SECONDS_MAX:
                self._stirred.add(lane_id)
            if emptied is not None:
                emptied.came += arrivals.count
            if lane_id not in self._known_lanes:
                self._lanes_at = 0.0
            self._arrived[lane_id] = self._arrived.get(lane_id, NOTHING_NEW).plus(arrivals)
            mark = self._watermarks.get(lane_id)
            if mark is not None and arrivals.lowest < mark[0]:
                self._watermarks[lane_id] = (arrivals.lowest, mark[1])
        self.wake()

    def on_ended(self, attempt_ids: frozenset[bytes]) -> None:
        """Hear of attempts that are no longer live, which makes room."""
        for session in self.sessions.values():
            session.drop(attempt_ids)

    def on_cancel_wanted(self, reasons: Mapping[bytes, str]) -> None:
        """Ask the workers that hold these tasks to stop."""
        for session in self.sessions.values():
            held = session.attempts_of(reasons.keys())
            if held:
                session.outbox.cancel([CancelNotice(attempt, reasons[task]) for attempt, task in held.items()])

    def _loop(self) -> None:
        self._interval = limits.PROBE_SECONDS_MIN
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                claimed = self.run_once()
            except OrbitError as error:
                _log.warning("claim.failed", extra={"error": error.message})
                claimed = None
            except Exception:  # noqa: BLE001  (without this loop no worker of the node would get anything, unseen)
                _log.exception("claim.crashed")
                claimed = None
            if claimed is not None and (claimed.assignments or claimed.blocked):
                self._interval = limits.PROBE_SECONDS_MIN
                if not claimed.blocked and self._is_nearly_full():
                    self._stopping.wait(_GATHER_SECONDS)
                if self._stirred:
                    continue
            pause = self._interval
            if claimed is not None and claimed.room_in_micros is not None:
                pause = min(pause, max(claimed.room_in_micros / 1_000_000, limits.PROBE_SECONDS_MIN / 10))
                self._looked_at_all = 0.0
            self._interval = min(self._interval * 2, limits.PROBE_SECONDS_MAX)
            if self._wake.wait(pause) and self._stirred:
                self._interval = limits.PROBE_SECONDS_MIN

    def run_once(self) -> Claimed | None:
        """Claim one batch for the room that there is; None if there is none, or nothing to look at."""
        self._housekeep()
        seats = self._seats()
        if not seats:
            return None
        demand = Demand(seats, self._from_at(seats), self._look_min, self._catalog.fencing_epoch)
        looked_at, self._stirred = self._stirred, set()
        self._arrived = {}
        self._reserve(seats)
        try:
            claimed = self._database.transaction(lambda tx: claim(tx, demand), pool=Pool.DISPATCH)
        except Exception:
            self._stirred |= looked_at
            raise
        finally:
            self._reserve(seats, sign=-1)
        # What was stirred meanwhile is in the new set already; what this claim could not empty stays in it.
        self._stirred |= claimed.remaining
        self._learn(claimed)
        # Where some stood blocked more may stand: they are cleared away by the batch, whatever room there is.
        self._look_min = limits.CLAIM_BATCH_MAX if claimed.blocked else 1
        if claimed.is_key_free:
            self._on_keys_free()
        self._deliver(claimed.assignments)
        return claimed

    def _reserve(self, seats: Sequence[Seat], *, sign: int = 1) -> None:
        """Keep the room free that a claim may use, or give it back."""
        for seat in seats:
            session = self.sessions.get(seat.session_id)
            if session is not None:
                session.reserve(sign * min(seat.room, limits.CLAIM_BATCH_MAX))

    def _learn(self, claimed: Claimed) -> None:
        """Keep what a claim tells of its lanes. What arrived behind its back lies before the place that it reached."""
        now = time.monotonic()
        for lane_id, reached in claimed.reached.items():
            arrived = self._arrived.get(lane_id, NOTHING_NEW)
            if lane_id in claimed.remaining:
                self._emptied.pop(lane_id, None)
            else:
                self._emptied[lane_id] = _Emptied(now, arrived.count)
            if reached is None:
                self._watermarks.pop(lane_id, None)
            else:
                lowest = min(reached, arrived.lowest)
                self._watermarks[lane_id] = (lowest, self._watermarks.get(lane_id, (lowest, now))[1])

    def _seats(self) -> list[Seat]:
        """Return the seats with room, each with the lanes that are worth a look.

        Those are the lanes in which this process knows of something; now and then all, for what other processes did.
        """
        now = time.monotonic()
        is_all = now - self._looked_at_all >= max(self._interval, _LOOK_AT_ALL_SECONDS_MIN)
        if is_all:
            self._looked_at_all = now
        elif not self._stirred:
            return []
        seats: list[Seat] = []
        for session in self.sessions.values():
            seat = session.seat()
            if seat is not None and not is_all:
                lanes = {lane_id: seat.lanes[lane_id] for lane_id in seat.lanes.keys() & self._stirred}
                seat = Seat(seat.session_id, seat.room, lanes, seat.namespace_id) if lanes else None
            if seat is not None:
                seats.append(seat)
        return seats

    def _is_nearly_full(self) -> bool:
        """Say whether every worker is busy: then a little more room is worth a short wait, as in a group commit."""
        return all(session.is_nearly_full() for session in self.sessions.values())

    def _from_at(self, seats: Sequence[Seat]) -> dict[bytes, Micros]:
        """Return the watermarks that still count: a hint is never older than its bound."""
        oldest = time.monotonic() - _WATERMARK_SECONDS
        self._watermarks = {key: mark for key, mark in self._watermarks.items() if mark[1] > oldest}
        lanes = {lane_id for seat in seats for lane_id in seat.lanes}
        return {lane_id: self._watermarks[lane_id][0] for lane_id in lanes & self._watermarks.keys()}

    def end_offer(self, offer: _Offer, assignments: Sequence[Assignment] | None) -> None:
        """Give back the room of an offer, and send what was handed out; None if it was withdrawn."""
        self._reserve(offer.seats, sign=-1)
        if assignments is None:
            self._offered_in_vain |= dict.fromkeys(offer.waiting, time.monotonic())
        else:
            try:
                self._deliver(assignments)
            except Exception:  # noqa: BLE001  (the tasks are there: who made them must not be told otherwise)
                _log.exception("handout.crashed")
        # A claim may have found no room meanwhile.
        if self._stirred:
            self.wake()

    def _deliver(self, assignments: Sequence[Assignment]) -> None:
        self.claimed_count += len(assignments)
        by_session: dict[bytes, list[Assignment]] = {}
        for item in assignments:
            by_session.setdefault(item.session_id, []).append(item)
        for session_id, items in by_session.items():
            session = self.sessions.get(session_id)
            if session is None:
                # It left while we claimed for it: nothing has run, so it is undone at once.
                held = [Held(item.attempt_id, item.token) for item in items]
                gevent.spawn(self._give_back, held)
                continue
            for item in items:
                session.hold(item.attempt_id, item.task.id)
            session.outbox.assign(items)

    def _housekeep(self) -> None:
        for session in self.sessions.values():
            if session.drop_silent():
                _log.warning("session.unresponsive", extra={"session_id": session.id, "worker": session.hello.worker})
        now = time.monotonic()
        if now - self._lanes_at > _LANES_REFRESH_SECONDS:
            self._lanes_at = now
            self._refresh_lanes()
        if now - self._seen_at > limits.SESSION_SEEN_SECONDS:
            self._seen_at = now
            ids = list(self.sessions)
            self._database.transaction(lambda tx: sessions_seen(tx, ids), pool=Pool.DISPATCH)
        self._show_unresponsive()

    def _show_unresponsive(self) -> None:
        """Write down for people which workers answer no assignment; only changes cost a transaction."""
        silent = {session.id for session in self.sessions.values() if session.is_unresponsive}
        if silent != self._shown_silent:
            more, fewer = silent - self._shown_silent, self._shown_silent - silent
            self._database.transaction(
                lambda tx: sessions_unresponsive(tx, silent=more, answering=fewer), pool=Pool.DISPATCH
            )
            self._shown_silent = silent

    def _refresh_lanes(self) -> None:
        """Find the lanes that were made since; a session whose every combination is known needs no look."""
        unknown = [s for s in self.sessions.values() if len(s.lanes) < len(s.hello.queues) * len(s.hello.handlers)]
        if not unknown:
            return

        def work(tx: Transaction) -> list[Mapping[bytes, tuple[Place, RecoverySafety]]]:
            return [_lanes(tx, session.hello) for session in unknown]

        for session, lanes in zip(unknown, self._database.transaction(work, pool=Pool.DISPATCH), strict=True):
            session.serve(lanes)
            self._known_lanes.update(lanes)


@dataclass(slots=True)
class _Emptied:
    """A lane that a claim has emptied: when, and how many entries this process has put into it since."""

    at: float
    came: int


class _Offer:
    """Room of some sessions for tasks of some lanes, kept until it is used or withdrawn, whichever comes first."""

    def __init__(self, dispatcher: Dispatcher, waiting: Mapping[bytes, int], seats: Sequence[Seat]) -> None:
        self.waiting = waiting
        self.seats = seats
        self._dispatcher = dispatcher

    def deliver(self, assignments: Sequence[Assignment]) -> None:
        self._dispatcher.end_offer(self, assignments)

    def withdraw(self) -> None:
        self._dispatcher.end_offer(self, None)


def _admitted(hello: SessionHello, catalog: Catalog) -> tuple[SessionHello, list[HandlerRefusal]]:
    """Take out the handlers that say something else of their type than its registration."""
    registered = {
        handler: safety
        for handler in hello.handlers
        if (safety := catalog.safety(hello.namespace_id, handler.type, handler.version)) is not None
    }
    refused = [HandlerRefusal(each, safety) for each, safety in registered.items() if safety is not each.recovery]
    gone = {refusal.handler for refusal in refused}
    return replace(hello, handlers=tuple(each for each in hello.handlers if each not in gone)), refused


def _lanes(tx: Transaction, hello: SessionHello) -> Mapping[bytes, tuple[Place, RecoverySafety]]:
    """Find the lanes that a worker can serve, with the safety that its handler declares."""
    safety = {(handler.type, handler.version): handler.recovery for handler in hello.handlers}
    types = {handler.type for handler in hello.handlers}
    found = lanes_of(tx, hello.namespace_id, queues=hello.queues, types=types)
    return {
        lane_id: (Place(name, key.type, key.version), safety[key.type, key.version])
        for lane_id, (name, key) in found.items()
        if (key.type, key.version) in safety
    }
