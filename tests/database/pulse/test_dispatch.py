"""The dispatcher: its hints hide nothing, and what it offers is handed out in the transaction that makes a task."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from orbit.clock import SECOND
from orbit.database import Database, Pool, Transaction
from orbit.idempotency import Answer
from orbit.ids import new_id
from pulse.arrivals import Arrivals
from pulse.claim import Assignment
from pulse.dispatch import Dispatcher
from pulse.lease import Held, release
from pulse.listener import Takings
from pulse.sessions import CancelNotice, Handler, Offer, SessionHello
from pulse.states import RecoverySafety, TaskState
from pulse.store.rows import dispatch_at
from pulse.submission import tasks_submit
from pulse.tables import ready
from tests.support.pulse import Pulse
from tests.support.waiting import wait_until

ROOM = 4


class Taken:
    """A worker that takes whatever it is given."""

    def __init__(self) -> None:
        self.assignments: list[Assignment] = []

    @property
    def task_ids(self) -> list[bytes]:
        """Name what was handed out, in order."""
        return [item.task.id for item in self.assignments]

    def has_room(self) -> bool:
        """Say that there is room."""
        return True

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Keep what is handed out."""
        self.assignments += assignments

    def cancel(self, notices: Sequence[CancelNotice]) -> None:
        """Nothing is stopped here."""

    def drain(self, spread_ms: int) -> None:
        """Nobody goes away here."""


def served(pulse: Pulse, worker: Taken, given_back: list[Held] | None = None) -> Dispatcher:
    """Connect a worker with room for a few tasks to a dispatcher that claims when it is told to."""
    back = [] if given_back is None else given_back
    dispatcher = Dispatcher(pulse.database, "node", pulse, back.extend)
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
            dispatcher.on_ready({row.lane_id: Arrivals(place, 1)})
        return result

    monkeypatch.setattr(Database, "transaction", late)
    assert dispatcher.run_once() is not None
    assert urgent
    assert urgent[0] not in worker.task_ids
    dispatcher.on_ended(frozenset(a for s in dispatcher.sessions.values() for a in s.attempts_of(worker.task_ids)))
    dispatcher.run_once()
    assert urgent[0] in worker.task_ids


# What is handed out as it is made. An embedded database has no offers: its work runs in another thread.


@pytest.fixture
def worker() -> Taken:
    return Taken()


@pytest.fixture
def queue_id(pulse: Pulse) -> bytes:
    return pulse.queue()


@pytest.fixture
def node(pulse: Pulse, worker: Taken, queue_id: bytes) -> Dispatcher:
    """A node with a worker, which has seen that its lane, made by a task that is over, stands empty."""
    pulse.cancel(pulse.submit())
    dispatcher = served(pulse, worker)
    pulse.offers = dispatcher.offer
    dispatcher.run_once()
    return dispatcher


def room_of(node: Dispatcher) -> int:
    """Count how many more tasks the node's worker may be given."""
    (session,) = node.sessions.values()
    return session.room()


def is_ready(pulse: Pulse, task_id: bytes) -> bool:
    """Say whether a task waits in `ready`."""
    return pulse.database.transaction(lambda tx: tx.row(select(ready).where(ready.c.task_id == task_id))) is not None


DIRECT = pytest.mark.databases("mariadb", "mysql")


@DIRECT
def test_a_task_for_an_empty_lane_is_handed_out_in_the_transaction_that_makes_it(
    pulse: Pulse, node: Dispatcher, worker: Taken, queue_id: bytes
) -> None:
    task_id = pulse.submit(params=b'{"a":1}', labels='{"l":"v"}', business_key="b", fencing_base=3)
    (assignment,) = worker.assignments
    assert (assignment.task.id, assignment.attempt_number, assignment.payload.params) == (task_id, 1, b'{"a":1}')
    assert (assignment.payload.business_key, json.loads(assignment.payload.labels or "")) == (b"b", {"l": "v"})
    assert assignment.fencing == (1 << 32) + 3 + 1
    row = pulse.task(task_id).row
    assert (row.state, row.wait_reason, row.leases_count, row.revision) == (TaskState.LEASED, None, 1, 2)
    assert not is_ready(pulse, task_id)
    usage = pulse.usage(queue_id)
    assert (usage.active, usage.leased_unstarted, pulse.read(queue_id).unfinished_tasks) == (1, 1, 1)
    assert room_of(node) == ROOM - 1
    assert pulse.drifts() == []
    assert pulse.start(assignment).granted
    assert pulse.succeed(assignment).task_state == TaskState.SUCCEEDED


