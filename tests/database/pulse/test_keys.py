"""Concurrency keys: all or none, one line a key and lane, and no task that sleeps before a key with room."""

from itertools import count

import pytest

from orbit.clock import SECOND
from orbit.database import Database
from orbit.errors import StateConflict
from orbit.ids import new_id
from pulse.claim import Assignment
from pulse.doctor import examine, repair
from pulse.gates import gate_close, gate_create, gate_open
from pulse.key_limits import KeyChange, KeyView, key_configure, key_view
from pulse.listener import TaskOwner
from pulse.requests import RetryPolicy
from pulse.review import Verdict
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from pulse.store.key import key_id, wakes_delete, wakes_lock
from pulse.tasks import task_explain
from pulse.waker import keys_forget, lines_sweep
from tests.support.pulse import Pulse

_numbers = count()


def limit(pulse: Pulse, pattern: str, to: int | None) -> KeyView:
    """Set a limit at its present revision."""

    def work_view(pattern: str) -> KeyView:
        return pulse.database.transaction(lambda tx: key_view(tx, pulse.namespace_id, pattern))

    change = KeyChange(pattern, work_view(pattern).revision, "a test", to)
    return pulse.database.transaction(lambda tx: key_configure(tx, pulse.namespace_id, pulse.actor(), change, pulse))


def view(pulse: Pulse, name: str) -> KeyView:
    """Read a key."""
    return pulse.database.transaction(lambda tx: key_view(tx, pulse.namespace_id, name))


def reason(pulse: Pulse, task_id: bytes) -> str | None:
    """Read why a task waits."""
    stored: str | None = pulse.task(task_id).row.wait_reason
    return stored


def ids(claimed: list[Assignment]) -> list[bytes]:
    """Return which tasks were claimed, in order."""
    return [item.task.id for item in claimed]


def test_r176_a_key_is_held_by_one_task_and_taken_by_the_next_when_it_ends(pulse: Pulse) -> None:
    pulse.queue()
    first, second, free = (
        pulse.submit(concurrency_keys=("acme",)),
        pulse.submit(concurrency_keys=("acme",)),
        pulse.submit(),
    )
    (held, other) = pulse.claim()
    assert (held.task.id, other.task.id) == (first, free)
    assert (reason(pulse, second), view(pulse, "acme").waiting) == (WaitReason.KEY_BLOCKED, 1)
    assert view(pulse, "acme").holders == [first]
    assert pulse.drifts() == []
    assert pulse.start(held).granted
    assert pulse.claim() == []
    pulse.succeed(held)
    assert view(pulse, "acme").active == 0
    pulse.sweep()
    assert reason(pulse, second) == WaitReason.READY
    assert ids(pulse.claim()) == [second]
    assert pulse.drifts() == []


def test_r176_all_keys_or_none(pulse: Pulse) -> None:
    pulse.queue()
    one = pulse.submit(concurrency_keys=("a",))
    both = pulse.submit(concurrency_keys=("b", "a"))
    two = pulse.submit(concurrency_keys=("b",))
    claimed = pulse.claim()
    assert ids(claimed) == [one, two]
    assert view(pulse, "b").holders == [two]
    pulse.release(claimed[1])
    pulse.sweep()
    again = pulse.claim()
    assert ids(again) == [two], "it gave back b, and a is still held"
    pulse.release(claimed[0])
    pulse.release(again[0])
    pulse.pass_time(1)
    assert pulse.drifts() == []
    last = pulse.claim()
    assert set(ids(last)) in ({both}, {one, two})
    assert pulse.drifts() == []


def test_r113_a_key_counts_in_its_namespace_over_all_its_queues(pulse: Pulse, database: Database) -> None:
    other = Pulse(database)
    other.namespace_id = other.another_namespace("elsewhere")
    for each in (pulse, other):
        each.queue()
        each.queue("side")
    first = pulse.submit(concurrency_keys=("acme",))
    second = pulse.submit(concurrency_keys=("acme",), queue="side")
    foreign = other.submit(concurrency_keys=("acme",))
    assert ids(pulse.claim()) == [first]
    assert pulse.claim(queue="side") == []
    assert reason(pulse, second) == WaitReason.KEY_BLOCKED
    assert ids(other.claim()) == [foreign]


