"""Slow, broken and oversized HTTP clients against the listener (cases c111 and c117)."""

from __future__ import annotations

import json
import re
import socket as native
import time
from collections.abc import Iterator

import pytest

from api.listener import ListenerLimits, NodeHandler
from api.request_head import FIELDS_MAX, LINE_BYTES_MAX
from tests.hostile.socket_server import EchoGate, RawClient, Running, running_server
from tests.support.declared import ROOT

POST = b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LIMITS = ListenerLimits(head_seconds=60, body_seconds=60, idle_seconds=60, body_bytes=1_000, linger_seconds=0.3)
HASTY = ListenerLimits(head_seconds=1.5, body_seconds=2.0, idle_seconds=1.5, body_bytes=1_000, linger_seconds=0.3)
# What takes no longer than this has not waited for one of LIMITS, however slow the machine is.
AT_ONCE_SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running_server(limits=LIMITS, gate=EchoGate()) as running:
        yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A node that soon gives up on a client."""
    with running_server(limits=HASTY, gate=EchoGate()) as running:
        yield running


def ask(node: Running, request: bytes) -> bytes:
    with RawClient(node.port) as client:
        client.sock.sendall(request)
        return client.rest()


def test_a_whole_body_reaches_the_application(node: Running) -> None:
    assert ask(node, POST + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello").endswith(b"\r\n\r\n5")


def test_a_chunked_body_reaches_the_application_whole(node: Running) -> None:
    chunks = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    answer = ask(node, POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert answer.endswith(b"\r\n\r\n11")


def test_a_body_is_asked_for_when_the_client_waits_for_that(node: Running) -> None:
    with RawClient(node.port) as client:
        client.sock.sendall(POST + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sock.sendall(b"hello")
        assert client.rest().endswith(b"\r\n\r\n5")


def test_a_length_beside_chunks_is_not_believed_and_ends_the_connection(node: Running) -> None:
    smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = ask(node, POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1


def test_two_requests_in_one_packet_are_answered_in_order(node: Running) -> None:
    one = POST + b"Content-Length: 3\r\n\r\nabc"
    two = POST + b"Connection: close\r\nContent-Length: 4\r\n\r\nabcd"
    answer = ask(node, one + two)
    assert answer.count(b"200 OK") == 2
    assert answer.endswith(b"\r\n\r\n4")


def test_c111_a_short_body_then_the_end_is_refused_at_once(node: Running) -> None:
    started = time.monotonic()
    with RawClient(node.port) as client:
        client.sock.sendall(POST + b"Content-Length: 100\r\n\r\n0123456789")
        client.sock.shutdown(1)
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"INVALID_REQUEST" in answer
    assert time.monotonic() - started < AT_ONCE_SECONDS_MAX


def test_c111_a_body_that_stops_is_answered_408(hasty: Running) -> None:
    started = time.monotonic()
    answer = ask(hasty, POST + b"Content-Length: 100\r\n\r\n0123456789")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"REQUEST_TIMEOUT" in answer
    assert HASTY.body_seconds * 0.9 < time.monotonic() - started < AT_ONCE_SECONDS_MAX


def test_c117_slow_heads_and_bodies_are_cut_while_others_are_served(hasty: Running) -> None:
    silent = [RawClient(hasty.port) for _ in range(20)]
    heads = [RawClient(hasty.port) for _ in range(20)]
    bodies = [RawClient(hasty.port) for _ in range(20)]
    for client in bodies:
        client.sock.sendall(POST + b"Content-Length: 100\r\n\r\n")
    open_count = len(silent + heads + bodies)
    served_meanwhile = 0
    deadline = time.monotonic() + AT_ONCE_SECONDS_MAX
    dribbling = dict.fromkeys(heads, b"P") | dict.fromkeys(bodies, b"1")
    waiting = set(silent)
    for client in [*silent, *heads, *bodies]:
        client.sock.settimeout(0.001)
    while open_count and time.monotonic() < deadline:
        answer = ask(hasty, POST + b"Connection: close\r\nContent-Length: 2\r\n\r\nok")
        assert answer.endswith(b"\r\n\r\n2"), answer
        for client in [*dribbling, *waiting]:
            try:
                if client in dribbling:
                    client.sock.sendall(dribbling[client])
                gone = client.sock.recv(4096) == b""
            except TimeoutError:
                gone = False
            except OSError:
                gone = True
            if gone:
                dribbling.pop(client, None)
                waiting.discard(client)
        open_count = len(dribbling) + len(waiting)
        served_meanwhile += open_count > 0
    for client in [*silent, *heads, *bodies]:
        client.sock.close()
    assert open_count == 0
    assert served_meanwhile > 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001,
        POST + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 5000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n",
    ],
)
def test_a_body_over_the_limit_is_answered_413(node: Running, request_bytes: bytes) -> None:
    answer = ask(node, request_bytes)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"PAYLOAD_TOO_LARGE" in answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET\r\n\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
        POST + b"Content-Length: 1_0\r\n\r\n0123456789",
        POST + b"Content-Length: +2\r\n\r\nok",
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: many\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"no field\r\nContent-Length: 2\r\n\r\nok",
        POST + b"Content-Length : 2\r\n\r\nok",
        POST + b" folded: 1\r\nContent-Length: 2\r\n\r\nok",
        POST + b"X-Nothing: a\0b\r\nContent-Length: 2\r\n\r\nok",
        POST + b"X-Bare: a\rContent-Length: 9\r\nContent-Length: 2\r\n\r\nok",
        POST + b"".join(b"X-%d: 1\r\n" % number for number in range(FIELDS_MAX)) + b"\r\n",
        POST + b"X-Long: " + b"x" * LINE_BYTES_MAX + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_400_with_the_envelope(
    node: Running, request_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = ask(node, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"INVALID_REQUEST" in answer
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (b"A: 1\r\nno field\r\n", "line 2 after the request line is not `Name: value`"),
        (
            b"A: " + b"x" * LINE_BYTES_MAX + b"\r\n",
            f"line 1 after the request line is longer than {LINE_BYTES_MAX}",
        ),
        (b"A: 1\r\n" * (FIELDS_MAX + 1), f"more than {FIELDS_MAX} fields"),
    ],
    ids=["no field", "too long", "too many"],
)
def test_what_is_wrong_with_a_head_is_told(node: Running, fields: bytes, told: str) -> None:
    answer = ask(node, b"GET / HTTP/1.1\r\n" + fields + b"\r\n")
    assert told in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_an_idle_connection_is_closed_after_its_time(hasty: Running) -> None:
    with RawClient(hasty.port) as client:
        client.sock.sendall(POST + b"Content-Length: 2\r\n\r\nok")
        started = time.monotonic()
        answer = client.rest()
    assert answer.endswith(b"\r\n\r\n2")
    assert HASTY.idle_seconds * 0.8 < time.monotonic() - started < AT_ONCE_SECONDS_MAX


def test_fields_reach_the_application_by_their_names() -> None:
    seen: list[dict[str, str]] = []

    class WatchingHandler(NodeHandler):
        def run_application(self) -> None:
            seen.append({name: value for name, value in self.environ.items() if isinstance(value, str)})
            super().run_application()

    fields = b"connection: close\r\nX-Two:\t one \r\nx-tWO: two\r\nX_Two: three\r\nX-None:\nContent-Length: 2\r\n\r\nok"
    with running_server(limits=LIMITS, gate=EchoGate(), handler_class=WatchingHandler) as node:
        ask(node, POST + fields)
    (environ,) = seen
    assert environ["HTTP_X_TWO"] == "one,two"
    assert environ["HTTP_X_NONE"] == ""
    assert environ["HTTP_HOST"] == "x"
    assert environ["CONTENT_TYPE"] == "application/json"
    assert environ["CONTENT_LENGTH"] == "2"
    assert not environ.keys() & {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}


def test_an_answer_goes_out_in_one_piece() -> None:
    pieces: list[bytes] = []

    class WatchingHandler(NodeHandler):
        def _sendall(self, data: bytes) -> None:
            pieces.append(data)
            super()._sendall(data)

    with running_server(limits=LIMITS, gate=EchoGate(), handler_class=WatchingHandler) as node:
        answer = ask(node, POST + b"Connection: close\r\nContent-Length: 2\r\n\r\nok")
    assert pieces == [answer]


def test_nodelay_is_on_for_every_connection() -> None:
    seen: list[int] = []

    class WatchingHandler(NodeHandler):
        def run_application(self) -> None:
            seen.append(self.socket.getsockopt(native.IPPROTO_TCP, native.TCP_NODELAY))
            super().run_application()

    with running_server(limits=LIMITS, gate=EchoGate(), handler_class=WatchingHandler) as node:
        ask(node, POST + b"Connection: close\r\nContent-Length: 2\r\n\r\nok")
    assert seen
    assert seen[0] != 0


def test_the_documented_limits_are_the_defaults() -> None:
    page = (ROOT / "docs" / "connections.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", page, re.MULTILINE))
    limits = ListenerLimits()
    assert rows["TLS handshake"] == f"{limits.tls_seconds:g} s"
    assert rows["first request, its head in all"] == f"{limits.head_seconds:g} s"
    assert rows["the next request on an idle connection"] == f"{limits.idle_seconds:g} s"
    assert rows["body, in all"] == f"{limits.body_seconds:g} s"
    assert rows["body, size"] == f"{limits.body_bytes} bytes"
    assert rows["answer, each piece of it"] == f"{limits.send_seconds:g} s"
    assert rows["worker sockets per credential and per address, on one node"] == f"{limits.caps.per_address}"
    assert limits.caps.per_address == limits.caps.per_credential
    assert rows["message on a worker socket"] == f"{limits.socket.message_bytes} bytes"
    assert rows["bytes that wait for a worker"].startswith(f"{limits.socket.queue_bytes},")
    assert rows["a send to a worker"] == f"{limits.socket.send_seconds:g} s"
    silence = f"a ping after {limits.socket.ping_after_seconds:g} s, an answer to it within"
    assert rows["silence of a worker"] == f"{silence} {limits.socket.pong_within_seconds:g} s"
