"""Raw sockets against the WebSocket transport: every way to be wrong that must cost one connection and no more."""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Iterator

import psutil
import pytest

from api.connection_caps import CapLimits
from api.listener import ListenerLimits
from api.websocket import SocketLimits
from tests.hostile.socket_server import EchoGate, RawClient, Running, make_frame, running_server
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until

LIMIT = 1 << 20


@pytest.fixture(scope="module")
def gate() -> EchoGate:
    return EchoGate()


@pytest.fixture(scope="module")
def node(gate: EchoGate) -> Iterator[Running]:
    with running_server(limits=ListenerLimits(), gate=gate) as running:
        yield running


def opened(node: Running) -> RawClient:
    client = RawClient(node.port)
    assert client.upgrade().startswith(b"HTTP/1.1 101 ")
    return client


def still_echoes(client: RawClient) -> bool:
    client.sock.sendall(make_frame(b"still here"))
    return client.frame() == (1, b"still here")


def test_the_handshake_names_the_subprotocol_and_has_no_body(node: Running) -> None:
    with RawClient(node.port) as client:
        head = client.upgrade(Sec_WebSocket_Protocol="other, orbit.worker.v1")
        assert b"Sec-WebSocket-Protocol: orbit.worker.v1\r\n" in head
        assert b"Content-Length" not in head
        assert b"Transfer-Encoding" not in head
        assert still_echoes(client)


def test_frames_sent_together_with_the_handshake_are_read(node: Running) -> None:
    with RawClient(node.port) as client:
        client.upgrade(make_frame(b"early"))
        assert client.frame() == (1, b"early")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Authorization": ""}, b"401", b"UNAUTHENTICATED"),
        ({"Authorization": "Bearer bad"}, b"401", b"UNAUTHENTICATED"),
        ({"Authorization": "Bearer bad", "Sec_WebSocket_Key": "short"}, b"401", b"UNAUTHENTICATED"),
        ({"Sec_WebSocket_Protocol": ""}, b"400", b"INVALID_REQUEST"),
        ({"Sec_WebSocket_Protocol": "orbit.worker.v10"}, b"400", b"INVALID_REQUEST"),
        ({"Sec_WebSocket_Version": "8"}, b"400", b"INVALID_REQUEST"),
        ({"Sec_WebSocket_Version": ""}, b"400", b"INVALID_REQUEST"),
        ({"Sec_WebSocket_Key": "short"}, b"400", b"INVALID_REQUEST"),
        ({"Sec_WebSocket_Key": "!!!!"}, b"400", b"INVALID_REQUEST"),
        ({"Upgrade": ""}, b"400", b"INVALID_REQUEST"),
        ({"Connection": "close"}, b"400", b"INVALID_REQUEST"),
    ],
)
def test_a_refused_upgrade_is_plain_http_with_the_envelope(
    node: Running, gate: EchoGate, headers: dict[str, str], status: bytes, code: bytes
) -> None:
    served = gate.served
    with RawClient(node.port) as client:
        head = client.upgrade(b"", **headers)
        assert head.startswith(b"HTTP/1.1 " + status)
        assert b"Content-Type: application/json" in head
        body = client.rest()
        assert code in body
        assert b'"request_id":"' in body
    assert gate.served == served


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (make_frame(b"hello", mask=None), 1002),
        (make_frame(b"hello", rsv=4), 1002),
        (make_frame(b"hello", rsv=1), 1002),
        (make_frame(b"hello", opcode=3), 1002),
        (make_frame(b"hello", opcode=11), 1002),
        (make_frame(b"hello", opcode=0), 1002),
        (make_frame(b"hello", opcode=9, fin=False), 1002),
        (make_frame(b"x" * 126, opcode=9), 1002),
        (make_frame(b"a", fin=False) + make_frame(b"b"), 1002),
        (make_frame(b"\x00", opcode=8), 1002),
        (make_frame(b"\xff\xfe"), 1007),
        (make_frame(b"\xed\xa0\x80"), 1007),
        (make_frame(b"\xe6\x97", fin=False) + make_frame(b"", opcode=0), 1007),
        (make_frame(b"bytes", opcode=2), 1003),
        (b"\x81\xff" + struct.pack("!Q", 8 << 30), 1009),
        (b"\x81\xff" + struct.pack("!Q", LIMIT + 1) + b"\1\2\3\4", 1009),
        (b"\x81\xff" + struct.pack("!Q", 1 << 63) + b"\1\2\3\4", 1009),
    ],
)
def test_a_violation_closes_with_its_code_and_harms_nobody_else(node: Running, *, sent: bytes, code: int) -> None:
    with opened(node) as good, opened(node) as bad:
        bad.sock.sendall(sent)
        assert bad.close_code() == code
        assert still_echoes(good)


def test_a_message_of_exactly_the_limit_passes(node: Running) -> None:
    with opened(node) as client:
        client.sock.sendall(make_frame(b"x" * LIMIT))
        opcode, payload = client.frame()
        assert (opcode, len(payload)) == (1, LIMIT)


