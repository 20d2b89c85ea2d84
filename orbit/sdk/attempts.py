"""What a worker knows of its attempts: assigned, started, running, finished, and what is still to be said of each.

No socket and no clock in here: the loop calls with the moment of its own monotonic clock and sends what `outgoing`
returns. The surprising rule: a lease counts from the moment at which its start or renewal was SENT, less a tenth, so a
worker always stops before the server may give the task to another, whatever the network did in between.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from orbit.sdk.context import CancelReason, CancelSignal
from orbit.sdk.frames import (
    AssignedTask,
    CancelItem,
    LeaseItem,
    RecordedItem,
    RenewedItem,
    ResultItem,
    ResumedItem,
    ResumeItem,
    StartedItem,
    StartItem,
    Welcome,
    item_frames,
    new_message_id,
)
from orbit.sdk.handlers import Handler, Handlers
from orbit.sdk.outcomes import NOT_RUN, RAN, Outcome

log = logging.getLogger("orbit.worker")

LEASE_SHARE = 0.9
SCAN_SECONDS = 0.05
RENEW_TOGETHER_SHARE = 0.2  # of the renewal interval: what is due that soon is renewed in the same frame
RENEW_AGAIN_SECONDS = 1.0
RECENT_MAX = 4_096
FINAL_RECEIPTS = frozenset({"ACCEPTED", "DUPLICATE", "LATE", "REJECTED"})
ASK_AGAIN_CODES = frozenset({"RATE_LIMITED", "UNAVAILABLE"})


class Phase(StrEnum):
    """Where an attempt is, as the worker knows it; the words of `resume`."""

    LEASED = "LEASED"  # no start was granted; the handler has not run
    RUNNING = "RUNNING"  # granted; the handler runs or will in a moment
    FINISHED = "FINISHED"  # there is a result that is not recorded yet


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt. `live` says that the server still counts it as ours."""

    task: AssignedTask
    handler: Handler
    lease_until: float
    deadline: float
    start_id: str = field(default_factory=new_message_id)
    phase: Phase = Phase.LEASED
    live: bool = True
    asked_at: float | None = None
    ask_waits: bool = False
    renew_at: float = 0.0
    renew_sent_at: float | None = None
    result: ResultItem | None = None
    cancelled: CancelSignal = field(default_factory=CancelSignal)


class Pool(Protocol):
    """Where granted attempts run."""

    def submit(self, items: Sequence[Attempt]) -> None: ...  # noqa: D102
    def withdraw(self, item: Attempt) -> bool: ...  # noqa: D102


