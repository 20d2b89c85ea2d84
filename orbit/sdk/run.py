"""`orbit worker module:worker`: find a worker by name, or by its file, and run it."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType

from orbit.sdk.errors import ConfigurationError
from orbit.sdk.worker import Worker


def load_worker(target: str) -> Worker:
    """Import `module:attribute` or `file.py:attribute`; raise ConfigurationError in one line if it is no Worker."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigurationError(f"{target!r} does not have the form module:worker")
    worker = getattr(_module(module_name), attribute, None)
    if not isinstance(worker, Worker):
        raise ConfigurationError(f"{target} is not an orbit.Worker")
    return worker


def _module(name: str) -> ModuleType:
    """Import a module by its dotted name, the current folder first, or a file by its path, its own folder first."""
    folder = str(Path(name).resolve().parent if name.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    dotted = Path(name).stem if name.endswith(".py") else name
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name is None or not (dotted == error.name or dotted.startswith(error.name + ".")):
            raise
        raise ConfigurationError(f"there is no module {name!r} here or on the path") from None


def _show_log() -> None:
    """Tell on standard error what the worker does, unless the user's module has set up its own logging."""
    if logging.getLogger().handlers:
        return
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("orbit.worker", "orbit.task"):
        logging.getLogger(name).setLevel(logging.INFO)


def run_worker(
    target: str, *, capacity: int | None = None, queues: tuple[str, ...] = (), drain_seconds: float | None = None
) -> int:
    """Run a worker until it is told to stop; return the process's exit code: 0 when it drained.

    The arguments, where given, win over what the worker's module says. Raises OrbitSDKError for what is wrong with the
    target, the settings or the credential.
    """
    worker = load_worker(target)
    _show_log()
    if capacity is not None:
        worker.capacity = capacity
    if queues:
        worker.queues = queues
    if drain_seconds is not None:
        worker.drain_seconds = drain_seconds
    drained = worker.run()
    if not drained:
        # Exit code 0 all the same: what did not end in time was handed back, which is the orderly way.
        logging.getLogger("orbit.worker").warning("some tasks did not end in time and were handed back")
    return 0
