"""The order example on a real node with its own worker: sold, sold out, and undone when the books can't be closed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orbit
from orbit.sdk.models import CreateQueueRequest, StartInstance
from tests.support.declared import ROOT
from tests.support.processes import NodeProcess, credentials_make, node_process, orbit_command, python_process

pytestmark = pytest.mark.databases("sqlite")
EXAMPLE = ROOT / "examples" / "order"


@pytest.fixture
def node(database_url: str, tmp_path: Path) -> Iterator[NodeProcess]:
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node:
        yield node


def run(client: orbit.Client, **changes: Any) -> orbit.Instance:
    order = {"order_id": "A-1", "item": "lamp", "amount": 20, "address": "here", **changes}
    started = client.start_instance(f"order-{order['order_id']}", StartInstance(workflow="order", input=order))
    return client.instance_result(started.instance.id, timeout_seconds=100)


def undone(client: orbit.Client, instance: orbit.Instance) -> list[str | None]:
    entries = client.instance_history(instance.id)
    return [entry.step for entry in entries if entry.type == "step.succeeded" and (entry.step or "").endswith(".undo")]


def test_orders_are_sold_or_undone(node: NodeProcess, tmp_path: Path) -> None:
    arguments = orbit_command("worker", f"{EXAMPLE / 'worker.py'}:worker")[2:]
    with node.client as client:
        limits = CreateQueueRequest(name="orders", max_concurrency=50, rate_per_second=1_000)
        client.create_queue("queue-orders", limits)
        client.publish_workflow((EXAMPLE / "order.yaml").read_text(encoding="utf-8"))
        with python_process(arguments, node.environment, tmp_path / "worker.log"):
            sold = run(client)
            sold_out = run(client, order_id="A-2", item="sofa")
            too_large = run(client, order_id="A-3", amount=5_000)
    assert (sold.state, sold.output) == ("SUCCEEDED", {"order": "A-1", "shipped": True, "tracking": "P-A-1"})
    assert (sold_out.state, sold_out.output) == ("SUCCEEDED", {"order": "A-2", "shipped": False})
    assert (too_large.state, too_large.compensation) == ("FAILED", "DONE")
    assert too_large.error is not None
    assert too_large.error["code"] == "TOO_LARGE"
    with node.client as client:
        assert undone(client, too_large) == ["ship.undo", "charge.undo", "reserve.undo"]
        assert undone(client, sold) == []
