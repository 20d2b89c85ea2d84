"""What the engine needs from its surroundings: the task layer inside its transaction, and published graphs.

`pulse_tasks` is the one implementation of the task layer; the composition root gives the graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from definitions.graph import Graph
from definitions.graph_json import UnknownGraphFormat
from definitions.registry import VersionToStart
from engine.flow import Flow
from engine.hiding import Hiding
from orbit.clock import Micros
from orbit.errors import OrbitError, Unavailable
from pulse.cancellation import Cancel
from pulse.listener import Takings
from pulse.owned import OwnedVerdict
from pulse.submission import Submit

if TYPE_CHECKING:
    from engine.store.instances import Stored
    from orbit.database import Transaction

FLOWS_KEPT = 512


@dataclass(slots=True)
class Terms:
    """On what terms one advance submits: its instant, and where to count what it takes of queues' counters at its end.

    `takings` None asks for each place at once: slower, but then a full queue refuses a task and not the transaction.
    """

    now: Micros
    takings: Takings | None


class TaskLayer(Protocol):
    """Pulse, as the engine uses it: everything inside the engine's own transaction, after its instances are locked."""

    def submit(self, tx: Transaction, submits: Sequence[Submit], terms: Terms) -> list[OrbitError | None]:
        """Submit tasks; for each, in order, None or the refusal."""

    def takings_take(self, tx: Transaction, terms: Terms) -> None:
        """Take what submissions have left for the end; as the transaction's last writes.

        Raises BacklogShort where they are not all free.
        """

    def cancel(self, tx: Transaction, cancels: Sequence[Cancel]) -> None:
        """Ask tasks to stop; one that has already ended stays as it is."""

    def settle(self, tx: Transaction, verdict: OwnedVerdict) -> None:
        """Settle a task under review as its owner. Raises StateConflict if it no longer is."""

    def gate_close(self, tx: Transaction, namespace_id: bytes, instance_id: bytes) -> int:
        """Let no task of an instance begin any more; return how many still run."""

    def gate_open(self, tx: Transaction, instance_id: bytes) -> None:
        """Let the tasks of an instance go on."""

    def outputs(self, tx: Transaction, task_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Read the outputs of tasks as JSON text; one without an output is absent."""


# Find the version to start inside the transaction; raises NotFound, or StateConflict if it takes no starts.
VersionFinder = Callable[["Transaction", bytes, str, int | None], VersionToStart]

# Load a published version's graph inside a transaction; raises NotFound if there is none.
GraphLoader = Callable[["Transaction", bytes, str, int], Graph]


class Flows:
    """The graphs of published versions, made ready once and kept while they are used. A version never changes."""

    def __init__(self, load: GraphLoader, *, kept: int = FLOWS_KEPT) -> None:
        self.load = load
        self._kept = kept
        self._flows: OrderedDict[tuple[bytes, str, int], Flow] = OrderedDict()

    def get(self, tx: Transaction, namespace_id: bytes, workflow: str, version: int) -> Flow:
        """Give a version's flow; raises NotFound, and Unavailable for a graph that only a newer node can read."""
        key = (namespace_id, workflow, version)
        flow = self._flows.get(key)
        if flow is None:
            try:
                graph = self.load(tx, namespace_id, workflow, version)
            except UnknownGraphFormat as unknown:
                raise Unavailable(f"version {version} of {workflow}: {unknown}") from unknown
            flow = Flow(graph)
            self._flows[key] = flow
            if len(self._flows) > self._kept:
                self._flows.popitem(last=False)
        else:
            self._flows.move_to_end(key)
        return flow


def hiding_known(tx: Transaction, flows: Flows, stored: Stored) -> Hiding | None:
    """Give what must not be shown of an instance, None if only a newer node can read that."""
    origin = stored.origin
    try:
        return flows.get(tx, origin.namespace_id, origin.workflow, origin.version).hiding
    except Unavailable:
        return None
