"""The handlers of a worker: which function runs which version of which task type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orbit.sdk.errors import ConfigurationError
from orbit.sdk.outcomes import Recovery

Function = Callable[..., Any]

_REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})@([1-9][0-9]{0,8})\Z")


@dataclass(frozen=True, slots=True)
class Handler:
    """One registered function. `is_coroutine` functions run on an event loop of their thread."""

    type: str
    version: int
    recovery: Recovery
    function: Function
    is_coroutine: bool


class Handlers:
    """The handlers by (type, version)."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, int], Handler] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, reference: str, recovery: str | None, function: Function) -> None:
        """Register a function for `type@version`.

        Raises ConfigurationError for a malformed reference, a repeated one, a missing or unknown recovery safety, and
        versions of one type that declare different ones.
        """
        match = _REFERENCE.match(reference)
        if match is None:
            raise ConfigurationError(f'{reference!r} does not have the form "type@version", such as "mail.send@2"')
        if recovery not in set(Recovery):
            wrong = "is missing" if recovery is None else f"{recovery!r} is unknown"
            raise ConfigurationError(
                f"recovery of {reference} {wrong}: say REPLAY_SAFE (may run again at any time), VERIFY (ask by a "
                "verification task) or MANUAL (only a person decides)"
            )
        key = (match[1], int(match[2]))
        if key in self._by_key:
            raise ConfigurationError(f"{reference} has two handlers")
        is_coroutine = inspect.iscoroutinefunction(function)
        self._by_key[key] = Handler(*key, Recovery(recovery), function, is_coroutine)

    def find(self, task_type: str, version: int) -> Handler | None:
        """Return the handler of a task, None if this worker has none."""
        return self._by_key.get((task_type, version))

    def declared(self) -> list[dict[str, Any]]:
        """Return the `handlers` of the hello message: versions grouped by type and recovery safety."""
        grouped: dict[tuple[str, str], list[int]] = {}
        for handler in self._by_key.values():
            grouped.setdefault((handler.type, handler.recovery.value), []).append(handler.version)
        return [
            {"type": name, "versions": sorted(versions), "recovery": recovery}
            for (name, recovery), versions in sorted(grouped.items())
        ]
