"""kill -9 of the node at random moments: instances go on from where they were, and no handler runs twice."""

import logging
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from orbit import Client
from orbit.sdk.models import StartInstance
from orbit.sdk.signal_models import SendSignal
from tests.support.declared import ROOT
from tests.support.fleet import Crew, Fleet, fleet
from tests.support.running import NodeProcess, OrbitProcess
from tests.support.waiting import wait_until

log = logging.getLogger(__name__)

MOMENTS = 10
INSTANCES_AT_ONCE = 6
RUN_SECONDS_MAX = 1.5
LAST_SECONDS_MAX = 120.0

# The payout example on the recording worker's queue, with a shorter beat, and with bounds that a slow machine keeps:
# what is tested is the kill, not what becomes of a task whose time is over.
PAYOUT = (
    (ROOT / "examples" / "payout" / "payout.yaml")
    .read_text()
    .replace("queue: payments", "queue: main")
    .replace("every: 1s", "every: 300ms")
    .replace("max_rounds: 20", "max_rounds: 60")
    .replace("start_within: 1m", "start_within: 10m")
    .replace("attempt_timeout: 10s", "attempt_timeout: 2m")
)


def start_instances(installed: Fleet, node: NodeProcess, round_number: int) -> list[str]:
    """Start instances, half of them with a risky amount."""
    client = installed.client(node)
    started = []
    for number in range(INSTANCES_AT_ONCE):
        key = f"order-{round_number}-{number}"
        content = {"order_id": key, "amount": 12_500.0 if number % 2 else 80.0, "supplier": "northwind"}
        approval = SendSignal(name="approved", payload={"by": "the test"})
        request = StartInstance(workflow="payout", input=content, business_key=key, signal=approval)
        started.append(client.start_instance(key, request).instance.id)
    return started


@pytest.mark.timeout(600)  # ten starts of a node take their time on a busy machine
@pytest.mark.databases("sqlite", "mysql")
def test_a_killed_node_goes_on_where_it_was(database_url: str, short_folder: Path) -> None:
    # The same moments each time, other ones in a soak: whether a change may land is no matter of luck.
    soaked = random.SystemRandom().randrange(10**6) if os.environ.get("ORBIT_SOAK") else 20_261_130
    seed = int(os.environ.get("ORBIT_TEST_SEED") or soaked)
    log.info("seed %d: set ORBIT_TEST_SEED to run the same moments again", seed)
    chance = random.Random(seed)
    with fleet(short_folder, database_url) as installed:
        node = installed.node()
        worker = installed.worker(node, Crew(capacity=32, seconds=0.15))
        installed.client(node).publish_workflow(PAYOUT)
        started: list[str] = []
        handlers_hit = 0
        for moment in range(MOMENTS):
            started += start_instances(installed, node, moment)
            if moment == 0:
                installed.wait_begun(1)
            seconds = chance.uniform(0.05, RUN_SECONDS_MAX)
            with pytest.raises(AssertionError):  # the moment comes; until then the node must not end by itself
                wait_until(lambda node=node: not node.is_running, seconds)  # type: ignore[misc]
            node.kill()
            handlers_hit += sum(count == 1 for count in Counter(each.attempt_id for each in installed.lines()).values())
            assert node.errors() == []
            node = installed.node(port=node.port)
        client = installed.client(node)
        for instance_id in started:
            wait_succeeded(client, instance_id, worker)
        assert worker.is_running
        assert node.errors() == []
        assert node.stop() == 0
        check_executions(installed, instances=len(started))
        log.info("%d instances, %d kills, %d handlers hit", len(started), MOMENTS, handlers_hit)


def wait_succeeded(client: Client, instance_id: str, worker: OrbitProcess) -> None:
    """Wait for an instance's end; say what it waits for if it does not come."""
    try:
        ended = client.instance_result(instance_id, timeout_seconds=LAST_SECONDS_MAX)
    except TimeoutError as error:
        steps = [step for step in client.instance_steps(instance_id) if step.state not in {"PENDING", "SUCCEEDED"}]
        tasks = [(client.get_task(step.task_id), client.task_attempts(step.task_id)) for step in steps if step.task_id]
        pytest.fail(f"{error}\n{steps}\n{tasks}\n{worker.text()[-3000:]}")
    assert ended.state == "SUCCEEDED", ended


def check_executions(installed: Fleet, *, instances: int) -> None:
    """Compare what ran with what the database says ran."""
    begun = installed.begun()
    twice = [attempt_id for attempt_id, count in Counter(line.attempt_id for line in begun).items() if count > 1]
    assert twice == [], "an attempt was executed twice"
    attempts = installed.attempts()
    granted = {row.id: row for row in attempts if row.started_at is not None}
    assert granted.keys() >= {line.attempt_id for line in begun}, "a handler ran without a granted Start"
    # A grant whose answer the kill swallowed is found again, unless the worker came back too late for it.
    unheard = granted.keys() - {line.attempt_id for line in begun}
    assert {granted[attempt_id].state for attempt_id in unheard} <= {"LOST"}
    manual = Counter(line.operation_id for line in begun if line.type == "bank.submit")
    assert len(manual) == instances
    assert set(manual.values()) == {1}, "a MANUAL handler ran twice"
    # A second execution is allowed only where the database says that the first was lost.
    lost = {row.task_id for row in attempts if row.state in {"LOST", "TIMED_OUT"}}
    executions = Counter(line.task_id for line in begun)
    assert {task_id for task_id, count in executions.items() if count > 1} <= lost
    succeeded = Counter(row.task_id for row in attempts if row.state == "SUCCEEDED")
    assert set(succeeded.values()) == {1}
    assert installed.task_states() == {"SUCCEEDED": len(succeeded)}
    assert installed.drifts() == []
