"""Area a of the public failures: what schedules get wrong elsewhere, and what they do here."""

import datetime as dt
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from api.server import Node
from orbit.clock import SECOND, Micros, from_rfc3339, to_rfc3339
from orbit.database import Database
from pulse.schedules.content import TaskTarget
from pulse.schedules.policy import Misfire, MisfirePolicy, Overlap, OverlapPolicy
from pulse.schedules.rules import TimeRule
from pulse.states import ScheduleState, TaskState
from tests.support.http import Api, Caller
from tests.support.pulse import Pulse
from tests.support.schedules import Scheduling, at, every

BODY: dict[str, Any] = {
    "name": "case",
    "misfire": {"policy": "SKIP"},
    "overlap": {"policy": "ALLOW"},
    "task": {"queue": "main", "type": "echo", "version": 1},
}
HASTY = {"grace_micros": 0}
CATCH_UP = Misfire(
    policy=MisfirePolicy.CATCH_UP, max_count=10, max_age_micros=3600 * SECOND, rate_per_second=10.0, **HASTY
)


@pytest.fixture
def node(database: Database) -> Iterator[Node]:
    made = Node(database, name="test")
    yield made
    made.stop()


@pytest.fixture
def caller(database: Database, node: Node) -> Caller:
    made = Api(database, node.operations, node.authenticator).caller()
    made.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    return made


@pytest.fixture
def pulse(database: Database) -> Pulse:
    made = Pulse(database)
    made.queue()
    return made


@pytest.fixture
def schedules(pulse: Pulse) -> Scheduling:
    return Scheduling(pulse)


