"""Submits tasks as fast as the server takes them, in batches of 32, from a process of its own.

`python -m bench.submitter TASKS CLIENTS PREFIX` prints the seconds from its first request to its last answer. Bodies
are made beforehand, so that what is measured is the server. A refusal ends it.
"""

import json
import os
import sys
from http import HTTPStatus

from bench.sending import Request, send_all

BATCH = 32


def bodies(tasks: int, prefix: str) -> list[bytes]:
    """Make the batches."""
    items = [
        {"queue": "bench", "type": "noop", "version": 1, "params": {"n": n}, "idempotency_key": f"{prefix}-{n}"}
        for n in range(tasks)
    ]
    return [json.dumps({"items": items[at : at + BATCH]}).encode() for at in range(0, tasks, BATCH)]


def main(tasks: int, clients: int, prefix: str) -> None:
    """Submit and print how long it took."""
    requests: list[Request] = [(body, {}) for body in bodies(tasks, prefix)]
    send_all("/v1/tasks:batch", requests, clients, is_taken=_is_taken)


def _is_taken(status: int, content: bytes) -> bool:
    return status == HTTPStatus.OK and b'"error"' not in content


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), f"{sys.argv[3]}-{os.getpid()}")
