"""A worker that writes down every execution, for tests with processes: `orbit worker tests.support.recording:worker`.

One line of JSON where a handler begins and one where it ends, appended in one write, so that any number of processes
may share the file and a killed one leaves no half line. It runs the payout example's own handlers, and handlers that
last as long as a test says.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.payout import worker as payout
from orbit import Worker
from orbit.sdk.context import TaskContext

RECORD_FILE = "RECORD_FILE"
RECORD_TYPES = "RECORD_TYPES"
RECORD_SECONDS = "RECORD_SECONDS"
LOOK_SECONDS = 0.02

Handler = Callable[[Any, TaskContext], Any]


@dataclass(frozen=True, slots=True)
class Line:
    """Something that a handler did; `at_ns` is the machine's monotonic clock, the same in every process."""

    event: str
    pid: int
    type: str
    task_id: str
    operation_id: str
    attempt_id: str
    attempt: int
    at_ns: int
    reason: str | None = None


def lines_read(path: Path) -> list[Line]:
    """Read what was recorded so far."""
    if not path.exists():
        return []
    return [Line(**json.loads(text)) for text in path.read_text().splitlines()]


def recorded(handler: Handler) -> Handler:
    """Return a handler that records itself and does what `handler` does."""

    def run(params: Any, context: TaskContext) -> Any:
        _write("begin", context)
        try:
            context.cancelled.wait(float(os.environ.get(RECORD_SECONDS, "0")))
            return handler(params, context)
        finally:
            _write("end", context)

    return run


def work(params: Any, context: TaskContext) -> Any:
    """Run for `seconds`, or until the file `until` exists; a handler that is told to stop does so at once."""
    until = Path(params["until"]) if "until" in params else None
    ends_at = time.monotonic() + params.get("seconds", 0.0)
    while (not until.exists()) if until else (time.monotonic() < ends_at):
        left = LOOK_SECONDS if until else max(0.0, ends_at - time.monotonic())
        if context.cancelled.wait(left):
            context.raise_if_cancelled()
    return {"number": params.get("number")}


HANDLERS: dict[str, tuple[str, Handler]] = {
    "payout.validate@1": ("REPLAY_SAFE", payout.validate),
    "ledger.reserve@1": ("REPLAY_SAFE", payout.reserve),
    "mail.send@2": ("REPLAY_SAFE", payout.send),
    "bank.submit@2": ("MANUAL", payout.submit),
    "bank.query@1": ("REPLAY_SAFE", payout.query),
    "work.safe@1": ("REPLAY_SAFE", work),
    "work.other@1": ("REPLAY_SAFE", work),
    "work.manual@1": ("MANUAL", work),
}


def _write(event: str, context: TaskContext) -> None:
    line = Line(
        event=event,
        pid=os.getpid(),
        type=context.type,
        task_id=context.task_id,
        operation_id=context.operation_id,
        attempt_id=context.attempt_id,
        attempt=context.attempt,
        at_ns=time.monotonic_ns(),
        reason=context.cancelled.reason,
    )
    descriptor = os.open(os.environ[RECORD_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(asdict(line)).encode() + b"\n")
    finally:
        os.close(descriptor)


def _make() -> Worker:
    made = Worker(queues=["main"])
    chosen = os.environ.get(RECORD_TYPES, "").split(",")
    for reference, (recovery, handler) in HANDLERS.items():
        if chosen == [""] or reference.partition("@")[0] in chosen:
            made.task(reference, recovery=recovery)(recorded(handler))
    return made


worker = _make()
