"""Starts instances as fast as the server takes them, one a request, from a process of its own.

`python -m bench.starter INSTANCES CLIENTS PREFIX` prints the seconds from its first request to its last answer. A
refusal ends it.
"""

import json
import os
import sys
from http import HTTPStatus

from bench.sending import send_all

BODY = json.dumps({"workflow": "bench", "input": {"amount": 90}}).encode()


def main(instances: int, clients: int, prefix: str) -> None:
    """Start instances and print how long it took."""
    requests = [(BODY, {"Idempotency-Key": f"{prefix}-{number}"}) for number in range(instances)]
    send_all("/v1/instances", requests, clients, is_taken=lambda status, _: status == HTTPStatus.CREATED)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), f"{sys.argv[3]}-{os.getpid()}")
