"""An application's quotas by the client against a scripted server."""

import json

from orbit import Client, ConfigureApplicationRequest
from tests.unit.sdk.scripted_server import scripted_server

ID = "1" * 32
OWN = {
    "id": ID, "name": "pay", "max_concurrency": 3, "rate_per_second": None, "max_unfinished_tasks": None,
    "active_tasks": "2", "unfinished_tasks": "9", "revision": "1",
}  # fmt: skip


def test_quotas_are_read_and_replaced_and_what_is_left_out_is_not_sent() -> None:
    with scripted_server() as script, Client(script.url, "key.secret", timeout_seconds=5) as client:
        script.success([OWN])
        script.success({"deduplicated": False, "application": OWN | {"max_concurrency": None, "revision": "2"}})
        own = client.get_application()
        assert (own.max_concurrency, own.rate_per_second, own.active_tasks, own.revision) == (3, None, 2, 1)
        request = ConfigureApplicationRequest(expected_revision=1, reason="peak is over", rate_per_second=5)
        done = client.configure_application(ID, "k", request)
        assert (done.application.max_concurrency, done.application.revision) == (None, 2)
        assert script.seen[-1].path == f"/v1/applications/{ID}:configure"
        sent = {"expected_revision": "1", "reason": "peak is over", "rate_per_second": 5}
        assert json.loads(script.seen[-1].body) == sent
