"""The one thread of a worker that reads, writes and decides: connection, heartbeats, drain.

What an attempt needs is decided in `attempts`; here are the socket and the clock. Other threads only append to the
inbox and wake the loop. The surprising rule: connecting happens in a thread of its own, because a lease that runs out
while a connect hangs must still stop its handler in time.
"""

from __future__ import annotations

import logging
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from orbit.sdk import frames
from orbit.sdk.attempts import Attempt, Attempts
from orbit.sdk.errors import ConfigurationError, ConnectionFailed, OrbitSDKError, WorkerRefused
from orbit.sdk.execution import Execution
from orbit.sdk.handlers import Handlers
from orbit.sdk.link import Link, LinkClosed
from orbit.sdk.outcomes import Outcome
from orbit.sdk.pool import TICK_SECONDS, HandlerPool
from orbit.sdk.settings import Connection

log = logging.getLogger("orbit.worker")

BACKOFF_SECONDS_FIRST = 0.25
# A sixth of a lease: with full jitter a worker is back before its leases end, also when a node was away for a while.
BACKOFF_SECONDS_MAX = 5.0
WELCOME_SECONDS = 15.0
CLOSE_SECONDS = 2.0
LAST_WORDS_SECONDS = 5.0
HEARTBEATS_MISSED_MAX = 2
PROGRESS_EVERY_SECONDS = 0.2
GATHER_SECONDS = 0.001
GATHER_ITEMS = 64
POLICY_VIOLATION = 1008
IDLE_SECONDS = 60.0
PASSING_CODES = frozenset({"UNAVAILABLE"})


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What a worker is: its name, its queues, how much at once, how long it may take to exit."""

    name: str
    queues: tuple[str, ...]
    capacity: int
    drain_seconds: float
    connection: Callable[[], Connection]
    sdk: str


class WorkerLoop:
    """Runs one worker until it is stopped."""

    def __init__(self, options: LoopOptions, handlers: Handlers) -> None:
        self._options = options
        self._handlers = handlers
        self._execution = Execution(
            report=self._report, output_bytes_max=lambda: self._attempts.numbers.max_output_bytes
        )
        self._pool: HandlerPool[Attempt] = HandlerPool(
            size=options.capacity, run=self._run_attempt, leave=self._execution.leave, name=options.name
        )
        self._attempts = Attempts(handlers=handlers, pool=self._pool, capacity=options.capacity)
        self._inbox: deque[Callable[[float], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.settimeout(0)
        self._wake_out.settimeout(0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._asleep = False
        self._link: Link | None = None
        self._link_events = 0
        self._welcomed = False
        self._ever_welcomed = False
        self._connecting = False
        self._connect_at: float | None = 0.0
        self._failures = 0
        self._leave_at: float | None = None
        self._ping_at = 0.0
        self._hello_at = 0.0
        self._pings_unanswered = 0
        self._gather_until: float | None = None
        self._progress: dict[str, dict[str, Any]] = {}
        self._progress_at = 0.0
        self._drain_until: float | None = None
        self._end_at: float | None = None
        self._ended = False
        self._failure: OrbitSDKError | None = None
        self.connected = threading.Event()

    def stop(self, *, hurry: bool = False) -> None:
        """Ask for a drain, or with `hurry` for its end. For any thread and for signal handlers."""
        self._post(self._on_hurry if hurry else self._on_stop)

    def run(self) -> bool:
        """Run until stopped; return whether everything that ran could end.

        Raises WorkerRefused or ConfigurationError when the server does not take this worker at its first connection.
        """
        try:
            while not self._over(time.monotonic()):
                self._step()
        finally:
            self._ended = True
            while self._inbox:
                self._inbox.popleft()(time.monotonic())
            if self._link is not None:
                self._link.finish(CLOSE_SECONDS)
            self._drop_link()
            self.connected.clear()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            self._pool.stop(timeout=1.0)
        if self._failure is not None:
            raise self._failure
        return self._attempts.returned_count == 0 and self._attempts.settled

    def _step(self) -> None:
        now = time.monotonic()
        while self._inbox:
            self._inbox.popleft()(now)
        self._keep_time(now)
        link = self._link
        if link is not None and self._welcomed:
            self._send_what_is_ready(link, now)
        if link is not None and link.closed is not None:
            self._on_closed(link.closed, now)
            return
        if self._over(now):
            return
        self._watch_link()
        timeout = self._timeout(now)
        self._asleep = True
        if self._inbox:
            timeout = 0.0
        ready = self._selector.select(timeout)
        self._asleep = False
        for key, events in ready:
            if key.fileobj is self._wake_out:
                self._wake_out.recv(4_096)
            elif link is not None:
                if events & selectors.EVENT_WRITE:
                    link.flush()
                if events & selectors.EVENT_READ:
                    now = time.monotonic()
                    for text in link.receive():
                        self._on_message(text, now)

    # What other threads say.

    def _post(self, event: Callable[[float], None]) -> None:
        self._inbox.append(event)
        if self._asleep:
            self._asleep = False
            try:
                self._wake_in.send(b"\0")
            except OSError:
                return  # full: it is awake anyway; closed: it has ended

    def _run_attempt(self, attempt: Attempt) -> None:
        outcome = self._execution.run(attempt)
        self._post(lambda _: self._on_finished(attempt, outcome))

    def _report(self, attempt_id: str, item: dict[str, Any]) -> None:
        self._post(lambda _: self._progress.__setitem__(attempt_id, item))

    def _on_finished(self, attempt: Attempt, outcome: Outcome) -> None:
        self._attempts.finished(attempt, outcome)

    def _on_stop(self, now: float) -> None:
        if self._drain_until is not None:
            return
        log.info("draining: %g s for what runs", self._options.drain_seconds)
        self._attempts.drain()
        self._drain_until = now + self._options.drain_seconds
        if self._link is not None and self._welcomed:
            self._link.send([b'{"type":"drain"}'])

    def _on_hurry(self, now: float) -> None:
        self._on_stop(now)
        if self._end_at is None:
            self._drain_until = now

    # Time.

    def _keep_time(self, now: float) -> None:
        if self._pool.backlog:
            self._pool.tick()
        self._attempts.scan(now)
        if self._link is None:
            if not self._connecting and self._connect_at is not None and now >= self._connect_at:
                self._connect()
        elif self._leave_at is not None and now >= self._leave_at:
            self._leave_at = None
            self._link.close(1000, "the node drains")
            self._failures = 0
        elif now >= self._ping_at:
            self._beat(self._link, now)
        if self._drain_until is not None and self._end_at is None and now >= self._drain_until:
            self._attempts.give_back()
            self._end_at = now + LAST_WORDS_SECONDS

    def _beat(self, link: Link, now: float) -> None:
        """Ping; a connection that missed two answers in a row, or never welcomed us, is given up."""
        if not self._welcomed or self._pings_unanswered >= HEARTBEATS_MISSED_MAX:
            log.warning("the server is silent: connecting again")
            link.close(1001, "no answer")
            return
        self._pings_unanswered += 1
        link.send([b'{"type":"ping"}'])
        self._ping_at = now + self._attempts.numbers.heartbeat_ms / 1000

    def _timeout(self, now: float) -> float:
        drain_until = self._drain_until if self._end_at is None else self._end_at
        moments = (self._attempts.wake_at(), self._gather_until, drain_until, self._leave_at)
        times = [now + IDLE_SECONDS, *(moment for moment in moments if moment is not None)]
        if self._link is not None:
            times.append(self._ping_at)
        elif self._connect_at is not None and not self._connecting:
            times.append(self._connect_at)
        if self._progress and self._welcomed:
            times.append(self._progress_at)
        if self._pool.backlog:
            times.append(now + TICK_SECONDS)
        return max(0.0, min(times) - now)

    def _over(self, now: float) -> bool:
        if self._failure is not None:
            return True
        if self._drain_until is None:
            return False
        silent = self._link is None or not (self._link.wants_to_write or self._attempts.unsaid)
        return (self._attempts.settled and silent) or (self._end_at is not None and now >= self._end_at)

    # The connection.

    def _connect(self) -> None:
        self._connecting = True
        threading.Thread(target=self._open_link, name=f"{self._options.name}-connect", daemon=True).start()

    def _open_link(self) -> None:
        try:
            # Read anew each time: a rotated credential takes effect at the next connection.
            link = Link.open(self._options.connection())
        except OrbitSDKError as error:
            refusal = error
            self._post(lambda now: self._on_unreachable(refusal, now))
        except Exception as error:
            # Whatever a resolver or a TLS library may raise, the worker must go on trying.
            log.exception("connecting failed")
            failure = ConnectionFailed(str(error))
            self._post(lambda now: self._on_unreachable(failure, now))
        else:
            self._post(lambda now: self._on_open(link, now))
            if self._ended:
                link.close()

    def _on_unreachable(self, error: OrbitSDKError, now: float) -> None:
        self._connecting = False
        if not self._ever_welcomed and isinstance(error, (WorkerRefused, ConfigurationError)):
            self._failure = error
            return
        self._retry_later(now, str(error))

    def _retry_later(self, now: float, why: str) -> None:
        """Wait a random part of a growing time: full jitter, from the first attempt on."""
        limit = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2 ** min(self._failures, 10))
        self._failures += 1
        delay = random.uniform(0, limit)
        self._connect_at = now + delay
        log.warning("no connection (%s); next attempt in %.2f s", why, delay)

    def _on_open(self, link: Link, now: float) -> None:
        self._connecting = False
        if self._ended:
            link.close()
            return
        self._link = link
        self._link_events = 0
        self._welcomed = False
        self._pings_unanswered = 0
        self._ping_at = now + WELCOME_SECONDS
        hello = {
            "type": "hello",
            "protocol": frames.PROTOCOL,
            "worker": self._options.name,
            "sdk": self._options.sdk,
            "queues": self._options.queues,
            "handlers": self._handlers.declared(),
            "capacity": self._attempts.room,
            "resume": self._attempts.resume_items(),
        }
        self._hello_at = now
        link.send([frames.encode(hello)])

    def _on_closed(self, closed: LinkClosed, now: float) -> None:
        if closed.code == POLICY_VIOLATION and not self._ever_welcomed:
            self._failure = self._failure or WorkerRefused("HELLO_REFUSED", closed.reason)
        self._drop_link()
        self._attempts.disconnected()
        self._retry_later(now, f"closed with {closed.code} {closed.reason}".strip())

    def _drop_link(self) -> None:
        if self._link_events and self._link is not None:
            # The socket is closed already, and with it its place in the kernel's set.
            for key in list(self._selector.get_map().values()):
                if key.fileobj is self._link:
                    self._selector.unregister(self._link)
        self._link = None
        self._link_events = 0
        self._welcomed = False
        self._gather_until = None
        self._leave_at = None
        self.connected.clear()

    def _watch_link(self) -> None:
        link = self._link
        if link is None:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0)
        if wanted == self._link_events:
            return
        if self._link_events:
            self._selector.modify(link, wanted)
        else:
            self._selector.register(link, wanted)
        self._link_events = wanted

    def _send_what_is_ready(self, link: Link, now: float) -> None:
        waiting = self._attempts.results_waiting
        if 0 < waiting < GATHER_ITEMS and self._pool.backlog:
            # More results come within microseconds: wait a moment for them. With no backlog nothing ever waits.
            if self._gather_until is None:
                self._gather_until = now + GATHER_SECONDS
            if now < self._gather_until:
                return
        self._gather_until = None
        texts = list(self._attempts.outgoing(now))
        if self._progress and now >= self._progress_at:
            self._progress_at = now + PROGRESS_EVERY_SECONDS
            texts.extend(self._progress_frames())
        if texts:
            link.send(texts)

    def _progress_frames(self) -> list[bytes]:
        progress, self._progress = self._progress, {}
        items = []
        for attempt_id, item in progress.items():
            token = self._attempts.token(attempt_id)
            if token is not None:
                items.append({"attempt_id": attempt_id, "token": token, **item})
        return list(frames.item_frames("progress", items, self._attempts.numbers.max_frame_bytes))

    # What the server says.

    def _on_message(self, text: bytes, now: float) -> None:
        try:
            kind = frames.head_decoder.decode(text).type
            reader = self._readers.get(kind)
            if reader is not None:
                reader(self, text, now)
        except msgspec.DecodeError:
            log.exception("a message of the server was not understood")

    def _on_welcome(self, text: bytes, now: float) -> None:
        welcome = msgspec.json.decode(text, type=frames.Welcome)
        for refused in welcome.refused_handlers:
            log.error("the server refused %s %s: %s %s", refused.type, refused.versions, refused.code, refused.message)
        self._welcomed = True
        self._ever_welcomed = True
        self._failures = 0
        self._ping_at = now + welcome.heartbeat_ms / 1000
        self._attempts.welcomed(welcome, self._hello_at, now)
        log.info("connected to %s as session %s", welcome.node, welcome.session_id)
        self.connected.set()

    def _on_assign(self, text: bytes, now: float) -> None:
        self._attempts.assigned(_assign.decode(text).tasks, now)

    def _on_started(self, text: bytes, now: float) -> None:
        self._attempts.started(_started.decode(text).items, now)

    def _on_renewed(self, text: bytes, now: float) -> None:
        self._attempts.renewed(msgspec.json.decode(text, type=frames.Renewed).items, now)

    def _on_recorded(self, text: bytes, now: float) -> None:
        self._attempts.recorded(_recorded.decode(text).items, now)

    def _on_cancel(self, text: bytes, _now: float) -> None:
        self._attempts.cancel(msgspec.json.decode(text, type=frames.Cancel).items)

    def _on_drain(self, text: bytes, now: float) -> None:
        spread_seconds = msgspec.json.decode(text, type=frames.Drain).spread_ms / 1000
        self._leave_at = now + random.uniform(0, spread_seconds)

    def _on_pong(self, _text: bytes, _now: float) -> None:
        self._pings_unanswered = 0

    def _on_ping(self, _text: bytes, _now: float) -> None:
        if self._link is not None:
            self._link.send([b'{"type":"pong"}'])

    def _on_error(self, text: bytes, _now: float) -> None:
        error = msgspec.json.decode(text, type=frames.ErrorMessage)
        log.error("the server answered %s: %s", error.code, error.message)
        if not self._ever_welcomed and error.code not in PASSING_CODES:
            self._failure = WorkerRefused(error.code, error.message)

    _readers: dict[str, Callable[[WorkerLoop, bytes, float], None]] = {  # noqa: RUF012  # a table, never changed
        "welcome": _on_welcome,
        "assign": _on_assign,
        "started": _on_started,
        "renewed": _on_renewed,
        "recorded": _on_recorded,
        "cancel": _on_cancel,
        "drain": _on_drain,
        "ping": _on_ping,
        "pong": _on_pong,
        "error": _on_error,
    }


_assign = msgspec.json.Decoder(frames.Assign)
_started = msgspec.json.Decoder(frames.Started)
_recorded = msgspec.json.Decoder(frames.Recorded)
