"""Who is next: even rounds between namespaces, fair places within a lane, also with much ready on one side.

`ORBIT_ORDER_TASKS` says how many tasks the greedy side has (200 000 is a full run).
"""

import os
from typing import Any

import pytest

from orbit.clock import SECOND
from orbit.database import Database
from orbit.ids import new_id
from pulse.claim import Demand, claim
from pulse.fairness import quantum
from tests.support.bulk import tasks_copy, truncated
from tests.support.pulse import Pulse

TASKS = int(os.environ.get("ORBIT_ORDER_TASKS", "2000"))
ROOM = 32
BROAD: Any = {"max_concurrency": 100_000, "rate_per_second": 1_000_000, "max_unfinished_tasks": 1_000_000}


def rounds_until(pulses: list[Pulse], wanted: set[bytes], *, nodes: int) -> int:
    """Claim as nodes that serve all namespaces, in turns, until all wanted tasks are out; count each node's rounds."""
    seats = [[pulse.seat(ROOM) for pulse in pulses] for _ in range(nodes)]
    left = set(wanted)
    for number in range(1, 1000):
        for node in seats:
            claimed = pulses[0].database.transaction(lambda tx, node=node: claim(tx, Demand(node, {})))  # type: ignore[misc]
            left -= {item.task.id for item in claimed.assignments}
        if not left:
            return number
    raise AssertionError("they are never claimed")


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.requirement("R092")
def test_r093_ten_tasks_of_one_application_are_out_within_one_round(
    pulse: Pulse, database: Database, nodes: int
) -> None:
    other = Pulse(database)
    other.namespace_id = other.another_namespace("small")
    for each in (pulse, other):
        each.queue(**BROAD)
    with truncated(database):
        tasks_copy(database, pulse.submit(), count=TASKS)
        database.clock.advance(seconds_forward=60)
        few = {other.submit() for _ in range(10)}
        assert rounds_until([pulse, other], few, nodes=nodes) == 1
    print(f"{TASKS} of one application, 10 of another, {nodes} nodes: all ten within 1 round of {2 * ROOM}")  # noqa: T201


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [1, 3])
def test_r092_ten_tasks_of_one_fairness_key_are_out_within_one_round(
    pulse: Pulse, database: Database, nodes: int
) -> None:
    pulse.queue(**BROAD)
    first = pulse.submit(fairness_key="greedy")
    with truncated(database):
        tasks_copy(database, first, count=TASKS, step_micros=quantum(4))
        database.clock.advance(seconds_forward=60)
        pulse.submit(fairness_key="greedy")
        few = {pulse.submit(fairness_key="modest") for _ in range(10)}
        assert rounds_until([pulse], few, nodes=nodes) == 1
    print(f"{TASKS} of one key, 10 of another, {nodes} nodes: all ten within 1 round of {ROOM}")  # noqa: T201


def test_r175_the_highest_priority_overtakes_at_most_nine_steps_of_waiting(pulse: Pulse) -> None:
    pulse.queue()
    old = pulse.submit(priority=0)
    pulse.database.clock.advance(seconds_forward=9 * 30 - 5)
    urgent = pulse.submit(priority=9)
    pulse.database.clock.advance(seconds_forward=10)
    late = pulse.submit(priority=9)
    assert [item.task.id for item in pulse.claim()] == [urgent, old, late]


def test_fair_places_are_given_when_a_task_enters_by_its_time(pulse: Pulse) -> None:
    pulse.queue()
    greedy = [pulse.submit(fairness_key="greedy", delay_micros=10 * SECOND) for _ in range(4)]
    modest = pulse.submit(fairness_key="modest", delay_micros=10 * SECOND)
    assert pulse.claim() == []
    pulse.pass_time(11)
    claimed = [item.task.id for item in pulse.claim()]
    assert set(claimed) == {*greedy, modest}
    assert modest in claimed[:2]
    assert pulse.drifts() == []


def test_r081_a_released_fair_task_keeps_its_place_and_a_rescheduled_one_gets_another(pulse: Pulse) -> None:
    pulse.queue()
    first, second = pulse.submit(fairness_key="a"), pulse.submit(fairness_key="a")
    (held,) = pulse.claim(1)
    pulse.release(held)
    assert [item.task.id for item in pulse.claim(1)] == [first]
    third = pulse.submit(fairness_key="a")
    pulse.reschedule(second, priority=0)
    assert [item.task.id for item in pulse.claim()] == [third, second]
    assert pulse.drifts() == []


def test_blocked_tasks_at_the_head_are_cleared_away_by_the_batch(pulse: Pulse, database: Database) -> None:
    database.clock.go_on()  # copies are told apart by their instants
    pulse.queue(**BROAD)
    holder = pulse.submit(concurrency_keys=("k",))
    assert [item.task.id for item in pulse.claim(1)] == [holder]
    tasks_copy(database, pulse.submit(concurrency_keys=("k",)), count=1_000)
    database.clock.advance(seconds_forward=60)
    free = pulse.submit()
    look, rounds, got = 1, 0, set[bytes]()
    while free not in got:
        demand = Demand([pulse.seat(1)], {}, look)
        claimed = database.transaction(lambda tx, demand=demand: claim(tx, demand))  # type: ignore[misc]
        got |= {item.task.id for item in claimed.assignments}
        look = 256 if claimed.blocked else 1
        rounds += 1
        assert rounds < 10
    assert pulse.drifts() == []
    assert new_id() not in got
