"""Find what a test left behind: threads, greenlets, child processes, pooled connections."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from orbit.database import Database
from tests.support.waiting import wait_until

# A worker that is on its way to a server has ten seconds for it, and its end does not wait for that thread.
SETTLE_SECONDS = 30.0


def threads() -> set[threading.Thread]:
    """Return the live threads, less those of tools that live as long as the process."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(("execnet", "gevent"))}


def greenlets() -> "set[Any]":
    """Return the live greenlets, less each thread's main one and gevent's hubs."""
    greenlet = sys.modules.get("greenlet")
    if greenlet is None:
        return set()
    hub = getattr(sys.modules.get("gevent.hub"), "Hub", ())
    running = {thread.ident for thread in threading.enumerate()}
    return {
        each
        for each in gc.get_objects()
        # By type: `isinstance` would ask a weak proxy for the class of what is gone.
        if issubclass(type(each), greenlet.greenlet) and each and each.parent is not None and not isinstance(each, hub)
        # What belongs to the hub of a thread that has ended never runs again.
        if getattr(each.parent, "thread_ident", None) in {None, *running}
    }


def children() -> set[int]:
    """Return the process ids of this process's children; one that has ended but was not waited for counts too."""
    path = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()}


def settle(what: str, leaked: Callable[[], Collection[object]]) -> None:
    """Fail, naming what is left, unless `leaked()` becomes empty soon: an ending thread needs a moment."""
    left = leaked()
    if not left:
        return
    gc.collect()
    try:
        wait_until(lambda: not leaked(), SETTLE_SECONDS)
    except AssertionError:
        message = f"{what} left behind: {', '.join(map(str, leaked()))}"
        raise AssertionError(message) from None


def checked_out(database: Database) -> list[str]:
    """Describe the pools that miss connections which nobody gave back."""
    return [
        f"{count} of pool {name}"
        for name, connections in database._connections.items()  # noqa: SLF001  (no part of production asks for it)
        if (count := connections.taken_count)
    ]
