"""The server's end of `orbit.worker.v1`: one session for each connected worker.

It reads messages, has the task layer decide, and writes the answers; it decides nothing about tasks. Frames that need
the database are handled by greenlets of their own, so that several are in flight for one worker and its heartbeats are
read meanwhile; how many is bounded, and the reader waits beyond that. The surprising rule: the end of a connection is
no verdict on its tasks. Nothing is undone here: leases run out, or the worker comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from gevent.lock import BoundedSemaphore
from gevent.pool import Group

from api import worker_frames as frames
from api import worker_port as port
from api.websocket import WorkerSocket
from orbit.access import Credential, Scope
from orbit.errors import OrbitError, Unavailable
from orbit.logs import get_logger

log = get_logger(__name__)

POLICY_VIOLATION = 1008
PROTOCOL_ERROR = 1002
GOING_AWAY = 1001


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The numbers of a session; those in milliseconds are told to the worker."""

    node: str
    lease_ms: int = 30_000
    renew_every_ms: int = 10_000
    heartbeat_ms: int = 10_000
    output_bytes_max: int = 65_536
    hello_seconds: float = 10.0
    heartbeats_missed_max: float = 2.5
    frames_in_flight: int = 16
    retry_after_ms: int = 1_000
    bug_retry_after_ms: int = 5_000


class Authenticating(Protocol):
    """Turns an Authorization header into a credential, or raises Unauthenticated."""

    def authenticate(self, authorization: str | None) -> Credential: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class WorkerAdmission:
    """A credential that may connect workers."""

    credential: Credential

    @property
    def credential_key(self) -> str:
        """Return what its connections are counted by."""
        return self.credential.id.hex()


class WorkerGate:
    """Admits workers to the socket and runs their sessions; drains them when the node goes away."""

    path = "/v1/workers/connect"
    subprotocol = frames.SUBPROTOCOL

    def __init__(
        self,
        *,
        authenticator: Authenticating,
        dispatcher: port.Dispatcher,
        execution: port.Execution,
        limits: SessionLimits,
    ) -> None:
        self._authenticator = authenticator
        self._dispatcher = dispatcher
        self._execution = execution
        self._limits = limits
        self._sessions: set[WorkerSession] = set()
        self._draining_spread_ms: int | None = None

    @property
    def session_count(self) -> int:
        """Count the connected workers."""
        return len(self._sessions)

    def admit(self, environ: Mapping[str, Any]) -> WorkerAdmission:
        """Authenticate a request for an upgrade; raise Unauthenticated, Forbidden or Unavailable."""
        credential = self._authenticator.authenticate(environ.get("HTTP_AUTHORIZATION"))
        credential.require(Scope.WORKERS_CONNECT)
        if self._draining_spread_ms is not None:
            raise Unavailable("this node is shutting down")
        return WorkerAdmission(credential)

    def serve(self, socket: WorkerSocket, admission: WorkerAdmission) -> None:
        """Run a worker's session in this greenlet until its connection ends."""
        session = WorkerSession(socket, admission.credential, limits=self._limits, execution=self._execution)
        self._sessions.add(session)
        try:
            session.run(self._dispatcher)
        finally:
            self._sessions.discard(session)

    def drain(self, spread_ms: int) -> None:
        """Ask every worker to connect elsewhere within `spread_ms`, and admit no more."""
        self._draining_spread_ms = spread_ms
        for session in list(self._sessions):
            session.outbox.drain(spread_ms)


class WorkerOutbox:
    """What the dispatcher tells a worker. Nothing here blocks; False means that the worker is gone."""

    def __init__(self, socket: WorkerSocket) -> None:
        self._socket = socket

    def assign(self, assignments: Sequence[port.Assignment]) -> bool:
        """Offer claimed tasks."""
        items = [frames.assigned_item(assignment) for assignment in assignments]
        return self._socket.offer(list(frames.item_messages("assign", items, field="tasks")))

    def cancel(self, notices: Sequence[port.CancelNotice]) -> bool:
        """Tell that attempts should stop."""
        items = [{"attempt_id": notice.attempt_id.hex(), "reason": notice.reason} for notice in notices]
        return self._socket.offer(list(frames.item_messages("cancel", items)))

    def drain(self, spread_ms: int) -> bool:
        """Ask the worker to connect elsewhere."""
        return self._socket.offer([frames.message("drain", spread_ms=spread_ms)])


