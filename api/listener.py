"""The HTTP listener of a node: gevent's server with clocks on everything that a client may be slow at.

It hands the application whole bodies only, so a slow or broken client costs a greenlet and a buffer, never a database
connection; and it turns the one WebSocket path over to its gate, authenticated before the upgrade. It knows no
resources. The surprising rule: a refusal here is written before the application runs, so it has no access log of the
application's and carries a request id of its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import logging
import socket as native_socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from gevent import ssl as gevent_ssl
from gevent.pywsgi import Input, WSGIServer
from geventwebsocket.handler import WebSocketHandler

from api.connection_caps import CapLimits, ConnectionCaps
from api.request_head import HeadError, RequestHead, environ_name, head_read
from api.websocket import SocketLimits, WorkerSocket
from orbit import jsontext
from orbit.errors import InvalidRequest, OrbitError, PayloadTooLarge, RequestTimeout
from orbit.ids import new_id, to_hex

log = logging.getLogger("orbit.listener")

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The clocks and sizes of the listener. A head and a body each have a total time, whatever their pace."""

    idle_seconds: float = 75.0
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    send_seconds: float = 30.0
    tls_seconds: float = 10.0
    body_bytes: int = 512 * 1024
    linger_seconds: float = 1.0
    linger_bytes: int = 1 << 20
    socket: SocketLimits = field(default_factory=SocketLimits)
    caps: CapLimits = field(default_factory=CapLimits)


class Admission(Protocol):
    """What a gate found out about a caller; `credential_key` counts its connections."""

    @property
    def credential_key(self) -> str: ...  # noqa: D102


class SocketGate(Protocol):
    """Who may open the node's WebSocket, and what then happens on it."""

    path: str
    subprotocol: str

    def admit(self, environ: Mapping[str, Any]) -> Any:
        """Authenticate before the upgrade; return an Admission, raise an OrbitError to refuse."""

    def serve(self, socket: WorkerSocket, admission: Any) -> None:
        """Run the connection in this greenlet until it ends."""


class DeadlineReader(io.RawIOBase):
    """The raw reading side of a socket, with one deadline for all that is read until the next is set."""

    def __init__(self, sock: Any) -> None:
        super().__init__()
        self._sock = sock
        self._deadline = 0.0
        self._head_seconds: float | None = None
        self._ended = False

    def readable(self) -> bool:
        """Say that this stream can be read."""
        return True

    def await_head(self, *, idle_seconds: float, head_seconds: float) -> None:
        """Wait `idle_seconds` for a first byte, which starts the clock of the head."""
        self._deadline = time.monotonic() + idle_seconds
        self._head_seconds = head_seconds

    def limit(self, seconds: float) -> None:
        """Give everything that is read from now on this much time in all."""
        self._deadline = time.monotonic() + seconds
        self._head_seconds = None

    def end(self) -> None:
        """Report the end of the stream from now on, so that a buffer above gives up what it holds."""
        self._ended = True

    def readinto(self, buffer: Any) -> int:
        """Receive some bytes; raise TimeoutError past the deadline."""
        if self._ended:
            return 0
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        try:
            count = int(self._sock.recv_into(buffer))
        except OSError:
            if time.monotonic() >= self._deadline:  # TLS reports a time-out as an SSLError
                raise TimeoutError from None
            raise
        if self._head_seconds is not None and count:
            self.limit(self._head_seconds)
        return count


