"""Who is told, inside the transaction, that a task it owns has changed. Pulse knows no owner: one is registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from orbit.clock import Micros

if TYPE_CHECKING:
    from orbit.database import Transaction
    from orbit.errors import OrbitError
    from orbit.jsontext import Json
    from pulse.states import TaskState


class TaskOwner(Struct, frozen=True):
    """The workflow step that a task works for; `round` counts a poll's rounds from 1, and is 1 for a plain step."""

    instance_id: bytes
    step: str
    round: int = 0


class TaskChange(Struct, frozen=True):
    """An owned task ended, or went into or out of review; `error` is the JSON text of its failure.

    With `is_late_success` it had ended before, otherwise, and now a worker has reported that it did its work all the
    same; `state` is what it stays. `hidden` are the paths of the error that its type masks: its owner needs it whole.
    """

    owner: TaskOwner
    task_id: bytes
    state: TaskState
    error: str | None
    is_late_success: bool = False
    hidden: tuple[str, ...] = ()


@dataclass(slots=True)
class Takings:
    """What submissions have left for the caller to take from the queues' counters, as its transaction's last writes.

    `places` are those in the backlogs, `leases` the permits of tasks that were handed out as they were made, and `left`
    those that must be left for what waits already.
    """

    places: Counter[bytes] = field(default_factory=Counter)
    leases: Counter[bytes] = field(default_factory=Counter)
    left: Counter[bytes] = field(default_factory=Counter)
    leased_at: Micros = 0


class BacklogShort(Exception):
    """Not all of a batch's places are free: roll back, and submit without leaving the places for later."""


class FollowLater(Exception):
    """Owners can't follow their tasks' ends inside this transaction: roll back, and let them be told only."""


class TaskListener(Protocol):
    """Told of owned tasks' changes and of quiet gates in the transaction that makes them: pure inserts, no locks."""

    def tasks_changed(self, tx: Transaction, changes: Sequence[TaskChange]) -> None:
        """Take note of changes."""

    def gate_quiet(self, tx: Transaction, gate_id: bytes) -> None:
        """Take note that nothing runs any more behind a closed gate."""


class TaskFollower(Protocol):
    """An owner that goes on with its work in the transaction that records the results of its tasks."""

    def is_willing(self) -> bool:
        """Tell whether it is worth a try."""

    def follow(
        self, tx: Transaction, changes: Sequence[TaskChange], outputs: Mapping[bytes, bytes], *, now: Micros
    ) -> Takings:
        """Take note of changes instead of the listeners, and submit what follows; `outputs` are by task.

        Return what this needs of the queues' counters, which the caller takes. Tasks and attempts are locked and
        counters are not yet; it waits for no other lock than those in between. Raises FollowLater.
        """

    def gave_up(self) -> None:
        """Hear that the places were not free, so that the transaction is run again without following."""


class InstanceStart(Struct, frozen=True, kw_only=True):
    """An instance that a schedule wants: `queues` is the range that it acts in, None for all queues."""

    namespace_id: bytes
    schedule_id: bytes
    scheduled_at: Micros
    workflow: str
    version: int | None
    input: bytes
    queues: frozenset[str] | None
    business_key: str | None
    labels: Mapping[str, str]


class InstanceMaker(Protocol):
    """Starts what schedules want that are not tasks. Pulse knows no workflow: the layer above hands one in."""

    def check(self, tx: Transaction, wanted: InstanceStart) -> None:
        """Refuse what could not be started now, as a start would be refused."""

    def start_all(self, tx: Transaction, wanted: Sequence[InstanceStart]) -> list[bytes | OrbitError]:
        """Start instances in the given transaction; for each its id or the refusal."""

    def unfinished(self, tx: Transaction, instance_ids: Collection[bytes]) -> set[bytes]:
        """Return those of some instances that have not ended."""

    def input_shown(self, tx: Transaction, wanted: InstanceStart) -> Json:
        """Return an input with what its workflow hides masked."""