@pytest.fixture
def anchor(schedules: Scheduling) -> Micros:
    """An instant far enough ahead that no test reaches it by being slow."""
    return (schedules.now() // SECOND + 3600) * SECOND


def occurrences(caller: Caller, cron: str, zone: str, after: str, until: str) -> list[str]:
    """List the instants after one and up to another."""
    body = {"cron": cron, "timezone": zone, "after": to_rfc3339(from_rfc3339(after) + 1), "count": 200}
    found = caller.post("/v1/schedules:preview", body).data["points"]
    return [
        point["scheduled_at"][:16] + "Z" for point in found if point["scheduled_at"] <= to_rfc3339(from_rfc3339(until))
    ]


def run_through(schedules: Scheduling, made: bytes, until: str) -> list[str]:
    """Let a schedule fire on a clock that moves to each of its instants; return those that made a task."""
    while True:
        at = schedules.row(made).next_at
        if at is None or at > from_rfc3339(until):
            break
        schedules.run_at(at + SECOND)
    return [to_rfc3339(row.scheduled_at)[:16] + "Z" for row in schedules.firings(made) if row.subject_id is not None]


def test_c001_a_time_that_does_not_exist_is_fired_once_after_the_gap(caller: Caller) -> None:
    found = occurrences(caller, "30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", "2026-03-10T00:00:00Z")
    assert found == ["2026-03-07T07:30Z", "2026-03-08T07:00Z", "2026-03-09T06:30Z"]


def test_c001_and_one_task_is_made_on_the_day_of_the_change(schedules: Scheduling) -> None:
    schedules.move_to(from_rfc3339("2026-03-07T00:00:00Z"))
    made = schedules.create(TimeRule(cron="30 2 * * *", timezone="America/New_York"))
    fired = run_through(schedules, made, "2026-03-10T00:00:00Z")
    assert fired == ["2026-03-07T07:30Z", "2026-03-08T07:00Z", "2026-03-09T06:30Z"]


TWICE = ["2026-11-01T05:30Z", "2026-11-02T06:30Z"]


def test_c003_a_time_that_occurs_twice_is_shown_in_the_first_pass(caller: Caller) -> None:
    found = occurrences(caller, "30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", "2026-11-02T12:00:00Z")
    assert found == TWICE


def test_c003_and_one_task_is_made_in_the_night_of_the_change(schedules: Scheduling) -> None:
    schedules.move_to(from_rfc3339("2026-10-31T12:00:00Z"))
    made = schedules.create(TimeRule(cron="30 1 * * *", timezone="America/New_York"))
    assert run_through(schedules, made, "2026-11-02T12:00:00Z") == TWICE


def test_c005_quarters_of_an_hour_go_on_through_the_repeated_hour(caller: Caller) -> None:
    zone = "Europe/London"
    found = occurrences(caller, "*/15 * * * *", zone, "2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z")
    assert [each[11:] for each in found] == ["00:45Z", "01:00Z", "01:15Z", "01:30Z", "01:45Z", "02:00Z"]
    day = occurrences(caller, "*/15 * * * *", zone, "2026-10-24T22:59:59Z", "2026-10-25T23:59:00Z")
    assert (day[0], day[-1], len(day)) == ("2026-10-24T23:00Z", "2026-10-25T23:45Z", 100)
    times = [dt.datetime.fromisoformat(each) for each in day]
    assert {b - a for a, b in pairwise(times)} == {dt.timedelta(minutes=15)}


def test_c007_listed_hours_keep_their_wall_clock_time(caller: Caller) -> None:
    zone = "America/Los_Angeles"
    found = occurrences(caller, "0 7,9 * * *", zone, "2026-03-07T18:00:00Z", "2026-03-09T00:00:00Z")
    assert found == ["2026-03-08T14:00Z", "2026-03-08T16:00Z"]


def test_c010_leap_days_come_and_impossible_days_are_refused(caller: Caller) -> None:
    body = {"cron": "0 0 29 2 *", "timezone": "UTC", "after": "2025-01-01T00:00:00Z", "count": 1}
    found = caller.post("/v1/schedules:preview", body).data["points"]
    assert [point["scheduled_at"] for point in found] == ["2028-02-29T00:00:00.000000Z"]
    due = occurrences(caller, "0 0 29 * *", "UTC", "2023-12-31T00:00:00Z", "2024-03-02T00:00:00Z")
    assert due[-1] == "2024-02-29T00:00Z"
    refused = caller.post("/v1/schedules", BODY | {"cron": "0 0 30 2 *", "timezone": "UTC"})
    assert (refused.status, refused.pointer) == (400, "/cron")
    assert caller.get("/v1/schedules").data == []


def test_c012_either_of_two_day_fields_is_enough(caller: Caller) -> None:
    found = occurrences(caller, "0 9 1 * 1", "UTC", "2026-08-26T00:00:00Z", "2026-10-02T00:00:00Z")
    days = ["08-31", "09-01", "09-07", "09-14", "09-21", "09-28", "10-01"]
    assert found == [f"2026-{day}T09:00Z" for day in days]
    assert occurrences(caller, "0 9 * * 7", "UTC", "2026-08-26T00:00:00Z", "2026-08-31T00:00:00Z") == [
        "2026-08-30T09:00Z"
    ]


@pytest.mark.parametrize(
    ("misfire", "after"),
    [
        (Misfire(policy=MisfirePolicy.SKIP, **HASTY), [("MISFIRE", 120, 4)]),
        (Misfire(policy=MisfirePolicy.COALESCE, **HASTY), [("FIRED", 120, 4)]),
        (CATCH_UP, [("FIRED", 120, 1), ("FIRED", 180, 1), ("FIRED", 240, 1), ("FIRED", 300, 1)]),
    ],
)
def test_c014_missed_runs_are_skipped_merged_or_caught_up_with_as_asked(
    schedules: Scheduling, anchor: Micros, misfire: Misfire, after: list[tuple[str, float, int]]
) -> None:
    made = schedules.create(every(60, anchor_at=anchor), misfire=misfire)
    schedules.run_at(anchor + SECOND, anchor + 61 * SECOND, anchor + 310 * SECOND)
    assert schedules.told(made, anchor) == [("FIRED", 0, 1), ("FIRED", 60, 1), *after]
    schedules.run_at(anchor + 361 * SECOND)
    assert schedules.told(made, anchor)[2 + len(after) :] == [("FIRED", 360, 1)]


def test_c016_a_restart_does_not_run_again_what_has_run(schedules: Scheduling) -> None:
    schedules.move_to(from_rfc3339("2026-02-27T12:00:00Z"))
    misfire = Misfire(policy=MisfirePolicy.COALESCE, grace_micros=7200 * SECOND)
    made = schedules.create(TimeRule(cron="35 5 * * *", timezone="Etc/GMT-1"), misfire=misfire)
    schedules.run_at(from_rfc3339("2026-02-28T04:35:01Z"))
    again = Scheduling(schedules.pulse)  # a node that has just started
    again.run_at(from_rfc3339("2026-02-28T05:39:00Z"))
    (only,) = again.firings(made)
    assert to_rfc3339(only.scheduled_at) == "2026-02-28T04:35:00.000000Z"
    assert to_rfc3339(again.row(made).next_at or 0) == "2026-03-01T04:35:00.000000Z"


def test_c019_what_overlaps_is_listed_as_skipped(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor), overlap=Overlap(policy=OverlapPolicy.SKIP))
    ends: list[tuple[int, Any]] = []
    for second in range(0, 430, 30):
        for done, running in list(ends):
            if done <= second:
                pulse.succeed(running)
                ends.remove((done, running))
        schedules.run_at(anchor + second * SECOND + SECOND // 2)
        assignments = pulse.claim(1)
        assert len(assignments) + len(ends) <= 1
        for assignment in assignments:
            assert pulse.start(assignment).granted
            ends.append((second + 150, assignment))
        for _, running in ends:
            pulse.renew(running)
    told = schedules.told(made, anchor)
    assert [seconds for state, seconds, _ in told if state == "FIRED"] == [0, 180, 360]
    assert [seconds for state, seconds, count in told if (state, count) == ("OVERLAP", 1)] == [60, 120, 240, 300, 420]


@pytest.mark.parametrize("zone", ["CET", "EST5EDT", "Europe/Kiev", "Mars/Phobos", "+02:00", "", "america/new_york"])
def test_c023_a_zone_is_accepted_with_a_next_occurrence_or_refused(caller: Caller, zone: str) -> None:
    got = caller.post("/v1/schedules", BODY | {"cron": "0 18 * * *", "timezone": zone})
    if zone in {"CET", "EST5EDT", "Europe/Kiev"}:
        assert got.status == 201
        assert got.data["schedule"]["next_at"] is not None
    else:
        assert (got.status, got.pointer) == (400, "/timezone")
        assert caller.get("/v1/schedules").data == []
    found = occurrences(caller, "0 18 * * *", "CET", "2026-01-15T00:00:00Z", "2026-01-16T00:00:00Z")
    assert found == ["2026-01-15T17:00Z"]


def test_c089_what_finds_a_full_queue_is_recorded_and_blocks_nothing(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    """A queue with one place, and a schedule that drops what it can't run in time; six times as slow as the case."""
    pulse.queue("narrow", max_unfinished_tasks=1, max_concurrency=1)
    pulse.submit(queue="narrow")
    (manual,) = pulse.claim(1, queue="narrow")
    assert pulse.start(manual).granted
    made = schedules.create(
        every(60, anchor_at=anchor),
        misfire=Misfire(policy=MisfirePolicy.SKIP, **HASTY),
        overlap=Overlap(policy=OverlapPolicy.SKIP),
        task=TaskTarget(queue="narrow", type="echo", version=1),
    )
    for second in range(0, 150, 15):
        schedules.run_at(*at(anchor, second))
        pulse.renew(manual)
    pulse.succeed(manual)
    schedules.run_at(*at(anchor, 150))
    assert schedules.told(made, anchor) == [("MISFIRE", 0, 1), ("MISFIRE", 60, 1), ("MISFIRE", 120, 1)]
    assert (schedules.row(made).latest_id, schedules.row(made).state) == (None, ScheduleState.ACTIVE)
    schedules.run_at(*at(anchor, 180))
    (task_id,) = schedules.tasks(made)
    assert pulse.task(task_id).state is TaskState.WAITING
    (running,) = pulse.claim(1, queue="narrow")
    assert pulse.start(running).granted
    schedules.run_at(*at(anchor, 240))
    pulse.succeed(running)
    schedules.run_at(*at(anchor, 300))
    assert [state for state, _, _ in schedules.told(made, anchor)][3:] == ["FIRED", "OVERLAP", "FIRED"]
    assert pulse.drifts() == []
