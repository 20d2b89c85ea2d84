"""What the worker socket needs of the task layer: the shapes that cross between the two, and nothing of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HandlerDeclaration:
    """A task type that a worker can run, in these versions, and what it says of their safety."""

    type: str
    versions: tuple[int, ...]
    recovery: str


@dataclass(frozen=True, slots=True)
class SessionHello:
    """A worker that wants tasks. `queues` are names, already checked against the credential's range."""

    namespace_id: bytes
    credential_id: bytes
    worker: str
    queues: tuple[str, ...]
    handlers: tuple[HandlerDeclaration, ...]
    capacity: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A claimed task on its way to a worker. Payloads are JSON text; spans are milliseconds."""

    task_id: bytes
    operation_id: bytes
    attempt_id: bytes
    token: str
    attempt: int
    fencing: str
    type: str
    version: int
    params_version: str
    queue: str
    params: bytes
    lease_ms: int
    deadline_in_ms: int
    attempt_timeout_ms: int
    checkpoint: bytes | None = None
    business_key: str | None = None
    labels: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class CancelNotice:
    """An attempt that should stop, and why."""

    attempt_id: bytes
    reason: str


class Outbox(Protocol):
    """Where the dispatcher leaves what a worker must be told; never blocks. False: the worker is gone."""

    def assign(self, assignments: Sequence[Assignment]) -> bool: ...  # noqa: D102
    def cancel(self, notices: Sequence[CancelNotice]) -> bool: ...  # noqa: D102
    def drain(self, spread_ms: int) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A worker asks whether it may start; the same message id gets the same answer."""

    message_id: bytes
    attempt_id: bytes
    token: str


@dataclass(frozen=True, slots=True)
class StartOutcome:
    """Granted, or the code of the refusal; RATE_LIMITED comes with the time after which to ask again."""

    granted: bool
    code: str | None = None
    retry_after_ms: int | None = None
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class AttemptClaim:
    """An attempt named with its execution credential: what renewals and releases carry."""

    attempt_id: bytes
    token: str


@dataclass(frozen=True, slots=True)
class RenewOutcome:
    """A longer lease, or the code of the refusal; `cancel` repeats a wanted cancel."""

    lease_ms: int | None = None
    code: str | None = None
    cancel: str | None = None


@dataclass(frozen=True, slots=True)
class ReportedError:
    """What a handler says of its failure. `details` is JSON text."""

    error_class: str
    code: str
    message: str
    details: bytes | None = None


@dataclass(frozen=True, slots=True)
class ResultReport:
    """What became of an attempt. `output` is JSON text as it was sent; `invalid` names why it can't be taken."""

    message_id: bytes
    attempt_id: bytes
    token: str
    outcome: str
    output: bytes | None = None
    output_ref: bytes | None = None
    ran: bool | None = None
    retry_after_ms: int | None = None
    error: ReportedError | None = None
    invalid: str | None = None


@dataclass(frozen=True, slots=True)
class ResultOutcome:
    """The receipt: ACCEPTED, DUPLICATE, LATE or REJECTED, and the task's state after it."""

    receipt: str
    code: str | None = None
    task_state: str | None = None


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far an attempt is; `details` is JSON text and becomes the next attempt's checkpoint."""

    attempt_id: bytes
    token: str
    percent: float | None = None
    note: str | None = None
    details: bytes | None = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """An attempt that a worker still has after a reconnect."""

    attempt_id: bytes
    token: str
    phase: str


@dataclass(frozen=True, slots=True)
class ResumeOutcome:
    """HELD, START_AGAIN, LOST or RECORDED; `cancel` repeats a wanted cancel."""

    verdict: str
    cancel: str | None = None


@dataclass(frozen=True, slots=True)
class RefusedHandler:
    """A declared handler that contradicts the registered type."""

    type: str
    versions: tuple[int, ...]
    code: str
    message: str


class Session(Protocol):
    """One connected worker as the dispatcher knows it."""

    @property
    def id(self) -> bytes: ...  # noqa: D102
    @property
    def refused_handlers(self) -> Sequence[RefusedHandler]: ...  # noqa: D102
    def set_capacity(self, capacity: int) -> None: ...  # noqa: D102
    def drain(self) -> None: ...  # noqa: D102
    def detach(self) -> None: ...  # noqa: D102


class Dispatcher(Protocol):
    """Hands claimed tasks to connected workers."""

    def attach(self, hello: SessionHello, outbox: Outbox) -> Session: ...  # noqa: D102


class Execution(Protocol):
    """What workers ask and report. Each call blocks its greenlet until COMMIT and gives one outcome per item, in order.

    Raises Unavailable when nothing could be decided.
    """

    def start(self, session_id: bytes, items: Sequence[StartRequest], /) -> Sequence[StartOutcome]: ...  # noqa: D102
    def renew(self, session_id: bytes, items: Sequence[AttemptClaim], /) -> Sequence[RenewOutcome]: ...  # noqa: D102
    def result(self, session_id: bytes, items: Sequence[ResultReport], /) -> Sequence[ResultOutcome]: ...  # noqa: D102
    def release(self, session_id: bytes, items: Sequence[AttemptClaim], /) -> Sequence[str]: ...  # noqa: D102
    def progress(self, session_id: bytes, items: Sequence[ProgressReport], /) -> Sequence[str]: ...  # noqa: D102
    def resume(self, session_id: bytes, items: Sequence[ResumeRequest], /) -> Sequence[ResumeOutcome]: ...  # noqa: D102