@DIRECT
def test_an_assignment_handed_out_at_once_is_what_a_claim_would_have_made_of_it(
    pulse: Pulse, node: Dispatcher, worker: Taken
) -> None:
    node.run_once()
    direct = pulse.submit(params=b"[1]", traceparent="00-1", priority=7, deadline_micros=90 * SECOND)
    pulse.offers = lambda _: None
    claimed = pulse.submit(params=b"[1]", traceparent="00-1", priority=7, deadline_micros=90 * SECOND)
    node.on_ready({pulse.task(claimed).row.lane_id: Arrivals(0, 1)})
    node.run_once()
    first, second = worker.assignments
    assert (first.task.id, second.task.id) == (direct, claimed)
    own = {"id": b"", "accepted_at": 0, "available_at": 0, "deadline_at": 0, "revision": 0, "wait_reason": None}
    assert replace(first.task, **own) == replace(second.task, **own)
    own = {"task": None, "attempt_id": b"", "token": "", "deadline_in_micros": 0}
    assert replace(first, **own) == replace(second, **own)


@DIRECT
@pytest.mark.parametrize(
    "fields",
    [{"delay_micros": SECOND}, {"concurrency_keys": ("k",)}, {"fairness_key": "f"}, {"type": "other"}],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.usefixtures("node")
def test_what_needs_more_than_a_permit_goes_the_ordinary_way(
    pulse: Pulse, worker: Taken, fields: dict[str, Any]
) -> None:
    task_id = pulse.submit(**fields)
    assert (pulse.task(task_id).state, worker.assignments) == (TaskState.WAITING, [])


def wait_in_lane(pulse: Pulse, node: Dispatcher, count: int) -> list[bytes]:
    """Submit tasks as if no room had been offered, and let the node hear of them."""
    offers, pulse.offers = pulse.offers, lambda _: None
    ids = [pulse.submit() for _ in range(count)]
    node.on_ready({pulse.task(ids[0]).row.lane_id: Arrivals(0, count)})
    pulse.offers = offers
    return ids


@DIRECT
def test_nothing_takes_the_room_of_what_waits_in_its_lane(pulse: Pulse, node: Dispatcher, worker: Taken) -> None:
    waiting = wait_in_lane(pulse, node, ROOM - 1)
    items = [pulse.submit_item(priority=9) for _ in range(2)]
    answers = pulse.submit_all(*items)
    handed, ready_one = sorted(answer.subject_id for answer in answers if isinstance(answer, Answer))
    assert (worker.task_ids, is_ready(pulse, ready_one)) == ([handed], True)
    node.run_once()
    assert worker.task_ids == [handed, ready_one, *waiting[:2]]
    wait_in_lane(pulse, node, 1)
    assert node.offer({pulse.task(handed).row.lane_id: 1}) is None


@DIRECT
@pytest.mark.parametrize(
    "settings", [{"max_concurrency": 2}, {"rate_per_second": 2}], ids=lambda found: next(iter(found))
)
def test_nothing_takes_the_permits_of_what_waits_in_its_lane(
    pulse: Pulse, node: Dispatcher, worker: Taken, *, queue_id: bytes, settings: dict[str, int]
) -> None:
    pulse.configure(queue_id, **settings)
    waiting = wait_in_lane(pulse, node, 1)
    handed, ready_one = pulse.submit(), pulse.submit()
    assert (worker.task_ids, is_ready(pulse, ready_one)) == ([handed], True)
    node.run_once()
    assert worker.task_ids == [handed, *waiting]


@DIRECT
def test_a_lane_in_which_more_waits_than_a_claim_took_is_not_offered_for(
    pulse: Pulse, node: Dispatcher, worker: Taken
) -> None:
    waiting = wait_in_lane(pulse, node, ROOM + 1)
    lane_id = pulse.task(waiting[0]).row.lane_id
    node.run_once()
    node.on_ended(frozenset(item.attempt_id for item in worker.assignments))
    assert (room_of(node), node.offer({lane_id: 1})) == (ROOM, None)
    node.run_once()
    assert node.offer({lane_id: 1}) is not None


@DIRECT
def test_the_room_that_a_claim_may_use_is_offered_to_nobody(
    pulse: Pulse, node: Dispatcher, worker: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = wait_in_lane(pulse, node, 1)
    lane_id = pulse.task(waiting[0]).row.lane_id
    seen: list[tuple[int, object]] = []
    transaction = Database.transaction

    def watched(self: Database, work: Callable[[Transaction], Any], *, pool: Pool = Pool.API) -> Any:
        result = transaction(self, work, pool=pool)
        seen.append((room_of(node), node.offer({lane_id: 1})))
        return result

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", watched)
        node.run_once()
    assert seen[-1] == (0, None)
    assert (worker.task_ids, room_of(node)) == (waiting, ROOM - 1)


@DIRECT
@pytest.mark.parametrize(
    "settings", [{"paused": True}, {"max_concurrency": 1}, {"rate_per_second": 1}], ids=lambda found: next(iter(found))
)
def test_where_permits_are_short_nothing_is_handed_out_and_the_task_waits(
    pulse: Pulse, node: Dispatcher, worker: Taken, *, queue_id: bytes, settings: dict[str, int]
) -> None:
    first = pulse.submit()
    pulse.configure(queue_id, **settings)
    retries = pulse.database.counts["retries"]
    second = pulse.submit()
    assert pulse.database.counts["retries"] == retries + 1
    assert (worker.task_ids, is_ready(pulse, second)) == ([first], True)
    assert (pulse.usage(queue_id).active, room_of(node)) == (1, ROOM - 1)
    # For a moment it is not tried again.
    pulse.submit()
    assert pulse.database.counts["retries"] == retries + 1


@DIRECT
def test_a_batch_fills_the_room_in_its_order_and_the_rest_waits(pulse: Pulse, node: Dispatcher, worker: Taken) -> None:
    items = [pulse.submit_item(priority=priority) for priority in (0, 1, 2, 3, 4, 5)]
    ids = [answer.subject_id for answer in pulse.submit_all(*items) if isinstance(answer, Answer)]
    assert worker.task_ids == ids[5:1:-1]
    assert [is_ready(pulse, task_id) for task_id in ids] == [True, True, False, False, False, False]
    assert room_of(node) == 0


@DIRECT
def test_room_that_was_offered_is_not_claimed_for_and_comes_back(
    pulse: Pulse, node: Dispatcher, worker: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, object]] = []

    def offered(lanes: Mapping[bytes, int]) -> Offer | None:
        offer = node.offer(lanes)
        seen.append((room_of(node), node.offer(lanes)))
        return offer

    monkeypatch.setattr(pulse, "offers", offered)
    items = [pulse.submit_item() for _ in range(ROOM)]
    with pytest.raises(ZeroDivisionError):
        pulse.database.transaction(lambda tx: (tasks_submit(tx, items, pulse, takings=Takings()), 1 // 0))
    assert (seen, room_of(node), worker.assignments) == ([(0, None)], ROOM, [])
    assert pulse.drifts() == []


@DIRECT
def test_a_worker_that_can_t_be_told_is_no_trouble_of_who_submits(
    pulse: Pulse, node: Dispatcher, worker: Taken, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "assign", lambda _: 1 // 0)
    task_id = pulse.submit()
    assert [record.message for record in caplog.records if record.exc_info] == ["handout.crashed"]
    assert (pulse.task(task_id).state, room_of(node)) == (TaskState.LEASED, ROOM - 1)
    pulse.pass_time(6)
    assert (pulse.task(task_id).state, is_ready(pulse, task_id)) == (TaskState.WAITING, True)


@DIRECT
def test_what_is_handed_out_to_a_worker_that_has_just_gone_is_given_back(pulse: Pulse) -> None:
    pulse.queue()
    pulse.cancel(pulse.submit())
    given_back: list[Held] = []
    worker = Taken()
    node = served(pulse, worker, given_back)
    node.run_once()

    def offered(lanes: Mapping[bytes, int]) -> Offer | None:
        offer = node.offer(lanes)
        node.sessions.clear()
        return offer

    pulse.offers = offered
    task_id = pulse.submit()
    wait_until(lambda: given_back, what="what is given back")
    pulse.offers = lambda _: None
    assert pulse.database.transaction(lambda tx: release(tx, given_back, pulse)) == [True]
    assert (pulse.task(task_id).state, is_ready(pulse, task_id)) == (TaskState.WAITING, True)
