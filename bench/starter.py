"""Starts instances as fast as the server takes them, one a request, from a process of its own.

`python -m bench.starter INSTANCES CLIENTS PREFIX` prints the seconds from its first request to its last answer. A
refusal ends it.
"""

import http.client
import json
import os
import sys
import threading
import time
from urllib.parse import urlsplit

from orbit.sdk.settings import from_environment

BODY = json.dumps({"workflow": "bench", "input": {"amount": 90}}).encode()


def start(keys: list[str], failed: list[str]) -> None:
    """Start instances over one connection, one after the other."""
    connection = from_environment()
    parts = urlsplit(connection.url)
    headers = {"Authorization": f"Bearer {connection.token}", "Content-Type": "application/json"}
    link = http.client.HTTPConnection(parts.hostname or "", parts.port)
    for key in keys:
        link.request("POST", "/v1/instances", BODY, {**headers, "Idempotency-Key": key})
        answer = link.getresponse()
        content = answer.read()
        if answer.status != http.client.CREATED:
            failed.append(content[:500].decode())
            return
    link.close()


def main(instances: int, clients: int, prefix: str) -> None:
    """Start instances and print how long it took."""
    keys = [f"{prefix}-{number}" for number in range(instances)]
    failed: list[str] = []
    threads = [threading.Thread(target=start, args=(keys[n::clients], failed)) for n in range(clients)]
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
