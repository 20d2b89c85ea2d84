"""Submits tasks as fast as the server takes them, in batches of 32, from a process of its own.

`python -m bench.submitter TASKS CLIENTS PREFIX` prints the seconds from its first request to its last answer. Bodies
are made beforehand, so that what is measured is the server. A refusal ends it.
"""

import json
import os
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from bench.sending import Request, send_all

BATCH = 32

Fields = Callable[[int], dict[str, Any]]


def bodies(tasks: int, prefix: str, fields: Fields) -> list[bytes]:
    """Make the batches; `fields` gives more of the n-th task."""
    items = [
        {"queue": "bench", "type": "noop", "version": 1, "params": {"n": n}, "idempotency_key": f"{prefix}-{n}"}
        | fields(n)
        for n in range(tasks)
    ]
    return [json.dumps({"items": items[at : at + BATCH]}).encode() for at in range(0, tasks, BATCH)]


def main(fields: Fields = lambda _: {}) -> None:
    """Submit what the command line says and print how long it took."""
    tasks, clients, prefix = int(sys.argv[1]), int(sys.argv[2]), f"{sys.argv[3]}-{os.getpid()}"
    requests: list[Request] = [(body, {}) for body in bodies(tasks, prefix, fields)]
    send_all("/v1/tasks:batch", requests, clients, is_taken=_is_taken)


def _is_taken(status: int, content: bytes) -> bool:
    return status == HTTPStatus.OK and b'"error"' not in content


if __name__ == "__main__":
    main()
