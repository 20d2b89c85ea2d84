"""What a handler gets beside its params: who it is, how long it may run, and whether it should stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orbit import jsontext
from orbit.sdk.outcomes import Cancelled

PROGRESS_DETAILS_BYTES_MAX = 4_096


class CancelReason(StrEnum):
    """Why a handler should stop."""

    CANCEL_REQUESTED = "CANCEL_REQUESTED"  # someone cancelled the task
    LEASE_LOST = "LEASE_LOST"  # another worker may run the task now: stop outside effects
    TIMED_OUT = "TIMED_OUT"  # this attempt's time or the task's deadline has passed
    DRAINING = "DRAINING"  # this worker's exit time is over


class CancelSignal:
    """An event with a reason; set at most once, from any thread."""

    __slots__ = ("_callbacks", "_event", "_lock", "reason")

    def __init__(self) -> None:
        self.reason: CancelReason | None = None
        # Most attempts never wait on it, so the costly event is made by the first who does.
        self._event: threading.Event | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Tell whether the handler should stop."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the handler should stop, at most `timeout` seconds; return whether it should."""
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self.reason is not None:
                    self._event.set()
            event = self._event
        return event.wait(timeout)

    def set(self, reason: CancelReason) -> bool:
        """Tell the handler to stop; return False if it was told before."""
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            if self._event is not None:
                self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call back once when set, or at once if it is."""
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        callback()


@dataclass(frozen=True, slots=True)
class TaskContext:
    """One attempt as its handler sees it.

    `operation_id` stays the same through all retries: use it as the idempotency key of outside calls. `fencing` rises
    with every attempt: hand it to systems that can refuse an older one. `deadline` is an instant of this machine's
    `time.monotonic()`. `checkpoint` is what the previous attempt last gave to `progress(details=...)`.
    """

    task_id: str
    operation_id: str
    attempt_id: str
    attempt: int
    fencing: str
    type: str
    version: int
    queue: str
    params_version: str
    business_key: str | None
    labels: dict[str, str]
    traceparent: str | None
    deadline: float
    checkpoint: Any
    cancelled: CancelSignal
    logger: logging.LoggerAdapter[logging.Logger] = field(repr=False)
    report: Callable[[str, dict[str, Any]], None] = field(repr=False)

    @property
    def remaining_seconds(self) -> float:
        """Return how long this attempt may still run; 0 when it may not."""
        return max(0.0, self.deadline - time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled when the handler should stop: the short way out of a loop."""
        if self.cancelled.reason is not None:
            raise Cancelled(self.cancelled.reason.value)

    def progress(self, percent: float | None = None, note: str | None = None, *, details: Any = None) -> None:
        """Report how far the work is; the last report is kept, its details are the next attempt's checkpoint.

        Raises ValueError for a percent outside 0 to 100, and for details that are not JSON or over 4 096 bytes.
        """
        item: dict[str, Any] = {}
        if percent is not None:
            if not 0 <= percent <= 100:  # noqa: PLR2004  # per cent
                raise ValueError("percent is a number from 0 to 100")
            item["percent"] = percent
        if note is not None:
            item["note"] = note[:1_000].encode("utf-8", "replace").decode("utf-8")
        if details is not None:
            if len(jsontext.dumps(details)) > PROGRESS_DETAILS_BYTES_MAX:
                raise ValueError(f"progress details have at most {PROGRESS_DETAILS_BYTES_MAX} bytes of JSON")
            item["details"] = details
        self.report(self.attempt_id, item)
