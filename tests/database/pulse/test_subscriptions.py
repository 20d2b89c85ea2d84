"""Subscriptions on every database: nothing is lost, nothing comes twice unasked, tasks never wait for a consumer."""

import json
import re
import threading
from collections import Counter
from functools import partial

import pytest

from orbit.clock import SECOND
from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, NotFound, QueueFull, StateConflict
from orbit.ids import new_id
from orbit.store.delivery import deliveries_count
from orbit.store.journal import EventChoice, EventRecord, Page, events_insert, events_list
from orbit.store.subscribers import Subscribers
from orbit.subscription import DeliveryState, SubscriptionState, TokenOutcome
from pulse.deliveries import deliveries_pull
from pulse.states import ErrorClass, RecoverySafety
from pulse.store.event_log import log_read
from pulse.subscription_sweep import subscriptions_sweep
from tests.support.plans import plans, recorded
from tests.support.pulse import Pulse
from tests.support.subscriber import VISIBLE_SECONDS, Subscriber, subjects, tell, types

ACKED, GONE, STALE = TokenOutcome.ACKED, TokenOutcome.GONE, TokenOutcome.STALE


def submitted_in_turn(pulse: Pulse, count: int) -> list[bytes]:
    """Submit tasks at different instants: what happens at one instant comes in any order."""
    accepted = []
    for _ in range(count):
        pulse.database.clock.advance(seconds_forward=0.001)
        accepted.append(pulse.submit())
    return accepted


def test_r194_what_is_not_acknowledged_comes_again(pulse: Pulse) -> None:
    pulse.queue()
    mine = Subscriber(pulse, event_types=("task.*",))
    tasks = submitted_in_turn(pulse, 3)
    first = mine.pull()
    assert subjects(first) == tasks
    assert [(each.event.type, each.event.subject_revision) for each in first] == [("task.submitted", 1)] * 3
    assert mine.pull() == []
    assert mine.ack(first[0]) == [ACKED]
    pulse.pass_time(VISIBLE_SECONDS + 1)
    again = mine.pull()
    assert [(each.event.id, each.handing.deliveries_count) for each in again] == [
        (first[1].event.id, 2), (first[2].event.id, 2),
    ]  # fmt: skip
    assert mine.ack(*again) == [ACKED, ACKED]
    pulse.pass_time(VISIBLE_SECONDS + 1)
    assert mine.pull() == []


def test_c145_a_confirmation_counts_once_and_confirms_nothing_else(pulse: Pulse) -> None:
    mine, other = Subscriber(pulse), Subscriber(pulse, name="other")
    tell(pulse)
    tell(pulse)
    one, two = mine.pull()
    assert mine.ack(one, one) == [ACKED, GONE]
    assert mine.ack(one) == [GONE]
    # A token of another subscription, or of an earlier handing out, is nobody's.
    pulse.pass_time(VISIBLE_SECONDS + 1)
    (newer,) = mine.pull()
    assert (newer.event.id, newer.handing.deliveries_count) == (two.event.id, 2)
    assert mine.ack(two) == [STALE]
    assert other.ack(newer) == [STALE]
    assert len(other.pull()) == 2
    assert mine.ack(newer) == [ACKED]


def test_a_late_confirmation_is_good_while_nobody_else_has_the_delivery(pulse: Pulse) -> None:
    mine = Subscriber(pulse)
    tell(pulse)
    (late,) = mine.pull()
    pulse.pass_time(VISIBLE_SECONDS + 1)
    assert mine.ack(late) == [ACKED]
    assert mine.pull() == []


def test_a_delivery_is_kept_longer_or_given_back(pulse: Pulse) -> None:
    mine = Subscriber(pulse)
    tell(pulse)
    (held,) = mine.pull()
    assert mine.extend(300, held) == [TokenOutcome.EXTENDED]
    pulse.pass_time(299)
    assert mine.pull() == []
    assert mine.extend(0, held) == [TokenOutcome.EXTENDED]
    (again,) = mine.pull()
    assert again.handing.deliveries_count == 2
    assert mine.extend(10, held) == [STALE]
    assert mine.ack(again) == [ACKED]
    assert mine.extend(10, again) == [GONE]


