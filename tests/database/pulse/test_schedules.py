"""Schedules fire each instant once: passes, full queues, downtime, edits, pauses, overlap, two nodes at once."""

import threading
from itertools import pairwise

import pytest

from orbit.clock import SECOND, Micros
from orbit.errors import InvalidRequest, StateConflict
from orbit.jsontext import dumps
from pulse import limits
from pulse.schedules.content import TaskTarget
from pulse.schedules.firing import Firer
from pulse.schedules.policy import Misfire, MisfirePolicy, Overlap, OverlapPolicy
from pulse.schedules.rules import TimeRule
from pulse.states import (
    ErrorClass,
    FiringState,
    ScheduleState,
    SourceKind,
    TaskState,
    WaitReason,
)
from tests.support.pulse import Pulse
from tests.support.pulse_world import CutOff, Fragile
from tests.support.schedules import Scheduling, at, every

COALESCE = Misfire(policy=MisfirePolicy.COALESCE)
CATCH_UP = Misfire(policy=MisfirePolicy.CATCH_UP, max_count=50, max_age_micros=3600 * SECOND, rate_per_second=50.0)
SERIAL = Overlap(policy=OverlapPolicy.SKIP)


@pytest.mark.requirement("R149", "R148", "R095")
def test_r111_each_firing_makes_a_task_of_its_own(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor), payload=b'{"n": 1.0}')
    schedules.run_at(*at(anchor, 0, 60, 120))
    firings = schedules.firings(made)
    assert [row.scheduled_at for row in firings] == [anchor, anchor + 60 * SECOND, anchor + 120 * SECOND]
    assert len({row.id for row in firings}) == len({row.subject_id for row in firings}) == 3
    for row in firings:
        assert (row.state, row.schedule_revision, row.points_count) == (FiringState.FIRED, 1, 1)
        assert row.fired_at is not None
        assert row.subject_id is not None
        task = pulse.task(row.subject_id)
        assert (task.row.source_kind, task.row.source_id, task.row.params) == (SourceKind.SCHEDULE, made, b'{"n": 1.0}')
    assert schedules.row(made).next_at == anchor + 180 * SECOND
    assert pulse.drifts() == []


def test_a_rate_without_an_anchor_begins_at_once(schedules: Scheduling) -> None:
    made = schedules.create(every(600))
    schedules.run()
    (row,) = schedules.firings(made)
    assert row.scheduled_at == schedules.row(made).created_at


def test_nothing_is_fired_before_its_time_or_after_its_end(schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor, ends_at=anchor + 61 * SECOND))
    schedules.move_to(anchor - 5 * SECOND)
    schedules.run()
    assert schedules.firings(made) == []
    schedules.run_at(*at(anchor, 0, 60, 120))
    assert schedules.told(made, anchor) == [("FIRED", 0, 1), ("FIRED", 60, 1)]
    row = schedules.row(made)
    assert (row.state, row.look_at, row.next_at) == (ScheduleState.ENDED, None, None)
    with pytest.raises(StateConflict):
        schedules.pause(made)
    schedules.configure(made, every(60, anchor_at=anchor))
    assert (schedules.row(made).state, schedules.row(made).next_at) == (ScheduleState.ACTIVE, anchor + 180 * SECOND)