class Attempts:
    """All attempts of one worker. Every method is for the loop's thread."""

    def __init__(self, *, handlers: Handlers, pool: Pool, capacity: int) -> None:
        self._handlers = handlers
        self._pool = pool
        self._capacity = capacity
        self._by_id: dict[str, Attempt] = {}
        self._by_start: dict[str, Attempt] = {}
        self._by_result: dict[str, Attempt] = {}
        # Ended attempts, in two generations: the older one is dropped whole when the younger is full.
        self._recent: tuple[set[str], set[str]] = (set(), set())
        self._starts: list[Attempt] = []
        self._results: list[ResultItem] = []
        self._releases: list[LeaseItem] = []
        self._renewals: list[Attempt] = []
        # (when, tie-break, attempt): starts that were limited and results that could not be recorded.
        self._again: list[tuple[float, int, Attempt]] = []
        self._again_count = 0
        self._scan_at = 0.0
        self._told_room = capacity
        self._live_count = 0
        self._zombie_count = 0
        self._draining = False
        self.returned_count = 0
        self.numbers = Welcome()

    @property
    def room(self) -> int:
        """Return how many attempts the server may count at us: handlers that outlive their attempt keep their slot."""
        return 0 if self._draining else max(0, self._capacity - self._zombie_count)

    @property
    def settled(self) -> bool:
        """Tell whether nothing is left to do or to say."""
        return not any(attempt.live or attempt.phase is Phase.FINISHED for attempt in self._by_id.values())

    @property
    def unsaid(self) -> bool:
        """Tell whether `outgoing` has a release or a result to send."""
        return bool(self._releases or self._results)

    @property
    def results_waiting(self) -> int:
        """Count the results that are ready to be sent."""
        return len(self._results)

    def token(self, attempt_id: str) -> str | None:
        """Return the execution credential of an attempt that is ours, None for any other."""
        attempt = self._by_id.get(attempt_id)
        return attempt.task.token if attempt is not None and attempt.live else None

    def resume_items(self) -> list[ResumeItem]:
        """Return the `resume` of a hello: every attempt that is still ours as far as we know."""
        return [
            ResumeItem(attempt.task.attempt_id, attempt.task.token, attempt.phase.value)
            for attempt in self._by_id.values()
            if attempt.live or attempt.phase is Phase.FINISHED
        ]

    def disconnected(self) -> None:
        """Forget what was in flight: every question without an answer is asked again after `welcomed`."""
        self._starts.clear()
        self._results.clear()
        self._releases.clear()
        self._renewals.clear()
        self._again.clear()
        for attempt in self._by_id.values():
            attempt.renew_sent_at = None
            attempt.ask_waits = False

    def welcomed(self, welcome: Welcome, hello_at: float, now: float) -> None:
        """Take the session's numbers and the verdicts on what we resumed; leases count from when we said hello."""
        self.numbers = welcome
        self._told_room = self.room
        self._scan_at = now
        # What became ready to be said meanwhile is said below, once, by the verdict on its attempt.
        self._results.clear()
        self._releases.clear()
        verdicts = {item.attempt_id: item for item in welcome.resumed}
        for attempt in list(self._by_id.values()):
            item = verdicts.get(attempt.task.attempt_id, ResumedItem(attempt.task.attempt_id, "LOST"))
            if item.verdict == "RECORDED":
                self._forget(attempt)
                continue
            if attempt.phase is Phase.FINISHED:
                if item.verdict == "LOST":
                    self._lose(attempt)
                self._send_result(attempt)
            elif item.verdict == "LOST":
                self._lose(attempt)
            elif attempt.phase is Phase.LEASED:
                if self._draining and attempt.asked_at is None:
                    self._release(attempt)
                else:
                    self._starts.append(attempt)
            else:
                if item.verdict == "START_AGAIN":
                    # The server forgot a grant (a failover that lost it): the same id gets the grant again.
                    self._starts.append(attempt)
                attempt.renew_at = now
                attempt.lease_until = max(attempt.lease_until, hello_at + item.lease_ms / 1000 * LEASE_SHARE)
            if item.cancel and attempt.phase is Phase.RUNNING:
                self._cancel(attempt, CancelReason.CANCEL_REQUESTED)

    def assigned(self, tasks: Sequence[AssignedTask], now: float) -> None:
        """Ask to start what there is room for; hand back the rest."""
        room = self.room - self._live_count
        for task in tasks:
            young, old = self._recent
            if task.attempt_id in self._by_id or task.attempt_id in young or task.attempt_id in old:
                continue  # an attempt is taken once, however often it is offered
            handler = self._handlers.find(task.type, task.version)
            if handler is None or room <= 0 or self._draining:
                self._releases.append(LeaseItem(task.attempt_id, task.token))
                continue
            room -= 1
            deadline = float("inf") if task.deadline_in_ms is None else now + task.deadline_in_ms / 1000
            attempt = Attempt(task, handler, now + task.lease_ms / 1000 * LEASE_SHARE, deadline)
            self._by_id[task.attempt_id] = attempt
            self._live_count += 1
            self._by_start[attempt.start_id] = attempt
            self._starts.append(attempt)

    def started(self, items: Sequence[StartedItem], now: float) -> None:
        """Run what was granted, ask again what was limited, drop what was refused."""
        granted: list[Attempt] = []
        for item in items:
            attempt = self._by_start.get(item.message_id)
            if attempt is None or attempt.asked_at is None:
                continue
            if item.granted:
                attempt.lease_until = attempt.asked_at + item.lease_ms / 1000 * LEASE_SHARE
                attempt.renew_at = attempt.asked_at + self._renew_seconds(item.lease_ms)
                if attempt.phase is not Phase.LEASED:
                    continue
                attempt.phase = Phase.RUNNING
                timeout_ms = attempt.task.attempt_timeout_ms
                if timeout_ms is not None:
                    attempt.deadline = min(attempt.deadline, attempt.asked_at + timeout_ms / 1000)
                if self._draining:
                    self._finish(attempt, NOT_RUN)
                else:
                    granted.append(attempt)
            elif item.code in ASK_AGAIN_CODES and attempt.phase is Phase.LEASED:
                if item.lease_ms:
                    attempt.lease_until = attempt.asked_at + item.lease_ms / 1000 * LEASE_SHARE
                if self._draining:
                    self._release(attempt)
                else:
                    attempt.ask_waits = True
                    self._later(now + max(1, item.retry_after_ms) / 1000, attempt)
            else:
                self._lose(attempt)
        if granted:
            self._pool.submit(granted)

    def renewed(self, items: Sequence[RenewedItem], now: float) -> None:
        """Prolong leases, and stop what was refused or is to be cancelled."""
        for item in items:
            attempt = self._by_id.get(item.attempt_id)
            if attempt is None:
                continue
            if item.code and item.code not in ASK_AGAIN_CODES:
                self._lose(attempt)
                continue
            if item.code:
                attempt.renew_at = now + RENEW_AGAIN_SECONDS
            elif item.lease_ms and attempt.renew_sent_at is not None:
                until = attempt.renew_sent_at + item.lease_ms / 1000 * LEASE_SHARE
                attempt.lease_until = max(attempt.lease_until, until)
            attempt.renew_sent_at = None
            if item.cancel:
                self._cancel(attempt, CancelReason.CANCEL_REQUESTED)

    def recorded(self, items: Sequence[RecordedItem], now: float) -> None:
        """Drop the results that have a receipt; send again those that could not be recorded."""
        for item in items:
            attempt = self._by_result.get(item.message_id)
            if attempt is None:
                continue
            if item.receipt in FINAL_RECEIPTS:
                if item.receipt in ("LATE", "REJECTED"):
                    log.warning("the result of task %s came %s %s", attempt.task.task_id, item.receipt, item.code or "")
                self._forget(attempt)
            else:
                self._later(now + max(1, item.retry_after_ms) / 1000, attempt)

    def cancel(self, items: Sequence[CancelItem]) -> None:
        """Tell handlers to stop."""
        for item in items:
            attempt = self._by_id.get(item.attempt_id)
            if attempt is not None:
                timed_out = item.reason in ("TIMED_OUT", "ATTEMPT_TIMED_OUT", "DEADLINE", "DEADLINE_EXCEEDED")
                self._cancel(attempt, CancelReason.TIMED_OUT if timed_out else CancelReason.CANCEL_REQUESTED)

    def finished(self, attempt: Attempt, outcome: Outcome) -> None:
        """Take a handler's outcome; one that was given back at the end of a drain is not ours any more."""
        if attempt.phase is Phase.RUNNING and attempt.task.attempt_id in self._by_id:
            self._finish(attempt, outcome)

    def drain(self) -> None:
        """Take nothing more: release what was not asked for, return what was granted but not begun."""
        self._draining = True
        # A start that was asked on a lost connection may have been granted: only its answer tells.
        self._starts = [attempt for attempt in self._starts if attempt.asked_at is not None]
        for attempt in list(self._by_id.values()):
            if attempt.phase is Phase.LEASED and (attempt.asked_at is None or attempt.ask_waits):
                self._release(attempt)
            elif attempt.phase is Phase.RUNNING and self._pool.withdraw(attempt):
                self._finish(attempt, NOT_RUN)

    def give_back(self) -> None:
        """End the drain: what still runs is told to stop and returned as having run."""
        for attempt in list(self._by_id.values()):
            if attempt.phase is Phase.RUNNING and attempt.live:
                attempt.cancelled.set(CancelReason.DRAINING)
                self.returned_count += 1
                self._finish(attempt, RAN)
            elif attempt.phase is Phase.LEASED:
                self._release(attempt)

    def scan(self, now: float) -> None:
        """Look at the clocks: leases that ran out, attempts over their time, renewals that are due."""
        while self._again and self._again[0][0] <= now:
            attempt = heapq.heappop(self._again)[2]
            if attempt.phase is Phase.FINISHED:
                self._send_result(attempt)
            elif attempt.task.attempt_id in self._by_id:
                attempt.ask_waits = False
                self._starts.append(attempt)
        if now < self._scan_at:
            return
        self._scan_at = now + SCAN_SECONDS
        together = self._renew_seconds(self.numbers.lease_ms) * RENEW_TOGETHER_SHARE
        due = False
        running: list[Attempt] = []
        for attempt in list(self._by_id.values()):
            if attempt.phase is Phase.LEASED:
                if now >= attempt.lease_until and attempt.ask_waits:
                    self._release(attempt)  # it was limited until its assignment ran out
            elif attempt.phase is Phase.RUNNING or attempt.live:
                if attempt.phase is Phase.RUNNING:
                    self._check_clocks(attempt, now)
                if attempt.live and now + together >= attempt.renew_at:
                    running.append(attempt)
                    due = due or now >= attempt.renew_at
        if due:
            self._renewals = running

    def outgoing(self, now: float) -> Iterator[bytes]:
        """Yield the frames that are to be sent now, many items each."""
        bytes_max = self.numbers.max_frame_bytes
        room = self.room
        if room != self._told_room:
            self._told_room = room
            yield b'{"type":"capacity","capacity":%d}' % room
        if self._releases:
            releases, self._releases = self._releases, []
            yield from item_frames("release", releases, bytes_max)
        if self._starts:
            starts, self._starts = self._starts, []
            for attempt in starts:
                attempt.asked_at = now
            items = [StartItem(attempt.start_id, attempt.task.attempt_id, attempt.task.token) for attempt in starts]
            yield from item_frames("start", items, bytes_max)
        if self._results:
            results, self._results = self._results, []
            yield from item_frames("result", results, bytes_max)
        if self._renewals:
            renewals, self._renewals = self._renewals, []
            for attempt in renewals:
                attempt.renew_at = now + self._renew_seconds(self.numbers.lease_ms)
                # An answer that was lost must not make the next one count from too late: the oldest question stands.
                attempt.renew_sent_at = now if attempt.renew_sent_at is None else attempt.renew_sent_at
            leases = [LeaseItem(attempt.task.attempt_id, attempt.task.token) for attempt in renewals]
            yield from item_frames("renew", leases, bytes_max)

    def wake_at(self) -> float | None:
        """Return when `scan` next has something to look at."""
        times = [self._again[0][0]] if self._again else []
        if self._by_id:
            times.append(self._scan_at)
        return min(times, default=None)

    def _check_clocks(self, attempt: Attempt, now: float) -> None:
        if now >= attempt.lease_until:
            self._cancel(attempt, CancelReason.LEASE_LOST)
        elif now >= attempt.deadline:
            self._cancel(attempt, CancelReason.TIMED_OUT)

    def _renew_seconds(self, lease_ms: int) -> float:
        """Renew as often as the server says, and at least three times a lease."""
        interval_ms = self.numbers.renew_every_ms
        return (min(interval_ms, lease_ms / 3) if lease_ms else interval_ms) / 1000

    def _cancel(self, attempt: Attempt, reason: CancelReason) -> None:
        if attempt.phase is not Phase.RUNNING:
            return
        if attempt.cancelled.set(reason) and self._pool.withdraw(attempt):
            # What never began has done nothing, whatever its recovery safety. Only a wish to cancel ends the task so.
            self._finish(attempt, Outcome("CANCELLED") if reason is CancelReason.CANCEL_REQUESTED else NOT_RUN)

    def _lose(self, attempt: Attempt) -> None:
        """Take note that the server does not count the attempt any more."""
        if not attempt.live:
            return
        if attempt.phase is Phase.LEASED:
            self._forget(attempt)
        elif attempt.phase is Phase.RUNNING:
            attempt.cancelled.set(CancelReason.LEASE_LOST)
            if self._pool.withdraw(attempt):
                self._forget(attempt)
            else:
                # The handler still runs: it keeps its slot, and what it did is reported as late evidence.
                self._bury(attempt)
                self._zombie_count += 1
        else:
            self._bury(attempt)  # its result is still said, as late evidence

    def _bury(self, attempt: Attempt) -> None:
        if attempt.live:
            attempt.live = False
            self._live_count -= 1

    def _finish(self, attempt: Attempt, outcome: Outcome) -> None:
        task = attempt.task
        attempt.phase = Phase.FINISHED
        if not attempt.live:
            self._zombie_count -= 1
        attempt.result = ResultItem(
            new_message_id(),
            task.attempt_id,
            task.token,
            outcome.outcome,
            outcome.output,
            outcome.error,
            outcome.ran,
            outcome.retry_after_ms,
            outcome.output_ref,
        )
        self._by_result[attempt.result.message_id] = attempt
        self._results.append(attempt.result)

    def _send_result(self, attempt: Attempt) -> None:
        if attempt.result is not None:
            self._results.append(attempt.result)

    def _release(self, attempt: Attempt) -> None:
        self._releases.append(LeaseItem(attempt.task.attempt_id, attempt.task.token))
        self._forget(attempt)

    def _later(self, when: float, attempt: Attempt) -> None:
        self._again_count += 1
        heapq.heappush(self._again, (when, self._again_count, attempt))

    def _forget(self, attempt: Attempt) -> None:
        self._bury(attempt)
        self._by_id.pop(attempt.task.attempt_id, None)
        self._by_start.pop(attempt.start_id, None)
        if attempt.result is not None:
            self._by_result.pop(attempt.result.message_id, None)
        self._recent[0].add(attempt.task.attempt_id)
        if len(self._recent[0]) >= RECENT_MAX:
            self._recent = (set(), self._recent[0])
