"""Submits tasks as fast as the server takes them, in batches of 32, from a process of its own.

`python -m bench.submitter TASKS CLIENTS PREFIX` prints the seconds from its first request to its last answer. Bodies
are made beforehand, so that what is measured is the server. A refusal ends it.
"""

import http.client
import json
import os
import sys
import threading
import time
from urllib.parse import urlsplit

from orbit.sdk.settings import from_environment

BATCH = 32


def bodies(tasks: int, prefix: str) -> list[bytes]:
    """Make the batches."""
    items = [
        {"queue": "bench", "type": "noop", "version": 1, "params": {"n": n}, "idempotency_key": f"{prefix}-{n}"}
        for n in range(tasks)
    ]
    return [json.dumps({"items": items[at : at + BATCH]}).encode() for at in range(0, tasks, BATCH)]


def submit(batches: list[bytes], failed: list[str]) -> None:
    """Send batches over one connection, one after the other."""
    connection = from_environment()
    parts = urlsplit(connection.url)
    headers = {"Authorization": f"Bearer {connection.token}", "Content-Type": "application/json"}
    link = http.client.HTTPConnection(parts.hostname or "", parts.port)
    for body in batches:
        link.request("POST", "/v1/tasks:batch", body, headers)
        answer = link.getresponse()
        content = answer.read()
        if answer.status != http.client.OK or b'"error"' in content:
            failed.append(content[:500].decode())
            return
    link.close()


def main(tasks: int, clients: int, prefix: str) -> None:
    """Submit and print how long it took."""
    made = bodies(tasks, prefix)
    failed: list[str] = []
    threads = [threading.Thread(target=submit, args=(made[n::clients], failed)) for n in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(failed[0])
    print(time.monotonic() - began)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), f"{sys.argv[3]}-{os.getpid()}")
