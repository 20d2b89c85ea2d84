"""Loads the graphs of published versions for a node: small ones at once, large ones beside the event loop.

A transaction waits for its graph either way. In a thread of its own, not in the compiler's: whoever publishes must not
make instances wait.
"""

from __future__ import annotations

from api.native_thread import NativeThread
from definitions.graph import Graph
from definitions.registry import graph_of, version_get_content
from orbit.database import Transaction

# Loading so much takes about three milliseconds, and handing it to a thread and back a tenth of one.
_LARGE_BYTES = 64 * 1024


class GraphReader:
    """Reads for one node; what it has loaded is the caller's to keep."""

    def __init__(self) -> None:
        self._thread = NativeThread()

    def load(self, tx: Transaction, namespace_id: bytes, workflow: str, number: int) -> Graph:
        """Load a version's graph, its expressions uncompiled. Raises NotFound, UnknownGraphFormat."""
        content = version_get_content(tx, namespace_id, workflow, number)
        if len(content.graph) < _LARGE_BYTES:
            return graph_of(content)
        return self._thread.run(graph_of, content)

    def stop(self) -> None:
        """End its thread."""
        self._thread.stop()
