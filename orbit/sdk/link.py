"""The worker's end of the WebSocket: the `websockets` library's sans-I/O protocol on a non-blocking socket.

Its ready-made clients were not taken: the asyncio one would need a loop in the user's process, the threaded one hands
every message from its own thread to ours. Here the loop that decides also reads and writes: a frame crosses no thread.
`Link.open` blocks and is for a thread of its own; everything after it is for the loop.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from dataclasses import dataclass, field

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from orbit.sdk.errors import ConnectionFailed, WorkerRefused
from orbit.sdk.frames import SUBPROTOCOL
from orbit.sdk.settings import Connection

# Frames and the handshake hold credentials, so this layer must never log them, whatever the root logger's level is.
_quiet = logging.getLogger("orbit.sdk.frames")
_quiet.setLevel(logging.WARNING)

CONNECT_SECONDS = 10.0
RECEIVE_BYTES = 262_144
MESSAGE_BYTES_MAX = 4 << 20
_UNAUTHENTICATED = 401
_FORBIDDEN = 403


class _Refusal(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Envelope(msgspec.Struct):
    error: _Refusal = field(default_factory=_Refusal)


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """How a connection ended: the close code (1006: without a close frame) and the peer's words."""

    code: int
    reason: str


class Link:
    """One open connection. Not thread-safe."""

    def __init__(self, sock: socket.socket, frames: ClientProtocol) -> None:
        self._sock = sock
        self._frames = frames
        self._outgoing = bytearray()
        self._message = bytearray()
        self.closed: LinkClosed | None = None
        sock.settimeout(0)

    @classmethod
    def open(cls, connection: Connection) -> Link:
        """Connect, authenticate and upgrade.

        Raises WorkerRefused when the credential is not taken, ConnectionFailed for anything that may pass.
        """
        uri = parse_uri(connection.worker_url)
        try:
            sock: socket.socket = socket.create_connection((uri.host, uri.port), timeout=CONNECT_SECONDS)
        except OSError as error:
            raise ConnectionFailed(f"{uri.host}:{uri.port}: {error}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if uri.secure:
                context = ssl.create_default_context(cafile=connection.ca_file)
                sock = context.wrap_socket(sock, server_hostname=uri.host)
            frames = ClientProtocol(
                uri, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MESSAGE_BYTES_MAX, logger=_quiet
            )
            _shake_hands(sock, frames, connection.token)
        except (OSError, InvalidHandshake) as error:
            sock.close()
            raise ConnectionFailed(f"{uri.host}:{uri.port}: {error}") from None
        except BaseException:
            sock.close()
            raise
        return cls(sock, frames)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Tell whether bytes wait for the socket to take them."""
        return bool(self._outgoing)

    def send(self, texts: list[bytes]) -> None:
        """Send text messages; what the socket does not take now is kept for `flush`."""
        if self.closed is not None or self._frames.state is not State.OPEN:
            return
        for text in texts:
            self._frames.send_text(text)
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the socket takes it."""
        for chunk in self._frames.data_to_send():
            self._outgoing += chunk
        try:
            while self._outgoing:
                sent = self._sock.send(self._outgoing)
                del self._outgoing[:sent]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self._end(1006, str(error))

    def receive(self) -> list[bytes]:
        """Read what has arrived; return the whole messages in it."""
        messages: list[bytes] = []
        while self.closed is None:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                self._end(1006, str(error))
                break
            if not data:
                self._frames.receive_eof()
                self._end_as_told()
                break
            self._frames.receive_data(data)
            for event in self._frames.events_received():
                assert isinstance(event, Frame)
                self._assemble(event, messages)
            self.flush()
            if self._frames.state is not State.OPEN:
                self._end_as_told()
            elif len(data) < RECEIVE_BYTES and not isinstance(self._sock, ssl.SSLSocket):
                break  # the usual case: one read took it all; TLS may hold more inside
        return messages

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a close frame as far as the socket takes it now, and close."""
        if self.closed is not None:
            return
        if self._frames.state is State.OPEN:
            self._frames.send_close(code, reason)
            self.flush()
        self._end(code, reason)

    def finish(self, timeout: float) -> None:
        """Close after everything that was sent has been taken by the server; blocks at most `timeout` seconds.

        Closing at once would reset the connection if something unread has arrived, and eat our last messages.
        """
        if self.closed is not None:
            return
        if self._frames.state is State.OPEN:
            self._frames.send_close(1000, "")
        deadline = time.monotonic() + timeout
        try:
            for chunk in self._frames.data_to_send():
                self._outgoing += chunk
            self._sock.settimeout(timeout)
            self._sock.sendall(self._outgoing)
            while (left := deadline - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(RECEIVE_BYTES):
                    break
        except OSError as error:
            _quiet.info("closing: %s", error)
        self._end(1000, "")

    def _assemble(self, frame: Frame, messages: list[bytes]) -> None:
        if frame.opcode is Opcode.TEXT and frame.fin:
            messages.append(bytes(frame.data))
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._message += frame.data
            if frame.fin:
                messages.append(bytes(self._message))
                self._message = bytearray()

    def _end_as_told(self) -> None:
        told = self._frames.close_rcvd
        if told is not None:
            self._end(told.code, told.reason)
        else:
            self._end(1006, "the connection ended without a close frame")

    def _end(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = LinkClosed(code, reason)
            self._sock.close()


def _shake_hands(sock: socket.socket, frames: ClientProtocol, token: str) -> None:
    """Do the opening handshake on a blocking socket."""
    request = frames.connect()
    request.headers["Authorization"] = f"Bearer {token}"
    frames.send_request(request)
    for chunk in frames.data_to_send():
        sock.sendall(chunk)
    while frames.state is State.CONNECTING and frames.handshake_exc is None:
        # Byte by byte would be slow, in bulk could swallow frames; the server does not speak before our hello.
        data = sock.recv(4_096)
        if not data:
            frames.receive_eof()
            break
        frames.receive_data(data)
    error = frames.handshake_exc
    if isinstance(error, InvalidStatus):
        _raise_refusal(error.response.status_code, bytes(error.response.body or b""))
    if error is not None:
        raise error
    if frames.state is not State.OPEN:
        raise ConnectionFailed("the server closed the connection during the handshake")
    frames.events_received()


def _raise_refusal(status: int, body: bytes) -> None:
    """Raise what an HTTP answer instead of an upgrade means; only a wrong credential or scope is final."""
    try:
        refusal = msgspec.json.decode(body, type=_Envelope).error
    except msgspec.DecodeError:
        refusal = _Refusal()
    if status in (_UNAUTHENTICATED, _FORBIDDEN):
        raise WorkerRefused(refusal.code or str(status), refusal.message or "the credential was refused")
    raise ConnectionFailed(f"the server answered {status} {refusal.code}: {refusal.message}".strip(": "))