@pytest.mark.requirement("R078", "R044")
def test_r143_pausing_a_queue_stops_no_firing(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    queue = pulse.queue("still", paused=True)
    made = schedules.create(every(60, anchor_at=anchor), task=TaskTarget(queue="still", type="echo", version=1))
    schedules.run_at(*at(anchor, 0, 60))
    waiting = [pulse.task(task_id) for task_id in schedules.tasks(made)]
    assert [task.wait_reason for task in waiting] == [WaitReason.QUEUE_PAUSED] * 2
    pulse.configure(queue, paused=False)
    schedules.pause(made)
    schedules.run_at(*at(anchor, 120))
    assert len(schedules.tasks(made)) == 2
    assert [pulse.task(task_id).state for task_id in schedules.tasks(made)] == [TaskState.WAITING] * 2


def test_r076_what_finds_no_place_stays_undecided(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    pulse.queue("small", max_unfinished_tasks=3)
    target = TaskTarget(queue="small", type="echo", version=1)
    made = schedules.create(every(60, anchor_at=anchor), misfire=CATCH_UP, task=target)
    schedules.run_at(*at(anchor, 240))
    assert schedules.told(made, anchor) == [("FIRED", 0, 1), ("FIRED", 60, 1), ("FIRED", 120, 1)]
    row = schedules.row(made)
    assert (row.next_at, row.cursor_at) == (anchor + 180 * SECOND, anchor + 180 * SECOND)
    assert row.latest_id == schedules.tasks(made)[-1]
    (running,) = pulse.claim(1, queue="small")
    assert pulse.start(running).granted
    pulse.succeed(running)
    schedules.run_at(*at(anchor, 242))
    assert schedules.told(made, anchor)[3:] == [("FIRED", 180, 1)]
    assert schedules.row(made).next_at == anchor + 240 * SECOND
    assert pulse.drifts() == []


def test_r077_what_outgrows_the_age_while_the_queue_is_full_is_missed(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    pulse.queue("small", max_unfinished_tasks=1)
    target = TaskTarget(queue="small", type="echo", version=1)
    young = Misfire(policy=MisfirePolicy.CATCH_UP, max_count=50, max_age_micros=150 * SECOND, rate_per_second=50.0)
    made = schedules.create(every(60, anchor_at=anchor), misfire=young, task=target)
    schedules.run_at(*at(anchor, 0, 60, 120, 180, 240, 300))
    assert schedules.told(made, anchor) == [("FIRED", 0, 1), ("MISFIRE", 60, 1), ("MISFIRE", 120, 1)]


@pytest.mark.requirement("R158")
def test_r154_downtime_ends_in_one_merged_firing(schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor), misfire=COALESCE)
    schedules.run_at(*at(anchor, 0), *at(anchor, 310))
    first, merged = schedules.firings(made)
    assert (first.points_count, merged.points_count, merged.reason) == (1, 5, "MERGED")
    assert (merged.scheduled_at, merged.last_at) == (anchor + 60 * SECOND, anchor + 300 * SECOND)
    schedules.run_at(*at(anchor, 360))
    assert schedules.told(made, anchor)[2:] == [("FIRED", 360, 1)]


def test_a_merged_firing_grows_while_its_queue_is_full(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    queue = pulse.queue("small", max_unfinished_tasks=1)
    target = TaskTarget(queue="small", type="echo", version=1)
    made = schedules.create(every(60, anchor_at=anchor), misfire=COALESCE, task=target)
    schedules.run_at(*at(anchor, 0, 120, 180, 241))
    assert schedules.told(made, anchor) == [("FIRED", 0, 1)]
    pulse.configure(queue, max_unfinished_tasks=10)
    schedules.run_at(*at(anchor, 250))
    assert schedules.told(made, anchor)[1:] == [("FIRED", 60, 4)]


def test_a_year_of_missed_minutes_is_one_record(schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(1, anchor_at=anchor))
    schedules.run_at(anchor + 365 * 86_400 * SECOND)
    missed, *_ = schedules.firings(made)
    assert (missed.reason, missed.scheduled_at) == ("MISFIRE", anchor)
    assert missed.points_count >= 365 * 86_400 - 60


def test_many_missed_minutes_of_a_cron_rule_are_counted_over_passes(schedules: Scheduling) -> None:
    made = schedules.create(TimeRule(cron="* * * * *", timezone="Europe/Dublin"))
    begin = schedules.row(made).next_at
    assert begin is not None
    count = limits.POINTS_PER_PASS_MAX * 2 + 7
    schedules.run_at(begin + (count - 1) * 60 * SECOND + SECOND)
    missed, last = schedules.firings(made)
    assert (missed.points_count, missed.scheduled_at, last.points_count) == (count - 1, begin, 1)
    assert last.scheduled_at - missed.last_at == 60 * SECOND


def test_catching_up_keeps_its_rate(schedules: Scheduling, anchor: Micros) -> None:
    slow = Misfire(policy=MisfirePolicy.CATCH_UP, max_count=10, max_age_micros=3600 * SECOND, rate_per_second=0.1)
    made = schedules.create(every(60, anchor_at=anchor), misfire=slow)
    schedules.run_at(*at(anchor, 200))
    assert schedules.told(made, anchor) == [("FIRED", 0, 1)]
    look_at = schedules.row(made).look_at
    assert look_at is not None
    assert look_at - (schedules.firings(made)[0].fired_at or 0) == 10 * SECOND
    schedules.run_at(*at(anchor, 211, 222))
    assert [seconds for _, seconds, _ in schedules.told(made, anchor)] == [0, 60, 120, 180]


def test_r152_a_pause_cancels_nothing_and_its_end_is_no_burst(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    made = schedules.create(every(60, anchor_at=anchor))
    schedules.run_at(*at(anchor, 0))
    schedules.pause(made)
    schedules.run_at(*at(anchor, 600))
    assert (schedules.row(made).look_at, len(schedules.firings(made))) == (None, 1)
    assert pulse.task(schedules.tasks(made)[0]).state is TaskState.WAITING
    schedules.resume(made)
    schedules.run()
    assert schedules.told(made, anchor) == [("FIRED", 0, 1), ("PAUSED", 60, 10)]
    assert schedules.firings(made)[-1].last_at == anchor + 600 * SECOND
    schedules.run_at(*at(anchor, 660))
    assert schedules.told(made, anchor)[2:] == [("FIRED", 660, 1)]


def test_r146_a_schedule_may_be_created_paused(schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor), is_paused=True)
    schedules.run_at(*at(anchor, 0))
    assert (schedules.firings(made), schedules.row(made).state) == ([], ScheduleState.PAUSED)
    schedules.resume(made)
    schedules.run_at(*at(anchor, 60))
    assert schedules.told(made, anchor) == [("PAUSED", 0, 1), ("FIRED", 60, 1)]
    schedules.resume(made)
    schedules.run_at(*at(anchor, 120))
    assert schedules.told(made, anchor)[2:] == [("FIRED", 120, 1)]


def test_many_paused_minutes_of_a_cron_rule_are_one_record(schedules: Scheduling) -> None:
    made = schedules.create(TimeRule(cron="* * * * *", timezone="UTC"))
    begin = schedules.row(made).next_at
    assert begin is not None
    schedules.pause(made)
    count = limits.POINTS_PER_PASS_MAX + 3
    schedules.move_to(begin + (count - 1) * 60 * SECOND + SECOND)
    schedules.resume(made)
    schedules.run()
    (passed,) = schedules.firings(made)
    assert (passed.points_count, passed.reason, passed.scheduled_at) == (count, "PAUSED", begin)


@pytest.mark.requirement("R150", "R151", "R127")
def test_r157_points_before_the_boundary_follow_the_old_revision(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    made = schedules.create(every(60, anchor_at=anchor), misfire=CATCH_UP, payload=b'"old"')
    schedules.run_at(*at(anchor, 0))
    before = dumps(pulse.task(schedules.tasks(made)[0]).as_json())
    boundary = anchor + 150 * SECOND
    schedules.configure(made, every(30, anchor_at=anchor), effective_at=boundary, misfire=CATCH_UP, payload=b'"new"')
    schedules.run_at(*at(anchor, 200))
    told = [
        (seconds, row.schedule_revision, pulse.task(row.subject_id).row.params)
        for (_, seconds, _), row in zip(schedules.told(made, anchor), schedules.firings(made), strict=True)
        if row.subject_id is not None
    ]
    old, new = (1, b'"old"'), (2, b'"new"')
    assert told == [(0, *old), (60, *old), (120, *old), (150, *new), (180, *new)]
    assert dumps(pulse.task(schedules.tasks(made)[0]).as_json()) == before


def test_a_later_change_replaces_one_that_has_not_come_into_force(schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor))
    schedules.configure(made, every(10, anchor_at=anchor), effective_at=anchor + 100 * SECOND)
    schedules.configure(made, every(120, anchor_at=anchor), effective_at=anchor + 90 * SECOND)
    schedules.run_at(*at(anchor, 0, 60, 120, 180, 240))
    assert [seconds for _, seconds, _ in schedules.told(made, anchor)] == [0, 60, 120, 240]
    with pytest.raises(InvalidRequest) as refused:
        schedules.configure(made, every(60), effective_at=anchor)
    assert refused.value.pointer == "/effective_at"


def test_pending_changes_are_bounded(schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor))
    for number in range(limits.REVISIONS_PENDING_MAX):
        schedules.configure(made, every(60), effective_at=anchor + number * SECOND)
    with pytest.raises(StateConflict):
        schedules.configure(made, every(60), effective_at=anchor)


def test_r155_serial_firings_wait_in_a_bounded_backlog(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    serial = Overlap(policy=OverlapPolicy.QUEUE, max_backlog=2)
    made = schedules.create(every(60, anchor_at=anchor), overlap=serial)
    schedules.run_at(*at(anchor, 0, 60, 120, 180))
    assert schedules.told(made, anchor) == [
        ("FIRED", 0, 1),
        ("QUEUED", 60, 1),
        ("QUEUED", 120, 1),
        ("BACKLOG_FULL", 180, 1),
    ]
    assert schedules.row(made).backlog == 2
    for number, done in enumerate((60, 120), 1):
        pulse.succeed(pulse.run())
        schedules.run_at(*at(anchor, 182 + 2 * number))
        assert [seconds for state, seconds, _ in schedules.told(made, anchor) if state == "FIRED"][-1] == done
        assert schedules.row(made).backlog == 2 - number
    assert len(pulse.claim()) == 1
    schedules.run_at(*at(anchor, 240))
    assert schedules.told(made, anchor)[-1] == ("QUEUED", 240, 1)


def test_what_still_waits_at_the_end_is_fired_and_can_be_paused(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    serial = Overlap(policy=OverlapPolicy.QUEUE, max_backlog=5)
    made = schedules.create(every(60, anchor_at=anchor, ends_at=anchor + 121 * SECOND), overlap=serial)
    schedules.run_at(*at(anchor, 0, 60, 120, 130))
    assert (schedules.row(made).state, schedules.row(made).backlog) == (ScheduleState.ENDED, 2)
    schedules.pause(made)
    pulse.succeed(pulse.run())
    schedules.run_at(*at(anchor, 140))
    assert schedules.row(made).backlog == 2
    schedules.resume(made)
    schedules.run_at(*at(anchor, 150))
    assert schedules.row(made).backlog == 1
    pulse.succeed(pulse.run())
    schedules.run_at(*at(anchor, 160))
    row = schedules.row(made)
    assert (row.state, row.backlog, row.look_at) == (ScheduleState.ENDED, 0, None)
    assert [seconds for _, seconds, _ in schedules.told(made, anchor)] == [0, 60, 120]
    assert len(pulse.claim()) == 1


def test_r155_a_retry_of_the_latest_task_still_counts(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(60, anchor_at=anchor), overlap=SERIAL)
    schedules.run_at(*at(anchor, 0))
    pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    (failed,) = schedules.tasks(made)
    successor = pulse.retry(failed).subject_id
    schedules.run_at(*at(anchor, 60))
    assert schedules.told(made, anchor)[1:] == [("OVERLAP", 60, 1)]
    assert schedules.row(made).latest_id == successor
    pulse.succeed(pulse.run())
    schedules.run_at(*at(anchor, 120))
    assert schedules.told(made, anchor)[2:] == [("FIRED", 120, 1)]


def test_two_nodes_never_fire_an_instant_twice(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    made = [schedules.create(every(60, anchor_at=anchor), misfire=CATCH_UP) for _ in range(5)]
    schedules.move_to(anchor + 120 * SECOND + SECOND)
    errors: list[BaseException] = []

    def node() -> None:
        firer = Firer(schedules.database, pulse)
        try:
            while firer.run_once() == 0.0:
                pass
        except BaseException as error:  # noqa: BLE001  (told to the test)
            errors.append(error)

    threads = [threading.Thread(target=node) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    schedules.run()
    assert errors == []
    for schedule_id in made:
        assert schedules.told(schedule_id, anchor) == [("FIRED", seconds, 1) for seconds in (0, 60, 120)]
    assert pulse.drifts() == []


def test_a_node_that_dies_before_its_commit_has_fired_nothing(
    pulse: Pulse, schedules: Scheduling, anchor: Micros
) -> None:
    made = schedules.create(every(60, anchor_at=anchor))
    schedules.move_to(*at(anchor, 0))
    fragile = Fragile(schedules.database)
    fragile.lives = 1
    with pytest.raises(CutOff):
        Firer(fragile, pulse).run_once()  # type: ignore[arg-type]
    assert (schedules.firings(made), pulse.claim()) == ([], [])
    schedules.run()
    assert schedules.told(made, anchor) == [("FIRED", 0, 1)]
    assert len(pulse.claim()) == 1


def test_c018_a_rate_does_not_drift(pulse: Pulse, schedules: Scheduling, anchor: Micros) -> None:
    made = schedules.create(every(10, anchor_at=anchor))
    for number in range(61):
        schedules.run_at(*at(anchor, 10 * number))
        pulse.succeed(pulse.run())
    rows = schedules.firings(made)
    assert len(rows) == 61
    assert {b.scheduled_at - a.scheduled_at for a, b in pairwise(rows)} == {10 * SECOND}
    assert all((row.fired_at or 0) - row.scheduled_at < 10 * SECOND for row in rows)
