"""The SDK's worker when the connection breaks: reconcile, resend, stop in time, never run twice."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from api.worker_session import SessionLimits
from orbit.sdk.context import TaskContext
from orbit.sdk.settings import Connection
from orbit.sdk.worker import Worker
from tests.process.worker.cutting_proxy import CuttingProxy, cutting_proxy
from tests.process.worker.memory_layer import TOKEN, MemoryLayer, running_node
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until


def worker_through(proxy: CuttingProxy, *, capacity: int = 4) -> Worker:
    connection = Connection(f"http://127.0.0.1:{proxy.port}", TOKEN)
    return Worker(queues=["q"], capacity=capacity, name="w", drain_seconds=5, connection=connection)


@pytest.mark.requirement("R162")
def test_r167_after_a_cut_the_attempt_is_held_and_ends_once() -> None:
    layer = MemoryLayer()
    ran: list[str] = []
    go_on = threading.Event()
    with running_node(layer) as node, cutting_proxy(node.port) as proxy:
        worker = worker_through(proxy)

        @worker.task("echo@1", recovery="MANUAL")
        def handler(_params: Any, context: TaskContext) -> str:
            ran.append(context.attempt_id)
            go_on.wait(WAIT_SECONDS_MAX)
            assert context.cancelled.reason is None
            return "done"

        worker.start()
        node.call(layer.submit)
        wait_until(lambda: ran)
        proxy.cut()
        wait_until(lambda: layer.resumes)
        go_on.set()
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        assert worker.drain()
    assert [verdict for _, verdict in layer.resumes] == ["HELD"]
    assert len(ran) == 1
    assert [receipt for _, _, receipt in layer.results] == ["ACCEPTED"]


def test_r162_a_result_whose_receipt_was_lost_is_settled_by_resume() -> None:
    layer = MemoryLayer()
    layer.results_wait.clear()
    ran: list[int] = []
    with running_node(layer) as node, cutting_proxy(node.port) as proxy:
        worker = worker_through(proxy)
        worker.task("echo@1", recovery="MANUAL")(lambda *_: ran.append(1))
        worker.start()
        node.call(layer.submit)
        wait_until(lambda: layer.log["result_frames"] == 1)
        proxy.passing.clear()
        node.call(layer.results_wait.set)
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        proxy.cut()
        proxy.passing.set()
        wait_until(lambda: layer.resumes)
        assert worker.drain()
    assert [verdict for _, verdict in layer.resumes] == ["RECORDED"]
    assert ran == [1]


def test_r162_a_result_that_was_not_recorded_is_sent_again() -> None:
    layer = MemoryLayer()
    go_on = threading.Event()
    started = threading.Event()
    with running_node(layer) as node, cutting_proxy(node.port) as proxy:
        worker = worker_through(proxy)

        @worker.task("echo@1", recovery="MANUAL")
        def handler(_params: Any, _context: TaskContext) -> int:
            started.set()
            go_on.wait(WAIT_SECONDS_MAX)
            return 7

        worker.start()
        node.call(layer.submit)
        assert started.wait(WAIT_SECONDS_MAX)
        proxy.refusing = True
        proxy.cut()
        wait_until(lambda: not layer.sessions[0].attached)
        go_on.set()
        proxy.refusing = False
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        assert worker.drain()
    assert [(item.output, receipt) for _, item, receipt in layer.results] == [(b"7", "ACCEPTED")]


@pytest.mark.parametrize("position", range(0, 1_400, 200))
def test_r162_a_cut_at_any_byte_of_the_servers_words_runs_each_task_once(position: int) -> None:
    layer = MemoryLayer(assign_ms=1_000)  # what is cut off is assigned again soon
    ran: list[str] = []
    with running_node(layer) as node, cutting_proxy(node.port) as proxy:
        worker = worker_through(proxy, capacity=2)
        worker.task("echo@1", recovery="MANUAL")(lambda _params, context: ran.append(context.task_id))
        worker.start()
        proxy.cut_after_bytes_to_client = position
        node.call(lambda: layer.submit(6))
        wait_until(lambda: layer.states()["SUCCEEDED"] == 6)
        assert worker.drain()
        assert proxy.connection_count == 2
    assert len(ran) == 6
    assert len(set(ran)) == 6


def test_r168_without_a_lease_the_handler_is_told_while_still_disconnected() -> None:
    layer = MemoryLayer(lease_ms=8_000)  # the handler is told a tenth before its end: room for a slow machine
    reasons: list[tuple[Any, float]] = []
    started = threading.Event()
    with running_node(layer) as node, cutting_proxy(node.port) as proxy:
        worker = worker_through(proxy)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(_params: Any, context: TaskContext) -> None:
            started.set()
            if context.attempt == 1:
                context.cancelled.wait(WAIT_SECONDS_MAX)
                reasons.append((context.cancelled.reason, time.monotonic()))

        worker.start()
        node.call(layer.submit)
        assert started.wait(WAIT_SECONDS_MAX)
        proxy.refusing = True
        proxy.cut()
        wait_until(lambda: reasons)
        assert proxy.connection_count == 1
        reason, told_at = reasons[0]
        assert reason == "LEASE_LOST"
        (attempt,) = layer.attempts.values()
        assert told_at < attempt.lease_until, "told before the server may give the task to another"
        wait_until(lambda: layer.states()["WAITING"] == 1)
        proxy.refusing = False
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        assert worker.drain()
    assert layer.results[0][2] == "LATE"


def test_a_frozen_network_is_noticed_by_missed_heartbeats() -> None:
    layer = MemoryLayer()
    with (
        running_node(layer, limits=SessionLimits(node="n1", heartbeat_ms=300)) as node,
        cutting_proxy(node.port) as proxy,
    ):
        worker = worker_through(proxy)
        worker.task("echo@1", recovery="REPLAY_SAFE")(lambda *_: None)
        worker.start()
        proxy.passing.clear()
        wait_until(lambda: proxy.connection_count >= 2)
        proxy.passing.set()
        wait_until(lambda: len(layer.sessions) >= 2 and layer.sessions[-1].attached)
        node.call(layer.submit)
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        assert worker.drain()


def test_a_draining_node_sends_its_workers_elsewhere_with_their_work() -> None:
    layer = MemoryLayer()
    go_on = threading.Event()
    ran: list[int] = []
    with running_node(layer) as node:
        worker = Worker(queues=["q"], name="w", connection=node.connection, drain_seconds=5)

        @worker.task("echo@1", recovery="MANUAL")
        def handler(_params: Any, _context: TaskContext) -> None:
            ran.append(1)
            go_on.wait(WAIT_SECONDS_MAX)

        worker.start()
        node.call(layer.submit)
        wait_until(lambda: ran)
        node.call(lambda: layer.sessions[0].outbox.drain(50))
        wait_until(lambda: len(layer.sessions) == 2)
        wait_until(lambda: layer.resumes)
        go_on.set()
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        assert worker.drain()
    assert ran == [1]
