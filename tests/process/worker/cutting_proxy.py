"""A TCP proxy that a test can cut, or freeze so that bytes neither pass nor fail."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CuttingProxy:
    """Forwards from a port of its own; `cut` drops every connection, `frozen` holds the bytes of both directions."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.refusing = False
        self.passing = threading.Event()
        self.passing.set()
        self.connection_count = 0
        self.cut_after_bytes_to_client: int | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._spawn(self._accept)

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.passing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in list(self._threads):
            thread.join(5)

    def _spawn(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            self.connection_count += 1
            with self._lock:
                self._pairs.append((client, server))
            ends = [0]
            self._spawn(self._pump, client, server, ends, False)  # noqa: FBT003
            self._spawn(self._pump, server, client, ends, True)  # noqa: FBT003

    def _pump(self, source: socket.socket, sink: socket.socket, ends: list[int], to_client: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.passing.wait()
                limit = self.cut_after_bytes_to_client
                if to_client and limit is not None:
                    if len(data) >= limit:
                        self.cut_after_bytes_to_client = None
                        break
                    self.cut_after_bytes_to_client = limit - len(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            ends[0] += 1
            if ends[0] == 2:  # both directions have ended
                source.close()
                sink.close()


@contextmanager
def cutting_proxy(target_port: int) -> Iterator[CuttingProxy]:
    """Run a proxy for a block."""
    proxy = CuttingProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
