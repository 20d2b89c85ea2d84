"""Ports for servers that come back on the same one.

A port that the system gives lies in the range from which it also takes the near end of every connection. While such a
server is down, some connection of another test may have its port, and the server can't come back. So these ports lie
below that range, and each process takes its own from a block that it holds locked until it ends.
"""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_FIRST, _COUNT, _BLOCK = 20_000, 10_000, 100


def port_take() -> int:
    """Return a port of loopback that is free, that no other test process takes, and that this one has not taken yet.

    Raises RuntimeError when there is none left.
    """
    for port in _ports():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    message = "every port of this process's blocks is taken"
    raise RuntimeError(message)


@cache
def _ports() -> Iterator[int]:
    return (port for block in _blocks() for port in range(block, block + _BLOCK))


def _blocks() -> Iterator[int]:
    folder = Path(tempfile.gettempdir()) / f"orbit-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in range(_FIRST, _FIRST + _COUNT, _BLOCK):
        # Held open, and with it the lock, until the process ends.
        descriptor = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        yield first