@pytest.mark.parametrize("leave", ["cancel", "hold", "deadline", "reschedule"])
def test_r176_two_keys_crossing_leave_no_key_free_while_a_task_sleeps_on_it(pulse: Pulse, leave: str) -> None:
    """T1 holds K1, T2 waits for K1 and needs K2, others wait behind it; T2 goes away by every road."""
    pulse.queue()
    gate_id = new_id()
    pulse.database.transaction(lambda tx: gate_create(tx, gate_id, namespace_id=pulse.namespace_id))
    pulse.submit(concurrency_keys=("k1",))
    owner = TaskOwner(gate_id, "step", 1) if leave == "hold" else None
    crossing = pulse.submit(
        concurrency_keys=("k1", "k2"),
        owner=owner,
        gate_id=gate_id if owner else None,
        start_within_micros=60 * SECOND if leave == "deadline" else None,
    )
    behind = pulse.submit(concurrency_keys=("k1",))
    (held,) = pulse.claim()
    assert pulse.start(held).granted
    assert (reason(pulse, crossing), reason(pulse, behind)) == ("KEY_BLOCKED", "KEY_BLOCKED")
    pulse.succeed(held)
    pulse.follow()
    assert reason(pulse, crossing) == WaitReason.READY, "the first of the line is awake"
    assert reason(pulse, behind) == WaitReason.KEY_BLOCKED
    if leave == "cancel":
        pulse.cancel(crossing)
    elif leave == "hold":
        pulse.database.transaction(lambda tx: gate_close(tx, gate_id, pulse))
    elif leave == "deadline":
        pulse.database.clock.advance(seconds_forward=61)
        pulse.deadlines.run_once()
    else:
        now = pulse.database.transaction(lambda tx: tx.now())
        pulse.reschedule(crossing, available_at=now + 600 * SECOND)
    assert pulse.drifts() == [], "a wake-up is on its way"
    pulse.follow()
    assert reason(pulse, behind) == WaitReason.READY
    assert ids(pulse.claim()) == [behind]
    assert pulse.drifts() == []


