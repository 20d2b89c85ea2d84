"""Every limit that Pulse knows, in force and never reached: what is measured is what it costs to keep them."""

from urllib.parse import quote

from bench.stage import LIMITS, Link

KEY_PREFIX = "bench:"
KEYS = 500
FAIRNESS_KEYS = 8


def limits_set(link: Link) -> None:
    """Give the application quotas and the concurrency keys a limit; the queue has limits anyway."""
    (application,) = link.call("GET", "/v1/applications")
    quotas = {
        "max_concurrency": LIMITS.max_concurrency,
        "rate_per_second": LIMITS.rate_per_second,
        "max_unfinished_tasks": LIMITS.max_unfinished_tasks,
    }
    path = f"/v1/applications/{application['id']}:configure"
    link.call("POST", path, {"expected_revision": application["revision"], "reason": "bench", **quotas})
    limit = {"expected_revision": "0", "reason": "bench", "limit": 1_000}
    link.call("PUT", f"/v1/concurrency-keys/{quote(KEY_PREFIX)}*", limit)
