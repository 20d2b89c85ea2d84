"""Pulse on one node: its batchers, dispatcher and sweepers, started and stopped together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from orbit.batcher import Batcher
from orbit.errors import OrbitError
from orbit.logs import get_logger
from pulse import limits
from pulse.acceptance import Scarce, tasks_accept
from pulse.batches import BatchRunner
from pulse.catalog import Catalog
from pulse.changes import Changes
from pulse.dispatch import Dispatcher
from pulse.execution import Execution
from pulse.listener import TaskListener
from pulse.schedules.firing import Firer
from pulse.submission import Submit
from pulse.subscription_sweep import SWEEP_SECONDS, subscriptions_sweep
from pulse.sweeps import DeadlineSweep, delayed_sweep, lease_sweep
from pulse.task_batches import task_operations
from pulse.verification import verification_sweep
from pulse.waker import keys_forget, keys_wake, lines_sweep

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Database
    from orbit.idempotency import Answer
    from pulse.arrivals import Arrivals
    from pulse.sessions import Offer

_log = get_logger(__name__)

_DEADLINE_SWEEP_SECONDS = 0.5
_KEYS_FORGET_SECONDS = 3600.0
_VERIFICATION_SWEEP_SECONDS = 1.0


class PulseNode:
    """The task layer of one process. Also the `Surroundings` that settling tells of changes."""

    def __init__(self, database: Database, *, name: str) -> None:
        self.database = database
        self.listeners: list[TaskListener] = []
        self.catalog = Catalog()
        self.retries_count = 0
        self.lost_count = 0
        self.changes = Changes()
        self.execution = Execution(database, self)
        self.dispatcher = Dispatcher(database, name, self, self.execution.give_back)
        self._scarce = Scarce()
        self.submissions: Batcher[Submit, Answer | OrbitError] = Batcher("submit", self._accept, size=_submit_bytes)
        self.deadlines = DeadlineSweep(database, self)
        self.batches = BatchRunner(database)
        self.batches.operations |= task_operations(self)
        self._batch_wanted = Event()
        self._schedule_changed = Event()
        self._verification_wanted = Event()
        self._stopping = Event()
        self.firer = Firer(database, self, breathe=lambda: self._stopping.wait(0))
        self._keys_free = Event()
        self._loops: list[gevent.Greenlet[..., None]] = []

    def start(self) -> None:
        """Begin to claim and to sweep."""
        self.dispatcher.start()
        self._loops = [
            gevent.spawn(self._delayed_loop),
            gevent.spawn(self._lease_loop),
            gevent.spawn(self._keys_loop),
            gevent.spawn(self._sweep_loop, self.deadlines.run_once, _DEADLINE_SWEEP_SECONDS),
            gevent.spawn(self._timed_loop, self.batches.run_once, self._batch_wanted),
            gevent.spawn(self._timed_loop, self.firer.run_once, self._schedule_changed),
            gevent.spawn(self._subscription_loop),
            gevent.spawn(self._verification_loop),
        ]

    def drain(self, *, spread_ms: int) -> None:
        """Hand out nothing more, and ask workers to reconnect elsewhere."""
        self.dispatcher.drain(spread_ms=spread_ms)

    def stop(self) -> None:
        """End the loops and finish every batch under way."""
        self._stopping.set()
        self._batch_wanted.set()
        self._schedule_changed.set()
        self._keys_free.set()
        self._verification_wanted.set()
        self.dispatcher.stop()
        gevent.joinall(self._loops)
        self.submissions.stop()
        self.execution.stop()

    def offer(self, lanes: Mapping[bytes, int]) -> Offer | None:
        """Offer room of this node's workers."""
        return self.dispatcher.offer(lanes)

    def on_ready(self, lanes: Mapping[bytes, Arrivals]) -> None:
        """Wake the dispatcher."""
        self.dispatcher.on_ready(lanes)

    def on_changed(self, task_ids: frozenset[bytes]) -> None:
        """Wake requests that wait for these tasks."""
        self.changes.announce(task_ids)

    def on_ended(self, attempt_ids: frozenset[bytes]) -> None:
        """Give room back to sessions."""
        self.dispatcher.on_ended(attempt_ids)

    def on_trouble(self, *, retries: int, lost: int) -> None:
        """Count for the metrics."""
        self.retries_count += retries
        self.lost_count += lost

    def on_keys_free(self) -> None:
        """Let wake-ups of concurrency keys be followed at once."""
        self._keys_free.set()

    def on_verification(self) -> None:
        """Act on verifications at once."""
        self._verification_wanted.set()

    def on_cancel_wanted(self, reasons: Mapping[bytes, str]) -> None:
        """Ask workers to stop."""
        self.dispatcher.on_cancel_wanted(reasons)

    def batch_created(self) -> None:
        """Begin with a batch at once."""
        self._batch_wanted.set()

    def schedule_changed(self) -> None:
        """Look at once which schedules are due."""
        self._schedule_changed.set()

    def _accept(self, batch: Sequence[Submit]) -> list[Answer | OrbitError]:
        return tasks_accept(self.database, batch, self, self._scarce)

    def _sweep_loop(self, sweep: Callable[[], int], seconds: float) -> None:
        while not self._stopping.is_set():
            count = self._guarded(sweep)
            # A full batch means that more is waiting: go on at once.
            if count < limits.SWEEP_BATCH_MAX:
                self._stopping.wait(seconds)

    def _lease_loop(self) -> None:
        """Judge leases that ran out, but not before workers could come back and say what became of them."""
        self._stopping.wait(limits.RECONCILE_SECONDS)
        while not self._stopping.is_set():
            try:
                count = lease_sweep(self.database, self)
            except OrbitError as error:
                _log.warning("sweep.failed", extra={"error": error.message})
                self._stopping.wait(limits.RECONCILE_SECONDS)
                continue
            except Exception:  # noqa: BLE001  (as in _guarded)
                _log.exception("sweep.crashed")
                count = 0
            if count < limits.SWEEP_BATCH_MAX:
                self._stopping.wait(limits.SWEEP_SECONDS)

    def _keys_loop(self) -> None:
        """Follow wake-ups of concurrency keys: this process's at once, others' soon; now and then look at all lines."""
        swept_at = forgot_at = time.monotonic()
        while not self._stopping.is_set():
            self._keys_free.clear()
            count = self._guarded(lambda: keys_wake(self.database, self))
            now = time.monotonic()
            if now - swept_at > limits.KEY_SWEEP_SECONDS:
                swept_at = now
                self._guarded(lambda: lines_sweep(self.database, self))
            if now - forgot_at > _KEYS_FORGET_SECONDS:
                forgot_at = now
                self._guarded(lambda: keys_forget(self.database))
            if count == 0:
                self._keys_free.wait(limits.SWEEP_SECONDS)

    def _subscription_loop(self) -> None:
        while not self._stopping.is_set():
            self._guarded(lambda: subscriptions_sweep(self.database))
            self._stopping.wait(SWEEP_SECONDS)

    def _delayed_loop(self) -> None:
        while not self._stopping.is_set():
            due: list[Micros | None] = [None]

            def sweep(due: list[Micros | None] = due) -> int:
                count, due[0] = delayed_sweep(self.database, self)
                return count

            began = time.monotonic()
            self._guarded(sweep)
            if due[0] is None:
                wait = limits.SWEEP_SECONDS
            else:
                # The span counts from a clock that was read somewhere within the sweep: at worst we look twice.
                wait = min(limits.SWEEP_SECONDS, due[0] / 1_000_000 - (time.monotonic() - began))
            self._stopping.wait(max(wait, 0.001))

    def _timed_loop(self, run_once: Callable[[], float], wanted: Event) -> None:
        """Run what says itself in how many seconds it has to be run again, or when it is wanted."""
        while not self._stopping.is_set():
            wait = [limits.PROBE_SECONDS]

            def step(wait: list[float] = wait) -> int:
                wait[0] = run_once()
                return 0

            self._guarded(step)
            wanted.wait(wait[0])
            if not self._stopping.is_set():
                wanted.clear()

    def _verification_loop(self) -> None:
        while not self._stopping.is_set():
            self._verification_wanted.clear()
            if self._stopping.is_set():
                return
            if not self._guarded(lambda: verification_sweep(self.database, self)):
                # What another node wants or leaves behind is found by looking.
                self._verification_wanted.wait(_VERIFICATION_SWEEP_SECONDS)

    def _guarded(self, sweep: Callable[[], int]) -> int:
        try:
            return sweep()
        except OrbitError as error:
            _log.warning("sweep.failed", extra={"error": error.message})
            return 0
        except Exception:  # noqa: BLE001  (a sweep that dies would leave every node's tasks standing, unseen)
            _log.exception("sweep.crashed")
            return 0


def _submit_bytes(item: Submit) -> int:
    return 512 + len(item.request.params)
