"""Instances that schedules want: Pulse decides when and how often, this starts them inside its transaction.

The surprising rule: the start has the schedule and the instant as its identity, so it has a receipt like any other; but
what keeps it from happening twice is the schedule's row, which the caller holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from engine.hiding import Hiding, values_shown
from engine.ports import Flows, VersionFinder
from engine.start import Starter, StartRequest
from engine.states import INSTANCE_TERMINAL
from engine.store.instances import instances_read
from orbit.canonical import digest
from orbit.errors import InvalidRequest, OrbitError, PayloadTooLarge
from orbit.idempotency import Command
from orbit.jsontext import Json
from pulse.listener import InstanceStart

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class ScheduledInstances:
    """The maker that Pulse's schedules are given. `on_started` is told as a `Starter` tells it."""

    def __init__(
        self, starter: Starter, flows: Flows, find_version: VersionFinder, *, on_started: Callable[[Micros], None]
    ) -> None:
        self._starter = starter
        self._flows = flows
        self._find_version = find_version
        self._on_started = on_started

    def check(self, tx: Transaction, wanted: InstanceStart) -> None:
        """Refuse what could not be started now; pointers lead into the schedule's `workflow`."""
        try:
            self._starter.check(tx, _request(wanted))
        except (InvalidRequest, PayloadTooLarge) as error:
            pointer = (error.details or {}).get("pointer", "")
            raise type(error)(error.message, pointer=f"/workflow{pointer}") from None

    def start_all(self, tx: Transaction, wanted: Sequence[InstanceStart]) -> list[bytes | OrbitError]:
        """Start instances; for each its id or the refusal."""
        outcomes, due_in = self._starter.start_all(tx, [_request(each) for each in wanted])
        if due_in is not None:
            tx.after_commit(lambda: self._on_started(due_in))
        return [outcome if isinstance(outcome, OrbitError) else outcome.subject_id for outcome in outcomes]

    def unfinished(self, tx: Transaction, instance_ids: Collection[bytes]) -> set[bytes]:
        """Return those of some instances that have not ended."""
        found = instances_read(tx, list(instance_ids))
        return {key for key, stored in found.items() if stored.instance.state not in INSTANCE_TERMINAL}

    def input_shown(self, tx: Transaction, wanted: InstanceStart) -> Json:
        """Return an input with what its workflow hides masked; all of it, where no version of that can be found."""
        hiding: Hiding | None = None
        try:
            version, _ = self._find_version(tx, wanted.namespace_id, wanted.workflow, wanted.version)
            hiding = self._flows.get(tx, wanted.namespace_id, wanted.workflow, version).hiding
        except OrbitError as error:
            if error.retryable:
                raise
        return values_shown(hiding, {"input": json.loads(wanted.input), "output": None})["input"]


def _request(wanted: InstanceStart) -> StartRequest:
    said = {"workflow": wanted.workflow, "version": wanted.version, "input": json.loads(wanted.input)}
    schedule_id = wanted.schedule_id.hex()
    return StartRequest(
        command=Command(wanted.namespace_id, "schedule.fire", schedule_id, str(wanted.scheduled_at), digest(said)),
        workflow=wanted.workflow,
        version=wanted.version,
        input=said["input"],
        started_by=f"schedule:{schedule_id}",
        queues=wanted.queues,
        business_key=wanted.business_key,
        labels=wanted.labels,
    )