def test_c113_endless_fragments_are_cut_at_the_limit(node: Running) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    clients = [opened(node) for _ in range(20)]
    piece = make_frame(b"y" * 65_536, opcode=0, fin=False)
    with opened(node) as good:
        for client in clients:
            client.sock.sendall(make_frame(b"y", fin=False))
        for client in clients:
            try:
                for _ in range(40):
                    client.sock.sendall(piece)
            except ConnectionError:
                continue
        for client in clients:
            try:
                assert client.close_code() == 1009
            except ConnectionError:
                continue
            finally:
                client.sock.close()
        assert still_echoes(good)
    assert process.memory_info().rss - before < 20 * 3 * LIMIT


def test_c115_a_character_split_between_fragments_arrives_whole(
    node: Running, caplog: pytest.LogCaptureFixture
) -> None:
    text = ("日本語😀" * 25_000).encode()
    assert len(text) > 300_000
    caplog.set_level(logging.DEBUG)
    pieces = [text[at : at + 65_535] for at in range(0, len(text), 65_535)]
    with opened(node) as client:
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            client.sock.sendall(make_frame(piece, opcode=1 if index == 0 else 0, fin=last))
            client.sock.sendall(make_frame(b"between", opcode=9))
        answers = [client.frame() for _ in range(len(pieces) + 1)]
    assert answers.count((10, b"between")) == len(pieces)
    assert (1, text) in answers
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "日本" not in caplog.text, "frames hold credentials and must never be logged"


def test_a_frame_that_dribbles_in_byte_by_byte_arrives(node: Running) -> None:
    with opened(node) as client:
        for byte in make_frame(b"drip"):
            client.sock.sendall(bytes([byte]))
        assert client.frame() == (1, b"drip")


def test_a_ping_is_answered_and_a_close_is_echoed(node: Running) -> None:
    with opened(node) as client:
        client.sock.sendall(make_frame(b"?", opcode=9))
        assert client.frame() == (10, b"?")
        client.sock.sendall(make_frame(struct.pack("!H", 1000) + b"bye", opcode=8))
        assert client.close_code() == 1000
        assert client.rest() == b""


def test_messages_that_arrive_together_with_a_close_are_still_read(node: Running, gate: EchoGate) -> None:
    with opened(node) as client:
        client.sock.sendall(make_frame(b"last words") + make_frame(struct.pack("!H", 1000), opcode=8))
        assert client.close_code() == 1000
    # The close frame is answered by the frame layer, before the gate has read what came with it.
    wait_until(lambda: b"last words" in gate.seen)


def test_an_aborted_socket_frees_its_place(node: Running) -> None:
    with opened(node) as client:
        assert still_echoes(client)
    with opened(node) as client:
        assert still_echoes(client)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while node.server.caps.open_count() and time.monotonic() < deadline:
        with RawClient(node.port) as other:
            other.upgrade(Authorization="Bearer bad")
            other.rest()
    assert node.server.caps.open_count() == 0


@pytest.mark.requirement("R179")
def test_a_consumer_that_does_not_read_is_closed_not_buffered_for() -> None:
    limits = ListenerLimits(socket=SocketLimits(queue_bytes=1 << 18, send_seconds=1.0, tick_seconds=0.2))
    gate = EchoGate()
    with running_server(limits=limits, gate=gate) as node, opened(node) as slow, opened(node) as good:
        message = make_frame(os.urandom(30_000).hex().encode())
        slow.sock.settimeout(WAIT_SECONDS_MAX)
        with pytest.raises(ConnectionError):  # reset or broken pipe, as the kernel has it
            slow.sock.sendall(message * 2_000)
        assert still_echoes(good)


def test_a_silent_peer_is_pinged_then_dropped() -> None:
    limits = ListenerLimits(socket=SocketLimits(tick_seconds=0.1, ping_after_seconds=0.3, pong_within_seconds=2.0))
    with running_server(limits=limits, gate=EchoGate()) as node, opened(node) as client:
        started = time.monotonic()
        assert client.frame() == (9, b"")
        client.sock.sendall(make_frame(b"", opcode=10))
        assert client.frame() == (9, b"")
        assert client.rest() == b""
        assert 2.5 < time.monotonic() - started < WAIT_SECONDS_MAX


def test_caps_per_credential_and_per_address() -> None:
    limits = ListenerLimits(caps=CapLimits(per_address=3, per_credential=2))
    with running_server(limits=limits, gate=EchoGate()) as node, opened(node), opened(node):
        with RawClient(node.port) as third:
            head = third.upgrade()
            assert head.startswith(b"HTTP/1.1 429 ")
            assert b"Retry-After: 5\r\n" in head
            assert b"TOO_MANY_CONNECTIONS" in third.rest()
        with RawClient(node.port) as other:
            assert other.upgrade(Authorization="Bearer good2").startswith(b"HTTP/1.1 101 ")
            with RawClient(node.port) as fourth:
                assert fourth.upgrade(Authorization="Bearer good3").startswith(b"HTTP/1.1 429 ")
