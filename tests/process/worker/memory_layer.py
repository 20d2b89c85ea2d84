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
from types import SimpleNamespace
from typing import Any, cast

import gevent
from gevent.event import Event

from api.listener import ListenerLimits
from api.websocket import SocketLimits
from api.worker_gate import WorkerGate
from api.worker_session import SessionLimits
from orbit import jsontext
from orbit.access import Credential, Scope
from orbit.errors import Unauthenticated, Unavailable
from orbit.sdk.settings import Connection
from pulse.claim import Assignment
from pulse.lease import Held, Progress, RenewOutcome, Resumed, Verdict
from pulse.report import ReceiptKind, RejectCode, Report, ReportOutcome
from pulse.sessions import CancelNotice, Outbox, Place, Session, SessionHello
from pulse.start import StartCode, StartItem, StartOutcome
from pulse.store.rows import LockedTask, Payload
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
    cancel: str | None = None


class MemorySession(Session):
    """Pulse's own session, with what a test wants to look at."""

    attached = False
    capacity: int

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        super().set_capacity(capacity)


@dataclass(eq=False, repr=False)
class MemoryLayer:
    """Sessions, tasks and attempts; `log` counts what was asked."""

    lease_ms: int = 30_000
    assign_ms: int = 20_000
    attempt_timeout_ms: int = 60_000
    limited_starts: int = 0
    unavailable_results: int = 0
    results_wait: Event = field(default_factory=Event)
    answers_per_start: Callable[[StartItem], StartOutcome | None] = lambda _: None
    tasks: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    waiting: deque[bytes] = field(default_factory=deque)
    attempts: dict[bytes, MemoryAttempt] = field(default_factory=dict)
    sessions: list[MemorySession] = field(default_factory=list)
    results: list[tuple[bytes, Report, str]] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)
    progress_reports: list[Progress] = field(default_factory=list)
    resumes: list[tuple[Held, str]] = field(default_factory=list)
    starts: list[StartItem] = field(default_factory=list)
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
                        session.outbox.cancel([CancelNotice(attempt.attempt_id, reason)])

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
            if session.is_draining or not session.attached:
                continue
            batch: list[Assignment] = []
            while self.waiting and self.unfinished(session) < session.capacity:
                batch.append(self._lease(session, self.waiting.popleft()))
            self.most_unfinished = max(self.most_unfinished, self.unfinished(session))
            if batch:
                session.outbox.assign(batch)

    def unfinished(self, session: MemorySession) -> int:
        live = (item for item in self.attempts.values() if item.state in ("LEASED", "RUNNING"))
        return sum(1 for item in live if item.session_id == session.id)

    def requeue(self, attempt: MemoryAttempt) -> None:
        self.tasks[attempt.task_id]["state"] = "WAITING"
        self.waiting.append(attempt.task_id)
        gevent.spawn(self.pump)

    def _lease(self, session: MemorySession, task_id: bytes) -> Assignment:
        task = self.tasks[task_id]
        task["attempt"] += 1
        task["state"] = "LEASED"
        attempt = MemoryAttempt(task_id, os.urandom(16), os.urandom(16).hex(), session.id)
        attempt.lease_until = time.monotonic() + self.assign_ms / 1000
        self.attempts[attempt.attempt_id] = attempt
        return Assignment(
            session_id=session.id,
            attempt_id=attempt.attempt_id,
            token=attempt.token,
            task=locked_task(task_id, lane_id=task["type"].encode(), timeout_micros=self.attempt_timeout_ms * 1000),
            payload=Payload(task["params"], "1", b"key", '{"colour":"blue"}', None),
            attempt_number=task["attempt"],
            checkpoint=task.get("progress"),
            deadline_in_micros=86_400_000_000,
            fencing=(1 << 32) + task["attempt"],
        )

    # What the socket asks.

    def attach(self, hello: SessionHello, outbox: Outbox) -> MemorySession:
        session = MemorySession(os.urandom(16), hello, outbox)
        session.set_capacity(hello.capacity)
        places = {item.type.encode(): (Place("q", item.type, item.version), item.recovery) for item in hello.handlers}
        session.serve(places)
        self.sessions.append(session)
        return session

    def open(self, session: Session) -> None:
        assert isinstance(session, MemorySession)
        session.attached = True
        self.pump()

    def detach(self, session: Session) -> None:
        assert isinstance(session, MemorySession)
        session.attached = False

    def capacity(self, session: Session, capacity: int) -> None:
        session.set_capacity(capacity)
        self.pump()

    def _owned(self, session: Session, attempt_id: bytes, token: str) -> MemoryAttempt | None:
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt.token != token or attempt.session_id != session.id:
            return None
        return attempt

    def start(self, session: Session, items: Sequence[StartItem]) -> list[StartOutcome]:
        self.log["start_frames"] += 1
        self.starts.extend(items)
        return [self._start_one(session, item) for item in items]

    def _start_one(self, session: Session, item: StartItem) -> StartOutcome:
        attempt = self._owned(session, item.attempt_id, item.token)
        planned = self.answers_per_start(item)
        lease_micros = self.lease_ms * 1000
        if planned is not None:
            return planned
        if attempt is None or attempt.state not in ("LEASED", "RUNNING"):
            return StartOutcome(item.message_id, granted=False, code=StartCode.LEASE_LOST)
        if attempt.state == "RUNNING":
            same = attempt.start_message == item.message_id
            code = None if same else StartCode.ALREADY_STARTED
            return StartOutcome(item.message_id, granted=same, code=code, lease_micros=lease_micros)
        if self.limited_starts > 0:
            self.limited_starts -= 1
            code = StartCode.RATE_LIMITED
            attempt.lease_until = time.monotonic() + self.assign_ms / 1000
            return StartOutcome(item.message_id, granted=False, code=code, retry_after_micros=20_000)
        attempt.state = "RUNNING"
        attempt.start_message = item.message_id
        attempt.lease_until = time.monotonic() + self.lease_ms / 1000
        self.tasks[attempt.task_id]["state"] = "RUNNING"
        return StartOutcome(item.message_id, granted=True, lease_micros=lease_micros)

    def renew(self, session: Session, items: Sequence[Held]) -> list[RenewOutcome]:
        self.log["renew_items"] += len(items)
        outcomes = []
        for item in items:
            attempt = self._owned(session, item.attempt_id, item.token)
            if attempt is None or attempt.state != "RUNNING":
                outcomes.append(RenewOutcome(item.attempt_id, None))
            else:
                attempt.lease_until = time.monotonic() + self.lease_ms / 1000
                outcomes.append(RenewOutcome(item.attempt_id, self.lease_ms * 1000, attempt.cancel))
        return outcomes

    def report(self, _session: Session, reports: Sequence[Report], /) -> list[ReportOutcome]:
        self.log["result_frames"] += 1
        self.results_wait.wait()
        if self.unavailable_results > 0:
            self.unavailable_results -= 1
            raise Unavailable("the database is away")
        return [self._report_one(item) for item in reports]

    def _report_one(self, item: Report) -> ReportOutcome:
        attempt = self.attempts.get(item.attempt_id)
        code = None
        if attempt is None or attempt.token != item.token:
            receipt, code = ReceiptKind.REJECTED, RejectCode.ATTEMPT_UNKNOWN
        elif attempt.result_message == item.message_id:
            receipt = ReceiptKind.DUPLICATE
        elif attempt.state != "RUNNING":
            receipt = ReceiptKind.LATE
        else:
            receipt = ReceiptKind.ACCEPTED
            attempt.result_message = item.message_id
            attempt.state = item.outcome
            self.tasks[attempt.task_id]["state"] = str(item.outcome)
            if item.outcome == "RETURNED":
                self.requeue(attempt)
        self.results.append((item.attempt_id, item, receipt))
        gevent.spawn(self.pump)
        return ReportOutcome(item.message_id, receipt, code)

    def release(self, session: Session, items: Sequence[Held]) -> list[bool]:
        answers = []
        for item in items:
            attempt = self._owned(session, item.attempt_id, item.token)
            held = attempt is not None and attempt.state == "LEASED"
            if attempt is not None and held:
                attempt.state = "ABANDONED"
                self.released.append(item.attempt_id)
                self.requeue(attempt)
            answers.append(held)
        return answers

    def progress(self, items: Sequence[Progress]) -> None:
        for item in items:
            attempt = self.attempts.get(item.held.attempt_id)
            if attempt is not None and attempt.token == item.held.token:
                self.progress_reports.append(item)
                self.tasks[attempt.task_id]["progress"] = item.text

    def resume(self, session: Session, items: Sequence[Held]) -> list[Resumed]:
        outcomes = []
        for item in items:
            attempt = self.attempts.get(item.attempt_id)
            lease_micros = 0
            if attempt is None or attempt.token != item.token:
                verdict = Verdict.LOST
            elif attempt.state in ("LEASED", "RUNNING"):
                attempt.session_id = session.id
                verdict = Verdict.START_AGAIN if attempt.state == "LEASED" else Verdict.HELD
                lease_micros = round((attempt.lease_until - time.monotonic()) * 1_000_000)
            elif attempt.result_message is not None:
                verdict = Verdict.RECORDED
            else:
                verdict = Verdict.LOST
            self.resumes.append((item, verdict))
            cancel = attempt.cancel if attempt is not None else None
            outcomes.append(Resumed(item.attempt_id, verdict, lease_micros, cancel))
        return outcomes


def locked_task(task_id: bytes, *, lane_id: bytes, timeout_micros: int) -> LockedTask:
    """Stand in for a task's row as the dispatcher hands it on: only what the wire needs."""
    row = SimpleNamespace(
        id=task_id, operation_id=None, fencing_base=0, lane_id=lane_id, attempt_timeout_micros=timeout_micros
    )
    return cast("LockedTask", row)


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
                layer.expire_leases()

        running.call(lambda: gevent.spawn(sweep))
        try:
            yield node
        finally:
            running.call(stopped.set)
            running.call(layer.results_wait.set)
