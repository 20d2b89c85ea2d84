"""How exactly a delayed task starts on a real node, by the database's clock."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

import orbit
from orbit.clock import Micros, from_rfc3339, seconds
from orbit.sdk.models import SubmitTask
from orbit.sdk.settings import from_environment
from tests.support.processes import QUEUE, NodeProcess, credentials_make, node_process

# Spread over more than a look for due tasks that is not timed would take, so that no such look serves all.
DELAYS = [2 + 0.03 * number for number in range(9)]
LATE_MICROS_MAX = 50_000
ROUNDS_MAX = 6


@contextmanager
def working(node: NodeProcess) -> Iterator[None]:
    """Run a worker until the block ends."""
    worker = orbit.Worker(queues=[QUEUE], connection=from_environment(node.environment), capacity=16)
    worker.task("echo@1", recovery="REPLAY_SAFE")(lambda params, _context: params)
    worker.start()
    try:
        yield
    finally:
        assert worker.drain()


def waited(client: orbit.Client, task_id: str) -> Micros:
    """Return how long a task has waited from its acceptance to its Start."""
    task = client.result(task_id, timeout_seconds=60)
    (attempt,) = client.task_attempts(task_id)
    assert attempt.started_at is not None
    return from_rfc3339(attempt.started_at) - from_rfc3339(task.accepted_at)


def lateness(client: orbit.Client, prefix: str, delays: Sequence[float]) -> list[Micros]:
    """Submit tasks with these delays, one after the other, and return how late each started."""
    ids = []
    for number, delay in enumerate(delays):
        wish = SubmitTask(queue=QUEUE, type="echo", version=1, delay_seconds=delay)
        ids.append(client.submit_task(f"{prefix}-{number}", wish).task.id)
    return [waited(client, task_id) - seconds(delay) for task_id, delay in zip(ids, delays, strict=True)]


@pytest.mark.databases("sqlite", "mysql")
@pytest.mark.timeout(600)
def test_r119_a_delayed_task_starts_at_its_time_and_never_before(database_url: str, tmp_path: Path) -> None:
    """A machine on which tasks without a delay take long to their Start is allowed three times as much."""
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node, node.client as client, working(node):
        for number in range(ROUNDS_MAX):
            at_once = lateness(client, f"at-once-{number}", [0.0] * len(DELAYS))
            late = lateness(client, f"delayed-{number}", DELAYS)
            figures = f"{min(late) / 1_000:.1f}, {median(late) / 1_000:.1f}, {max(late) / 1_000:.1f}"
            print(f"late by {figures} ms; without a delay {median(at_once) / 1_000:.1f} ms")  # noqa: T201
            assert min(late) >= 0
            if median(late) <= max(LATE_MICROS_MAX, 3 * median(at_once)):
                return
    pytest.fail("in no round did most delayed tasks start when they were due")