class NodeHandler(WebSocketHandler):  # type: ignore[misc]  # the library has no types
    """One accepted connection: requests one after the other, or one WebSocket."""

    def __init__(self, sock: Any, address: Any, server: NodeServer) -> None:
        self._reader = DeadlineReader(sock)
        self._first = True
        self._admission: Any = None
        super().__init__(sock, address, server, rfile=io.BufferedReader(self._reader))

    def MessageClass(self, stream: io.BufferedReader, *_: Any) -> RequestHead:  # noqa: N802  (the library's own name)
        """Read the fields of a head."""
        return head_read(stream)

    def _headers(self) -> Iterator[tuple[str, str]]:
        """Name the fields for the environment; the library adds those of the body itself."""
        for field_name, value in self.headers.fields:
            name = environ_name(field_name)
            if name is not None and field_name not in {"content-type", "content-length"}:
                yield name, value

    def handle_one_request(self) -> Any:
        """Read one head within its time, then answer it."""
        limits: ListenerLimits = self.server.limits
        idle = limits.head_seconds if self._first else limits.idle_seconds
        self._first = False
        self._reader.await_head(idle_seconds=idle, head_seconds=limits.head_seconds)
        return super().handle_one_request()

    def run_application(self) -> None:
        """Turn to the WebSocket gate, or give the application the whole body."""
        limits: ListenerLimits = self.server.limits
        gate: SocketGate | None = self.server.gate
        self.socket.settimeout(limits.send_seconds)
        if gate is not None and self.environ["PATH_INFO"] == gate.path and self.command == "GET":
            self._open_socket(gate)
            return
        try:
            body = self._body(limits)
        except OrbitError as error:
            self._refuse(error)
            return
        if body is None:
            return
        self.environ["wsgi.input"] = io.BytesIO(body)
        self.environ["wsgi.input_terminated"] = True
        self.wsgi_input = Input(io.BufferedReader(io.BytesIO()), 0)  # nothing is left to discard
        if "HTTP_TRANSFER_ENCODING" in self.environ:
            del self.environ["HTTP_TRANSFER_ENCODING"]
            self.environ["CONTENT_LENGTH"] = str(len(body))
        self.socket.settimeout(limits.send_seconds)
        super(WebSocketHandler, self).run_application()

    def _write_with_headers(self, data: bytes) -> None:
        """Send the head together with the first bytes of the body: one packet for most answers, one waking there."""
        self.headers_sent = True
        self.finalize_headers()
        lines = [b"HTTP/1.1 " + self.status, *(b"%b: %b" % each for each in self.response_headers), b"\r\n"]
        head = b"\r\n".join(lines)
        if self.response_use_chunked:
            self._sendall(head)
            self._write(data)
        else:
            self._sendall(head + data)

    def upgrade_connection(self) -> None:
        """Check the handshake of RFC 6455 and answer it; raise InvalidRequest for one that is not."""
        environ = self.environ
        gate: SocketGate = self.server.gate
        tokens = [token.strip().lower() for token in environ.get("HTTP_CONNECTION", "").split(",")]
        if environ.get("HTTP_UPGRADE", "").strip().lower() != "websocket" or "upgrade" not in tokens:
            raise InvalidRequest("this resource speaks WebSocket: send Connection: Upgrade and Upgrade: websocket")
        if self.request_version != "HTTP/1.1":
            raise InvalidRequest("a WebSocket starts with HTTP/1.1")
        if environ.get("HTTP_SEC_WEBSOCKET_VERSION", "").strip() != "13":
            raise InvalidRequest("Sec-WebSocket-Version must be 13")
        key = environ.get("HTTP_SEC_WEBSOCKET_KEY", "").strip()
        try:
            sound = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
        except (binascii.Error, ValueError):
            sound = False
        if not sound:
            raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in base64")
        offered = [name.strip() for name in environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(",")]
        if gate.subprotocol not in offered:
            raise InvalidRequest(f"Sec-WebSocket-Protocol must offer {gate.subprotocol}")
        digest = hashlib.sha1((key + _GUID).encode("latin-1"), usedforsecurity=False).digest()
        self.close_connection = True
        self.provided_date = ""
        self.start_response(
            "101 Switching Protocols",
            [
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Accept", base64.b64encode(digest).decode("ascii")),
                ("Sec-WebSocket-Protocol", gate.subprotocol),
            ],
        )
        self.provided_content_length = "0"  # a 101 has no body: keeps the library from announcing one
        self.write(b"")

    def log_request(self) -> None:
        """Write no access log: the application logs its requests, sessions log themselves."""

    def _open_socket(self, gate: SocketGate) -> None:
        caps: ConnectionCaps = self.server.caps
        limits: ListenerLimits = self.server.limits
        upgraded = False
        try:
            with caps.address(str(self.environ.get("REMOTE_ADDR", ""))):
                admission = gate.admit(self.environ)
                with caps.credential(admission.credential_key):
                    self.upgrade_connection()
                    upgraded = True
                    self._serve(gate, admission, limits)
        except OrbitError as error:
            if upgraded:
                raise
            self._refuse(error)

    def _serve(self, gate: SocketGate, admission: Any, limits: ListenerLimits) -> None:
        self._reader.end()
        socket = WorkerSocket(self.socket, limits=limits.socket, received=self.rfile.read())
        try:
            gate.serve(socket, admission)
        finally:
            socket.finish()
            self.close_connection = True
            self.wsgi_input = Input(io.BufferedReader(io.BytesIO()), 0)

    def _body(self, limits: ListenerLimits) -> bytes | None:
        """Read the whole body; None when the client went away. Raises the refusal of a late, broken or long one."""
        self._check_framing()
        declared = self.content_length
        if declared is not None and declared > limits.body_bytes:
            raise PayloadTooLarge(f"a body may have {limits.body_bytes} bytes")
        self._reader.limit(limits.body_seconds)
        try:
            body: bytes = self.wsgi_input.read(limits.body_bytes + 1)
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {limits.body_seconds:g} s") from None
        except ConnectionError:
            self.close_connection = True
            return None
        except OSError:
            raise InvalidRequest("the body ended early or is not well chunked") from None
        if len(body) > limits.body_bytes:
            raise PayloadTooLarge(f"a body may have {limits.body_bytes} bytes")
        if declared is not None and len(body) < declared:
            raise InvalidRequest("the body ended early")
        return body

    def _check_framing(self) -> None:
        """Refuse a body whose length two parsers could read differently (RFC 9112, section 6.3): request smuggling.

        The library reads `1_0` and `+10` as ten, takes the first of two lengths and ignores codings it does not know.
        """
        lengths = self.headers.get_all("Content-Length") or []
        codings = self.headers.get_all("Transfer-Encoding") or []
        sound = all(value.strip().isascii() and value.strip().isdigit() for value in lengths)
        if len(lengths) > 1 or not sound or any(coding.strip().lower() != "chunked" for coding in codings):
            raise InvalidRequest("the length of the body is not told in exactly one way")
        if codings:
            self.close_connection = True

    def _refuse(self, error: OrbitError) -> None:
        """Answer with the error envelope, then end the connection: what the client still sends is not a request."""
        body = _envelope(error)
        self.close_connection = True
        self.wsgi_input = Input(io.BufferedReader(io.BytesIO()), 0)
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        retry_after = getattr(error, "retry_after_seconds", None)
        if retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        if error.status == HTTPStatus.UNAUTHORIZED:
            headers.append(("WWW-Authenticate", "Bearer"))
        self.start_response(_status(error.status), headers)
        self.result = [body]
        self.process_result()
        self._linger()

    def _handle_client_error(self, error: Exception) -> tuple[str, bytes]:
        """Answer a head that can't be read; the library's own answer has no envelope and prints tracebacks."""
        self.close_connection = True
        message = str(error) if isinstance(error, HeadError) else "the request's head is not HTTP/1.1"
        refusal: OrbitError = InvalidRequest(message)
        if isinstance(error, TimeoutError):
            refusal = RequestTimeout(f"the head did not arrive within {self.server.limits.head_seconds:g} s")
        elif not isinstance(error, (ValueError, OSError)):
            log.error("reading a request failed", exc_info=error)
        body = _envelope(refusal)
        head = (
            f"HTTP/1.1 {_status(refusal.status)}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return str(refusal.status), head.encode("ascii") + body

    def _linger(self) -> None:
        """Read a little of what still comes: closing over unread bytes resets the connection and eats the answer."""
        limits: ListenerLimits = self.server.limits
        deadline = time.monotonic() + limits.linger_seconds
        discarded = 0
        try:
            self.socket.shutdown(native_socket.SHUT_WR)
            while discarded < limits.linger_bytes:
                self.socket.settimeout(max(0.001, deadline - time.monotonic()))
                data = self.socket.recv(65_536)
                if not data:
                    break
                discarded += len(data)
        except OSError:
            return


class NodeServer(WSGIServer):
    """The listener: TCP_NODELAY on every connection, a time-out on the TLS handshake, the limits for its handlers."""

    handler_class = NodeHandler

    def __init__(
        self, listener: Any, application: Any, *, limits: ListenerLimits, gate: SocketGate | None = None, **options: Any
    ) -> None:
        self.limits = limits
        self.gate = gate
        self.caps = ConnectionCaps(limits.caps)
        if options.get("certfile"):
            options["ssl_context"] = _tls_context(options.pop("certfile"), options.pop("keyfile"))
        options.setdefault("log", None)
        options.setdefault("error_log", log)
        super().__init__(listener, application, **options)

    def handle(self, sock: Any, address: Any) -> None:
        """Serve one accepted connection."""
        # gevent leaves Nagle's algorithm on: against delayed acknowledgements that costs 40 ms a turn.
        sock.setsockopt(native_socket.IPPROTO_TCP, native_socket.TCP_NODELAY, 1)
        super().handle(sock, address)

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> Any:
        """Serve one accepted TLS connection; a handshake has its time too, and its failure is not our error."""
        client_socket.settimeout(self.limits.tls_seconds)
        try:
            wrap: Any = self.wrap_socket  # type: ignore[misc]  # the stub types an attribute as a method
            wrapped = wrap(client_socket, **(self.ssl_args or {}))
        except OSError as error:
            log.info("a TLS handshake failed: %s", error)
            client_socket.close()
            return
        try:
            self.handle(wrapped, address)
        finally:
            wrapped.close()


def _tls_context(certificate: str, key: str) -> gevent_ssl.SSLContext:
    """Make the one context of all connections; gevent would make one a connection, with a protocol long deprecated."""
    context = gevent_ssl.SSLContext(gevent_ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = gevent_ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def _status(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}"


def _envelope(error: OrbitError) -> bytes:
    content: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details is not None:
        content["details"] = error.details
    return jsontext.dumps({"request_id": to_hex(new_id()), "error": content})
