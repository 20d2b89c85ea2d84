"""The dispatcher's hints: what a node believes of its lanes must never hide what came in behind a claim's back."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orbit.database import Database, Pool, Transaction
from orbit.ids import new_id
from pulse.claim import Assignment
from pulse.dispatch import Dispatcher
from pulse.sessions import CancelNotice, Handler, SessionHello
from pulse.states import RecoverySafety
from pulse.store.rows import dispatch_at
from tests.support.pulse import Pulse

ROOM = 4


class Taken:
    """A worker that takes whatever it is given."""

    def __init__(self) -> None:
        self.task_ids: list[bytes] = []

    def has_room(self) -> bool:
        """Say that there is room."""
        return True

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Keep what is handed out."""
        self.task_ids += [item.task.id for item in assignments]

    def cancel(self, notices: Sequence[CancelNotice]) -> None:
        """Nothing is stopped here."""

    def drain(self, spread_ms: int) -> None:
        """Nobody goes away here."""


def served(pulse: Pulse, worker: Taken) -> Dispatcher:
    """Connect a worker with room for a few tasks to a dispatcher that claims when it is told to."""
    dispatcher = Dispatcher(pulse.database, "node", pulse, lambda _: None)
    handlers = (Handler("echo", 1, RecoverySafety.REPLAY_SAFE),)
    hello = SessionHello(pulse.namespace_id, new_id(), "w", frozenset({"main"}), handlers, ROOM)
    dispatcher.open(dispatcher.attach(hello, worker))
    return dispatcher


def test_r093_what_comes_in_while_a_claim_is_on_its_way_is_not_hidden_by_what_the_claim_reached(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse.queue()
    for _ in range(3 * ROOM):
        pulse.submit(priority=1)
    worker = Taken()
    dispatcher = served(pulse, worker)
    urgent: list[bytes] = []
    transaction = Database.transaction

    def late(self: Database, work: Callable[[Transaction], Any], *, pool: Pool = Pool.API) -> Any:
        """Commit something more urgent after a claim's commit and before its dispatcher hears of it."""
        result = transaction(self, work, pool=pool)
        if pool is Pool.DISPATCH and not urgent:
            urgent.append(pulse.submit(priority=9))
            row = pulse.task(urgent[0]).row
            place = dispatch_at(accepted_at=row.accepted_at, available_at=row.available_at, priority=row.priority)
            dispatcher.on_ready({row.lane_id: place})
        return result

    monkeypatch.setattr(Database, "transaction", late)
    assert dispatcher.run_once() is not None
    assert urgent
    assert urgent[0] not in worker.task_ids
    dispatcher.on_ended(frozenset(a for s in dispatcher.sessions.values() for a in s.attempts_of(worker.task_ids)))
    dispatcher.run_once()
    assert urgent[0] in worker.task_ids