class WorkerSession:
    """One connection of one worker."""

    def __init__(
        self, socket: WorkerSocket, credential: Credential, *, limits: SessionLimits, execution: port.Execution
    ) -> None:
        self.outbox = WorkerOutbox(socket)
        self._socket = socket
        self._credential = credential
        self._limits = limits
        self._execution = execution
        self._session: port.Session | None = None
        self._heard_at = time.monotonic()
        self._room = BoundedSemaphore(limits.frames_in_flight)
        self._handling = Group()

    def run(self, dispatcher: port.Dispatcher) -> None:
        """Greet, then serve messages until the connection ends. Frames in work are waited for, never killed."""
        messages = self._socket.messages()
        started_at = time.monotonic()
        try:
            for text in messages:
                if self._session is None:
                    if text is not None:
                        if not self._greet(text, dispatcher):
                            break
                    elif time.monotonic() - started_at >= self._limits.hello_seconds:
                        self._refuse("HELLO_TIMEOUT", f"no hello within {self._limits.hello_seconds:g} s")
                        break
                elif not self._serve(text, self._session):
                    break
        finally:
            if self._session is not None:
                self._session.detach()
                log.info("worker.disconnected", extra={"session_id": self._session.id})
            self._handling.join()

    # The greeting.

    def _greet(self, text: bytes, dispatcher: port.Dispatcher) -> bool:
        try:
            if frames.read_envelope(text).type != "hello":
                self._refuse("HELLO_EXPECTED", "the first message is hello")
                return False
            hello = frames.hello_decoder.decode(text)
        except (frames.BadFrame, msgspec.DecodeError) as error:
            self._refuse("INVALID_HELLO", str(error))
            return False
        if hello.protocol != frames.PROTOCOL:
            self._refuse("UNKNOWN_PROTOCOL", f"this server speaks protocol {frames.PROTOCOL}")
            return False
        outside = [queue for queue in hello.queues if not self._credential.covers(queue)]
        if outside:
            self._refuse("QUEUE_OUT_OF_RANGE", f"the credential may not consume {', '.join(outside[:5])}")
            return False
        try:
            self._attach(hello, dispatcher)
        except OrbitError as error:
            self._refuse(error.code, error.message)
            return False
        return True

    def _attach(self, hello: frames.Hello, dispatcher: port.Dispatcher) -> None:
        """Attach without room first: what the worker still has is reconciled before anything new is offered."""
        handlers = tuple(
            port.HandlerDeclaration(item.type, tuple(item.versions), item.recovery) for item in hello.handlers
        )
        session = dispatcher.attach(
            port.SessionHello(
                namespace_id=self._credential.namespace_id,
                credential_id=self._credential.id,
                worker=hello.worker,
                queues=tuple(hello.queues),
                handlers=handlers,
                capacity=0,
            ),
            self.outbox,
        )
        self._session = session
        resumed: Sequence[port.ResumeOutcome] = ()
        if hello.resume:
            requests = [
                port.ResumeRequest(bytes.fromhex(item.attempt_id), item.token, item.phase) for item in hello.resume
            ]
            resumed = self._execution.resume(session.id, requests)
        limits = self._limits
        self._socket.offer(
            [
                frames.message(
                    "welcome",
                    session_id=session.id.hex(),
                    node=limits.node,
                    lease_ms=limits.lease_ms,
                    renew_every_ms=limits.renew_every_ms,
                    heartbeat_ms=limits.heartbeat_ms,
                    max_frame_bytes=frames.FRAME_BYTES_MAX,
                    max_output_bytes=limits.output_bytes_max,
                    refused_handlers=[
                        {"type": item.type, "versions": item.versions, "code": item.code, "message": item.message}
                        for item in session.refused_handlers
                    ],
                    resumed=[
                        _present(attempt_id=item.attempt_id, verdict=outcome.verdict, cancel=outcome.cancel)
                        for item, outcome in zip(hello.resume, resumed, strict=True)
                    ],
                )
            ]
        )
        self._heard_at = time.monotonic()
        log.info("worker.connected", extra={"session_id": session.id, "worker": hello.worker})
        session.set_capacity(hello.capacity)

    def _refuse(self, code: str, reason: str) -> None:
        self._socket.offer([frames.message("error", code=code, message=reason)])
        self._socket.close(POLICY_VIOLATION, f"{code}: {reason}")

    # The messages.

    def _serve(self, text: bytes | None, session: port.Session) -> bool:
        """Handle one message, or a tick of the clock; return whether the connection goes on."""
        if text is not None:
            try:
                envelope = frames.read_envelope(text)
            except frames.BadFrame as error:
                self._socket.close(PROTOCOL_ERROR, f"not a message: {error}")
                return False
            self._dispatch(envelope, text, session)
        silent_seconds = time.monotonic() - self._heard_at
        if silent_seconds > self._limits.heartbeats_missed_max * self._limits.heartbeat_ms / 1000:
            self._socket.close(GOING_AWAY, "heartbeats were missed")
            return False
        return True

    def _dispatch(self, envelope: frames.Envelope, text: bytes, session: port.Session) -> None:
        match envelope.type:
            case "start":
                self._spawn(self._start, envelope, session)
            case "result":
                self._spawn(self._result, envelope, session)
            case "renew":
                self._spawn(self._renew, envelope, session)
            case "release":
                self._spawn(self._release, envelope, session)
            case "progress":
                self._spawn(self._progress, envelope, session)
            case "ping":
                self._heard_at = time.monotonic()
                self._socket.offer([b'{"type":"pong"}'])
            case "pong":
                self._heard_at = time.monotonic()
            case "capacity":
                try:
                    session.set_capacity(frames.capacity_decoder.decode(text).capacity)
                except msgspec.DecodeError as error:
                    self._complain("INVALID_MESSAGE", str(error))
            case "drain":
                session.drain()
            case unknown:
                self._complain("UNKNOWN_MESSAGE", f"there is no message {unknown[:64]!r}")

    def _spawn(
        self,
        handle: Callable[[frames.Envelope, port.Session], None],
        envelope: frames.Envelope,
        session: port.Session,
    ) -> None:
        waited_from = time.monotonic()
        self._room.acquire()
        # While this reader waited it could not hear the worker: that is not the worker's silence.
        self._heard_at += time.monotonic() - waited_from

        def run() -> None:
            try:
                handle(envelope, session)
            finally:
                self._room.release()

        self._handling.spawn(run)

    def _start(self, envelope: frames.Envelope, session: port.Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.start_decoder)
        answers = [_present(message_id=item.message_id, granted=False, code="INVALID_ITEM") for item in bad]
        if good:
            requests = [
                port.StartRequest(bytes.fromhex(item.message_id), bytes.fromhex(item.attempt_id), item.token)
                for item in good
            ]
            outcomes = self._decide(lambda: self._execution.start(session.id, requests))
            if isinstance(outcomes, int):
                answers += [
                    {"message_id": item.message_id, "granted": False, "code": "UNAVAILABLE", "retry_after_ms": outcomes}
                    for item in good
                ]
            else:
                answers += [
                    _present(
                        message_id=item.message_id,
                        granted=outcome.granted,
                        code=outcome.code,
                        retry_after_ms=outcome.retry_after_ms,
                        lease_ms=outcome.lease_ms,
                    )
                    for item, outcome in zip(good, outcomes, strict=True)
                ]
        self._answer("started", answers, bad)

    def _result(self, envelope: frames.Envelope, session: port.Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.result_decoder)
        answers = [_present(message_id=item.message_id, receipt="REJECTED", code="INVALID_ITEM") for item in bad]
        if good:
            reports = [frames.result_report(item) for item in good]
            outcomes = self._decide(lambda: self._execution.result(session.id, reports))
            if isinstance(outcomes, int):
                answers += [
                    {"message_id": item.message_id, "receipt": "UNAVAILABLE", "retry_after_ms": outcomes}
                    for item in good
                ]
            else:
                answers += [
                    _present(
                        message_id=item.message_id,
                        receipt=outcome.receipt,
                        code=outcome.code,
                        task_state=outcome.task_state,
                    )
                    for item, outcome in zip(good, outcomes, strict=True)
                ]
        self._answer("recorded", answers, bad)

    def _renew(self, envelope: frames.Envelope, session: port.Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.claim_decoder)
        answers = [_present(attempt_id=item.attempt_id, code="INVALID_ITEM") for item in bad]
        if good:
            claims = [port.AttemptClaim(bytes.fromhex(item.attempt_id), item.token) for item in good]
            outcomes = self._decide(lambda: self._execution.renew(session.id, claims))
            if isinstance(outcomes, int):
                answers += [{"attempt_id": item.attempt_id, "code": "UNAVAILABLE"} for item in good]
            else:
                answers += [
                    _present(
                        attempt_id=item.attempt_id, lease_ms=outcome.lease_ms, code=outcome.code, cancel=outcome.cancel
                    )
                    for item, outcome in zip(good, outcomes, strict=True)
                ]
        self._answer("renewed", answers, bad)

    def _release(self, envelope: frames.Envelope, session: port.Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.claim_decoder)
        answers = [_present(attempt_id=item.attempt_id, code="INVALID_ITEM") for item in bad]
        if good:
            claims = [port.AttemptClaim(bytes.fromhex(item.attempt_id), item.token) for item in good]
            outcomes = self._decide(lambda: self._execution.release(session.id, claims))
            codes = ["UNAVAILABLE"] * len(good) if isinstance(outcomes, int) else outcomes
            answers += [{"attempt_id": item.attempt_id, "code": code} for item, code in zip(good, codes, strict=True)]
        self._answer("released", answers, bad)

    def _progress(self, envelope: frames.Envelope, session: port.Session) -> None:
        """Keep progress; it has no answer, so what can't be kept is only complained about."""
        good, bad = frames.read_items(envelope.items, frames.progress_decoder)
        if good:
            reports = [frames.progress_report(item) for item in good]
            self._decide(lambda: self._execution.progress(session.id, reports))
        for item in bad:
            self._complain("INVALID_ITEM", item.reason)

    def _decide(self, ask: Callable[[], Sequence[Any]]) -> Sequence[Any] | int:
        """Ask the task layer; when it can't decide, return after how many milliseconds to ask again.

        A bug is answered likewise: a result that could not be recorded must stay with the worker.
        """
        try:
            return ask()
        except Unavailable:
            return self._limits.retry_after_ms
        except Exception:
            log.exception("worker.frame_failed")
            return self._limits.bug_retry_after_ms

    def _answer(self, kind: str, answers: Sequence[dict[str, Any]], bad: Sequence[frames.BadItem]) -> None:
        """Send the answers of one message as one; an item without a readable id is complained about."""
        named = [item for item in answers if "message_id" in item or "attempt_id" in item]
        texts = list(frames.item_messages(kind, named))
        texts += [
            frames.message("error", code="INVALID_ITEM", message=item.reason, message_id=item.message_id)
            for item in bad
        ]
        if texts:
            self._socket.offer(texts)

    def _complain(self, code: str, reason: str) -> None:
        self._socket.offer([frames.message("error", code=code, message=reason)])


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
