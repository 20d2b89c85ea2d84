"""Sends requests that were made beforehand over some connections at once, and measures how long the server takes them.

So that what is measured is the server, it runs in a process of its own: `bench.starter`, `bench.submitter`.
"""

import http.client
import sys
import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from orbit.sdk.settings import from_environment

Request = tuple[bytes, dict[str, str]]  # a body, and the headers of its own


def send_all(path: str, requests: Sequence[Request], clients: int, *, is_taken: Callable[[int, bytes], bool]) -> None:
    """Post all requests and print the seconds from the first of them to the last answer; a refusal ends it."""
    failed: list[str] = []

    def send(mine: Sequence[Request]) -> None:
        """Send requests over one connection, one after the other."""
        connection = from_environment()
        parts = urlsplit(connection.url)
        headers = {"Authorization": f"Bearer {connection.token}", "Content-Type": "application/json"}
        link = http.client.HTTPConnection(parts.hostname or "", parts.port)
        for body, more in mine:
            link.request("POST", path, body, headers | more)
            answer = link.getresponse()
            content = answer.read()
            if not is_taken(answer.status, content):
                failed.append(content[:500].decode())
                return
        link.close()

    threads = [threading.Thread(target=send, args=(requests[n::clients],)) for n in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(failed[0])
    print(time.monotonic() - began)
