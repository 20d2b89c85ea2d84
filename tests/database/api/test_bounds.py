"""Every limit of what a caller may pile up: what just fits passes, one more is refused with its code."""

from typing import Any

import pytest

from orbit.database import Database
from orbit.ids import new_id
from pulse import limits
from pulse.tables import lane
from tests.support.http import Caller

TASK = {"queue": "images", "type": "echo", "version": 1}


def make_queue(caller: Caller, **changes: Any) -> str:
    made = {"name": "images", "max_concurrency": 8, "rate_per_second": 100} | changes
    return str(caller.post("/v1/queues", made).data["queue"]["id"])


def params(size: int) -> str:
    return "x" * (size - 2)  # with its quotes


def names(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("fits", "is_over", "status", "pointer"),
    [
        ({"params": params(64 * 1024)}, {"params": params(64 * 1024 + 1)}, 413, "/params"),
        ({"retry": {"max_attempts": 100}}, {"retry": {"max_attempts": 101}}, 400, "/retry/max_attempts"),
        ({"retry": {"backoff_seconds": 0.1}}, {"retry": {"backoff_seconds": 0.09}}, 400, "/retry/backoff_seconds"),
        ({"concurrency_keys": names(4)}, {"concurrency_keys": names(5)}, 400, "/concurrency_keys"),
        ({"labels": dict.fromkeys(names(16), "")}, {"labels": dict.fromkeys(names(17), "")}, 400, "/labels"),
        ({"labels": {"n": "v" * 256}}, {"labels": {"n": "v" * 257}}, 400, "/labels"),
        ({"business_key": "b" * 128}, {"business_key": "b" * 129}, 400, "/business_key"),
        ({"fairness_key": "f" * 128}, {"fairness_key": "f" * 129}, 400, "/fairness_key"),
        ({"params_version": "v" * 64}, {"params_version": "v" * 65}, 400, "/params_version"),
        ({"priority": 9}, {"priority": 10}, 400, "/priority"),
    ],
)
def test_r179_a_task_is_bounded_in_all_its_parts(
    caller: Caller, fits: dict[str, Any], is_over: dict[str, Any], status: int, pointer: str
) -> None:
    make_queue(caller)
    assert caller.post("/v1/tasks", TASK | fits).status == 201
    refused = caller.post("/v1/tasks", TASK | is_over)
    assert (refused.status, refused.pointer) == (status, pointer)


def test_r179_a_queues_backlog_and_a_batch_are_bounded(caller: Caller) -> None:
    make_queue(caller, max_unfinished_tasks=2)
    items = [TASK | {"idempotency_key": f"k{number}"} for number in range(33)]
    many = caller.post("/v1/tasks:batch", {"items": items})
    assert (many.status, many.pointer) == (400, "/items")
    answered = caller.post("/v1/tasks:batch", {"items": items[:32]}).data["items"]
    assert [each["status"] for each in answered] == [201, 201, *[429] * 30]
    assert {each["error"]["code"] for each in answered[2:]} == {"QUEUE_FULL"}


def test_r179_a_queue_has_at_most_a_thousand_lanes(caller: Caller, database: Database) -> None:
    """Each type and version is an order of its own, which every node keeps in mind."""
    queue_id = bytes.fromhex(make_queue(caller))
    rows = [
        {"id": new_id(), "queue_id": queue_id, "type": f"t{number}", "version": 1, "created_at": 1}
        for number in range(limits.LANES_PER_QUEUE_MAX - 1)
    ]
    database.transaction(lambda tx: tx.insert(lane, rows))
    assert caller.post("/v1/tasks", TASK).status == 201
    refused = caller.post("/v1/tasks", TASK | {"version": 2})
    assert (refused.status, refused.code) == (409, "STATE_CONFLICT")
    assert caller.post("/v1/tasks", TASK).status == 201
