"""A subscription without a node: each of its operations as one transaction, swept when the test says so."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from orbit.clock import SECOND
from orbit.database import Database, Transaction
from orbit.ids import new_id
from orbit.store.delivery import Delivery, deliveries_list
from orbit.store.journal import EventRecord, events_insert
from orbit.store.subscription import Bounds, Subscription, subscription_find
from orbit.subscription import BACKLOG_DEFAULT, DELIVERIES_DEFAULT, EFFECTIVE_MICROS, DeliveryState, TokenOutcome
from pulse.deliveries import Pulled, deliveries_ack, deliveries_extend, deliveries_pull, deliveries_replay
from pulse.subscription_sweep import subscriptions_sweep
from pulse.subscriptions import Change, Wish, subscription_create, subscription_delete, subscription_resume
from tests.support.pulse import Pulse

VISIBLE_SECONDS = 30
_BOUNDS = Bounds(VISIBLE_SECONDS * SECOND, DELIVERIES_DEFAULT, BACKLOG_DEFAULT)
OF_BATCHES = Wish(("batch.done",), None, None, None, _BOUNDS)


class Subscriber:
    """A subscription of the tests' namespace, in force unless `is_waited` is False.

    It wants the events `batch.done` unless `wish` says otherwise.
    """

    def __init__(self, pulse: Pulse, *, name: str = "mine", is_waited: bool = True, **wish: Any) -> None:
        self.pulse = pulse
        self.database: Database = pulse.database
        names = {"deliveries_max", "backlog_max", "visibility_micros"}
        bounds = replace(_BOUNDS, **{key: wish.pop(key) for key in names & wish.keys()})
        wanted = replace(OF_BATCHES, bounds=bounds, **wish)
        answer = self.database.transaction(
            lambda tx: subscription_create(
                tx, pulse.command("subscription.create"), pulse.actor(), name=name, wish=wanted
            )
        )
        self.id = answer.subject_id
        if is_waited:
            self.database.clock.advance(seconds_forward=EFFECTIVE_MICROS / SECOND)

    def row(self, database: Database | None = None) -> Subscription:
        """Read it."""
        found = (database or self.database).transaction(
            lambda tx: subscription_find(tx, self.pulse.namespace_id, self.id)
        )
        assert found is not None
        return found

    def pull(self, limit: int = 100) -> list[Pulled]:
        """Pull once."""
        row = self.row()
        return self.database.transaction(lambda tx: deliveries_pull(tx, row, limit=limit))

    def ack(self, *pulled: Pulled) -> list[TokenOutcome]:
        """Acknowledge what was pulled."""
        row, tokens = self.row(), [token_of(each) for each in pulled]
        return [each.outcome for each in self.database.transaction(lambda tx: deliveries_ack(tx, row, tokens))]

    def extend(self, seconds: float, *pulled: Pulled) -> list[TokenOutcome]:
        """Hide what was pulled for so long from now."""
        row, tokens, hidden = self.row(), [token_of(each) for each in pulled], round(seconds * SECOND)
        found = self.database.transaction(lambda tx: deliveries_extend(tx, row, tokens, visibility_micros=hidden))
        return [each.outcome for each in found]

    def replay(self, event_ids: Sequence[bytes] | None = None) -> int:
        """Let parked deliveries come again."""
        row = self.row()
        return self.database.transaction(lambda tx: deliveries_replay(tx, row, event_ids))

    def drain(self) -> list[Pulled]:
        """Pull and acknowledge until nothing is visible."""
        found: list[Pulled] = []
        while pulled := self.pull():
            assert set(self.ack(*pulled)) == {TokenOutcome.ACKED}
            found += pulled
        return found

    def waiting(self, state: DeliveryState) -> list[Delivery]:
        """List its deliveries of a state."""
        return self.database.transaction(lambda tx: deliveries_list(tx, self.id, state, limit=1_000))

    def sweep(self, seconds_forward: float = 1.0) -> Subscription:
        """Let a second pass, sweep, and read it."""
        self.database.clock.advance(seconds_forward=seconds_forward)
        subscriptions_sweep(self.database)
        return self.row()

    def resume(self) -> None:
        """Resume it."""
        command = self.pulse.command("subscription.resume")
        change = Change(self.id, self.row().revision, "a test")
        self.database.transaction(lambda tx: subscription_resume(tx, command, self.pulse.actor(), change))

    def delete(self) -> None:
        """Delete it."""
        command = self.pulse.command("subscription.delete")
        change = Change(self.id, self.row().revision, "a test")
        self.database.transaction(lambda tx: subscription_delete(tx, command, self.pulse.actor(), change))


def tell(pulse: Pulse, database: Database | None = None) -> bytes:
    """Write one event in a transaction of its own and return its subject."""
    subject = new_id()

    def work(tx: Transaction) -> None:
        events_insert(tx, [EventRecord(pulse.namespace_id, "batch.done", subject, 1)], now=tx.now())

    (database or pulse.database).transaction(work)
    return subject


def token_of(pulled: Pulled) -> str:
    """Write the token of a delivery as a consumer has it."""
    return str(pulled.as_json()["token"])


def types(pulled: Sequence[Pulled]) -> list[str]:
    """Name the types of what was pulled, sorted."""
    return sorted(each.event.type for each in pulled)


def subjects(pulled: Sequence[Pulled]) -> list[bytes]:
    """Name what the events are about, in the order in which they came."""
    return [each.event.subject_id for each in pulled]
