"""What users of other systems met with limits, locks, names and times, each as a scenario."""

import threading
from collections import Counter

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from orbit.clock import SECOND
from orbit.database import Database
from orbit.errors import QueueFull
from pulse.claim import Assignment
from pulse.report import ReceiptKind
from pulse.requests import RetryPolicy
from pulse.states import ErrorClass, RecoverySafety, TaskState
from tests.support.pulse import Pulse


def ids(claimed: list[Assignment]) -> list[bytes]:
    """Return which tasks were claimed."""
    return [item.task.id for item in claimed]


def test_c079_a_cancel_starts_exactly_as_many_as_it_frees(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_concurrency=2)
    tasks = [pulse.submit() for _ in range(6)]
    first, second = pulse.claim()
    pulse.start_all([first, second])
    pulse.cancel(tasks[0])
    assert pulse.claim() == [], "asked to stop, it still runs"
    pulse.fail(first, ErrorClass.NON_RETRYABLE)
    assert ids(pulse.claim()) == [tasks[2]]
    assert pulse.usage(queue_id).active == 2
    pulse.cancel(tasks[5])
    assert pulse.claim() == []
    assert pulse.usage(queue_id).active == 2


def test_c083_eleven_at_once_and_thirty_five_keep_the_rate(pulse: Pulse) -> None:
    pulse.queue(rate_per_second=10, max_concurrency=50)
    for count, pause in ((11, 5.0), (35, 0.0)):
        for _ in range(count):
            pulse.submit()
        started = 0
        while started < count:
            claimed = pulse.claim(50)
            assert len(claimed) <= 10
            started += sum(outcome.granted for outcome in pulse.start_all(claimed)) if claimed else 0
            for item in claimed:
                pulse.succeed(item)
            pulse.database.clock.advance(seconds_forward=0.25)
        pulse.database.clock.advance(seconds_forward=pause)

    starts = pulse.database.transaction(
        lambda tx: [row[0] for row in tx.rows(text("SELECT started_at FROM pulse_attempt ORDER BY started_at"))]
    )
    assert starts[10] - starts[0] >= SECOND
    windows: Counter[int] = Counter()
    window = -SECOND
    for at in starts:
        window = window if at < window + SECOND else at
        windows[window] += 1
    assert max(windows.values()) <= 10


def test_c085_a_raised_limit_is_felt_at_once_and_a_lowered_one_revokes_nothing(pulse: Pulse) -> None:
    queue_id = pulse.queue(max_concurrency=1)
    tasks = [pulse.submit() for _ in range(6)]
    running = pulse.claim()
    assert ids(running) == tasks[:1]
    pulse.configure(queue_id, max_concurrency=4)
    running += pulse.claim()
    assert ids(running) == tasks[:4]
    pulse.configure(queue_id, max_concurrency=100_000)
    running += pulse.claim()
    assert ids(running) == tasks
    pulse.start_all(running)
    pulse.configure(queue_id, max_concurrency=1)
    waiting = pulse.submit()
    for item in running[:-1]:
        pulse.succeed(item)
        assert pulse.claim() == []
    pulse.succeed(running[-1])
    assert ids(pulse.claim()) == [waiting]


def test_c087_a_refusal_for_want_of_room_uses_no_key(pulse: Pulse) -> None:
    pulse.queue(max_unfinished_tasks=3)
    for _ in range(3):
        pulse.submit(retry=RetryPolicy(3, SECOND, SECOND))
    assert isinstance(pulse.refusal("b-1"), QueueFull)
    held = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    pulse.fail(held, ErrorClass.RETRYABLE)
    assert pulse.task(held.task.id).state is TaskState.WAITING, "a retry is never refused"
    pulse.cancel(held.task.id)
    accepted = pulse.submit("b-1")
    assert pulse.task(accepted).state is TaskState.WAITING


@pytest.mark.databases("mariadb", "mysql")
def test_c093_a_lock_wait_never_leaves_half_a_result(pulse: Pulse, database: Database) -> None:
    """The last table that a result writes is held by somebody else: an answer comes, and nothing is half."""
    queue_id = pulse.queue()
    pulse.submit()
    held = pulse.run()
    blocked, release = threading.Event(), threading.Event()

    def block() -> None:
        def work(tx: object) -> None:
            statement = text("SELECT active FROM pulse_queue_usage WHERE queue_id = :id FOR UPDATE")
            tx.row(statement, {"id": queue_id})  # type: ignore[attr-defined]
            blocked.set()
            release.wait(60)

        database.transaction(work)

    def let_go() -> None:
        state = pulse.task(held.task.id).state
        seen.append(state)
        release.set()

    seen: list[TaskState] = []
    holder = threading.Thread(target=block)
    holder.start()
    assert blocked.wait(60)
    timer = threading.Timer(1.0, let_go)
    timer.start()
    receipt = pulse.succeed(held)
    timer.join()
    holder.join()
    assert seen == [TaskState.RUNNING], "nothing of it is seen before all of it"
    assert receipt.receipt is ReceiptKind.ACCEPTED
    assert pulse.task(held.task.id).state is TaskState.SUCCEEDED
    counted = database.transaction(
        lambda tx: tx.row(text("SELECT COUNT(*) FROM orbit_event WHERE type = 'task.succeeded'"))
    )
    assert counted is not None
    assert counted[0] == 1


@pytest.mark.databases("mariadb", "mysql")
def test_c091_a_deadlock_against_a_claim_is_run_again(pulse: Pulse, database: Database) -> None:
    """Another session takes the same locks the other way round; whoever loses, the claim ends well."""
    queue_id = pulse.queue()
    task_id = pulse.submit()
    held, lost = threading.Event(), list[Exception]()

    def cross() -> None:
        other = create_engine(database.url)
        try:
            with other.connect() as connection, connection.begin():
                usage = text("SELECT active FROM pulse_queue_usage WHERE queue_id = :id FOR UPDATE")
                connection.execute(usage, {"id": queue_id})
                held.set()
                # The claim, which has locked its entry by now, waits for the usage.
                connection.execute(text("SELECT task_id FROM pulse_ready FOR UPDATE"))
        except OperationalError as error:
            lost.append(error)
        other.dispose()

    before = database.counts["deadlocks"]
    crossing = threading.Thread(target=cross)
    crossing.start()
    assert held.wait(60)
    claimed = pulse.claim()
    crossing.join()
    assert ids(claimed) == [task_id]
    assert len(lost) + database.counts["deadlocks"] - before <= 1
    assert pulse.drifts() == []


def test_c097_names_and_keys_that_differ_only_in_case_are_two(pulse: Pulse) -> None:
    pulse.queue("Mail")
    pulse.queue("mail")
    upper, lower = (
        pulse.submit("Order-A", queue="Mail", concurrency_keys=("Key",), fairness_key="F"),
        pulse.submit("order-a", queue="mail", concurrency_keys=("key",), fairness_key="f"),
    )
    assert upper != lower
    assert ids(pulse.claim(queue="Mail")) == [upper]
    assert ids(pulse.claim(queue="mail")) == [lower]


def test_c101_instants_come_back_as_given_and_what_is_due_now_is_claimed_now(pulse: Pulse) -> None:
    pulse.queue()
    end_of_year = 1_798_761_599_900_000
    for at in (end_of_year, end_of_year + 99_999):
        task = pulse.task(pulse.submit(available_at=at))
        assert task.row.available_at == at
    now = pulse.database.transaction(lambda tx: tx.now())
    due = [pulse.submit(available_at=now - 7 * n) for n in range(20)]
    assert {item.task.id for item in pulse.claim(50)} == set(due)
