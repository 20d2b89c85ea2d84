"""What the SDK raises: one class for each decision that a caller can take.

`APIError` is an answer of the server. `ConnectionFailed` is no answer, with nothing done. `OutcomeUnknown` is no answer
to a write that may have been done: it names the key with which the same command may be sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RETRY_AFTER_SECONDS_MAX = 3600


class OrbitSDKError(Exception):
    """The root of what the SDK raises."""


class ConfigurationError(OrbitSDKError):
    """A setting is missing or wrong; the message is one line and names it."""


class ConnectionFailed(OrbitSDKError):
    """The server was not reached, or a read got no answer; nothing was changed."""


class OutcomeUnknown(ConnectionFailed):
    """A write got no answer: it may have been done. Send the same command again with `key`, never with a new one.

    A batch has several: `keys` are all of them.
    """

    def __init__(self, operation: str, keys: Sequence[str], cause: str) -> None:
        self.operation = operation
        self.keys = tuple(keys)
        self.key = self.keys[0]
        named = repr(self.key) if len(self.keys) == 1 else ", ".join(map(repr, self.keys))
        super().__init__(
            f"the outcome of {operation} is unknown ({cause}); send the same command again with key {named}"
        )


class APIError(OrbitSDKError):
    """The server refused: `code` and `status` say why, `retry_after` in whole seconds when to ask again (0: unsaid)."""

    def __init__(
        self, error: Mapping[str, Any], *, status: int, request_id: str = "", retry_after: float = 0.0
    ) -> None:
        self.code = str(error.get("code", ""))
        self.status = status
        self.message = str(error.get("message", ""))
        self.request_id = request_id
        self.details: Any = error.get("details")
        self.retry_after = retry_after
        super().__init__(f"{self.code} ({status}): {self.message}{self._place()}")

    def _place(self) -> str:
        """Name the field that is wrong, where the message does not."""
        pointer = self.details.get("pointer") if isinstance(self.details, Mapping) else None
        return f" (at {pointer})" if isinstance(pointer, str) and pointer and not self._names(pointer) else ""

    def _names(self, pointer: str) -> bool:
        return pointer in self.message or f"'{pointer.rpartition('/')[2]}'" in self.message


class WorkerRefused(OrbitSDKError):
    """The server does not take this worker: its credential, its queues or its handlers are wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def parse_retry_after(value: str | None) -> float:
    """Read a `Retry-After` header: whole seconds up to an hour; anything else is 0.

    A date is not read either: it would compare two clocks.
    """
    if value is None:
        return 0.0
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(RETRY_AFTER_SECONDS_MAX)):
        return 0.0
    seconds = int(text)
    return float(seconds) if seconds <= RETRY_AFTER_SECONDS_MAX else 0.0
