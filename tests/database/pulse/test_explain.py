"""Why a task waits: the first thing in its way, with figures, names and instants that lead further."""

from typing import Any

import pytest

from orbit.clock import SECOND, to_rfc3339
from orbit.database import Transaction
from orbit.ids import new_id
from pulse.gates import gate_close, gate_create
from pulse.listener import TaskOwner
from pulse.quotas import QuotaChange, QuotaSettings, application_configure, application_of
from pulse.states import WaitReason
from pulse.store.search import TaskFilter
from pulse.store.session import NewSession, session_end, session_insert
from pulse.tasks import task_explain, tasks_list
from tests.support.pulse import Pulse


def explain(pulse: Pulse, task_id: bytes) -> tuple[WaitReason, dict[str, Any]]:
    """Ask why a task waits; its list says the same."""
    _, waiting = pulse.database.transaction(lambda tx: task_explain(tx, pulse.namespace_id, task_id))
    assert waiting is not None
    row = pulse.task(task_id).row
    wanted = TaskFilter(pulse.namespace_id, 200, queue_id=row.queue_id)
    listed = {view.id: view.wait_reason for view in pulse.database.transaction(lambda tx: tasks_list(tx, wanted))}
    assert listed[task_id] == waiting.reason
    return waiting.reason, waiting.details


def now(pulse: Pulse) -> int:
    """Read the database's clock."""
    return pulse.database.transaction(lambda tx: tx.now())


@pytest.mark.requirement("R165")
def test_r098_no_worker_since_the_last_one_left(pulse: Pulse) -> None:
    pulse.queue()
    first = pulse.submit()
    reason, details = explain(pulse, first)
    assert (reason, details["compatible_workers"]) == (WaitReason.NO_COMPATIBLE_WORKER, 0)
    assert details["no_compatible_worker_since"] == to_rfc3339(pulse.task(first).accepted_at)
    session_id = new_id()

    def connect(tx: Transaction) -> None:
        made = NewSession(session_id, pulse.namespace_id, new_id(), "w", "n", ("echo@1",), ("main",), 3)
        session_insert(tx, made)

    pulse.database.transaction(connect)
    assert "no_compatible_worker_since" not in explain(pulse, first)[1]
    pulse.database.clock.advance(seconds_forward=5)
    left_at = now(pulse)
    pulse.database.transaction(lambda tx: session_end(tx, session_id))
    since = explain(pulse, first)[1]["no_compatible_worker_since"]
    assert to_rfc3339(left_at) <= since <= to_rfc3339(now(pulse))


def test_r098_who_is_ahead_and_until_when_the_window_is_used_up(pulse: Pulse) -> None:
    pulse.queue(rate_per_second=1)
    pulse.serve()
    tasks = [pulse.submit() for _ in range(3)]
    (held,) = pulse.claim()
    assert pulse.start(held).granted
    reason, details = explain(pulse, tasks[2])
    assert (reason, details["ahead_in_lane"], details["window_used"]) == (WaitReason.RATE_LIMITED, "1", "1")
    window = pulse.usage(pulse.task(tasks[0]).row.queue_id).window_started_at
    assert details["window_ends_at"] == to_rfc3339(window + SECOND)
    pulse.database.clock.advance(seconds_forward=2)
    reason, details = explain(pulse, tasks[2])
    assert (reason, details["window_ends_at"], details["window_used"]) == (WaitReason.READY, None, "0")


def test_r098_who_paused_the_queue_and_why(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.serve()
    waiting = pulse.submit()
    pulse.configure(queue_id, max_concurrency=3)
    pulse.configure(queue_id, paused=True)
    paused_at = now(pulse)
    pulse.database.clock.advance(seconds_forward=5)
    pulse.configure(queue_id, max_concurrency=4)
    reason, details = explain(pulse, waiting)
    assert (reason, details["paused"]) == (WaitReason.QUEUE_PAUSED, True)
    assert (details["paused_by"]["actor"], details["paused_by"]["reason"]) == ("tests", "a test")
    assert details["paused_by"]["at"] <= to_rfc3339(paused_at)
    pulse.configure(queue_id, paused=False)
    assert "paused_by" not in explain(pulse, waiting)[1]


def test_r098_which_quota_stands_in_the_way(pulse: Pulse) -> None:
    pulse.queue()
    pulse.serve()
    owner, _ = pulse.database.transaction(lambda tx: application_of(tx, pulse.namespace_id))
    change = QuotaChange(owner, 0, "a test", QuotaSettings(1, None, None))
    command, actor = pulse.command("application.configure"), pulse.actor()
    pulse.database.transaction(lambda tx: application_configure(tx, command, actor, change))
    pulse.submit()
    waiting = pulse.submit()
    assert len(pulse.claim()) == 1
    reason, details = explain(pulse, waiting)
    assert reason is WaitReason.APPLICATION_QUOTA
    application = details["application"]
    assert (application["id"], application["active"], application["max_concurrency"]) == (owner.hex(), "1", 1)


def test_r098_which_gate_holds_it(pulse: Pulse) -> None:
    pulse.queue()
    gate_id = new_id()
    pulse.database.transaction(lambda tx: gate_create(tx, gate_id, namespace_id=pulse.namespace_id))
    held = pulse.submit(owner=TaskOwner(gate_id, "a", 1), gate_id=gate_id)
    pulse.database.transaction(lambda tx: gate_close(tx, gate_id, pulse))
    reason, details = explain(pulse, held)
    assert (reason, details["held_by"]) == (WaitReason.HELD, gate_id.hex())
    assert details["held_since"] <= to_rfc3339(now(pulse))
