"""A batch on a real node, from the SDK: it runs by itself, and a stop holds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import orbit
from orbit.sdk.models import CreateQueueRequest, SubmitTask
from tests.support.processes import credentials_make, node_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[orbit.Client]:
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node, node.client as client:
        client.create_queue("q", CreateQueueRequest(name="images", max_concurrency=50, rate_per_second=1_000))
        yield client


def test_a_node_carries_a_batch_out_and_stops_it(client: orbit.Client) -> None:
    task = SubmitTask(queue="images", type="echo", version=1)
    task_ids = [client.submit_task(f"t-{number}", task).task.id for number in range(5)]
    some = orbit.TaskSelection(ids=task_ids[:3])
    assert client.preview_batch("task.cancel", some).count == 3
    wish = orbit.CreateBatch(operation="task.cancel", tasks=some, reason="a test", rate_per_second=1000)
    batch = client.create_batch("b-1", wish).batch
    wait_until(lambda: client.get_batch(batch.id).state == "DONE", what="the batch")
    assert [item.outcome["task"]["state"] for item in client.batch_items(batch.id)] == ["CANCELLED"] * 3
    slow = orbit.CreateBatch(
        operation="task.cancel", tasks=orbit.TaskSelection(ids=task_ids[3:]), reason="a test", rate_per_second=0.01
    )
    slow_id = client.create_batch("b-2", slow).batch.id
    wait_until(lambda: client.get_batch(slow_id).items.done == 1, what="the first item")
    stopped = client.stop_batch(slow_id, "s-2", reason="enough").batch
    assert (stopped.state, stopped.items.done, stopped.items.stopped) == ("STOPPED", 1, 1)
    assert {each.id for each in client.list_batches()} == {batch.id, slow_id}
