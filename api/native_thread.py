"""A native thread of a node's own for work that would hold the event loop: compiling, comparing, drawing, loading.

The loop and the thread take turns at the interpreter, and `server.serve` makes the turns short. What one call of C code
does is done in one turn, in the thread too. The surprising rule: who is in a native thread already, as with an embedded
database, works right there, since only the loop's own thread can wait for another without holding it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from gevent import get_hub
from gevent.monkey import get_original
from gevent.threadpool import ThreadPool

ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")

_thread_id: Callable[[], int] = get_original("_thread", "get_ident")


class NativeThread:
    """One thread, so that a burst of heavy work can't take the processor from the loop."""

    def __init__(self) -> None:
        self._pool = ThreadPool(1)
        self._loop_thread = get_hub().thread_ident

    def run(
        self, work: Callable[ArgumentsT, ResultT], *arguments: ArgumentsT.args, **named: ArgumentsT.kwargs
    ) -> ResultT:
        """Do the work there and return its result or raise its error; other greenlets go on meanwhile."""
        if _thread_id() != self._loop_thread:
            return work(*arguments, **named)

        def guarded() -> tuple[ResultT, None] | tuple[None, Exception]:
            # Handed over, not raised: gevent prints whatever a pool's task raises, and a refusal is no news.
            try:
                return work(*arguments, **named), None
            except Exception as error:  # noqa: BLE001  (it is raised below, in the caller)
                return None, error

        result, error = self._pool.apply(guarded)
        if error is not None:
            raise error
        return cast("ResultT", result)

    def stop(self) -> None:
        """End the thread."""
        self._pool.kill()
