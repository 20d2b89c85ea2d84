"""The doctor finds what was made wrong, repairs what can be, and leaves the rest to a person."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import delete, insert, select, update

from api.commands import doctor
from orbit.database import Database, Transaction
from orbit.database.durability import durability_read
from orbit.ids import new_id
from pulse.doctor import examine, is_repairable, repair
from pulse.gates import gate_close, gate_create, gate_open
from pulse.listener import TaskOwner
from pulse.states import ErrorClass, RecoverySafety, TaskState, WaitReason
from pulse.store.repair import turn_read, turn_take
from pulse.sweeps import DeadlineSweep
from pulse.tables import (
    attempt,
    cursor,
    delayed,
    gate,
    key,
    label,
    queue_backlog,
    queue_usage,
    ready,
    task,
    verification,
)
from tests.support.bulk import tasks_copy, truncated
from tests.support.pulse import Pulse


def damage(pulse: Pulse, queue_id: bytes, lost: bytes, doubled: bytes) -> None:
    """Let counters drift, lose an entry of `ready`, and put a task into `delayed` that stands in `ready`."""

    def work(tx: Transaction) -> None:
        usage, backlog = update(queue_usage), update(queue_backlog)
        tx.execute(usage.where(queue_usage.c.queue_id == queue_id).values(active=7, leased_unstarted=3))
        tx.execute(backlog.where(queue_backlog.c.queue_id == queue_id).values(unfinished=1))
        tx.execute(delete(ready).where(ready.c.task_id == lost))
        tx.execute(insert(delayed).values(due_at=1, task_id=doubled))

    pulse.database.transaction(work)


def test_counters_and_places_are_repaired_by_their_difference(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    running = pulse.submit()
    pulse.run()
    lost, doubled, late = pulse.submit(), pulse.submit(), pulse.submit(delay_micros=60_000_000)
    assert examine(pulse.database) == []
    damage(pulse, queue_id, lost, doubled)
    found = examine(pulse.database)
    assert {(drift.name, drift.stored, drift.counted) for drift in found} == {
        ("active", 7, 1), ("leased_unstarted", 3, 0), ("unfinished", 1, 4), ("ready", 0, 1), ("delayed", 1, 0),
    }  # fmt: skip
    assert all(is_repairable(drift) for drift in found)
    assert repair(pulse.database) == found
    assert examine(pulse.database) == []
    assert {item.task.id for item in pulse.claim()} == {lost, doubled}
    assert (pulse.task(running).state, pulse.task(late).wait_reason) == (TaskState.RUNNING, WaitReason.DELAYED)


def test_an_entry_in_the_wrong_place_is_moved_to_where_it_belongs(pulse: Pulse) -> None:
    """A task that stands in another lane, or too far back, would be claimed by nobody, or last."""
    pulse.queue()
    first, second = pulse.submit(priority=9), pulse.submit(type="other")
    late = pulse.submit(delay_micros=60_000_000)
    lanes = {row.task_id: row.lane_id for row in pulse.database.transaction(lambda tx: tx.rows(select(ready)))}
    swapped = update(ready).where(ready.c.task_id == second).values(lane_id=lanes[first])
    behind = update(ready).where(ready.c.task_id == first).values(dispatch_at=2**60)
    never = update(delayed).where(delayed.c.task_id == late).values(due_at=2**60)
    for statement in (swapped, behind, never):
        pulse.database.transaction(lambda tx, statement=statement: tx.execute(statement))  # type: ignore[misc]
    found = examine(pulse.database)
    assert sorted((drift.name, drift.subject, drift.stored, drift.counted) for drift in found) == sorted(
        (name, task_id, stored, 1 - stored)
        for name, task_id in (("ready", first), ("ready", second), ("delayed", late))
        for stored in (0, 1)
    )
    repair(pulse.database)
    assert examine(pulse.database) == []
    assert [item.task.id for item in pulse.claim()] == [first]
    assert [item.task.id for item in pulse.claim(type_="other")] == [second]


def test_waits_that_nobody_would_end_are_found_and_ended(pulse: Pulse) -> None:
    """Held behind an open gate; free behind a closed one; a deadline that the sweeps have passed by."""
    pulse.queue()
    gate_id = new_id()
    pulse.database.transaction(lambda tx: gate_create(tx, gate_id, namespace_id=pulse.namespace_id))
    behind: dict[str, Any] = {"gate_id": gate_id, "owner": TaskOwner(gate_id, "a", 1)}
    held, plain = pulse.submit(**behind), pulse.submit()
    pulse.database.transaction(lambda tx: gate_close(tx, gate_id, pulse))
    change: list[Any] = [
        update(gate).where(gate.c.id == gate_id).values(is_open=True),
        update(task).where(task.c.id == plain).values(deadline_at=1),
        update(cursor).where(cursor.c.name == "deadline_at").values(reached_at=2**60),
    ]
    pulse.sweep()
    for statement in change:
        pulse.database.transaction(lambda tx, statement=statement: tx.execute(statement))  # type: ignore[misc]
    found = {(drift.name, drift.subject) for drift in examine(pulse.database)}
    assert found == {("held", held), ("deadline", plain)}
    repair(pulse.database)
    assert examine(pulse.database) == []
    assert pulse.task(held).wait_reason == WaitReason.NO_COMPATIBLE_WORKER
    DeadlineSweep(pulse.database, pulse).run_once()
    assert (pulse.task(plain).state, pulse.error_code(plain)) == (TaskState.FAILED, "DEADLINE_EXCEEDED")
    closed = update(gate).where(gate.c.id == gate_id).values(is_open=False)
    pulse.database.transaction(lambda tx: tx.execute(closed))
    (drift,) = examine(pulse.database)
    assert (drift.name, drift.subject, drift.stored, drift.counted) == ("held", held, 0, 1)
    repair(pulse.database)
    assert (examine(pulse.database), pulse.task(held).wait_reason, pulse.claim()) == ([], WaitReason.HELD, [])
    pulse.database.transaction(lambda tx: gate_open(tx, gate_id, pulse))
    assert [item.task.id for item in pulse.claim()] == [held]


def test_copies_of_settings_and_forgotten_verifications_are_mended(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.register("ask")
    pulse.register("pay", RecoverySafety.VERIFY, verify_with="ask@1")
    pulse.submit(type="pay", concurrency_keys=("k",))
    pulse.fail(pulse.run(type_="pay"), ErrorClass.UNKNOWN_OUTCOME)
    row: Any = pulse.database.transaction(lambda tx: tx.row(select(verification)))
    change: list[Any] = [
        update(queue_usage).where(queue_usage.c.queue_id == queue_id).values(paused=True, max_concurrency=1),
        update(verification).where(verification.c.id == row.id).values(due_at=None),
        update(key).values(max_concurrency=7),
    ]
    for statement in change:
        pulse.database.transaction(lambda tx, statement=statement: tx.execute(statement))  # type: ignore[misc]
    found = {drift.name: drift for drift in examine(pulse.database)}
    assert found.keys() == {"settings", "verification", "key_limit"}
    assert all(is_repairable(drift) for drift in found.values())
    repair(pulse.database)
    assert examine(pulse.database) == []
    assert (pulse.usage(queue_id).paused, pulse.usage(queue_id).max_concurrency) == (False, 100)
    pulse.sweep()
    asked = update(verification).where(verification.c.id == row.id).values(state="OPEN")
    pulse.database.transaction(lambda tx: tx.execute(asked))
    pulse.cancel(row.id)
    pulse.database.transaction(lambda tx: tx.execute(asked.values(due_at=None, settled_at=None, outcome=None)))
    assert [drift.name for drift in examine(pulse.database)] == ["verification"]
    repair(pulse.database)
    assert examine(pulse.database) == []
    pulse.sweep()
    (settled,) = pulse.database.transaction(lambda tx: tx.rows(select(verification.c.outcome)))
    assert settled.outcome == "FAILED"


MANY = int(os.environ.get("ORBIT_DOCTOR_TASKS", "2000"))


def test_a_repair_of_many_places_costs_a_few_statements_for_hundreds(pulse: Pulse) -> None:
    """Each entry is found by its key: neither the look nor the repair searches a table for a task."""
    pulse.queue(max_unfinished_tasks=1_000_000)
    with truncated(pulse.database):
        tasks_copy(pulse.database, pulse.submit(), count=MANY)
        pulse.database.transaction(lambda tx: tx.execute(delete(ready)))
        counts = pulse.database.counts
        before, began = counts["statements"], monotonic()
        assert len(repair(pulse.database)) == MANY
        spent, lasted = counts["statements"] - before, monotonic() - began
        began = monotonic()
        assert examine(pulse.database) == []
        looked = monotonic() - began
        figures = f"{MANY} places: {spent} statements in {lasted:.1f} s, a look {looked:.1f} s"
        print(figures)  # noqa: T201  (the figures are what a long run is for)
        # A batch is read, taken out, locked and put in; a statement of the embedded database has one row only.
        assert pulse.database.is_sqlite or spent < 60 + 12 * (MANY // 500 + 1)
        if pulse.database.is_sqlite:
            pulse.database.transaction(lambda tx: [tx.execute(delete(table)) for table in (ready, label, task)])
            nothing = update(queue_backlog).values(unfinished=0)
            pulse.database.transaction(lambda tx: tx.execute(nothing))


def test_what_another_repair_has_added_is_not_added_again(pulse: Pulse) -> None:
    """Two operators at once: both have counted, and the difference is added once."""
    queue_id = pulse.queue()
    pulse.submit()
    statement = update(queue_backlog).where(queue_backlog.c.queue_id == queue_id).values(unfinished=5)
    pulse.database.transaction(lambda tx: tx.execute(statement))
    drifts = examine(pulse.database)
    turn = pulse.database.transaction(turn_read)
    assert repair(pulse.database) == drifts
    assert not pulse.database.transaction(lambda tx: turn_take(tx, turn))
    assert examine(pulse.database) == []


@pytest.mark.databases("mariadb", "mysql")
def test_a_snapshot_sees_one_instant_while_tasks_move(pulse: Pulse, database: Database) -> None:
    pulse.queue()
    first = pulse.submit()
    with closing(Database.open(str(database.url.render_as_string(hide_password=False)))) as other:

        def work(tx: Transaction) -> tuple[int, int]:
            before = len(tx.rows(select(ready)))
            with ThreadPoolExecutor(1) as elsewhere:
                elsewhere.submit(lambda: Pulse(other).submit()).result()
            return before, len(tx.rows(select(ready)))

        assert database.transaction(work, is_snapshot=True) == (1, 1)
        assert database.transaction(lambda tx: len(tx.rows(select(ready)))) == 2
    assert first in {item.task.id for item in pulse.claim()}


def test_a_task_without_its_attempt_is_left_to_a_person(pulse: Pulse) -> None:
    pulse.queue()
    pulse.submit()
    assignment = pulse.run()
    ended = update(attempt).where(attempt.c.id == assignment.attempt_id)
    lost = {"state": "LOST", "finished_at": 1, "lease_expires_at": None}
    alive = {"state": "RUNNING", "finished_at": None, "lease_expires_at": 2**60}
    pulse.database.transaction(lambda tx: tx.execute(ended.values(**lost)))
    (drift,) = repair(pulse.database)
    assert (drift.name, drift.subject, is_repairable(drift)) == ("live_attempts", assignment.task.id, False)
    assert (drift.stored, drift.counted) == (0, 1)
    assert examine(pulse.database) == [drift]
    pulse.database.transaction(lambda tx: tx.execute(ended.values(**alive)))
    pulse.succeed(assignment)
    ghost = update(attempt).where(attempt.c.id == assignment.attempt_id).values(**alive)
    pulse.database.transaction(lambda tx: tx.execute(ghost))
    (drift,) = examine(pulse.database)
    assert (drift.name, drift.subject, drift.stored, drift.counted) == ("live_attempts", assignment.task.id, 1, 0)
    done = {"state": "SUCCEEDED", "finished_at": 1, "lease_expires_at": None}
    pulse.database.transaction(lambda tx: tx.execute(ended.values(**done)))


def test_the_command_says_what_is_wrong_and_how_durable_a_commit_is(database_url: str) -> None:
    with closing(Database.open(database_url)) as database:
        pulse = Pulse(database)
        queue_id = pulse.queue()
        pulse.submit()
        settings = [setting.name for setting in database.transaction(durability_read)]
        usage = update(queue_usage).where(queue_usage.c.queue_id == queue_id).values(active=2)
        database.transaction(lambda tx: tx.execute(usage))
    wrong = CliRunner().invoke(doctor, ["--database-url", database_url])
    line = f"active of {queue_id.hex()}: stored 2, counted 0"
    assert (wrong.exit_code, f"wrong    {line}" in wrong.output) == (1, True), wrong.output
    assert settings
    assert all(f"setting  {name} = " in wrong.output for name in settings)
    mended = CliRunner().invoke(doctor, ["--database-url", database_url, "--repair"])
    assert (mended.exit_code, f"repaired {line}" in mended.output) == (0, True), mended.output
    well = CliRunner().invoke(doctor, ["--database-url", database_url])
    assert (well.exit_code, well.output.splitlines()[-1]) == (0, "nothing is wrong")
