"""Keeps Python's garbage collector from looking at what is being built: all of it is kept, and looking costs 40 %.

It looks once when this is over, in one go, at all that is left: what was only needed meanwhile has to be gone by then,
and what is kept should be little that the collector knows of (`gc=False` for what has no cycles).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause it. Whoever found it running starts it again, so it never stays off, also with several threads."""
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()
