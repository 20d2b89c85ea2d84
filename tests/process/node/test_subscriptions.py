"""A subscription on a real node, from the SDK and the command line: what happens arrives, also after a restart."""

from pathlib import Path

import pytest

import orbit
from orbit.sdk.models import CreateQueueRequest, SubmitTask
from tests.support.processes import credentials_make, node_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.databases("sqlite")


def test_c137_a_delivery_outlives_its_consumer_and_its_node(database_url: str, tmp_path: Path) -> None:
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node, node.client as client:
        client.create_queue("q", CreateQueueRequest(name="images", max_concurrency=50, rate_per_second=1_000))
        wish = orbit.CreateSubscription(name="mine", event_types=["task.submitted"], visibility_seconds=1)
        mine = client.create_subscription("s", wish).subscription
        assert client.get_subscription(mine.id).state == "ACTIVE"
        seen: list[str] = []

        def is_heard() -> bool:
            """Submit until one arrives: from `effective_at` on each does."""
            task = SubmitTask(queue="images", type="echo", version=1)
            seen.append(client.submit_task(f"t-{len(seen)}", task).task.id)
            return bool(client.pull(mine.id, limit=1))

        wait_until(is_heard, 30, what="the first delivery")
        last = client.submit_task("last", SubmitTask(queue="images", type="echo", version=1)).task.id
    # Nobody acknowledged: the node that comes next hands all of it out again.
    with node_process(database_url, credentials, tmp_path) as node, node.client as client:
        counts: dict[str, int] = {}

        def is_back() -> bool:
            pulled = client.pull(mine.id, limit=100, wait_seconds=2)
            counts.update({each.event.subject_id: each.delivery_count for each in pulled})
            acked = client.ack(mine.id, [each.token for each in pulled]) if pulled else []
            assert {each.outcome for each in acked} <= {"ACKED"}
            return last in counts

        wait_until(is_back, 30, what="the deliveries")
        assert set(counts) - set(seen) == {last}
        assert max(counts.values()) == 2
        wait_until(lambda: client.get_subscription(mine.id).backlog == 0, 30, what="the count of the backlog")
        assert client.list_subscriptions().__next__().name == "mine"
        assert {each.type for each in client.list_events(subject_id=last)} == {"task.submitted"}
        gone = client.delete_subscription(mine.id, "d", expected_revision=1, reason="a test")
        assert gone.subscription.state == "DELETED"
        with pytest.raises(orbit.APIError, match="no such subscription"):
            client.pull(mine.id)
