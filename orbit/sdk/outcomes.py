"""How a handler says what became of its work, and how that is written on the wire.

A handler returns its output or raises one of these; any other exception is UNCLASSIFIED, and the task type's recovery
safety decides. The surprising rule: an output that can't be sent (NaN, no JSON, too large) happens after the work was
done, so it is never an unclassified failure: a REPLAY_SAFE task fails, any other goes to a person.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any

import msgspec

from orbit import jsontext
from orbit.sdk.type_models import OutputReference

ERROR_MESSAGE_LENGTH_MAX = 1_000
ERROR_DETAILS_BYTES_MAX = 4_096


class Recovery(StrEnum):
    """What may be done with a task whose outcome is unknown; declared per handler, without a default."""

    REPLAY_SAFE = "REPLAY_SAFE"  # run it again, even while an earlier attempt may still run
    VERIFY = "VERIFY"  # ask the outside world by the type's verification task
    MANUAL = "MANUAL"  # only a person may decide


class FailureClass(StrEnum):
    """What a failure means for what comes next."""

    RETRYABLE = "RETRYABLE"
    NON_RETRYABLE = "NON_RETRYABLE"
    UNKNOWN_OUTCOME = "UNKNOWN_OUTCOME"
    NEEDS_HUMAN = "NEEDS_HUMAN"
    UNCLASSIFIED = "UNCLASSIFIED"


class HandlerError(Exception):
    """The root of what a handler raises on purpose. `code` is the caller's own word, `details` any small JSON."""

    failure_class = FailureClass.UNCLASSIFIED

    def __init__(self, message: str = "", *, code: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else type(self).__name__
        self.details = details


class Retryable(HandlerError):
    """Nothing was done, or doing it again is safe: try again, not before `retry_after_seconds` if that is given."""

    failure_class = FailureClass.RETRYABLE

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        details: Any = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, code=code, details=details)
        self.retry_after_seconds = retry_after_seconds


class NonRetryable(HandlerError):
    """It failed and would fail again: the task ends FAILED."""

    failure_class = FailureClass.NON_RETRYABLE


class UnknownOutcome(HandlerError):
    """It may or may not have been done: the recovery safety decides."""

    failure_class = FailureClass.UNKNOWN_OUTCOME


class NeedsHuman(HandlerError):
    """A person must look at it, whatever the recovery safety."""

    failure_class = FailureClass.NEEDS_HUMAN


class Defer(Exception):
    """Not now: hand the task back and offer it again after so many seconds. Costs no attempt."""

    def __init__(self, seconds: float) -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError("Defer takes a number of seconds, 0 or more")
        super().__init__(f"deferred for {seconds:g} s")
        self.seconds = seconds


class Cancelled(Exception):
    """The handler stopped because it was told to; `context.raise_if_cancelled()` raises it."""


class WireError(msgspec.Struct, omit_defaults=True, rename={"failure_class": "class"}):
    """The `error` of a result item."""

    failure_class: str
    code: str
    message: str
    details: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Outcome(msgspec.Struct):
    """What became of one attempt, ready for the wire."""

    outcome: str
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    output_ref: OutputReference | msgspec.UnsetType = msgspec.UNSET
    error: WireError | msgspec.UnsetType = msgspec.UNSET
    ran: bool | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET


NOT_RUN = Outcome("RETURNED", ran=False)
RAN = Outcome("RETURNED", ran=True)


def succeeded(output: Any, *, recovery: Recovery, bytes_max: int) -> Outcome:
    """Write a handler's output, or where it lies; one that can't be sent becomes a failure."""
    if isinstance(output, OutputReference):
        return Outcome("SUCCEEDED", output_ref=output)
    try:
        text = jsontext.dumps(output)
    except (TypeError, ValueError, RecursionError) as error:
        return _unsendable("OUTPUT_NOT_JSON", f"the handler's output is not JSON: {error}", recovery)
    if len(text) > bytes_max:
        message = f"the handler's output has {len(text)} bytes, at most {bytes_max} may be sent: return a reference"
        return _unsendable("OUTPUT_TOO_LARGE", message, recovery)
    return Outcome("SUCCEEDED", output=msgspec.Raw(text))


def raised(error: BaseException) -> Outcome:
    """Turn what a handler raised into its outcome."""
    if isinstance(error, Defer):
        return Outcome("DEFERRED", retry_after_ms=round(error.seconds * 1000))
    if isinstance(error, (Cancelled, asyncio.CancelledError)):
        return Outcome("CANCELLED")
    if isinstance(error, HandlerError):
        outcome = failed(error.failure_class, error.code, error.message, details=error.details)
        if isinstance(error, Retryable) and error.retry_after_seconds is not None:
            outcome.retry_after_ms = max(0, round(error.retry_after_seconds * 1000))
        return outcome
    return failed(FailureClass.UNCLASSIFIED, type(error).__name__, str(error))


def failed(failure_class: FailureClass, code: str, message: str, *, details: Any = None) -> Outcome:
    """Write a failure; details that can't be sent are left out, since the failure itself must arrive."""
    wire = WireError(failure_class.value, _sendable(code)[:128], _sendable(message)[:ERROR_MESSAGE_LENGTH_MAX])
    if details is not None:
        try:
            text = jsontext.dumps(details)
        except (TypeError, ValueError, RecursionError):
            text = b""
        if 0 < len(text) <= ERROR_DETAILS_BYTES_MAX:
            wire.details = msgspec.Raw(text)
    return Outcome("FAILED", error=wire)


def _unsendable(code: str, message: str, recovery: Recovery) -> Outcome:
    replay_safe = recovery is Recovery.REPLAY_SAFE
    return failed(FailureClass.NON_RETRYABLE if replay_safe else FailureClass.NEEDS_HUMAN, code, message)


def _sendable(text: str) -> str:
    """Replace lone surrogates (they come from undecodable file names), which no frame can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
