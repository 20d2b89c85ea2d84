"""One WebSocket of a worker, on a gevent socket: the frame layer and nothing else.

The parsing is that of the maintained `websockets` sans-I/O protocol; this module moves bytes between it and the socket
and keeps every buffer bounded. Who may connect is the listener's business, what a message means the session's.
The surprising rule: `offer` never blocks, because the dispatcher that calls it serves all connections. What the kernel
takes at once is written at once, so that an answer does not wait for the greenlets before the writer's; only the writer
waits. A consumer that does not keep up is closed with 1013 instead.
"""

from __future__ import annotations

import logging
import os
import socket as native_socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gevent
from gevent import socket as green_socket
from gevent.event import Event
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SERVER, State
from websockets.protocol import Protocol as FrameProtocol

# Frames hold execution credentials, so the frame layer must never log them, whatever the root logger's level is.
_frame_log = logging.getLogger("orbit.websocket.frames")
_frame_log.setLevel(logging.WARNING)
log = logging.getLogger("orbit.websocket")

_RECEIVE_BYTES = 65_536
_WRITE_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """What one socket may cost, and how long it may be silent.

    `queue_bytes` may be passed by one batch of frames (the batch that was offered while there was room): the largest is
    a claim's, 256 tasks with 64 KiB of params each.
    """

    message_bytes: int = 1 << 20
    queue_bytes: int = 4 << 20
    queue_frames: int = 4_096
    send_seconds: float = 10.0
    tick_seconds: float = 5.0
    ping_after_seconds: float = 15.0
    pong_within_seconds: float = 15.0
    linger_seconds: float = 2.0
    linger_bytes: int = 4 << 20


class ByteSocket(Protocol):
    """What is needed of a gevent socket, plain or TLS."""

    def recv(self, size: int, /) -> bytes: ...  # noqa: D102
    def sendall(self, data: bytes, /) -> None: ...  # noqa: D102
    def fileno(self) -> int: ...  # noqa: D102
    def settimeout(self, seconds: float | None, /) -> None: ...  # noqa: D102
    def shutdown(self, how: int, /) -> None: ...  # noqa: D102


