"""The doctor finds what was made wrong, repairs what can be, and leaves the rest to a person."""

from contextlib import closing

from click.testing import CliRunner
from sqlalchemy import delete, insert, update

from api.commands import doctor
from orbit.database import Database, Transaction
from orbit.database.durability import durability_read
from pulse.doctor import examine, is_repairable, repair
from pulse.states import TaskState, WaitReason
from pulse.tables import attempt, delayed, queue_backlog, queue_usage, ready
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
    assert examine(pulse.database) == [drift]
    pulse.database.transaction(lambda tx: tx.execute(ended.values(**alive)))


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
