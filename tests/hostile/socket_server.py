"""A node's listener on its own thread, and a client that writes raw bytes: the two ends of the hostile tests."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import gevent
from gevent.hub import Hub

from api.listener import ListenerLimits, NodeServer, SocketGate
from api.websocket import WorkerSocket
from orbit.errors import Unauthenticated
from tests.support.waiting import WAIT_SECONDS_MAX

SUBPROTOCOL = "orbit.worker.v1"


@dataclass(frozen=True)
class Admitted:
    credential_key: str


@dataclass
class EchoGate:
    """Admits `Bearer good...` and echoes every message; `refuse` is a reader that never reads on."""

    path: str = "/v1/workers/connect"
    subprotocol: str = SUBPROTOCOL
    served: int = 0
    seen: list[bytes] = field(default_factory=list)

    def admit(self, environ: Mapping[str, Any]) -> Admitted:
        value = environ.get("HTTP_AUTHORIZATION", "")
        if not value.startswith("Bearer good"):
            raise Unauthenticated
        return Admitted(value)

    def serve(self, socket: WorkerSocket, admission: Any) -> None:  # noqa: ARG002  # the protocol's name
        self.served += 1
        for message in socket.messages():
            if message is not None:
                self.seen.append(message)
                if not socket.offer([message]):
                    return


def plain_application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(str(len(body)))))])
    return [str(len(body)).encode()]


@dataclass
class Running:
    port: int
    server: NodeServer
    hub: Hub
    thread: threading.Thread

    def call(self, function: Callable[[], Any]) -> None:
        """Run a function in the server's hub."""
        watcher = self.hub.loop.async_()
        done = threading.Event()

        def called() -> None:
            try:
                function()
            finally:
                done.set()

        def run() -> None:
            gevent.spawn(called)
            watcher.stop()
            watcher.close()

        watcher.start(run)
        watcher.send()
        assert done.wait(WAIT_SECONDS_MAX)


@contextmanager
def running_server(
    *, limits: ListenerLimits, gate: SocketGate | None, application: Any = plain_application, **options: Any
) -> Iterator[Running]:
    """Serve on a free port of loopback, on a thread with a hub of its own."""
    ready = threading.Event()
    box: list[Any] = []

    def run() -> None:
        server = NodeServer(("127.0.0.1", 0), application, limits=limits, gate=gate, **options)
        server.start()
        stopped = gevent.event.Event()
        hub = gevent.get_hub()
        box.extend([server, hub, stopped])
        ready.set()
        # A hub with nothing to do would end the wait: a far timer keeps it.
        while not stopped.wait(timeout=60):
            pass
        server.stop(timeout=1)
        hub.destroy(destroy_loop=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(WAIT_SECONDS_MAX)
    server, hub, stopped = box
    running = Running(server.server_port, server, hub, thread)
    try:
        yield running
    finally:
        running.call(stopped.set)
        thread.join(WAIT_SECONDS_MAX)
        assert not thread.is_alive()


class RawClient:
    """A TCP connection on which a test writes what it likes."""

    def __init__(self, port: int, *, context: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS_MAX)
        self.sock: socket.socket = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def upgrade(self, extra: bytes = b"", /, **headers: str) -> bytes:
        """Send an upgrade request; return the head of the answer. A header given as "" is left out."""
        wanted = {
            "Host": "localhost",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Protocol": SUBPROTOCOL,
            "Authorization": "Bearer good",
        }
        wanted.update({name.replace("_", "-"): value for name, value in headers.items()})
        lines = [f"{name}: {value}" for name, value in wanted.items() if value]
        request = "GET /v1/workers/connect HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        self.sock.sendall(request.encode() + extra)
        return self.head()

    def head(self) -> bytes:
        """Read up to the end of a head, not further."""
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            byte = self.sock.recv(1)
            if not byte:
                break
            data += byte
        return data

    def rest(self) -> bytes:
        """Read until the server closes; a reset ends it too."""
        data = b""
        try:
            while chunk := self.sock.recv(65536):
                data += chunk
        except ConnectionError:
            pass
        return data

    def frame(self) -> tuple[int, bytes]:
        """Read one unmasked frame of the server: opcode and payload."""
        first, second = self._exact(2)
        length = second & 127
        if length == 126:
            (length,) = struct.unpack("!H", self._exact(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._exact(8))
        return first & 15, self._exact(length)

    def close_code(self) -> int:
        """Read up to the close frame; return its code."""
        while True:
            opcode, payload = self.frame()
            if opcode == 8:
                return int(struct.unpack("!H", payload[:2])[0])

    def _exact(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data


def make_frame(
    payload: bytes, *, opcode: int = 1, fin: bool = True, rsv: int = 0, mask: bytes | None = b"\1\2\3\4"
) -> bytes:
    """Build one client frame, right or wrong."""
    head = bytes([(128 if fin else 0) | rsv << 4 | opcode])
    flag = 128 if mask is not None else 0
    if len(payload) < 126:
        head += bytes([flag | len(payload)])
    elif len(payload) < 65536:
        head += bytes([flag | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([flag | 127]) + struct.pack("!Q", len(payload))
    if mask is None:
        return head + payload
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(payload), "big")
    return head + mask + masked
