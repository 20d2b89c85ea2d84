"""Task types as real workers meet them: refused handlers, checked results, verified outcomes, outputs elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import orbit
from orbit.sdk.models import SubmitTask
from orbit.sdk.settings import from_environment
from tests.support.processes import QUEUE, NodeProcess, credentials_make, node_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.databases("sqlite")
RESULT = {"type": "object", "required": ["ref"], "properties": {"ref": {"type": "string"}}}


@pytest.fixture
def node(database_url: str, tmp_path: Path) -> Iterator[NodeProcess]:
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as started:
        yield started


@pytest.fixture
def client(node: NodeProcess) -> Iterator[orbit.Client]:
    with node.client as made:
        yield made


def register(client: orbit.Client, type_: str, recovery: str, **content: Any) -> None:
    wish = orbit.PutTaskType(expected_revision=0, reason="a test", recovery=recovery, **content)
    client.put_task_type(type_, 1, wish)


@contextmanager
def working(node: NodeProcess, worker: orbit.Worker) -> Iterator[None]:
    """Run a worker until the block ends."""
    worker.start()
    try:
        yield
    finally:
        assert worker.drain(timeout=60)


def worker_of(node: NodeProcess) -> orbit.Worker:
    return orbit.Worker(queues=[QUEUE], connection=from_environment(node.environment), capacity=4)


def submit(client: orbit.Client, type_: str, **fields: Any) -> str:
    return client.submit_task(f"{type_}-1", SubmitTask(queue=QUEUE, type=type_, version=1, **fields)).task.id


def asking_id(client: orbit.Client, task_id: str) -> str:
    """Wait until a task asks, after its outcome is known to be unknown: name the task that asks."""

    def named() -> str | None:
        verification = client.get_task(task_id).verification
        return verification.task_id if verification else None

    return str(wait_until(named, 30, what="the verification's task"))


@pytest.mark.requirement("R218")
def test_r174_a_verified_payment_is_settled_by_what_another_handler_finds_out(
    node: NodeProcess, client: orbit.Client
) -> None:
    register(client, "ask", "REPLAY_SAFE")
    register(client, "pay", "VERIFY", verify_with="ask@1", result_schema=RESULT, redact=["/params/card"])
    worker = worker_of(node)
    told: list[dict[str, Any]] = []

    @worker.task("pay@1", recovery="VERIFY")
    def pay(params: Any, context: orbit.TaskContext) -> Any:
        raise orbit.UnknownOutcome("the bank did not answer")

    @worker.task("ask@1", recovery="REPLAY_SAFE")
    def ask(params: Any, context: orbit.TaskContext) -> Any:
        told.append(params)
        return {"verdict": "EXECUTED", "result": {"ref": "T-1"}}

    with working(node, worker):
        task_id = submit(client, "pay", params={"card": "4111"}, attempt_timeout_seconds=0.1)
        asking = client.get_task(asking_id(client, task_id))
        assert (asking.type, asking.source.kind) == ("ask", "VERIFICATION")
        assert asking.params["params"] == {"card": "[redacted]"}
        done = client.result(task_id, timeout_seconds=30)
    assert (done.state, done.output, told[0]["params"]) == ("SUCCEEDED", {"ref": "T-1"}, {"card": "4111"})
    assert told[0]["fencing"] == str((1 << 32) + 1)


def test_r104_a_result_is_what_its_type_promises_or_lies_elsewhere(node: NodeProcess, client: orbit.Client) -> None:
    register(client, "make", "REPLAY_SAFE", result_schema=RESULT)
    worker = worker_of(node)

    @worker.task("make@1", recovery="REPLAY_SAFE")
    def make(params: Any, context: orbit.TaskContext) -> Any:
        if params == "elsewhere":
            return orbit.OutputReference(uri="s3://bucket/7", sha256="0" * 64, bytes=7)
        return {"ref": params}

    with working(node, worker):
        results = {}
        for params in ("T-1", 7, "elsewhere"):
            task = SubmitTask(queue=QUEUE, type="make", version=1, params=params)
            results[params] = client.result(client.submit_task(f"m-{params}", task).task.id, timeout_seconds=60)
    assert (results["T-1"].state, results["T-1"].output) == ("SUCCEEDED", {"ref": "T-1"})
    error = results[7].error
    assert error is not None
    assert (results[7].state, error.code, error.details[0]["pointer"]) == ("FAILED", "OUTPUT_MISMATCH", "/ref")
    kept = results["elsewhere"].output_ref
    assert kept is not None
    assert (results["elsewhere"].state, kept.uri, kept.bytes) == ("SUCCEEDED", "s3://bucket/7", 7)


def test_r108_a_contradicting_handler_gets_nothing_and_is_told_why(
    node: NodeProcess, client: orbit.Client, caplog: pytest.LogCaptureFixture
) -> None:
    register(client, "careful", "MANUAL")
    worker = worker_of(node)

    @worker.task("careful@1", recovery="REPLAY_SAFE")
    def careless(params: Any, context: orbit.TaskContext) -> Any:
        raise AssertionError("it must not run")

    @worker.task("plain@1", recovery="REPLAY_SAFE")
    def plain(params: Any, context: orbit.TaskContext) -> Any:
        return params

    with working(node, worker):
        refused = submit(client, "careful")
        assert client.result(submit(client, "plain"), timeout_seconds=60).state == "SUCCEEDED"
        waiting = client.get_task(refused)
    assert (waiting.state, waiting.wait_reason, waiting.attempts) == ("WAITING", "NO_COMPATIBLE_WORKER", 0)
    assert "HANDLER_MISMATCH" in caplog.text
