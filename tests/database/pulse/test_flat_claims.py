"""Claims cost the same with little and much ready, and behind whatever stands at the head of a queue.

`ORBIT_FLAT_TASKS` says how many are ready in the large lane (1 000 000 is a full run), `ORBIT_HEAD_TASKS` how many are
at the head (100 000 is). Times are compared as medians of claims that take turns, in a full run by their p99 as well;
statements must be equal.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from orbit.database import Database, Transaction
from orbit.ids import new_id
from pulse.claim import Demand, claim
from pulse.gates import gate_create
from pulse.listener import TaskOwner
from pulse.placement import Seat
from tests.support.bulk import patient, tasks_copy, truncated
from tests.support.pulse import Pulse

pytestmark = pytest.mark.soak
READY = int(os.environ.get("ORBIT_FLAT_TASKS", "5000"))
HEAD = int(os.environ.get("ORBIT_HEAD_TASKS", "3000"))
IS_FULL = READY >= 100_000
ROUNDS = 300 if IS_FULL else 25
BROAD: Any = {"max_concurrency": 100_000, "rate_per_second": 1_000_000, "max_unfinished_tasks": 1_000_000}
_SLACK_SECONDS = 0.005  # what a busy machine adds to claims of a few milliseconds
_SLACK = 1 if IS_FULL else 3  # a few claims tell less: they must not take several times as long


def claimed_in(database: Database, seat: Seat) -> tuple[float, int]:
    """Claim once; say how long it took and with how many statements."""
    before, began = database.counts["statements"], time.perf_counter()
    claimed = database.transaction(lambda tx: claim(tx, Demand([seat], {})))
    spent = time.perf_counter() - began
    assert len(claimed.assignments) == seat.room
    return spent, database.counts["statements"] - before


@pytest.mark.timeout(3600)
def test_claims_stay_flat_with_much_ready(pulse: Pulse, database: Database) -> None:
    database.clock.go_on()  # copies are told apart by their instants
    little_id, much_id = pulse.queue("little", **BROAD), pulse.queue("much", **BROAD)
    assert little_id != much_id
    with truncated(database):
        tasks_copy(database, pulse.submit(queue="much"), count=READY)
        tasks_copy(database, pulse.submit(queue="little"), count=1_000 + 10 * ROUNDS)
        _analyze(database)
        spent, statements = _in_turns(
            database, {"little": pulse.seat(10, queue="little"), "much": pulse.seat(10, queue="much")}
        )
    assert statements["little"] == statements["much"]
    figures = {name: (statistics.median(times), times[len(times) * 99 // 100 - 1]) for name, times in spent.items()}
    for name, (median, most) in figures.items():
        print(f"{name} of {READY}: claim of 10 median {median * 1e3:.2f} ms, p99 {most * 1e3:.2f} ms")  # noqa: T201
    for at in (0, 1) if IS_FULL else (0,):
        assert figures["much"][at] < _SLACK * 2 * figures["little"][at] + _SLACK_SECONDS


def _in_turns(database: Database, seats: dict[str, Seat]) -> tuple[dict[str, list[float]], dict[str, set[int]]]:
    spent: dict[str, list[float]] = {name: [] for name in seats}
    statements: dict[str, set[int]] = {name: set() for name in seats}
    for _ in range(ROUNDS):
        for name, seat in seats.items():
            seconds, count = claimed_in(database, seat)
            spent[name].append(seconds)
            statements[name].add(count)
    return {name: sorted(times) for name, times in spent.items()}, statements


def _delay(tx: Transaction, queue_id: bytes) -> None:
    tx.execute(
        text(
            "INSERT INTO pulse_delayed (due_at, task_id) SELECT accepted_at + 3600000000, id FROM pulse_task "
            "WHERE queue_id = :queue"
        ),
        {"queue": queue_id},
    )
    later = "UPDATE pulse_task SET available_at = accepted_at + 3600000000 WHERE queue_id = :queue"
    tx.execute(text(later), {"queue": queue_id})
    _take_out(tx, queue_id, "DELAYED")


def _hold(tx: Transaction, queue_id: bytes) -> None:
    _take_out(tx, queue_id, "HELD")
    tx.execute(text("UPDATE pulse_gate SET is_open = 0"))
    tx.execute(text("UPDATE pulse_task SET held_since = accepted_at WHERE queue_id = :queue"), {"queue": queue_id})


def _take_out(tx: Transaction, queue_id: bytes, reason: str) -> None:
    lanes = "SELECT id FROM pulse_lane WHERE queue_id = :queue"
    tx.execute(text(f"DELETE FROM pulse_ready WHERE lane_id IN ({lanes})"), {"queue": queue_id})  # noqa: S608
    tx.execute(
        text("UPDATE pulse_task SET wait_reason = :reason WHERE queue_id = :queue"),
        {"reason": reason, "queue": queue_id},
    )


def _incompatible(_tx: Transaction, _queue_id: bytes) -> None:
    """Leave them ready: nobody serves their type."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("head", [_delay, _hold, _incompatible], ids=["delayed", "held", "incompatible"])
def test_a_head_that_can_not_run_costs_a_claim_nothing(
    pulse: Pulse, database: Database, head: Callable[[Transaction, bytes], None]
) -> None:
    database.clock.go_on()  # copies are told apart by their instants
    queue_id = pulse.queue(**BROAD)
    pulse.queue("bare", **BROAD)
    with truncated(database):
        type_ = "nobody" if head is _incompatible else "echo"
        gate_id = new_id() if head is _hold else None
        if gate_id is not None:
            database.transaction(lambda tx: gate_create(tx, gate_id, namespace_id=pulse.namespace_id))
        owner = None if gate_id is None else TaskOwner(gate_id, "a", 1)
        tasks_copy(database, pulse.submit(type=type_, owner=owner, gate_id=gate_id), count=HEAD)
        with patient(database) as opened:
            opened.transaction(lambda tx: head(tx, queue_id))
        for queue in ("main", "bare"):
            tasks_copy(database, pulse.submit(queue=queue), count=12 * ROUNDS)
        _analyze(database)
        spent, statements = _in_turns(database, {"headed": pulse.seat(10), "bare": pulse.seat(10, queue="bare")})
    assert statements["headed"] == statements["bare"]
    medians = {name: statistics.median(times) for name, times in spent.items()}
    ratio = medians["headed"] / medians["bare"]
    print(f"head of {HEAD} {head.__name__}: ratio {ratio:.2f} ({medians['bare'] * 1e3:.2f} ms without)")  # noqa: T201
    assert medians["headed"] < _SLACK * 1.5 * medians["bare"] + _SLACK_SECONDS


def _analyze(database: Database) -> None:
    if not database.is_sqlite:
        database.transaction(lambda tx: tx.rows(text("ANALYZE TABLE pulse_task, pulse_ready")))
