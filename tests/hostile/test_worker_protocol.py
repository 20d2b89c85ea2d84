"""Raw messages against the session: a bad item is refused as an item, only what is no message ends the connection."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from api.worker_session import SessionLimits
from tests.hostile.socket_server import RawClient, make_frame
from tests.process.worker.memory_layer import TOKEN, MemoryLayer, Node, running_node
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until

HELLO: dict[str, Any] = {
    "type": "hello", "protocol": 1, "worker": "raw", "queues": ["q"], "capacity": 4,
    "handlers": [{"type": "echo", "versions": [1], "recovery": "REPLAY_SAFE"}],
}  # fmt: skip


class Raw(RawClient):
    """Speaks messages."""

    def __init__(self, node: Node, hello: dict[str, Any] | None = None) -> None:
        super().__init__(node.port)
        assert self.upgrade(Authorization=f"Bearer {TOKEN}").startswith(b"HTTP/1.1 101 ")
        if hello is not None:
            self.say(hello)

    def say(self, message: Any) -> None:
        self.sock.sendall(make_frame(message if isinstance(message, bytes) else json.dumps(message).encode()))

    def hear(self, kind: str) -> dict[str, Any]:
        """Read up to the next message of a kind."""
        while True:
            opcode, payload = self.frame()
            assert opcode != 8, payload
            if opcode == 1:
                message: dict[str, Any] = json.loads(payload)
                if message["type"] == kind:
                    return message


@pytest.fixture
def layer() -> MemoryLayer:
    return MemoryLayer()


@pytest.fixture
def node(layer: MemoryLayer) -> Iterator[Node]:
    """A node whose patience no machine is too slow for: a raw client sends no heartbeats by itself."""
    with running_node(layer, limits=SessionLimits(node="n1", hello_seconds=60, heartbeat_ms=60_000)) as node:
        yield node


@pytest.fixture
def hasty(layer: MemoryLayer) -> Iterator[Node]:
    """A node that soon gives up on a silent client."""
    with running_node(layer, limits=SessionLimits(node="n1", hello_seconds=0.5, heartbeat_ms=1_000)) as node:
        yield node


def started_task(node: Node, raw: Raw) -> dict[str, Any]:
    """Get one task and its start."""
    node.call(node.layer.submit)
    task: dict[str, Any] = raw.hear("assign")["tasks"][0]
    raw.say({"type": "start", "items": [start(task)]})
    assert raw.hear("started")["items"][0]["granted"] is True
    return task


def start(task: dict[str, Any], message_id: str | None = None) -> dict[str, Any]:
    return {
        "message_id": message_id or os.urandom(16).hex(),
        "attempt_id": task["attempt_id"],
        "token": task["token"],
    }


def result(task: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return start(task) | {"outcome": "SUCCEEDED", "output": None} | fields


def test_r161_no_hello_within_its_time_ends_the_connection(hasty: Node) -> None:
    with Raw(hasty) as raw:
        assert raw.close_code() == 1001
    with Raw(hasty) as raw:
        begun = time.monotonic()
        raw.sock.settimeout(0.05)
        piece = make_frame(b" ", opcode=1, fin=False)
        raw.sock.sendall(piece)
        code = 0
        while time.monotonic() - begun < WAIT_SECONDS_MAX:
            try:
                code = raw.close_code()
                break
            except TimeoutError:
                raw.sock.sendall(make_frame(b" ", opcode=0, fin=False))
        assert code == 1001


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"type": "start"}, "HELLO_EXPECTED"),
        ({"protocol": 2}, "UNKNOWN_PROTOCOL"),
        ({"queues": ["q", "other"]}, "QUEUE_OUT_OF_RANGE"),
        ({"queues": []}, "INVALID_HELLO"),
        ({"queues": "q"}, "INVALID_HELLO"),
        ({"capacity": -1}, "INVALID_HELLO"),
        ({"capacity": True}, "INVALID_HELLO"),
        ({"handlers": []}, "INVALID_HELLO"),
        ({"handlers": [{"type": "echo", "versions": ["1"], "recovery": "MANUAL"}]}, "INVALID_HELLO"),
        ({"handlers": [{"type": "echo", "versions": [1], "recovery": "MAYBE"}]}, "INVALID_HELLO"),
        ({"resume": [{"attempt_id": "x", "token": "t", "phase": "RUNNING"}]}, "INVALID_HELLO"),
    ],
)
def test_r161_a_hello_that_cannot_be_taken_is_refused_with_its_code(
    node: Node, change: dict[str, Any], code: str
) -> None:
    with Raw(node, HELLO | change) as raw:
        assert raw.hear("error")["code"] == code
        assert raw.close_code() == 1008


@pytest.mark.requirement("R161")
def test_r107_a_queue_out_of_range_is_refused_at_hello_and_no_other_minds(node: Node, layer: MemoryLayer) -> None:
    with Raw(node, HELLO) as inside:
        inside.hear("welcome")
        with Raw(node, HELLO | {"queues": ["other"]}) as outside:
            refused = outside.hear("error")
            assert (refused["code"], "other" in refused["message"]) == ("QUEUE_OUT_OF_RANGE", True)
            assert outside.close_code() == 1008
        node.call(layer.submit)
        assert len(inside.hear("assign")["tasks"]) == 1


@pytest.mark.parametrize("text", [b"", b"nope", b"[]", b"{}", b'{"type":1}', b'{"type":"x"', b"[" * 100_000, b"\x00"])
def test_what_is_no_message_ends_the_connection_and_no_other(node: Node, text: bytes) -> None:
    with Raw(node, HELLO) as good, Raw(node, HELLO) as bad:
        good.hear("welcome")
        bad.hear("welcome")
        bad.say(text)
        assert bad.close_code() == 1002
        good.say({"type": "ping"})
        good.hear("pong")


def test_unknown_messages_and_fields_are_tolerated(node: Node) -> None:
    with Raw(node, HELLO | {"colour": "blue"}) as raw:
        welcome = raw.hear("welcome")
        assert welcome["max_frame_bytes"] == 1 << 20
        assert welcome["lease_ms"] > 0
        raw.say({"type": "dance", "items": [1]})
        assert raw.hear("error")["code"] == "UNKNOWN_MESSAGE"
        raw.say({"type": "capacity", "capacity": "many"})
        assert raw.hear("error")["code"] == "INVALID_MESSAGE"
        raw.say({"type": "ping", "at": 1})
        raw.hear("pong")


@pytest.mark.requirement("R161")
def test_c063_bad_results_are_refused_one_by_one_and_the_good_one_is_recorded(node: Node, layer: MemoryLayer) -> None:
    with Raw(node, HELLO) as raw:
        task = started_task(node, raw)
        good = result(task, output={"a": 1})
        items: list[Any] = [
            result(task) | {"attempt_id": os.urandom(16).hex()},
            result(task) | {"token": "wrong"},
            result(task) | {"outcome": "MAYBE"},
            {"message_id": "0" * 32},
            "no object",
            7,
            result(task) | {"message_id": "short"},
            good,
        ]
        raw.say({"type": "result", "items": items})
        answers = {item["message_id"]: item for item in raw.hear("recorded")["items"]}
        assert answers[good["message_id"]]["receipt"] == "ACCEPTED"
        others = [item for key, item in answers.items() if key != good["message_id"]]
        assert [item["receipt"] for item in others] == ["REJECTED"] * 4
        assert sorted(item["code"] for item in others) == ["ATTEMPT_UNKNOWN"] * 2 + ["INVALID_ITEM"] * 2
        complaint = raw.hear("error")
        assert (complaint["code"], complaint["message"][:7]) == ("INVALID_ITEM", "3 items")
        raw.say({"type": "result", "items": [good]})
        assert raw.hear("recorded")["items"][0]["receipt"] == "DUPLICATE"
    accepted = [item for _, item, receipt in layer.results if receipt == "ACCEPTED"]
    assert [item.output for item in accepted] == [b'{"a": 1}']


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (b"NaN", "OUTPUT_INVALID"),
        (b'{"deep":[-Infinity]}', "OUTPUT_INVALID"),
        (b'{"twice":1,"twice":2}', "OUTPUT_INVALID"),
        (b'"\\ud800"', "OUTPUT_INVALID"),
        (b"1e999", "OUTPUT_INVALID"),
        (b"[" * 40 + b"]" * 40, "OUTPUT_INVALID"),
        (b'"' + b"x" * 65_536 + b'"', "OUTPUT_TOO_LARGE"),
    ],
)
def test_an_output_that_cannot_be_taken_is_a_fault_of_its_item(
    node: Node, layer: MemoryLayer, output: bytes, fault: str
) -> None:
    with Raw(node, HELLO) as raw:
        bad, good = started_task(node, raw), started_task(node, raw)
        text = json.dumps(result(bad, output="PLACE")).encode().replace(b'"PLACE"', output)
        raw.say(b'{"type":"result","items":[' + text + b"," + json.dumps(result(good)).encode() + b"]}")
        assert [item["receipt"] for item in raw.hear("recorded")["items"]] == ["ACCEPTED", "ACCEPTED"]
    faults = {item.attempt_id.hex(): item.output_fault for _, item, _ in layer.results}
    assert faults == {bad["attempt_id"]: fault, good["attempt_id"]: None}


def test_an_output_is_handed_on_byte_for_byte(node: Node, layer: MemoryLayer) -> None:
    sent = '{ "z":1.0, "a":[1e2 ,0.10], "text":"日本語😀" }'.encode()
    with Raw(node, HELLO) as raw:
        task = started_task(node, raw)
        text = json.dumps(result(task, output="PLACE")).encode().replace(b'"PLACE"', sent)
        raw.say(b'{"type":"result","items":[' + text + b"]}")
        raw.hear("recorded")
    assert layer.results[0][1].output == sent


def test_the_same_start_gets_the_same_answer_and_another_id_none(node: Node) -> None:
    with Raw(node, HELLO) as raw:
        node.call(node.layer.submit)
        task = raw.hear("assign")["tasks"][0]
        first = start(task)
        for item, granted in [(first, True), (first, True), (start(task), False)]:
            raw.say({"type": "start", "items": [item]})
            (answer,) = raw.hear("started")["items"]
            assert answer["granted"] is granted
        assert answer["code"] == "ALREADY_STARTED"


def test_r166_without_heartbeats_the_connection_ends_and_the_lease_stands(hasty: Node, layer: MemoryLayer) -> None:
    begun = time.monotonic()
    with Raw(hasty, HELLO) as raw:
        task = started_task(hasty, raw)
        claim = {"attempt_id": task["attempt_id"], "token": task["token"]}
        raw.sock.settimeout(0.1)
        code = 0
        while not code and time.monotonic() - begun < WAIT_SECONDS_MAX:
            raw.say({"type": "renew", "items": [claim]})
            try:
                opcode, payload = raw.frame()
                if opcode == 8:
                    (code,) = struct.unpack("!H", payload[:2])
            except TimeoutError:
                continue
        assert code == 1001
        assert 2.5 <= time.monotonic() - begun < 30
    assert layer.states()["RUNNING"] == 1


def test_r166_heartbeats_alone_keep_the_connection_but_no_lease() -> None:
    layer = MemoryLayer(lease_ms=400)
    with running_node(layer, limits=SessionLimits(node="n1", heartbeat_ms=1_000)) as node, Raw(node, HELLO) as raw:
        task = started_task(node, raw)
        raw.say({"type": "capacity", "capacity": 0})
        until = time.monotonic() + 4
        while time.monotonic() < until:
            raw.say({"type": "ping"})
            raw.hear("pong")
        raw.say({"type": "renew", "items": [{"attempt_id": task["attempt_id"], "token": task["token"]}]})
        assert raw.hear("renewed")["items"] == [{"attempt_id": task["attempt_id"], "code": "LEASE_LOST"}]


def test_many_frames_in_flight_are_answered_each_as_one(node: Node, layer: MemoryLayer) -> None:
    with Raw(node, HELLO | {"capacity": 200}) as raw:
        node.call(lambda: layer.submit(200))
        tasks = raw.hear("assign")["tasks"]
        assert len(tasks) == 200
        for at in range(0, 200, 5):
            raw.say({"type": "start", "items": [start(task) for task in tasks[at : at + 5]]})
        answers = [raw.hear("started")["items"] for _ in range(40)]
        assert [len(items) for items in answers] == [5] * 40
        layer.results_wait.clear()
        for task in tasks:
            raw.say({"type": "result", "items": [result(task)]})
        raw.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            raw.hear("recorded")
        raw.sock.settimeout(WAIT_SECONDS_MAX)
        node.call(layer.results_wait.set)
        for _ in range(200):
            assert raw.hear("recorded")["items"][0]["receipt"] == "ACCEPTED"


def test_a_flood_of_bad_items_costs_no_more_than_its_answers(node: Node) -> None:
    with Raw(node, HELLO) as raw, Raw(node, HELLO) as good:
        raw.hear("welcome")
        good.hear("welcome")
        raw.say(b'{"type":"start","items":[' + b",".join([b"7"] * 50_000) + b"]}")
        good.say({"type": "ping"})
        good.hear("pong")
        assert raw.hear("error")["code"] == "INVALID_ITEM"


def test_a_flood_of_messages_does_not_hold_up_the_others(node: Node) -> None:
    stop = threading.Event()
    flood = make_frame(b'{"type":"capacity","capacity":4}') * 5_000

    def pour(raw: Raw) -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                raw.sock.sendall(flood)

    with Raw(node, HELLO) as bad, Raw(node, HELLO) as good:
        good.hear("welcome")
        thread = threading.Thread(target=pour, args=(bad,))
        thread.start()
        try:
            for _ in range(5):
                begun = time.monotonic()
                good.say({"type": "ping"})
                good.hear("pong")
                assert time.monotonic() - begun < 15
        finally:
            stop.set()
            with contextlib.suppress(OSError):  # the node may have dropped it: it sent no heartbeat
                bad.sock.shutdown(2)
            thread.join(WAIT_SECONDS_MAX)


def test_a_worker_that_went_away_is_forgotten(node: Node) -> None:
    with Raw(node, HELLO) as raw:
        raw.hear("welcome")
        wait_until(lambda: node.gate.session_count == 1)
    wait_until(lambda: node.gate.session_count == 0)


def test_a_large_credit_with_large_params_congests_and_recovers(layer: MemoryLayer) -> None:
    with (
        running_node(layer, limits=SessionLimits(node="n1", heartbeat_ms=60_000)) as node,
        Raw(node, HELLO | {"capacity": 150}) as raw,
    ):
        raw.hear("welcome")
        session = layer.sessions[0]
        node.call(lambda: layer.submit(150, params="x" * 60_000))
        assert session.room() == 0, "nothing more is leased while 9 MB wait for the worker"
        tasks: list[dict[str, Any]] = []
        while len(tasks) < 150:
            tasks += raw.hear("assign")["tasks"]
        wait_until(session.outbox.has_room)
        assert session.room() == 150, "the memory layer holds nothing in Pulse's own session"
