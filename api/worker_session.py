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
from typing import Any, Protocol, TypeVar

import msgspec
from gevent.lock import BoundedSemaphore
from gevent.pool import Group

from api import worker_frames as frames
from api.websocket import WorkerSocket
from orbit.access import Credential
from orbit.errors import OrbitError, Unavailable
from orbit.logs import get_logger
from pulse import limits as pulse_limits
from pulse.claim import Assignment
from pulse.lease import Held, Progress, RenewOutcome, Resumed
from pulse.report import Report, ReportOutcome
from pulse.sessions import CancelNotice, Handler, HandlerRefusal, Outbox, Session, SessionHello
from pulse.start import StartItem, StartOutcome
from pulse.states import RecoverySafety

log = get_logger(__name__)

OutcomeT = TypeVar("OutcomeT")

POLICY_VIOLATION = 1008
PROTOCOL_ERROR = 1002
GOING_AWAY = 1001
TRY_AGAIN_LATER = 1013


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The numbers of a session; those in milliseconds are told to the worker."""

    node: str
    lease_ms: int = pulse_limits.LEASE_MICROS // 1000
    renew_every_ms: int = pulse_limits.LEASE_RENEW_MICROS // 1000
    heartbeat_ms: int = 10_000
    output_bytes_max: int = pulse_limits.OUTPUT_BYTES_MAX
    hello_seconds: float = 10.0
    heartbeats_missed_max: float = 2.5
    frames_in_flight: int = 16
    retry_after_ms: int = 1_000
    bug_retry_after_ms: int = 5_000


class Dispatching(Protocol):
    """Hands claimed tasks to connected workers: `pulse.dispatch.Dispatcher`."""

    def attach(self, hello: SessionHello, outbox: Outbox, /) -> Session: ...  # noqa: D102
    def open(self, session: Session, /) -> None: ...  # noqa: D102
    def detach(self, session: Session, /) -> None: ...  # noqa: D102
    def capacity(self, session: Session, capacity: int, /) -> None: ...  # noqa: D102


class Executing(Protocol):
    """Answers workers, one outcome for each item, in order, after COMMIT: `pulse.execution.Execution`."""

    def start(self, session: Session, items: Sequence[StartItem], /) -> Sequence[StartOutcome]: ...  # noqa: D102
    def renew(self, session: Session, items: Sequence[Held], /) -> Sequence[RenewOutcome]: ...  # noqa: D102
    def report(self, session: Session, reports: Sequence[Report], /) -> Sequence[ReportOutcome]: ...  # noqa: D102
    def release(self, session: Session, items: Sequence[Held], /) -> Sequence[bool]: ...  # noqa: D102
    def progress(self, items: Sequence[Progress], /) -> None: ...  # noqa: D102
    def resume(self, session: Session, items: Sequence[Held], /) -> Sequence[Resumed]: ...  # noqa: D102


class WorkerOutbox:
    """What the dispatcher tells a worker. Nothing here blocks; a worker that is gone is told nothing."""

    def __init__(self, socket: WorkerSocket) -> None:
        self._socket = socket
        self.session: Session | None = None

    def has_room(self) -> bool:
        """Say whether the worker keeps up with what it is sent."""
        return not (self._socket.closed or self._socket.is_congested)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Offer claimed tasks."""
        assert self.session is not None, "a session gets tasks only after it was opened"
        places = self.session.places
        items = [frames.assigned_item(item, places[item.task.lane_id]) for item in assignments]
        self._socket.offer(list(frames.item_messages("assign", items, field="tasks")))

    def cancel(self, notices: Sequence[CancelNotice]) -> None:
        """Tell that attempts should stop."""
        items = [{"attempt_id": notice.attempt_id.hex(), "reason": notice.reason} for notice in notices]
        self._socket.offer(list(frames.item_messages("cancel", items)))

    def drain(self, spread_ms: int) -> None:
        """Ask the worker to connect elsewhere."""
        self._socket.offer([frames.message("drain", spread_ms=spread_ms)])


