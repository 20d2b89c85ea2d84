"""What a task is: its id through everything, its attempts, its time, and that nobody rewrites what it was."""

from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import select

from orbit.clock import SECOND
from orbit.database import Database
from orbit.ids import new_id
from pulse.gates import gate_close, gate_create
from pulse.listener import TaskOwner
from pulse.report import Outcome
from pulse.requests import RetryPolicy
from pulse.start import StartCode
from pulse.states import ErrorClass, RecoverySafety, TaskState
from pulse.tables import attempt, result, task, verdict
from pulse.tasks import attempts_list
from tests.support.pulse import Pulse

SAFE = RecoverySafety.REPLAY_SAFE


def test_r107_a_queue_is_route_resource_setting_and_range_of_consumers(pulse: Pulse) -> None:
    """A worker of one queue gets nothing of another, and each queue's limit is its own."""
    small, large = pulse.queue("small", max_concurrency=1), pulse.queue("large")
    for name in ("small", "small", "large", "large"):
        pulse.submit(queue=name)
    assert [item.task.queue_id for item in pulse.claim(queue="small")] == [small]
    assert [item.task.queue_id for item in pulse.claim(queue="large")] == [large, large]
    assert (pulse.usage(small).active, pulse.usage(large).active) == (1, 2)


@pytest.mark.requirement("R109", "R110")
def test_r114_a_retry_keeps_the_task_and_makes_another_attempt(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(retry=RetryPolicy(attempts_max=4, backoff_micros=SECOND))
    tokens = set()
    for _ in range(3):
        running = pulse.run()
        assert running.task.id == task_id
        tokens.add(running.token)
        pulse.fail(running)
        pulse.pass_time(10)
    pulse.succeed(pulse.run())
    attempts = pulse.database.transaction(lambda tx: attempts_list(tx, pulse.namespace_id, task_id))
    assert [(each.number, each.state) for each in attempts] == [
        (1, "FAILED"), (2, "FAILED"), (3, "FAILED"), (4, "SUCCEEDED"),
    ]  # fmt: skip
    assert (len({each.id for each in attempts}), len(tokens)) == (4, 3)
    hashes = pulse.database.transaction(lambda tx: {row.token_hash for row in tx.rows(select(attempt.c.token_hash))})
    assert len(hashes) == 4
    assert not any(token.encode() in each for token in tokens for each in hashes), "only hashes are kept"


def test_r115_sent_again_tried_again_and_asked_again_are_three_things(pulse: Pulse) -> None:
    """A request sent again makes no row, an attempt repeated no task, a person's retry a task of its own."""
    pulse.queue()
    task_id = pulse.submit(key="k", meaning=1)
    assert pulse.submit(key="k", meaning=1) == task_id
    pulse.fail(pulse.run())
    pulse.pass_time(10)
    pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    successor = pulse.retry(task_id).subject_id
    rows = pulse.database.transaction(lambda tx: tx.rows(select(task.c.id, task.c.leases_count).order_by(task.c.id)))
    assert [(row.id, row.leases_count) for row in rows] == [(task_id, 2), (successor, 0)]


def test_r118_what_is_accepted_can_be_claimed_at_once(pulse: Pulse) -> None:
    """No sweep and no time in between."""
    pulse.queue()
    task_id = pulse.submit()
    assert [item.task.id for item in pulse.claim()] == [task_id]


def test_r119_a_delayed_task_starts_after_its_span_and_not_before(pulse: Pulse) -> None:
    pulse.queue()
    task_id = pulse.submit(delay_micros=2_000 * SECOND)
    row = pulse.task(task_id).row
    assert row.available_at - row.accepted_at == 2_000 * SECOND
    now = pulse.database.transaction(lambda tx: tx.now())
    pulse.pass_time((row.available_at - now) / SECOND - 10)
    assert (pulse.claim(), pulse.task(task_id).wait_reason) == ([], "DELAYED")
    pulse.pass_time(10)
    running = pulse.run()
    assert running.task.id == task_id
    (started,) = pulse.database.transaction(lambda tx: tx.rows(select(attempt.c.started_at)))
    assert started.started_at >= row.available_at


def test_r127_no_change_of_configuration_rewrites_what_was(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.register(defaults={"retry": {"max_attempts": 2}})
    pulse.submit()
    pulse.succeed(pulse.run(), {"ref": 7})
    pulse.submit()
    pulse.fail(pulse.run(), ErrorClass.NON_RETRYABLE)
    pulse.cancel(pulse.submit(delay_micros=SECOND))
    waiting = pulse.submit()

    def dump() -> list[tuple[object, ...]]:
        return pulse.database.transaction(
            lambda tx: [tuple(row) for table in (task, attempt, result, verdict) for row in tx.rows(select(table))]
        )

    before = dump()
    pulse.configure(queue_id, max_concurrency=1, rate_per_second=1, max_unfinished_tasks=1, paused=True)
    changed = {"recovery": SAFE, "expected_revision": 1, "redact": ["/params/a"], "params_schema": {"type": "object"}}
    pulse.register(defaults={"retry": {"max_attempts": 9}}, **changed)  # type: ignore[arg-type]
    pulse.sweep()
    assert dump() == before
    assert pulse.task(waiting).row.attempts_max == 2, "what was accepted keeps the policy that it was accepted under"


def test_r143_a_flows_pause_and_a_queues_pause_are_separate(pulse: Pulse) -> None:
    """A task is claimed and started only where both are open; neither opens or closes the other."""
    for number, (is_paused, is_closed) in enumerate(product((False, True), repeat=2)):
        name = f"queue-{number}"
        queue_id, gate_id = pulse.queue(name), new_id()
        pulse.database.transaction(partial(gate_create, gate_id=gate_id, namespace_id=pulse.namespace_id))
        fields: dict[str, Any] = {"queue": name, "gate_id": gate_id, "owner": TaskOwner(gate_id, "a", 1)}
        held, leased = pulse.submit(**fields), pulse.submit(**fields)
        (assignment,) = pulse.claim(1, queue=name)
        if is_paused:
            pulse.configure(queue_id, paused=True)
        if is_closed:
            pulse.database.transaction(partial(gate_close, gate_id=gate_id, around=pulse))
        code = StartCode.HELD if is_closed else StartCode.QUEUE_PAUSED if is_paused else None
        assert pulse.start(assignment).code is code
        assert len(pulse.claim(queue=name)) == (0 if is_paused or is_closed else 1)
        assert {held, leased} >= {assignment.task.id}


@pytest.mark.parametrize("nodes", [1, 3])
def test_r177_the_figures_of_one_node_are_those_of_three(pulse: Pulse, nodes: int) -> None:
    """Whoever claims and starts, the limits stand in the database: five permits and four Starts in a window."""
    queue_id = pulse.queue(max_concurrency=5, rate_per_second=4, max_unfinished_tasks=20)
    for _ in range(20):
        pulse.submit()
    assert pulse.refusal().code == "QUEUE_FULL"
    others = [pulse, *(Pulse(pulse.database) for _ in range(nodes - 1))]
    claimed = [(node, item) for _ in range(5) for node in others for item in node.claim(1)]
    assert len(claimed) == 4, "a claim reserves room in the window for what has not started"
    granted = [node.start(item).granted for node, item in claimed]
    assert sum(granted) == 4
    pulse.pass_time(1.1)
    claimed += [(node, item) for node in others for item in node.claim(9)]
    assert (len(claimed), pulse.usage(queue_id).active) == (5, 5)
    for node, item in claimed[:4]:
        node.report(node.result(item, Outcome.SUCCEEDED, output=b"1"))
    assert (pulse.usage(queue_id).active, pulse.read(queue_id).unfinished_tasks) == (1, 16)


def test_r109_a_tasks_id_outlives_the_process_that_made_it(pulse: Pulse, database: Database) -> None:
    pulse.queue()
    task_id = pulse.submit(retry=RetryPolicy(attempts_max=9, backoff_micros=SECOND))
    pulse.fail(pulse.run())
    url = database.url.render_as_string(hide_password=False)
    if database.is_sqlite:
        assert pulse.task(task_id).state == TaskState.WAITING
        return
    with closing(Database.open(url)) as again:
        again.clock.advance(seconds_forward=10)
        restarted = Pulse(again)
        restarted.sweep()
        running = restarted.run()
        assert running.task.id == task_id
        restarted.succeed(running)
    assert pulse.task(task_id).state == TaskState.SUCCEEDED
