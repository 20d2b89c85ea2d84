"""Who is too slow overflows, and gets what it missed once: no gap, no double, whatever each node knows when."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from orbit.clock import SECOND
from orbit.database import ConnectionLimits, Database, Transaction
from orbit.ids import new_id
from orbit.store.journal import EventRecord, events_insert
from orbit.subscription import SubscriptionState
from pulse.subscription_sweep import subscriptions_sweep
from tests.support.pulse import Pulse
from tests.support.sessions import DatabaseKind
from tests.support.subscriber import VISIBLE_SECONDS, Subscriber, subjects, tell, types
from tests.support.waiting import wait_until


@pytest.fixture
def second(database_url: str, database_kind: DatabaseKind) -> Iterator[Database | None]:
    """The database as another node sees it, with a list of subscriptions of its own; an embedded one has but one."""
    if database_kind is DatabaseKind.SQLITE:
        yield None
        return
    with closing(Database.open(database_url, ConnectionLimits(pool_size=2))) as opened:
        yield opened


@pytest.mark.requirement("R179")
def test_r094_a_backlog_at_its_bound_is_good_and_one_more_overflows_while_tasks_go_on(
    pulse: Pulse, caplog: pytest.LogCaptureFixture
) -> None:
    pulse.queue()
    mine = Subscriber(pulse, event_types=("task.*",), backlog_max=100)
    watching = Subscriber(pulse, name="watching", event_types=("subscription.overflowed",))
    pulse.submit_all(*(pulse.submit_item() for _ in range(100)))
    row = mine.sweep()
    assert (row.state, row.backlog) == (SubscriptionState.ACTIVE, 100)
    pulse.submit()
    row = mine.sweep()
    assert (row.state, row.backlog) == (SubscriptionState.OVERFLOWED, 101)
    assert "subscription.overflowed" in [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert subjects(watching.drain()) == [mine.id]
    # Past the boundary nothing is delivered any more, and tasks are accepted, run and end as ever.
    pulse.pass_time(5)
    pulse.submit()
    pulse.succeed(pulse.run())
    assert mine.sweep().backlog == 101
    assert len(mine.drain()) == 101


@pytest.mark.requirement("R179")
def test_r094_a_resumed_subscription_gets_what_it_missed_once(pulse: Pulse) -> None:
    pulse.queue()
    mine = Subscriber(pulse, event_types=("task.submitted",), backlog_max=5)
    accepted = [pulse.submit() for _ in range(6)]
    assert mine.sweep().state is SubscriptionState.OVERFLOWED
    accepted.append(pulse.submit())  # before the boundary: still delivered in its transaction
    pulse.pass_time(3)
    accepted += [pulse.submit() for _ in range(4)]
    got = subjects(mine.drain())
    assert sorted(got) == sorted(accepted[:7])
    mine.resume()
    row = mine.row()
    assert (row.state, row.read_to) == (SubscriptionState.RESUMING, (row.spans.closes_at, bytes(16)))
    # It may not read yet: there may be writers who have not heard of it.
    assert mine.sweep().backlog == 0
    accepted.append(pulse.submit())
    assert mine.sweep(5).backlog == 5
    got += subjects(mine.drain())
    assert sorted(got) == sorted(accepted)
    accepted.append(pulse.submit())  # near the present, still from the log
    assert mine.row().spans.reopens_at is not None
    mine.sweep(3)
    accepted.append(pulse.submit())  # in its transaction, though the log is not read to its end
    assert mine.sweep(5).state is SubscriptionState.ACTIVE
    accepted.append(pulse.submit())
    got += subjects(mine.drain())
    assert Counter(got) == Counter(accepted)
    assert mine.sweep().state is SubscriptionState.ACTIVE


def test_reading_on_waits_for_room_instead_of_overflowing(pulse: Pulse) -> None:
    pulse.queue()
    mine = Subscriber(pulse, event_types=("task.submitted",), backlog_max=5)
    accepted = [pulse.submit() for _ in range(6)]
    mine.sweep()
    pulse.pass_time(5)
    accepted += [pulse.submit() for _ in range(12)]
    got = subjects(mine.drain())
    mine.resume()
    assert mine.sweep(6).backlog == 5
    row = mine.sweep()
    assert (row.state, row.backlog) == (SubscriptionState.RESUMING, 5)
    for _ in range(4):
        got += subjects(mine.drain())
        mine.sweep()
    got += subjects(mine.drain())
    assert Counter(got) == Counter(accepted)


def test_overflow_and_resume_under_load_leave_no_gap_and_no_double(pulse: Pulse, second: Database | None) -> None:
    """In real time, with a publisher that has a list of subscriptions of its own, as another node would."""
    pulse.database.clock.go_on()
    mine = Subscriber(pulse, backlog_max=100, visibility_micros=600 * SECOND)
    told: list[bytes] = []
    got: list[bytes] = []
    errors: list[BaseException] = []
    is_over = threading.Event()

    def publish(database: Database) -> None:
        try:
            database.clock.offset_micros = pulse.database.clock.offset_micros
            while not is_over.wait(0.05):
                told.append(tell(pulse, database))
        except BaseException as error:  # noqa: BLE001  (the test tells of it)
            errors.append(error)

    publishing = [threading.Thread(target=publish, args=(each,)) for each in (pulse.database, second) if each]
    for thread in publishing:
        thread.start()

    def swept(state: SubscriptionState, *, is_draining: bool) -> bool:
        subscriptions_sweep(pulse.database)
        if is_draining:
            got.extend(subjects(mine.drain()))
        return mine.row().state is state

    wait_until(lambda: swept(SubscriptionState.OVERFLOWED, is_draining=False), 60, what="the overflow")
    stopped = len(told)
    wait_until(lambda: len(told) > stopped + 30, 60, what="more events")
    mine.resume()
    wait_until(lambda: swept(SubscriptionState.ACTIVE, is_draining=True), 120, what="the end of reading")
    resumed = len(told)
    wait_until(lambda: len(told) > resumed + 10, 60, what="more events")
    is_over.set()
    for thread in publishing:
        thread.join()
    got.extend(subjects(mine.drain()))
    assert errors == []
    assert Counter(got) == Counter(told)


def test_a_late_writer_from_before_a_boundary_runs_again(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would commit behind those that already rely on the boundary."""
    mine = Subscriber(pulse, is_waited=False)
    monkeypatch.setattr("orbit.database.transaction.LATE_SECONDS", -1.0)
    instants: list[int] = []

    def work(tx: Transaction) -> None:
        if instants:
            pulse.database.clock.advance(seconds_forward=5)
        instants.append(tx.now())
        events_insert(tx, [EventRecord(pulse.namespace_id, "batch.done", new_id(), 1)], now=instants[-1])

    pulse.database.transaction(work)
    opens_at = mine.row().spans.opens_at
    assert len(instants) == 2
    assert instants[0] < opens_at <= instants[1]
    assert len(mine.pull()) == 1


