"""Pulse as the engine's task layer: submit, cancel and read outputs inside the engine's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.ports import Terms
from orbit.errors import OrbitError
from pulse.acceptance import takings_take
from pulse.cancellation import Cancel, tasks_cancel
from pulse.gates import gate_close, gate_create, gate_open
from pulse.owned import OwnedVerdict, owned_continued, owned_settle
from pulse.settle import Surroundings
from pulse.submission import Submit, tasks_submit
from pulse.tasks import outputs_get

if TYPE_CHECKING:
    from orbit.database import Transaction


class PulseTasks:
    """The task layer of `engine.ports`. `around` are the listeners and wake-ups that Pulse itself uses."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def submit(self, tx: Transaction, submits: Sequence[Submit], terms: Terms) -> list[OrbitError | None]:
        """Submit tasks; for each, in order, None or the refusal."""
        if any(submit.request.retry_of is not None for submit in submits):
            requests = owned_continued(tx, [submit.request for submit in submits])
            submits = [replace(submit, request=request) for submit, request in zip(submits, requests, strict=True)]
        outcomes = tasks_submit(tx, submits, self._around, takings=terms.takings, now=terms.now)
        return [outcome if isinstance(outcome, OrbitError) else None for outcome in outcomes]

    def takings_take(self, tx: Transaction, terms: Terms) -> None:
        """Take what submissions have left for the end. Raises BacklogShort, and RunAgain where permits are short."""
        if terms.takings is not None:
            takings_take(tx, terms.takings)

    def cancel(self, tx: Transaction, cancels: Sequence[Cancel]) -> None:
        """Ask tasks to stop; one that has already ended stays as it is."""
        tasks_cancel(tx, cancels, self._around)

    def settle(self, tx: Transaction, verdict: OwnedVerdict) -> None:
        """Settle a task under review as its owner. Raises StateConflict if it no longer is."""
        owned_settle(tx, verdict, self._around)

    def gate_close(self, tx: Transaction, namespace_id: bytes, instance_id: bytes) -> int:
        """Let no task of an instance begin any more; return how many still run."""
        gate_create(tx, instance_id, namespace_id=namespace_id)
        return gate_close(tx, instance_id, self._around)

    def gate_open(self, tx: Transaction, instance_id: bytes) -> None:
        """Let the tasks of an instance go on."""
        gate_open(tx, instance_id, self._around)

    def outputs(self, tx: Transaction, task_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Read the outputs of tasks as JSON text; one without an output is absent."""
        return outputs_get(tx, task_ids)
