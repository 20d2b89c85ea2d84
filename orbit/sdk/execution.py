"""Running one attempt's handler in a thread: params in, outcome out, whatever the handler does.

Coroutine handlers run on an event loop that their thread keeps; a cancel reaches them as asyncio's own cancellation.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from orbit.sdk import outcomes
from orbit.sdk.attempts import Attempt
from orbit.sdk.context import TaskContext
from orbit.sdk.outcomes import Outcome

log = logging.getLogger("orbit.worker")
task_log = logging.getLogger("orbit.task")


class Execution:
    """Turns a granted attempt into its outcome. `output_bytes_max` is asked anew each time: the server sets it."""

    def __init__(self, *, report: Callable[[str, dict[str, Any]], None], output_bytes_max: Callable[[], int]) -> None:
        self._report = report
        self._output_bytes_max = output_bytes_max
        self._local = threading.local()

    def run(self, attempt: Attempt) -> Outcome:
        """Run the handler; never raises. Blocks as long as the handler does."""
        handler = attempt.handler
        try:
            context = self._context(attempt)
            params = msgspec.json.decode(attempt.task.params)
            if handler.is_coroutine:
                output = self._run_coroutine(attempt, params, context)
            else:
                output = handler.function(params, context)
        except BaseException as error:  # sys.exit() in a handler must not end its thread
            if not isinstance(error, (outcomes.HandlerError, outcomes.Defer, outcomes.Cancelled)):
                log.warning("the handler of %s raised", attempt.task.type, exc_info=error)
            return outcomes.raised(error)
        return outcomes.succeeded(output, recovery=handler.recovery, bytes_max=self._output_bytes_max())

    def leave(self) -> None:
        """Close what this thread keeps: its event loop, if a coroutine ever ran here."""
        runner: asyncio.Runner | None = getattr(self._local, "runner", None)
        if runner is not None:
            runner.close()

    def _context(self, attempt: Attempt) -> TaskContext:
        task = attempt.task
        return TaskContext(
            task_id=task.task_id,
            operation_id=task.operation_id or task.task_id,
            attempt_id=task.attempt_id,
            attempt=task.attempt,
            fencing=task.fencing,
            type=task.type,
            version=task.version,
            queue=task.queue,
            params_version=task.params_version,
            business_key=task.business_key,
            labels=task.labels or {},
            traceparent=task.traceparent,
            deadline=attempt.deadline,
            checkpoint=msgspec.json.decode(task.checkpoint),
            cancelled=attempt.cancelled,
            logger=logging.LoggerAdapter(task_log, {"task_id": task.task_id, "attempt_id": task.attempt_id}),
            report=self._report,
        )

    def _run_coroutine(self, attempt: Attempt, params: Any, context: TaskContext) -> Any:
        runner: asyncio.Runner | None = getattr(self._local, "runner", None)
        if runner is None:
            runner = self._local.runner = asyncio.Runner()
        loop = runner.get_loop()

        async def main() -> Any:
            task = asyncio.current_task()
            assert task is not None
            attempt.cancelled.on_set(lambda: _cancel(loop, task))
            return await attempt.handler.function(params, context)

        return runner.run(main())


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    """Cancel from another thread; a task that has ended meanwhile takes no notice, a loop between tasks neither."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