@pytest.mark.databases("mariadb", "mysql")
def test_another_node_hears_of_a_subscription_before_it_counts(pulse: Pulse, second: Database) -> None:
    pulse.database.clock.go_on()
    mine = Subscriber(pulse, is_waited=False)
    tell(pulse, second)
    assert mine.pull() == []
    wait_until(lambda: second.transaction(lambda tx: tx.now()) >= mine.row().effective_at, 30, what="the boundary")
    told = tell(pulse, second)
    assert told in subjects(mine.pull())


def test_the_log_is_chosen_from_as_events_are_when_they_happen(pulse: Pulse) -> None:
    pulse.queue()
    pulse.queue("images")
    filters: list[dict[str, Any]] = [
        {"queues": ("images",)}, {"task_types": ("other@1",)}, {"event_types": ("queue.*",)}, {"workflows": ("w",)},
    ]  # fmt: skip
    mine = [
        Subscriber(pulse, name=f"s{n}", backlog_max=1, **({"event_types": None} | wish))
        for n, wish in enumerate(filters)
    ]

    def happens() -> None:
        pulse.submit()
        pulse.submit(queue="images")
        pulse.submit(queue="images", type="other")
        pulse.configure(pulse.queue(f"more-{new_id().hex()}"), max_concurrency=3)
        started = EventRecord(pulse.namespace_id, "instance.started", new_id(), 1, '{"workflow":"w"}', workflow="w")
        pulse.database.transaction(lambda tx: events_insert(tx, [started, started], now=tx.now()))

    happens()
    pulse.submit(queue="images", type="other")
    live = [types(each.pull()) for each in mine]
    assert {each.sweep().state for each in mine} == {SubscriptionState.OVERFLOWED}
    for each in mine:
        each.pulse.pass_time(VISIBLE_SECONDS + 1)
        assert types(each.drain()) == live.pop(0)
    happens()
    for each in mine:
        each.resume()
    pulse.pass_time(6)
    read: list[list[str]] = [[] for _ in mine]
    for _ in range(8):
        for number, each in enumerate(mine):
            each.sweep()
            read[number] += types(each.drain())
    assert [sorted(found) for found in read] == [
        ["task.submitted"] * 2, ["task.submitted"], ["queue.configured", "queue.created"], ["instance.started"] * 2,
    ]  # fmt: skip