@pytest.mark.requirement("R194")
def test_c137_what_always_fails_is_parked_and_comes_again_when_it_is_replayed(pulse: Pulse) -> None:
    mine = Subscriber(pulse, deliveries_max=3)
    told = [tell(pulse) for _ in range(10)]
    bad = told[4]
    for count in (1, 2, 3):
        pulled = mine.pull()
        (failing,) = [each for each in pulled if each.event.subject_id == bad]
        assert failing.handing.deliveries_count == count
        assert failing.as_json()["is_last"] is (count == 3)
        mine.ack(*(each for each in pulled if each.event.subject_id != bad))
        # The engine that comes back finds it as it was; whoever pulls next gets it when its time is over.
        mine.sweep(VISIBLE_SECONDS + 1)
    assert mine.pull() == []
    (parked,) = mine.waiting(DeliveryState.POISONED)
    assert (parked.event_id, parked.deliveries_count) == (failing.event.id, 3)
    row = mine.sweep()
    assert (row.backlog, row.poisoned, row.state) == (1, 1, SubscriptionState.ACTIVE)
    assert mine.extend(10, failing) == [STALE]
    assert mine.replay([new_id()]) == 0
    assert mine.replay([parked.event_id]) == 1
    assert mine.ack(failing) == [STALE]
    (repaired,) = mine.pull()
    assert (repaired.event.id, repaired.handing.deliveries_count) == (parked.event_id, 1)
    assert mine.ack(repaired) == [ACKED]
    assert mine.sweep().backlog == 0


def test_all_that_is_parked_can_be_replayed_at_once(pulse: Pulse) -> None:
    mine = Subscriber(pulse, deliveries_max=1)
    told = [tell(pulse) for _ in range(3)]
    assert len(mine.pull()) == 3
    assert mine.sweep(VISIBLE_SECONDS + 1).poisoned == 3
    assert mine.replay() == 3
    assert sorted(subjects(mine.drain())) == sorted(told)


def test_c144_a_receiver_can_tell_the_order_of_what_comes_in_another(pulse: Pulse) -> None:
    pulse.queue()
    mine = Subscriber(pulse, event_types=("task.*",))
    pulse.submit()
    pulse.pass_time(1)
    pulse.succeed(pulse.run())
    first, second = mine.pull()
    assert (first.event.type, second.event.type) == ("task.submitted", "task.succeeded")
    assert first.event.subject_revision < second.event.subject_revision
    assert mine.ack(second) == [ACKED]
    pulse.pass_time(VISIBLE_SECONDS + 1)
    (again,) = mine.pull()
    assert again.event.subject_revision == first.event.subject_revision


@pytest.mark.databases("mariadb", "mysql")
def test_c139_who_commits_late_is_delivered_too(pulse: Pulse, database: Database) -> None:
    mine = Subscriber(pulse)
    for _ in range(20):
        is_told, may_commit = threading.Event(), threading.Event()
        late: list[bytes] = []

        def slow(
            tx: Transaction,
            late: list[bytes] = late,
            is_told: threading.Event = is_told,
            may_commit: threading.Event = may_commit,
        ) -> None:
            late[:] = [new_id()]
            events_insert(tx, [EventRecord(pulse.namespace_id, "batch.done", late[0], 1)], now=tx.now())
            tx.flush()
            is_told.set()
            may_commit.wait(30)

        thread = threading.Thread(target=database.transaction, args=(slow,))
        thread.start()
        assert is_told.wait(30)
        early = tell(pulse)
        assert subjects(mine.drain()) == [early]
        may_commit.set()
        thread.join()
        assert subjects(mine.drain()) == late


@pytest.mark.requirement("R194")
def test_c139_many_publishers_and_pullers_lose_nothing_and_share_everything(pulse: Pulse) -> None:
    """Each delivery goes to one puller only, and every event to some."""
    pulse.queue(max_unfinished_tasks=100_000)
    mine = Subscriber(pulse, event_types=("task.submitted",), backlog_max=100_000, visibility_micros=600 * SECOND)
    publishers, batches, size = 6, 8, 20
    got: list[bytes] = []
    accepted: list[bytes] = []
    errors: list[BaseException] = []
    are_done = threading.Event()

    def publish() -> None:
        for _ in range(batches):
            answers = pulse.submit_all(*(pulse.submit_item(key=new_id().hex()) for _ in range(size)))
            accepted.extend(answer.subject_id for answer in answers)  # type: ignore[union-attr]

    def pull() -> None:
        while True:
            was_done = are_done.is_set()
            pulled = mine.pull(limit=7)
            got.extend(subjects(pulled))
            if pulled:
                assert set(mine.ack(*pulled)) == {ACKED}
            elif was_done:
                return

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001  (the test tells of it)
            errors.append(error)

    pulling = [threading.Thread(target=guarded, args=(pull,)) for _ in range(2)]
    publishing = [threading.Thread(target=guarded, args=(publish,)) for _ in range(publishers)]
    for thread in (*pulling, *publishing):
        thread.start()
    for thread in publishing:
        thread.join()
    are_done.set()
    for thread in pulling:
        thread.join()
    assert errors == []
    assert len(accepted) == publishers * batches * size
    assert Counter(got) == Counter(accepted)