class WorkerSession:
    """One connection of one worker."""

    def __init__(
        self,
        socket: WorkerSocket,
        credential: Credential,
        *,
        limits: SessionLimits,
        dispatcher: Dispatching,
        execution: Executing,
    ) -> None:
        self._socket = socket
        self._credential = credential
        self._limits = limits
        self._dispatcher = dispatcher
        self._execution = execution
        self._outbox = WorkerOutbox(socket)
        self._session: Session | None = None
        self._heard_at = time.monotonic()
        self._room = BoundedSemaphore(limits.frames_in_flight)
        self._handling = Group()

    def run(self) -> None:
        """Greet, then serve messages until the connection ends. Frames in work are waited for, never killed."""
        started_at = time.monotonic()
        try:
            for text in self._socket.messages():
                if self._session is not None:
                    if not self._serve(text, self._session):
                        break
                elif text is not None:
                    if not self._greet(text):
                        break
                elif time.monotonic() - started_at >= self._limits.hello_seconds:
                    self._socket.close(GOING_AWAY, f"no hello within {self._limits.hello_seconds:g} s")
                    break
        finally:
            if self._session is not None:
                self._dispatcher.detach(self._session)
                log.info("worker.disconnected", extra={"session_id": self._session.id})
            self._handling.join()

    # The greeting.

    def _greet(self, text: bytes) -> bool:
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
            self._attach(hello)
        except OrbitError as error:
            self._refuse(error.code, error.message, close_code=TRY_AGAIN_LATER if error.retryable else POLICY_VIOLATION)
            return False
        return True

    def _attach(self, hello: frames.Hello) -> None:
        """Attach, reconcile what the worker still has, and only then let it get anything new."""
        session = self._dispatcher.attach(
            SessionHello(
                namespace_id=self._credential.namespace_id,
                credential_id=self._credential.id,
                worker=hello.worker,
                queues=frozenset(hello.queues),
                handlers=_handlers(hello),
                capacity=hello.capacity,
            ),
            self._outbox,
        )
        self._session = self._outbox.session = session
        held = [Held(bytes.fromhex(item.attempt_id), item.token) for item in hello.resume]
        resumed = self._execution.resume(session, held)
        self._socket.offer([self._welcome(session, _refused(session.refused), resumed)])
        self._heard_at = time.monotonic()
        log.info("worker.connected", extra={"session_id": session.id, "worker": hello.worker})
        self._dispatcher.open(session)

    def _welcome(self, session: Session, refused: Sequence[Mapping[str, Any]], resumed: Sequence[Resumed]) -> bytes:
        limits = self._limits
        return frames.message(
            "welcome",
            session_id=session.id.hex(),
            node=limits.node,
            lease_ms=limits.lease_ms,
            renew_every_ms=limits.renew_every_ms,
            heartbeat_ms=limits.heartbeat_ms,
            max_frame_bytes=frames.FRAME_BYTES_MAX,
            max_output_bytes=limits.output_bytes_max,
            refused_handlers=refused,
            resumed=[
                _present(
                    attempt_id=item.attempt_id.hex(),
                    verdict=item.verdict,
                    lease_ms=item.lease_micros // 1000,
                    cancel=item.cancel,
                )
                for item in resumed
            ],
        )

    def _refuse(self, code: str, reason: str, *, close_code: int = POLICY_VIOLATION) -> None:
        self._socket.offer([frames.message("error", code=code, message=reason)])
        self._socket.close(close_code, f"{code}: {reason}")

    # The messages.

    def _serve(self, text: bytes | None, session: Session) -> bool:
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

    def _dispatch(self, envelope: frames.Envelope, text: bytes, session: Session) -> None:
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
                    self._dispatcher.capacity(session, frames.capacity_decoder.decode(text).capacity)
                except msgspec.DecodeError as error:
                    self._complain("INVALID_MESSAGE", str(error))
            case "drain":
                session.is_draining = True
            case unknown:
                self._complain("UNKNOWN_MESSAGE", f"there is no message {unknown[:64]!r}")

    def _spawn(
        self,
        handle: Callable[[frames.Envelope, Session], None],
        envelope: frames.Envelope,
        session: Session,
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

    def _start(self, envelope: frames.Envelope, session: Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.start_decoder)
        asked = [StartItem(bytes.fromhex(item.message_id), bytes.fromhex(item.attempt_id), item.token) for item in good]
        outcomes = self._decide(asked, lambda: self._execution.start(session, asked))
        answers: list[dict[str, Any]]
        if isinstance(outcomes, int):
            unsaid = {"granted": False, "code": "UNAVAILABLE", "retry_after_ms": outcomes}
            answers = [{"message_id": item.message_id} | unsaid for item in good]
        else:
            answers = [_started(outcome) for outcome in outcomes]
        answers += [
            {"message_id": item.message_id, "granted": False, "code": "INVALID_ITEM", "message": item.reason}
            for item in bad
            if item.message_id
        ]
        self._answer("started", answers, [item for item in bad if not item.message_id])

    def _result(self, envelope: frames.Envelope, session: Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.result_decoder)
        reports = [frames.report_of(item) for item in good]
        outcomes = self._decide(reports, lambda: self._execution.report(session, reports))
        answers: list[dict[str, Any]]
        if isinstance(outcomes, int):
            unsaid = {"receipt": "UNAVAILABLE", "retry_after_ms": outcomes}
            answers = [{"message_id": item.message_id} | unsaid for item in good]
        else:
            answers = [
                _present(
                    message_id=outcome.message_id.hex(),
                    receipt=outcome.receipt,
                    code=outcome.code,
                    task_state=outcome.task_state,
                )
                for outcome in outcomes
            ]
        answers += [
            {"message_id": item.message_id, "receipt": "REJECTED", "code": "INVALID_ITEM", "message": item.reason}
            for item in bad
            if item.message_id
        ]
        self._answer("recorded", answers, [item for item in bad if not item.message_id])

    def _renew(self, envelope: frames.Envelope, session: Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.claim_decoder)
        held = [Held(bytes.fromhex(item.attempt_id), item.token) for item in good]
        outcomes = self._decide(held, lambda: self._execution.renew(session, held))
        answers: list[dict[str, Any]]
        if isinstance(outcomes, int):
            answers = [{"attempt_id": item.attempt_id, "code": "UNAVAILABLE"} for item in good]
        else:
            answers = [_renewed(outcome) for outcome in outcomes]
        answers += [
            {"attempt_id": item.attempt_id, "code": "INVALID_ITEM", "message": item.reason}
            for item in bad
            if item.attempt_id
        ]
        self._answer("renewed", answers, [item for item in bad if not item.attempt_id])

    def _release(self, envelope: frames.Envelope, session: Session) -> None:
        good, bad = frames.read_items(envelope.items, frames.claim_decoder)
        held = [Held(bytes.fromhex(item.attempt_id), item.token) for item in good]
        outcomes = self._decide(held, lambda: self._execution.release(session, held))
        if isinstance(outcomes, int):
            answers = [{"attempt_id": item.attempt_id, "code": "UNAVAILABLE"} for item in good]
        else:
            answers = [
                {"attempt_id": item.attempt_id, "code": "RELEASED" if released else "NOT_HELD"}
                for item, released in zip(good, outcomes, strict=True)
            ]
        answers += [
            {"attempt_id": item.attempt_id, "code": "INVALID_ITEM", "message": item.reason}
            for item in bad
            if item.attempt_id
        ]
        self._answer("released", answers, [item for item in bad if not item.attempt_id])

    def _progress(self, envelope: frames.Envelope, _session: Session) -> None:
        """Keep progress; it has no answer, so what can't be kept is only complained about."""
        good, bad = frames.read_items(envelope.items, frames.progress_decoder)
        reports = [frames.progress_of(item) for item in good]

        def keep() -> Sequence[Any]:
            self._execution.progress(reports)
            return ()

        self._decide(reports, keep)
        self._answer("progress", [], bad)

    def _decide(self, items: Sequence[Any], ask: Callable[[], Sequence[OutcomeT]]) -> Sequence[OutcomeT] | int:
        """Ask the task layer; when it can't decide, return after how many milliseconds to ask again.

        A bug is answered likewise: a result that could not be recorded must stay with the worker.
        """
        if not items:
            return ()
        try:
            return ask()
        except Unavailable:
            return self._limits.retry_after_ms
        except Exception:
            log.exception("worker.frame_failed")
            return self._limits.bug_retry_after_ms

    def _answer(self, kind: str, answers: Sequence[Mapping[str, Any]], unanswered: Sequence[frames.BadItem]) -> None:
        """Send the answers of one message as one; items that can't be answered are complained about together."""
        texts = list(frames.item_messages(kind, answers))
        if unanswered:
            reason = f"{len(unanswered)} items can't be answered, the first: {unanswered[0].reason}"
            texts.append(frames.message("error", code="INVALID_ITEM", message=reason))
        if texts:
            self._socket.offer(texts)

    def _complain(self, code: str, reason: str) -> None:
        self._socket.offer([frames.message("error", code=code, message=reason)])


def _handlers(hello: frames.Hello) -> tuple[Handler, ...]:
    return tuple(
        Handler(item.type, version, RecoverySafety(item.recovery))
        for item in hello.handlers
        for version in item.versions
    )


def _refused(refusals: Sequence[HandlerRefusal]) -> list[dict[str, Any]]:
    """Write the handlers that contradict what their types are registered as."""
    return [
        {
            "type": refusal.handler.type,
            "versions": [refusal.handler.version],
            "code": "HANDLER_MISMATCH",
            "message": f"{refusal.handler.type}@{refusal.handler.version} is registered as {refusal.registered}, "
            f"this handler says {refusal.handler.recovery}",
        }
        for refusal in refusals
    ]


def _started(outcome: StartOutcome) -> dict[str, Any]:
    return _present(
        message_id=outcome.message_id.hex(),
        granted=outcome.granted,
        code=outcome.code,
        retry_after_ms=-(-outcome.retry_after_micros // 1000) or None,
        lease_ms=outcome.lease_micros // 1000,
    )


def _renewed(outcome: RenewOutcome) -> dict[str, Any]:
    lost = outcome.lease_micros is None
    return _present(
        attempt_id=outcome.attempt_id.hex(),
        code="LEASE_LOST" if lost else None,
        lease_ms=None if outcome.lease_micros is None else outcome.lease_micros // 1000,
        cancel=outcome.cancel,
    )


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
