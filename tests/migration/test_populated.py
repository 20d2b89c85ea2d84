"""Revisions over a database with tasks in it: counters right, nothing else touched."""

import json

from sqlalchemy import select

from migrations import upgrade as schema
from orbit.database import Database
from orbit.tables import receipt
from pulse.doctor import examine
from pulse.report import Outcome
from pulse.states import ErrorClass, TaskState
from pulse.tables import label, queue, task
from tests.support.pulse import Pulse

# Recovery, gates and quotas came after the first tables; an upgrade of a used database starts here.
BEFORE_COUNTERS = "0004_weave_engine"
EACH = 10


def populated(database: Database) -> None:
    pulse = Pulse(database)
    pulse.queue()
    for number in range(EACH * 7):
        pulse.submit(
            meaning=number, delay_micros=3_600_000_000 if number % 7 == 0 else None, labels=f'{{"n": "{number}"}}'
        )
    waiting = pulse.claim(EACH * 6)
    leased, running, reviewed, succeeded, failed, cancelled = (waiting[n::6] for n in range(6))
    for assignment in (*running, *reviewed, *succeeded, *failed, *cancelled):
        assert pulse.start(assignment).granted
    for assignment in reviewed:
        pulse.fail(assignment, ErrorClass.UNKNOWN_OUTCOME)
    for assignment in succeeded:
        pulse.succeed(assignment)
    for assignment in failed:
        pulse.fail(assignment, ErrorClass.NON_RETRYABLE)
    for assignment in cancelled:
        pulse.cancel(assignment.task.id)
        pulse.report(pulse.result(assignment, Outcome.CANCELLED))
    assert len(leased) == EACH


def facts(database: Database) -> object:
    tasks = select(task.c.id, task.c.state, task.c.revision, task.c.params, task.c.finished_at).order_by(task.c.id)
    receipts = select(receipt.c.id, receipt.c.meaning, receipt.c.answer).order_by(receipt.c.id)
    queues = select(queue.c.id, queue.c.revision)
    return database.transaction(lambda tx: [list(tx.rows(query)) for query in (tasks, receipts, queues)])


def test_r087_an_upgrade_counts_what_is_there_and_leaves_tasks_alone(blank_database_url: str) -> None:
    schema.upgrade(blank_database_url)
    database = Database.open(blank_database_url)
    populated(database)
    before = facts(database)
    states = database.transaction(lambda tx: {row.state for row in tx.rows(select(task.c.state))})
    database.close()
    assert states == set(TaskState)
    schema.downgrade(blank_database_url, to=BEFORE_COUNTERS)
    schema.upgrade(blank_database_url)
    database = Database.open(blank_database_url)
    assert facts(database) == before
    assert examine(database) == []
    labels = select(label.c.name, label.c.value, label.c.accepted_at, label.c.task_id)
    said = select(task.c.id, task.c.accepted_at, task.c.labels)
    assert set(database.transaction(lambda tx: [tuple(row) for row in tx.rows(labels)])) == {
        ("n", json.loads(row.labels)["n"], row.accepted_at, row.id)
        for row in database.transaction(lambda tx: tx.rows(said))
    }
    database.close()