@pytest.mark.databases("mariadb", "mysql")
def test_two_who_pull_at_once_never_get_the_same(pulse: Pulse, database: Database) -> None:
    mine = Subscriber(pulse)
    told = [tell(pulse) for _ in range(6)]
    row = mine.row()
    has_pulled, may_commit = threading.Event(), threading.Event()
    first: list[bytes] = []

    def slow(tx: Transaction) -> None:
        first[:] = subjects(deliveries_pull(tx, row, limit=3))
        tx.flush()
        has_pulled.set()
        may_commit.wait(30)

    thread = threading.Thread(target=database.transaction, args=(slow,))
    thread.start()
    assert has_pulled.wait(30)
    second = subjects(mine.pull(limit=10))
    may_commit.set()
    thread.join()
    assert sorted(first + second) == sorted(told)
    assert len(first) == 3
    assert mine.pull() == []


def test_filters_choose_by_type_queue_and_task_type(pulse: Pulse) -> None:
    pulse.queue()
    pulse.queue("images")
    everything = Subscriber(pulse, name="everything", event_types=None)
    images = Subscriber(pulse, name="images", event_types=None, queues=("images",))
    echo = Subscriber(pulse, name="echo", task_types=("echo",), event_types=("task.*",))
    second_only = Subscriber(pulse, name="second", event_types=None, task_types=("echo@2", "other@1"))
    ends = Subscriber(pulse, name="ends", event_types=("task.failed", "task.succeeded", "queue.*"))
    one = pulse.submit()
    two = pulse.submit(queue="images", version=2)
    three = pulse.submit(queue="images", type="other")
    pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    pulse.queue("more")
    assert sorted(subjects(images.drain())) == sorted([two, three])
    assert sorted(subjects(echo.drain())) == sorted([one, one, two])
    assert sorted(subjects(second_only.drain())) == sorted([two, three])
    assert types(ends.drain()) == ["queue.created", "task.failed"]
    assert types(everything.drain()) == [
        "queue.created", *["subscription.created"] * 4, "task.failed", *["task.submitted"] * 3,
    ]  # fmt: skip


def test_claims_and_starts_are_no_events_and_what_never_fits_is_refused(pulse: Pulse) -> None:
    pulse.queue()
    for name in ("task.started", "task.claimed", "nothing.*"):
        with pytest.raises(InvalidRequest, match="attempts") as refused:
            Subscriber(pulse, event_types=("task.failed", name))
        assert refused.value.pointer == "/event_types/1"
    with pytest.raises(InvalidRequest, match="two subscriptions"):
        Subscriber(pulse, event_types=None, workflows=("w",), task_types=("echo",))
    with pytest.raises(NotFound):
        Subscriber(pulse, event_types=None, queues=("main", "missing"))


def test_a_namespace_gets_its_own_events_only(pulse: Pulse) -> None:
    mine = Subscriber(pulse)
    foreign = pulse.another_namespace("others")
    pulse.database.transaction(
        lambda tx: events_insert(tx, [EventRecord(foreign, "batch.done", new_id(), 1)], now=tx.now())
    )
    own = tell(pulse)
    assert subjects(mine.drain()) == [own]


def test_a_refused_submission_and_a_rollback_deliver_nothing(pulse: Pulse) -> None:
    pulse.queue(max_unfinished_tasks=1)
    mine = Subscriber(pulse, event_types=("task.*",))
    accepted = pulse.submit()
    assert isinstance(pulse.refusal(), QueueFull)

    def broken(tx: Transaction) -> None:
        events_insert(tx, [EventRecord(pulse.namespace_id, "task.failed", new_id(), 1)], now=tx.now())
        tx.flush()
        raise ValueError

    with pytest.raises(ValueError, match=r"\A\Z"):
        pulse.database.transaction(broken)
    assert subjects(mine.drain()) == [accepted]


