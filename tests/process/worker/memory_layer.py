"""A task layer in memory behind the real worker socket: what the SDK is tested against, with knobs for every trouble.

All of it runs in the server's hub; tests look at it from their own thread and change it by `Node.call`.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event

from api import worker_port as port
from api.listener import ListenerLimits
from api.websocket import SocketLimits
from api.worker_session import SessionLimits, WorkerGate
from orbit import jsontext
from orbit.access import Credential, Scope
from orbit.errors import Unauthenticated, Unavailable
from orbit.sdk.settings import Connection
from tests.hostile.socket_server import Running, running_server

TOKEN = "key.secret"


@dataclass(eq=False)
class MemoryAttempt:
    task_id: bytes
    attempt_id: bytes
    token: str
    session_id: bytes
    state: str = "LEASED"
    lease_until: float = 0.0
    start_message: bytes | None = None
    result_message: bytes | None = None
    result: port.ResultReport | None = None
    cancel: str | None = None


@dataclass(eq=False)
class MemorySession:
    id: bytes
    hello: port.SessionHello
    outbox: port.Outbox
    layer: MemoryLayer
    capacity: int = 0
    draining: bool = False
    attached: bool = True
    capacities: list[int] = field(default_factory=list)
    refused_handlers: Sequence[port.RefusedHandler] = ()

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        self.capacities.append(capacity)
        self.layer.pump()

    def drain(self) -> None:
        self.draining = True

    def detach(self) -> None:
        self.attached = False


@dataclass(eq=False)
class MemoryLayer:
    """Sessions, tasks and attempts; `log` counts what was asked."""

    lease_ms: int = 5_000
    keep_leases: bool = False
    attempt_timeout_ms: int = 60_000
    limited_starts: int = 0
    unavailable_results: int = 0
    results_wait: Event = field(default_factory=Event)
    answers_per_start: Callable[[port.StartRequest], port.StartOutcome | None] = lambda _: None
    tasks: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    waiting: deque[bytes] = field(default_factory=deque)
    attempts: dict[bytes, MemoryAttempt] = field(default_factory=dict)
    sessions: list[MemorySession] = field(default_factory=list)
    results: list[tuple[bytes, port.ResultReport, str]] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)
    progress_reports: list[port.ProgressReport] = field(default_factory=list)
    resumes: list[tuple[port.ResumeRequest, str]] = field(default_factory=list)
    starts: list[port.StartRequest] = field(default_factory=list)
    log: Counter[str] = field(default_factory=Counter)
    most_unfinished: int = 0

    def __post_init__(self) -> None:
        self.results_wait.set()

    # What a test does.

    def submit(self, count: int = 1, *, kind: str = "echo", params: Any = None) -> None:
        for _ in range(count):
            task_id = os.urandom(16)
            self.tasks[task_id] = {"type": kind, "params": jsontext.dumps(params), "attempt": 0, "state": "WAITING"}
            self.waiting.append(task_id)
        self.pump()

    def cancel_all(self, reason: str = "CANCEL_REQUESTED") -> None:
        for attempt in self.attempts.values():
            if attempt.state == "RUNNING":
                attempt.cancel = reason
                for session in self.sessions:
                    if session.id == attempt.session_id and session.attached:
                        session.outbox.cancel([port.CancelNotice(attempt.attempt_id, reason)])

    def expire_leases(self) -> None:
        now = time.monotonic()
        for attempt in list(self.attempts.values()):
            if attempt.state in ("LEASED", "RUNNING") and now >= attempt.lease_until:
                attempt.state = "LOST"
                self.requeue(attempt)

    def states(self) -> Counter[str]:
        return Counter(task["state"] for task in list(self.tasks.values()))

    def pump(self) -> None:
        for session in self.sessions:
            if session.draining or not session.attached:
                continue
            batch: list[port.Assignment] = []
            while self.waiting and self.unfinished(session) < session.capacity:
                batch.append(self._lease(session, self.waiting.popleft()))
            self.most_unfinished = max(self.most_unfinished, self.unfinished(session))
            if batch and not session.outbox.assign(batch):
                for assignment in batch:
                    self.requeue(self.attempts[assignment.attempt_id])

    def unfinished(self, session: MemorySession) -> int:
        return sum(
            1
            for item in self.attempts.values()
            if item.session_id == session.id and item.state in ("LEASED", "RUNNING")
        )

    def requeue(self, attempt: MemoryAttempt) -> None:
        self.tasks[attempt.task_id]["state"] = "WAITING"
        self.waiting.append(attempt.task_id)
        gevent.spawn(self.pump)

    def _lease(self, session: MemorySession, task_id: bytes) -> port.Assignment:
        task = self.tasks[task_id]
        task["attempt"] += 1
        task["state"] = "LEASED"
        attempt = MemoryAttempt(task_id, os.urandom(16), os.urandom(16).hex(), session.id)
        attempt.lease_until = time.monotonic() + self.lease_ms / 1000
        self.attempts[attempt.attempt_id] = attempt
        return port.Assignment(
            task_id=task_id,
            operation_id=task_id,
            attempt_id=attempt.attempt_id,
            token=attempt.token,
            attempt=task["attempt"],
            fencing=str(2**40 + task["attempt"]),
            type=task["type"],
            version=1,
            params_version="1",
            queue="q",
            params=task["params"],
            lease_ms=self.lease_ms,
            deadline_in_ms=86_400_000,
            attempt_timeout_ms=self.attempt_timeout_ms,
            checkpoint=task.get("checkpoint"),
            labels='{"colour":"blue"}',
        )

    # What the socket asks.

    def attach(self, hello: port.SessionHello, outbox: port.Outbox) -> MemorySession:
        session = MemorySession(os.urandom(16), hello, outbox, self)
        self.sessions.append(session)
        return session

    def _owned(self, session_id: bytes, attempt_id: bytes, token: str) -> MemoryAttempt | None:
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt.token != token or attempt.session_id != session_id:
            return None
        return attempt

    def start(self, session_id: bytes, items: Sequence[port.StartRequest]) -> list[port.StartOutcome]:
        self.log["start_frames"] += 1
        self.starts.extend(items)
        return [self._start_one(session_id, item) for item in items]

    def _start_one(self, session_id: bytes, item: port.StartRequest) -> port.StartOutcome:
        attempt = self._owned(session_id, item.attempt_id, item.token)
        planned = self.answers_per_start(item)
        if planned is not None:
            return planned
        if attempt is None or attempt.state not in ("LEASED", "RUNNING"):
            return port.StartOutcome(granted=False, code="LEASE_LOST")
        if attempt.state == "RUNNING":
            same = attempt.start_message == item.message_id
            code = None if same else "ALREADY_STARTED"
            return port.StartOutcome(granted=same, code=code, lease_ms=self.lease_ms)
        if self.limited_starts > 0:
            self.limited_starts -= 1
            return port.StartOutcome(granted=False, code="RATE_LIMITED", retry_after_ms=20, lease_ms=self.lease_ms)
        attempt.state = "RUNNING"
        attempt.start_message = item.message_id
        attempt.lease_until = time.monotonic() + self.lease_ms / 1000
        self.tasks[attempt.task_id]["state"] = "RUNNING"
        return port.StartOutcome(granted=True, lease_ms=self.lease_ms)

    def renew(self, session_id: bytes, items: Sequence[port.AttemptClaim]) -> list[port.RenewOutcome]:
        self.log["renew_items"] += len(items)
        outcomes = []
        for item in items:
            attempt = self._owned(session_id, item.attempt_id, item.token)
            if attempt is None or attempt.state != "RUNNING":
                outcomes.append(port.RenewOutcome(code="LEASE_LOST"))
            else:
                attempt.lease_until = time.monotonic() + self.lease_ms / 1000
                outcomes.append(port.RenewOutcome(lease_ms=self.lease_ms, cancel=attempt.cancel))
        return outcomes

    def result(self, _session_id: bytes, items: Sequence[port.ResultReport], /) -> list[port.ResultOutcome]:
        self.log["result_frames"] += 1
        self.results_wait.wait()
        if self.unavailable_results > 0:
            self.unavailable_results -= 1
            raise Unavailable("the database is away")
        return [self._result_one(item) for item in items]

    def _result_one(self, item: port.ResultReport) -> port.ResultOutcome:
        attempt = self.attempts.get(item.attempt_id)
        if attempt is None or attempt.token != item.token:
            outcome = port.ResultOutcome("REJECTED", "UNKNOWN_ATTEMPT")
        elif attempt.result_message == item.message_id:
            outcome = port.ResultOutcome("DUPLICATE", None, self.tasks[attempt.task_id]["state"])
        elif attempt.state != "RUNNING":
            outcome = port.ResultOutcome("LATE")
        else:
            attempt.result_message = item.message_id
            attempt.result = item
            attempt.state = item.outcome
            self.tasks[attempt.task_id]["state"] = item.outcome
            if item.outcome == "RETURNED":
                self.requeue(attempt)
            outcome = port.ResultOutcome("ACCEPTED", None, item.outcome)
        self.results.append((item.attempt_id, item, outcome.receipt))
        gevent.spawn(self.pump)
        return outcome

    def release(self, session_id: bytes, items: Sequence[port.AttemptClaim]) -> list[str]:
        for item in items:
            attempt = self._owned(session_id, item.attempt_id, item.token)
            if attempt is not None and attempt.state == "LEASED":
                attempt.state = "ABANDONED"
                self.released.append(item.attempt_id)
                self.requeue(attempt)
        return ["RELEASED"] * len(items)

    def progress(self, session_id: bytes, items: Sequence[port.ProgressReport]) -> list[str]:
        for item in items:
            attempt = self._owned(session_id, item.attempt_id, item.token)
            if attempt is not None:
                self.progress_reports.append(item)
                self.tasks[attempt.task_id]["checkpoint"] = item.details
        return ["KEPT"] * len(items)

    def resume(self, session_id: bytes, items: Sequence[port.ResumeRequest]) -> list[port.ResumeOutcome]:
        outcomes = []
        for item in items:
            attempt = self.attempts.get(item.attempt_id)
            if attempt is None or attempt.token != item.token:
                verdict = "LOST"
            elif attempt.state in ("LEASED", "RUNNING"):
                attempt.session_id = session_id
                again = attempt.state == "LEASED"
                verdict = "START_AGAIN" if again else "HELD"
            elif attempt.result_message is not None:
                verdict = "RECORDED"
            else:
                verdict = "LOST"
            self.resumes.append((item, verdict))
            outcomes.append(port.ResumeOutcome(verdict, attempt.cancel if attempt is not None else None))
        return outcomes


class OneKey:
    """Knows one token, for the queues `q` and `q2`."""

    def authenticate(self, authorization: str | None) -> Credential:
        if authorization != f"Bearer {TOKEN}":
            raise Unauthenticated
        return Credential(b"c" * 16, b"n" * 16, frozenset({Scope.WORKERS_CONNECT}), frozenset({"q", "q2"}))


@dataclass(eq=False)
class Node:
    running: Running
    layer: MemoryLayer
    gate: WorkerGate

    @property
    def port(self) -> int:
        return self.running.port

    @property
    def connection(self) -> Connection:
        return Connection(f"http://127.0.0.1:{self.port}", TOKEN)

    def call(self, function: Callable[[], Any]) -> None:
        self.running.call(function)


@contextmanager
def running_node(
    layer: MemoryLayer,
    *,
    limits: SessionLimits | None = None,
    socket_limits: SocketLimits | None = None,
    **options: Any,
) -> Iterator[Node]:
    """Serve a layer on loopback; leases are enforced unless the layer keeps them."""
    session_limits = limits or SessionLimits(node="n1", lease_ms=layer.lease_ms, renew_every_ms=layer.lease_ms // 3)
    gate = WorkerGate(authenticator=OneKey(), dispatcher=layer, execution=layer, limits=session_limits)
    listener_limits = ListenerLimits(socket=socket_limits or SocketLimits(tick_seconds=0.1))
    with running_server(limits=listener_limits, gate=gate, **options) as running:
        node = Node(running, layer, gate)
        stopped = Event()

        def sweep() -> None:
            while not stopped.wait(0.02):
                if not layer.keep_leases:
                    layer.expire_leases()

        running.call(lambda: gevent.spawn(sweep))
        try:
            yield node
        finally:
            running.call(stopped.set)
            running.call(layer.results_wait.set)
