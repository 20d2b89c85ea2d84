"""The SDK's worker against the real socket: work, classification, limits, leases, cancel, drain."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from api.worker_session import SessionLimits
from orbit.sdk import outcomes
from orbit.sdk.context import TaskContext
from orbit.sdk.errors import ConnectionFailed, WorkerRefused
from orbit.sdk.outcomes import Defer, NeedsHuman, NonRetryable, Retryable, UnknownOutcome
from orbit.sdk.settings import Connection
from orbit.sdk.worker import Worker
from pulse.start import StartCode, StartItem, StartOutcome
from tests.process.worker.memory_layer import MemoryLayer, Node, running_node
from tests.support.ports import port_take
from tests.support.waiting import WAIT_SECONDS_MAX, wait_until


def make_worker(node: Node, *, capacity: int = 4, drain_seconds: float = 5.0, port: int | None = None) -> Worker:
    connection = node.connection if port is None else Connection(f"http://127.0.0.1:{port}", node.connection.token)
    return Worker(queues=["q"], capacity=capacity, name="w", drain_seconds=drain_seconds, connection=connection)


def one_result(node: Node, handler: Callable[..., Any], *, recovery: str = "REPLAY_SAFE", params: Any = None) -> Any:
    """Run one task by one handler; return the result that the server recorded."""
    worker = make_worker(node)
    worker.task("echo@1", recovery=recovery)(handler)
    worker.start()
    node.call(lambda: node.layer.submit(params=params))
    wait_until(lambda: node.layer.results)
    assert worker.drain()
    return node.layer.results[0][1]


def test_a_handler_gets_params_and_context_and_its_output_is_recorded() -> None:
    seen: list[tuple[TaskContext, float]] = []
    with running_node(MemoryLayer()) as node:

        def echo(params: Any, context: TaskContext) -> Any:
            seen.append((context, time.monotonic()))
            return {"got": params}

        result = one_result(node, echo, params={"text": "日本語😀", "big": 2**70, "f": 1.0})
    assert result.outcome == "SUCCEEDED"
    assert json.loads(result.output) == {"got": {"text": "日本語😀", "big": 2**70, "f": 1.0}}
    ((context, began_at),) = seen
    assert context.operation_id == context.task_id
    assert context.attempt == 1
    assert context.fencing == str(2**32 + 1)
    assert context.labels == {"colour": "blue"}
    assert context.checkpoint is None
    assert 30 < context.deadline - began_at <= 60


def test_a_coroutine_handler_runs_on_a_loop_of_its_thread() -> None:
    async def echo(params: Any, _context: TaskContext) -> Any:
        await asyncio.to_thread(str)
        return params

    with running_node(MemoryLayer()) as node:
        result = one_result(node, echo, params=[1])
    assert (result.outcome, result.output) == ("SUCCEEDED", b"[1]")


@pytest.mark.parametrize(
    ("raised", "outcome", "failure_class", "code"),
    [
        (Retryable("later", retry_after_seconds=1.5), "FAILED", "RETRYABLE", "Retryable"),
        (NonRetryable("no", code="BAD_IBAN", details={"field": "iban"}), "FAILED", "NON_RETRYABLE", "BAD_IBAN"),
        (UnknownOutcome("timeout"), "FAILED", "UNKNOWN_OUTCOME", "UnknownOutcome"),
        (NeedsHuman("look"), "FAILED", "NEEDS_HUMAN", "NeedsHuman"),
        (ZeroDivisionError("x" * 5_000), "FAILED", "UNCLASSIFIED", "ZeroDivisionError"),
        (ValueError("\udcff"), "FAILED", "UNCLASSIFIED", "ValueError"),
        (SystemExit(3), "FAILED", "UNCLASSIFIED", "SystemExit"),
        (Defer(2.5), "DEFERRED", None, None),
        (outcomes.Cancelled(), "CANCELLED", None, None),
    ],
)
def test_what_a_handler_raises_is_classified(
    *, raised: BaseException, outcome: str, failure_class: str | None, code: str | None
) -> None:
    def handler(_params: Any, _context: TaskContext) -> None:
        raise raised

    with running_node(MemoryLayer()) as node:
        result = one_result(node, handler)
    assert result.outcome == outcome
    if failure_class is None:
        assert result.error is None
    else:
        assert (result.error.class_, result.error.code) == (failure_class, code)
        assert len(result.error.message) <= 1_000
    if isinstance(raised, Retryable):
        assert result.retry_after_micros == 1_500_000
    if isinstance(raised, Defer):
        assert result.retry_after_micros == 2_500_000
    if isinstance(raised, NonRetryable):
        assert result.error.details == {"field": "iban"}


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (math.nan, "OUTPUT_NOT_JSON"),
        ({"deep": [math.inf]}, "OUTPUT_NOT_JSON"),
        (object(), "OUTPUT_NOT_JSON"),
        ("\ud800", "OUTPUT_NOT_JSON"),
        ("x" * 70_000, "OUTPUT_TOO_LARGE"),
    ],
)
@pytest.mark.parametrize(("recovery", "failure_class"), [("REPLAY_SAFE", "NON_RETRYABLE"), ("MANUAL", "NEEDS_HUMAN")])
def test_an_output_that_cannot_be_sent_is_a_failure_not_a_crash(
    *, output: Any, code: str, recovery: str, failure_class: str
) -> None:
    with running_node(MemoryLayer()) as node:
        result = one_result(node, lambda _params, _context: output, recovery=recovery)
    assert (result.outcome, result.error.class_, result.error.code) == ("FAILED", failure_class, code)


def test_r164_the_server_never_counts_more_than_the_capacity() -> None:
    running = threading.Semaphore(0)
    go_on = threading.Event()
    with running_node(MemoryLayer()) as node:
        worker = make_worker(node, capacity=2)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(_params: Any, _context: TaskContext) -> None:
            running.release()
            go_on.wait(WAIT_SECONDS_MAX)

        worker.start()
        node.call(lambda: node.layer.submit(7))
        assert running.acquire(timeout=WAIT_SECONDS_MAX)
        assert running.acquire(timeout=WAIT_SECONDS_MAX)
        assert not running.acquire(timeout=0.2)
        go_on.set()
        wait_until(lambda: node.layer.states()["SUCCEEDED"] == 7)
        assert worker.drain()
        assert node.layer.most_unfinished == 2


def test_several_tasks_run_at_once_and_their_frames_carry_many_items() -> None:
    barrier = threading.Barrier(8, timeout=WAIT_SECONDS_MAX)
    with running_node(MemoryLayer()) as node:
        worker = make_worker(node, capacity=8)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(_params: Any, _context: TaskContext) -> None:
            barrier.wait()

        worker.start()
        node.call(lambda: node.layer.submit(8))
        wait_until(lambda: node.layer.states()["SUCCEEDED"] == 8)
        assert worker.drain()
        assert node.layer.log["start_frames"] == 1


def test_a_limited_start_is_asked_again_with_the_same_id() -> None:
    layer = MemoryLayer(limited_starts=3)
    with running_node(layer) as node:
        result = one_result(node, lambda _params, _context: "ran")
    assert result.output == b'"ran"'
    assert len(layer.starts) == 4
    assert len({start.message_id for start in layer.starts}) == 1


def test_a_refused_start_never_runs_the_handler() -> None:
    ran: list[int] = []
    refusals = {"left": 2}

    def answers(item: StartItem) -> StartOutcome | None:
        if refusals["left"]:
            refusals["left"] -= 1
            return StartOutcome(item.message_id, granted=False, code=StartCode.CANCELLED)
        return None

    layer = MemoryLayer(answers_per_start=answers)
    with running_node(layer) as node:
        worker = make_worker(node, capacity=1)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(params: Any, _context: TaskContext) -> None:
            ran.append(params)

        worker.start()

        def submit() -> None:
            layer.assign_ms = 200
            layer.submit(params=1)

        node.call(submit)
        wait_until(lambda: layer.states()["SUCCEEDED"] == 1)
        assert worker.drain()
    assert ran == [1]
    # An assignment that ran out before its Start on a slow machine is one Start more.
    assert len(layer.starts) >= 3


def test_a_result_that_cannot_be_recorded_is_sent_again_with_the_same_id() -> None:
    layer = MemoryLayer(unavailable_results=2)
    with running_node(layer, limits=SessionLimits(node="n1", retry_after_ms=30)) as node:
        result = one_result(node, lambda _params, _context: 1)
    assert result.outcome == "SUCCEEDED"
    assert layer.log["result_frames"] == 3


def test_progress_reaches_the_server_and_comes_back_as_checkpoint() -> None:
    checkpoints: list[Any] = []
    with running_node(MemoryLayer()) as node:
        worker = make_worker(node, drain_seconds=0.0)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(_params: Any, context: TaskContext) -> None:
            checkpoints.append(context.checkpoint)
            with pytest.raises(ValueError, match="percent"):
                context.progress(101)
            with pytest.raises(ValueError, match="bytes"):
                context.progress(details="x" * 5_000)
            context.progress(40, "page 4", details={"page": 4})
            if context.attempt == 1:
                context.cancelled.wait(WAIT_SECONDS_MAX)

        worker.start()
        node.call(node.layer.submit)
        wait_until(lambda: node.layer.progress_reports)
        assert worker.drain() is False
        again = make_worker(node)
        again.task("echo@1", recovery="REPLAY_SAFE")(handler)
        again.start()
        wait_until(lambda: node.layer.states()["SUCCEEDED"] == 1)
        again.drain()
    assert checkpoints == [None, {"page": 4}]
    (report, *_) = node.layer.progress_reports
    assert json.loads(report.text) == {"percent": 40, "note": "page 4", "details": {"page": 4}}


@pytest.mark.requirement("R166")
def test_r163_spinning_handlers_delay_neither_renewals_nor_heartbeats() -> None:
    # Without renewals the leases, without heartbeats the connection would be over before the handlers are; between two
    # of either a slow machine has its time.
    layer = MemoryLayer(lease_ms=5_000)
    limits = SessionLimits(node="n1", lease_ms=5_000, renew_every_ms=700, heartbeat_ms=2_000)
    with running_node(layer, limits=limits) as node:
        worker = make_worker(node, capacity=8)
        until = time.monotonic() + 7

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(_params: Any, context: TaskContext) -> int:
            turns = 0
            while time.monotonic() < until:
                turns += 1
            assert context.cancelled.reason is None
            return turns

        worker.start()
        node.call(lambda: layer.submit(8))
        wait_until(lambda: layer.states()["SUCCEEDED"] == 8)
        assert worker.drain()
        assert len(layer.sessions) == 1
        assert layer.log["renew_items"] >= 8 * 2
        assert all(task["attempt"] == 1 for task in layer.tasks.values())


def test_a_cancel_reaches_a_plain_handler_and_a_coroutine() -> None:
    started = threading.Semaphore(0)
    with running_node(MemoryLayer()) as node:
        worker = make_worker(node)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def plain(_params: Any, context: TaskContext) -> None:
            started.release()
            context.cancelled.wait(WAIT_SECONDS_MAX)
            assert context.cancelled.reason == "CANCEL_REQUESTED"
            context.raise_if_cancelled()

        @worker.task("coro@1", recovery="REPLAY_SAFE")
        async def coroutine(_params: Any, _context: TaskContext) -> None:
            started.release()
            await asyncio.Event().wait()

        worker.start()
        node.call(node.layer.submit)
        node.call(lambda: node.layer.submit(kind="coro"))
        assert started.acquire(timeout=WAIT_SECONDS_MAX)
        assert started.acquire(timeout=WAIT_SECONDS_MAX)
        node.call(node.layer.cancel_all)
        wait_until(lambda: node.layer.states()["CANCELLED"] == 2)
        assert worker.drain()


def test_an_attempt_over_its_time_is_told_and_keeps_its_slot() -> None:
    layer = MemoryLayer(lease_ms=5_000, attempt_timeout_ms=200)
    reasons: list[Any] = []
    go_on = threading.Event()
    with running_node(layer) as node:
        worker = make_worker(node, capacity=1)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(_params: Any, context: TaskContext) -> None:
            assert context.cancelled.wait(WAIT_SECONDS_MAX)
            reasons.append(context.cancelled.reason)
            go_on.wait(WAIT_SECONDS_MAX)

        worker.start()
        node.call(layer.submit)
        wait_until(lambda: reasons)

        def lose() -> None:
            for attempt in layer.attempts.values():
                attempt.state = "TIMED_OUT"
            layer.lease_ms = 300

        node.call(lose)
        wait_until(lambda: layer.sessions[0].capacity == 0, what="the slot is given up")
        go_on.set()
        wait_until(lambda: layer.sessions[0].capacity == 1, what="the slot comes back")
        wait_until(lambda: layer.results)
        assert layer.results[0][2] == "LATE"
        worker.drain()
    assert reasons == ["TIMED_OUT"]


@pytest.mark.requirement("R170")
def test_r169_a_drain_lets_work_end_and_returns_what_cannot() -> None:
    started = threading.Semaphore(0)
    stuck = threading.Event()
    with running_node(MemoryLayer()) as node:
        worker = make_worker(node, capacity=3, drain_seconds=3)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def handler(params: Any, context: TaskContext) -> Any:
            started.release()
            if params == "slow":
                context.cancelled.wait(WAIT_SECONDS_MAX)
                stuck.wait(WAIT_SECONDS_MAX)
            else:
                context.cancelled.wait(0.3)
            return params

        worker.start()
        node.call(lambda: node.layer.submit(params="quick"))
        node.call(lambda: node.layer.submit(params="slow"))
        assert started.acquire(timeout=WAIT_SECONDS_MAX)
        assert started.acquire(timeout=WAIT_SECONDS_MAX)
        begun = time.monotonic()
        worker.stop()
        wait_until(lambda: node.layer.sessions[0].is_draining)
        node.call(lambda: node.layer.submit(params="never"))
        assert worker.drain() is False
        assert time.monotonic() - begun < 30, "long before what is stuck would end"
        stuck.set()
        outcomes_seen = sorted((item.outcome, item.ran) for _, item, _ in node.layer.results)
        assert outcomes_seen == [("RETURNED", True), ("SUCCEEDED", True)]
        assert node.layer.states()["WAITING"] == 2


def test_a_drain_releases_what_waits_for_its_start() -> None:
    layer = MemoryLayer(limited_starts=10_000)
    ran: list[int] = []
    with running_node(layer) as node:
        worker = make_worker(node)
        worker.task("echo@1", recovery="REPLAY_SAFE")(lambda *_: ran.append(1))
        worker.start()
        node.call(lambda: layer.submit(3))
        wait_until(lambda: len(layer.starts) > 10)
        assert worker.drain()
        wait_until(lambda: len(layer.released) == 3)
    assert not ran


def test_a_wrong_credential_is_final_and_an_absent_server_is_not() -> None:
    with running_node(MemoryLayer()) as node:
        wrong = Connection(f"http://127.0.0.1:{node.port}", "key.wrong")
        worker = Worker(queues=["q"], connection=wrong)
        worker.task("echo@1", recovery="MANUAL")(print)
        with pytest.raises(WorkerRefused, match="UNAUTHENTICATED"):
            worker.start()
        foreign = Worker(queues=["q", "elsewhere"], connection=node.connection)
        foreign.task("echo@1", recovery="MANUAL")(print)
        with pytest.raises(WorkerRefused, match="QUEUE_OUT_OF_RANGE"):
            foreign.start()
    url = f"http://127.0.0.1:{port_take()}"
    absent = Worker(queues=["q"], connection=Connection(url, "key.secret"), drain_seconds=0.1)
    absent.task("echo@1", recovery="MANUAL")(print)
    with pytest.raises(ConnectionFailed, match="not connected"):
        absent.start(timeout=0.5)
    absent.drain()