def test_a_deleted_subscription_is_cleared_and_its_name_comes_free(pulse: Pulse) -> None:
    mine = Subscriber(pulse)
    for _ in range(3):
        tell(pulse)
    mine.delete()
    with pytest.raises(StateConflict):
        Subscriber(pulse)
    tell(pulse)
    assert pulse.database.transaction(lambda tx: deliveries_count(tx, mine.id, limit=10)) == 3
    pulse.pass_time(5)
    subscriptions_sweep(pulse.database)
    assert pulse.database.transaction(lambda tx: deliveries_count(tx, mine.id, limit=10)) == 0
    pulse.pass_time(6)
    subscriptions_sweep(pulse.database)
    other = Subscriber(pulse)
    assert other.id != mine.id
    told = tell(pulse)
    assert told in subjects(other.drain())


def test_who_has_no_subscribers_writes_no_deliveries_and_asks_once_a_second(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit()
    database = pulse.database
    database.transaction(lambda tx: tx.memory(Subscribers).refresh(tx))
    looked_at = database.transaction(lambda tx: tx.memory(Subscribers).looked_at)
    database.transaction(lambda tx: tx.memory(Subscribers).freshen(tx))
    pulse.submit()
    after = database.transaction(lambda tx: tx.memory(Subscribers).looked_at)
    # On a busy machine the second may be over; then it has looked once more, and not for each event.
    assert after == looked_at or after - looked_at > 1.0


@pytest.mark.requirement("R190")
def test_r194_events_are_listed_in_stable_pages_by_type_time_and_subject(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, queue_id = pulse.namespace_id, pulse.queue()
    tasks = submitted_in_turn(pulse, 5)

    def listed(choice: EventChoice, limit: int = 2) -> list[bytes]:
        found: list[bytes] = []
        page = Page(limit)
        while True:
            part = pulse.database.transaction(partial(events_list, namespace_id=own, page=page, choice=choice))
            found += [row.subject_id for row in part.rows]
            if part.following is None:
                return found
            page = Page(limit, *part.following)
            tell(pulse)  # what comes meanwhile is newer, and does not shift the pages

    newest_first = tasks[::-1]
    assert sorted(listed(EventChoice(type="task.submitted"))) == sorted(newest_first)
    # However few are looked at for a page, all pages together have them all.
    monkeypatch.setattr("orbit.store.journal.LOOKED_AT_MAX", 3)
    assert sorted(listed(EventChoice(type="task.*"))) == sorted(newest_first)
    assert listed(EventChoice(type="queue.created")) == [queue_id]
    assert listed(EventChoice(subject_id=tasks[2])) == [tasks[2]]
    accepted_at = [pulse.task(task_id).accepted_at for task_id in tasks]
    within = EventChoice(created_after=accepted_at[1], created_before=accepted_at[4], type="task.*")
    assert sorted(listed(within)) == sorted(tasks[1:4])


def test_r187_what_a_type_masks_of_failures_is_masked_in_what_is_delivered(pulse: Pulse) -> None:
    pulse.queue()
    pulse.register(redact=["/error/message"])
    mine = Subscriber(pulse, event_types=("task.failed",))
    pulse.submit()
    pulse.fail(pulse.run(safety=RecoverySafety.REPLAY_SAFE), ErrorClass.NON_RETRYABLE)
    (pulled,) = mine.pull()
    error = json.loads(pulled.event.data)["error"]
    assert (error["code"], error["message"]) == ("BROKEN", "[redacted]")


@pytest.mark.databases("mariadb", "mysql")
@pytest.mark.requirement("R190")
def test_r194_the_list_and_the_pull_go_through_their_indexes_without_sorting(pulse: Pulse, database: Database) -> None:
    """A sort would read, and a pull would lock, all that there is."""
    mine = Subscriber(pulse)
    for _ in range(20):
        tell(pulse)
    with recorded() as statements:
        mine.pull(limit=3)
        mine.waiting(DeliveryState.PENDING)
        database.transaction(lambda tx: events_list(tx, mine.pulse.namespace_id, Page(5)))
        database.transaction(lambda tx: events_list(tx, mine.pulse.namespace_id, Page(5), EventChoice(type="task.*")))
        database.transaction(lambda tx: log_read(tx, pulse.namespace_id, after=(0, b""), until=2**62, limit=5))
    asked = [(text, values) for text, values in statements if re.search("FROM orbit_(delivery|event)", text)]
    assert len(asked) >= 6
    for text, values in asked:
        for row in plans(database, text, values):
            told = f"{row} of {text}"
            assert "filesort" not in str(row).lower(), told
            assert "PRIMARY" in str(row) or "orbit_delivery_for_pull" in str(row) or "orbit_event_for" in str(row), told