def test_r176_a_waiter_blocked_by_its_other_key_passes_the_first_on(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit(concurrency_keys=("k1",))
    pulse.submit(concurrency_keys=("k2",))
    crossing = pulse.submit(concurrency_keys=("k1", "k2"))
    behind = pulse.submit(concurrency_keys=("k1",))
    first, _ = pulse.claim()
    assert pulse.start(first).granted
    pulse.succeed(first)
    pulse.follow()
    assert ids(pulse.claim()) == []
    assert reason(pulse, crossing) == WaitReason.KEY_BLOCKED, "by k2 now"
    assert pulse.drifts() == []
    pulse.follow()
    assert ids(pulse.claim()) == [behind]
    assert pulse.drifts() == []


def test_r176_a_lane_without_workers_keeps_no_key_from_another_lane(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit(concurrency_keys=("k",))
    (held,) = pulse.claim()
    assert pulse.start(held).granted
    deaf = pulse.submit(concurrency_keys=("k",), type="nobody")
    served = pulse.submit(concurrency_keys=("k",))
    assert [*pulse.claim(type_="nobody"), *pulse.claim()] == []
    assert (reason(pulse, deaf), reason(pulse, served)) == ("KEY_BLOCKED", "KEY_BLOCKED")
    pulse.succeed(held)
    pulse.follow()
    assert (reason(pulse, deaf), reason(pulse, served)) == ("READY", "READY"), "one of each line"
    assert ids(pulse.claim()) == [served]


def test_limits_of_keys_are_moved_live_and_revoke_nothing(pulse: Pulse) -> None:
    pulse.queue()
    tasks = [pulse.submit(concurrency_keys=("supplier:acme",)) for _ in range(5)]
    one = pulse.claim()
    assert ids(one) == tasks[:1]
    assert limit(pulse, "supplier:*", 3).limit == 3
    assert view(pulse, "supplier:acme").limit == 3
    pulse.follow()
    two = pulse.claim()
    assert ids(two) == tasks[1:3]
    assert limit(pulse, "supplier:acme", 1).revision == 1
    assert (view(pulse, "supplier:acme").active, pulse.drifts()) == (3, [])
    pulse.start_all([*one, *two])
    pulse.succeed(one[0])
    pulse.succeed(two[0])
    pulse.follow()
    assert pulse.claim() == [], "still as many as may"
    pulse.succeed(two[1])
    pulse.follow()
    assert ids(pulse.claim()) == tasks[3:4]
    assert limit(pulse, "supplier:acme", None).limit == 3
    pulse.follow()
    assert ids(pulse.claim()) == tasks[4:]
    assert limit(pulse, "*", 7).limit == 7
    assert (view(pulse, "other").limit, view(pulse, "supplier:b").limit) == (7, 3)


def test_a_limit_is_set_at_the_revision_that_was_read_and_done_once(pulse: Pulse) -> None:
    change = KeyChange("k", 0, "a test", 2)

    def work() -> KeyView:
        return pulse.database.transaction(
            lambda tx: key_configure(tx, pulse.namespace_id, pulse.actor(), change, pulse)
        )

    assert (work().revision, work().revision) == (1, 1)
    stale = KeyChange("k", 0, "a test", 3)
    with pytest.raises(StateConflict):
        pulse.database.transaction(lambda tx: key_configure(tx, pulse.namespace_id, pulse.actor(), stale, pulse))


def test_r176_a_lost_worker_and_a_review_hold_no_key(pulse: Pulse) -> None:
    pulse.queue()
    parked = pulse.submit(concurrency_keys=("k",), attempt_timeout_micros=3600 * SECOND)
    behind = pulse.submit(concurrency_keys=("k",))
    pulse.run()
    assert pulse.claim() == []
    pulse.pass_time(31)
    assert pulse.task(parked).state is TaskState.NEEDS_REVIEW
    assert ids(pulse.claim()) == [behind]
    pulse.review(parked, Verdict.RETRY)
    assert pulse.claim() == []
    assert reason(pulse, parked) == WaitReason.KEY_BLOCKED
    assert pulse.drifts() == []


def test_r178_a_key_limits_and_does_not_order(pulse: Pulse) -> None:
    """A task that waits for its next attempt is passed by a later one with the same key."""
    pulse.queue()
    first = pulse.submit(concurrency_keys=("k",), retry=RetryPolicy(3, 10 * SECOND, 10 * SECOND))
    second = pulse.submit(concurrency_keys=("k",))
    held = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    pulse.fail(held, ErrorClass.RETRYABLE)
    pulse.follow()
    assert pulse.task(first).row.wait_reason == WaitReason.BACKOFF
    assert ids(pulse.claim()) == [second]


def test_a_blocked_task_leaves_its_line_by_cancel_hold_and_deadline(pulse: Pulse) -> None:
    pulse.queue()
    gate_id = new_id()
    pulse.database.transaction(lambda tx: gate_create(tx, gate_id, namespace_id=pulse.namespace_id))
    pulse.submit(concurrency_keys=("k",))
    owner = TaskOwner(gate_id, "step", 1)
    cancelled, held = (
        pulse.submit(concurrency_keys=("k",)),
        pulse.submit(concurrency_keys=("k",), owner=owner, gate_id=gate_id),
    )
    late = pulse.submit(concurrency_keys=("k",), start_within_micros=20 * SECOND)
    moved = pulse.submit(concurrency_keys=("k",))
    pulse.claim(1)
    pulse.claim()
    assert view(pulse, "k").waiting == 4
    pulse.cancel(cancelled)
    pulse.database.transaction(lambda tx: gate_close(tx, gate_id, pulse))
    pulse.reschedule(moved, priority=9)
    assert view(pulse, "k").waiting == 1
    assert pulse.drifts() == []
    pulse.pass_time(21)
    assert pulse.task(late).state is TaskState.FAILED
    assert view(pulse, "k").waiting == 0
    pulse.database.transaction(lambda tx: gate_open(tx, gate_id, pulse))
    assert reason(pulse, held) == WaitReason.READY
    assert pulse.drifts() == []


def test_the_doctor_finds_and_mends_keys(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit(concurrency_keys=("k",))
    asleep = pulse.submit(concurrency_keys=("k",))
    (held,) = pulse.claim()
    assert pulse.start(held).granted
    pulse.succeed(held)

    def lose(tx: object) -> None:
        wakes_delete(tx, wakes_lock(tx, limit=10).keys())  # type: ignore[arg-type]

    pulse.database.transaction(lose)
    assert [drift.name for drift in examine(pulse.database)] == ["key_asleep"]
    repair(pulse.database)
    assert examine(pulse.database) == []
    pulse.follow()
    assert ids(pulse.claim()) == [asleep]
    pulse.break_key(key_id(pulse.namespace_id, b"k"))
    assert {drift.name for drift in examine(pulse.database)} == {"key_active", "key_holder"}
    repair(pulse.database)
    assert examine(pulse.database) == []
    assert view(pulse, "k").active == 1


def test_a_sweep_finds_a_line_that_no_wake_up_came_for(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit(concurrency_keys=("k",))
    asleep = pulse.submit(concurrency_keys=("k",))
    (held,) = pulse.claim()
    assert pulse.start(held).granted
    pulse.succeed(held)
    pulse.database.transaction(lambda tx: wakes_delete(tx, wakes_lock(tx, limit=10).keys()))
    assert lines_sweep(pulse.database, pulse) == 1
    pulse.follow()
    again = pulse.claim()
    assert ids(again) == [asleep]
    assert pulse.start(again[0]).granted
    pulse.succeed(again[0])
    pulse.follow()
    pulse.database.clock.advance(seconds_forward=25 * 3600)
    keys_forget(pulse.database)
    assert view(pulse, "k").active == 0
    assert pulse.drifts() == []


def test_tasks_without_keys_cost_no_statement_more(pulse: Pulse) -> None:
    """The same claim, Start and result with keys elsewhere in the namespace and without: equal statements."""
    pulse.queue()
    pulse.look_for_no_subscribers()

    def run() -> int:
        before = pulse.database.counts["statements"]
        pulse.succeed(pulse.run())
        return pulse.database.counts["statements"] - before

    pulse.submit()
    pulse.submit()
    plain = run()
    pulse.submit(concurrency_keys=("k",))
    assert run() == plain
    assert run() == plain + pulse_keyed_statements(pulse)


def pulse_keyed_statements(pulse: Pulse) -> int:
    """Say what a key costs: its lock, its making once with the lock of all limits, its permit taken and given back.

    A Start that is granted needs no lock of it.
    """
    clock = 0 if pulse.database.is_sqlite else 1
    claim = 1 + (1 + 1 + 1 + 1 + clock) + 2
    return claim + 3


def test_r098_explain_names_the_key_and_who_holds_it(pulse: Pulse) -> None:
    pulse.queue()
    holder = pulse.submit(concurrency_keys=("k",))
    blocked = pulse.submit(concurrency_keys=("j", "k"))
    pulse.claim()
    _, waiting = pulse.database.transaction(lambda tx: task_explain(tx, pulse.namespace_id, blocked))
    assert waiting is not None
    assert waiting.reason is WaitReason.KEY_BLOCKED
    assert waiting.details["concurrency_keys"] == [
        {"key": "j", "limit": 1, "active": "0", "waiting": "0", "held_by": []},
        {"key": "k", "limit": 1, "active": "1", "waiting": "1", "held_by": [holder.hex()]},
    ]