class WorkerSocket:
    """A WebSocket after its handshake, on the server's side.

    `messages` is for one greenlet; `offer` and `close` are for any greenlet of the same thread.
    """

    def __init__(self, sock: ByteSocket, *, limits: SocketLimits, received: bytes = b"") -> None:
        self._sock = sock
        self._limits = limits
        self._received = received
        self._frames = FrameProtocol(SERVER, max_size=limits.message_bytes, logger=_frame_log)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wanted = Event()
        # A TLS socket takes no bytes but through its own layer.
        self._may_write_past = type(sock) is green_socket.socket
        self._closed = False
        self._refused = False
        self._message = bytearray()
        self._opcode: Opcode | None = None
        now = time.monotonic()
        self._heard_at = now
        self._pinged_at: float | None = None
        # recv and sendall share gevent's one time-out per socket: it is the writer's limit, and the reader treats its
        # own expiry as a tick of the clock.
        sock.settimeout(min(limits.tick_seconds, limits.send_seconds))
        self._writer = gevent.spawn(self._write)

    @property
    def closed(self) -> bool:
        """Tell whether nothing more will be sent: by a close frame, an error or the peer's end."""
        return self._closed or self._frames.state is not State.OPEN

    @property
    def queued_bytes(self) -> int:
        """Count the bytes that wait for the writer."""
        return self._queued_bytes

    @property
    def is_congested(self) -> bool:
        """Tell whether more than a quarter of the buffer is taken: time to hold back what can wait."""
        return self._queued_bytes > self._limits.queue_bytes // 4

    def offer(self, texts: Sequence[bytes]) -> bool:
        """Queue text messages, all or none; return False when the socket is closed or its buffer full.

        A full buffer closes the socket with 1013: a worker that does not read must not make the node grow.
        """
        if self.closed:
            return False
        limits = self._limits
        if self._queued_bytes >= limits.queue_bytes or len(self._queue) >= limits.queue_frames:
            log.warning("a worker reads too slowly: %d bytes wait for it", self._queued_bytes)
            self.close(CloseCode.TRY_AGAIN_LATER, "the outgoing buffer is full")
            return False
        for text in texts:
            self._frames.send_text(text)
        self._flush()
        return True

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame; the reader ends when the peer answers or the linger time has passed."""
        if self._closed:
            return
        self._refused = True
        # A close frame holds at most 123 bytes of reason.
        self._frames.fail(code, reason.encode("utf-8")[:120].decode("utf-8", "ignore"))
        self._flush()

    def abort(self) -> None:
        """Drop the connection without a word."""
        self._closed = True
        self._queue.clear()
        self._queued_bytes = 0
        self._wanted.set()
        try:
            self._sock.shutdown(native_socket.SHUT_RDWR)
        except OSError:
            return

    def messages(self) -> Iterator[bytes | None]:
        """Yield whole text messages as UTF-8 bytes, and None at each tick; end with the connection.

        A violation of the protocol ends the iteration after its close frame: 1002 for framing, 1003 for a binary
        message, 1007 for bytes that are not UTF-8, 1009 for a message over the limit, before its payload is read.
        """
        ticked_at = time.monotonic()
        data = self._received
        self._received = b""
        while True:
            if data:
                self._heard_at = time.monotonic()
                self._pinged_at = None
                yield from self._feed(data)
                if len(data) >= _RECEIVE_BYTES // 8:
                    # A read of a ready socket does not switch: one that is always ready would keep the hub to itself.
                    gevent.sleep(0)  # noqa: TID251  # a turn for the others, not a wait
            if self._closed or self._frames.state is not State.OPEN:
                return
            now = time.monotonic()
            if now - ticked_at >= self._limits.tick_seconds:
                ticked_at = now
                if not self._alive(now):
                    return
                yield None
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except OSError as error:
                if _timed_out(error):
                    data = b""
                    continue
                self.abort()
                return
            if not data:
                self._frames.receive_eof()
                return

    def finish(self) -> None:
        """End the connection: let the writer empty its queue, discard what still comes, close. Never raises."""
        self._frames.fail(CloseCode.NORMAL_CLOSURE)
        self._flush()
        deadline = time.monotonic() + self._limits.linger_seconds
        self._writer.join(timeout=self._limits.linger_seconds)
        # Closing with unread bytes in the kernel's buffer sends a reset, which can overtake the close frame.
        discarded = 0
        try:
            while discarded < self._limits.linger_bytes and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._sock.settimeout(left)
                data = self._sock.recv(_RECEIVE_BYTES)
                if not data:
                    break
                discarded += len(data)
        except OSError:
            pass
        self.abort()
        self._writer.join(timeout=self._limits.send_seconds)

    def _feed(self, data: bytes) -> Iterator[bytes]:
        frames = self._frames
        frames.receive_data(data)
        events: Sequence[Any] = frames.events_received()
        # Pongs and close frames that the protocol wrote in answer.
        self._flush()
        for event in events:
            assert isinstance(event, Frame)
            text = self._assemble(event)
            if text is not None:
                yield text
            if self._closed:
                return

    def _assemble(self, frame: Frame) -> bytes | None:
        """Return the message that this frame completes; fragments are judged together, never one by one."""
        opcode = frame.opcode
        if opcode is Opcode.CONT:
            if self._opcode is None:
                return None
            self._message += frame.data
            if not frame.fin:
                return None
            whole = bytes(self._message)
            self._message = bytearray()
            self._opcode = None
        elif opcode is Opcode.TEXT:
            if not frame.fin:
                self._opcode = opcode
                self._message = bytearray(frame.data)
                return None
            whole = bytes(frame.data)
        elif opcode is Opcode.BINARY:
            self.close(CloseCode.UNSUPPORTED_DATA, "text messages only")
            self._opcode = None
            return None
        else:
            return None
        if self._refused:
            return None  # what comes after a violation is not looked at; what came before the peer's close is
        try:
            str(whole, "utf-8")
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "not UTF-8")
            return None
        return whole

    def _alive(self, now: float) -> bool:
        """Ping a silent peer; drop one that does not answer."""
        limits = self._limits
        if self._pinged_at is not None:
            if now - self._pinged_at >= limits.pong_within_seconds:
                log.info("a worker's socket is silent: dropped")
                self.abort()
                return False
        elif now - self._heard_at >= limits.ping_after_seconds:
            self._pinged_at = now
            self._frames.send_ping(b"")
            self._flush()
        return True

    def _flush(self) -> None:
        """Move what the protocol wrote to the writer's queue; an empty chunk is the end of the stream."""
        if self._closed:
            self._frames.data_to_send()
            return
        for chunk in self._frames.data_to_send():
            self._queue.append(chunk)
            self._queued_bytes += len(chunk)
        if self._queued_bytes > self._limits.queue_bytes + self._limits.message_bytes * 64:
            # Only answers to a flood of pings get here: `offer` stops earlier.
            self.abort()
        elif self._queue and not self._write_at_once():
            self._wanted.set()

    def _write_at_once(self) -> bool:
        """Write what is queued as far as it goes without waiting; return whether nothing is left to the writer."""
        queue = self._queue
        if not self._may_write_past or not all(queue) or self._queued_bytes > _WRITE_BYTES:
            return False
        data = queue[0] if len(queue) == 1 else b"".join(queue)
        try:
            sent = os.write(self._sock.fileno(), data)
        except OSError:
            return False  # it takes nothing now, or is dead: the writer will see
        queue.clear()
        if sent < len(data):
            queue.append(data[sent:])
        self._queued_bytes -= sent
        return not queue

    def _write(self) -> None:
        """Send what is queued, many frames at a time, until the end of the stream or a dead peer."""
        queue = self._queue
        while not self._closed:
            if not queue:
                self._wanted.clear()
                self._wanted.wait()
                continue
            chunks: list[bytes] = []
            size = 0
            ended = False
            while queue and size < _WRITE_BYTES:
                chunk = queue.popleft()
                if not chunk:
                    ended = True
                    break
                chunks.append(chunk)
                size += len(chunk)
            may_write_past, self._may_write_past = self._may_write_past, False
            try:
                if chunks:
                    self._sock.sendall(b"".join(chunks) if len(chunks) > 1 else chunks[0])
                self._may_write_past = may_write_past
                self._queued_bytes -= size
                if ended:
                    self._sock.shutdown(native_socket.SHUT_WR)
                    return
            except OSError as error:
                if _timed_out(error):
                    log.warning("a worker did not read for %g s: dropped", self._limits.send_seconds)
                self.abort()
                return


def _timed_out(error: OSError) -> bool:
    """Tell a time-out from an end; TLS sockets report one as an SSLError with the words alone."""
    return isinstance(error, TimeoutError) or "timed out" in str(error)
