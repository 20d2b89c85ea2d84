"""`orbit.Worker`: a process that runs handlers for tasks."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from orbit.sdk import settings
from orbit.sdk.errors import ConfigurationError, ConnectionFailed
from orbit.sdk.handlers import Handlers
from orbit.sdk.loop import LoopOptions, WorkerLoop

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

CAPACITY_MAX = 10_000
SDK_NAME = "orbit-python/0.1.0"


class Worker:
    """A set of handlers and the queues they serve.

    `capacity` is how many tasks run at once, each in a thread. `drain_seconds` is how long a stop waits for what runs.
    `connection` is where to connect; without it the environment says so, anew at every connection.
    """

    def __init__(
        self,
        *,
        queues: Sequence[str],
        capacity: int = 8,
        name: str | None = None,
        drain_seconds: float = 30.0,
        connection: settings.Connection | None = None,
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise ConfigurationError("queues is a list with at least one queue name")
        if not 1 <= capacity <= CAPACITY_MAX:
            raise ConfigurationError(f"capacity is a number from 1 to {CAPACITY_MAX}")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.queues = tuple(queues)
        self.capacity = capacity
        self.drain_seconds = drain_seconds
        self._connection = connection
        self._handlers = Handlers()
        self._loop: WorkerLoop | None = None
        self._thread: threading.Thread | None = None
        self._drained = False
        self._failure: BaseException | None = None

    def task(self, reference: str, *, recovery: str | None = None) -> Callable[[FunctionT], FunctionT]:
        """Register a handler `(params, context)` for `type@version`, a plain function or a coroutine function.

        `recovery` says what may be done when its outcome is unknown and has no default. Raises ConfigurationError.
        """

        def register(function: FunctionT) -> FunctionT:
            self._handlers.add(reference, recovery, function)
            return function

        return register

    def run(self) -> bool:
        """Run in this thread until SIGTERM, SIGINT or `stop`; return whether everything that ran could end.

        In the main thread the two signals start the drain; a second one ends it at once. Raises WorkerRefused or
        ConfigurationError when the server does not take this worker.
        """
        loop = self._new_loop()
        with _signals(loop):
            return loop.run()

    def start(self, *, timeout: float = 30.0) -> None:
        """Run in a thread of its own; return when connected.

        Raises what `run` raises, and ConnectionFailed if there is no connection within `timeout` seconds.
        """
        loop = self._new_loop()
        self._failure = None
        self._thread = threading.Thread(target=self._main, args=(loop,), name=f"{self.name}-loop", daemon=True)
        self._thread.start()
        connected = loop.connected.wait(timeout)
        if self._failure is not None:
            raise self._failure
        if not connected:
            self.stop()
            raise ConnectionFailed(f"the worker was not connected within {timeout:g} s")

    def stop(self) -> None:
        """Begin the drain: take nothing more, let what runs end within `drain_seconds`."""
        if self._loop is not None:
            self._loop.stop()

    def drain(self, *, timeout: float | None = None) -> bool:
        """Stop a worker that was started by `start` and wait for its end; return whether everything could end."""
        self.stop()
        if self._thread is not None:
            self._thread.join(self.drain_seconds + 10 if timeout is None else timeout)
            return not self._thread.is_alive() and self._drained
        return True

    def _new_loop(self) -> WorkerLoop:
        if not len(self._handlers):
            raise ConfigurationError("this worker has no handler: register one with @worker.task")
        connection = self._connection
        options = LoopOptions(
            name=self.name,
            queues=self.queues,
            capacity=self.capacity,
            drain_seconds=self.drain_seconds,
            connection=settings.from_environment if connection is None else lambda: connection,
            sdk=SDK_NAME,
        )
        self._loop = WorkerLoop(options, self._handlers)
        return self._loop

    def _main(self, loop: WorkerLoop) -> None:
        try:
            self._drained = loop.run()
        except BaseException as error:  # noqa: BLE001  # handed to the thread that called `start`
            self._failure = error
            loop.connected.set()


@contextmanager
def _signals(loop: WorkerLoop) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into a drain while the loop runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    signalled: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        loop.stop(hurry=bool(signalled))
        signalled.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
