"""Area f of the public failures: what sending again does elsewhere, and what it does here."""

from collections.abc import Iterator
from itertools import permutations

import pytest

from api.server import Node
from orbit.database import Database
from pulse.states import ErrorClass, RecoverySafety, TaskState
from tests.support.http import Api, Caller
from tests.support.pulse import Pulse

TASK = {"queue": "main", "type": "echo", "version": 1}
QUEUE = {"name": "main", "max_concurrency": 8, "rate_per_second": 100}


@pytest.fixture
def node(database: Database) -> Iterator[Node]:
    made = Node(database, name="test")
    yield made
    made.stop()


@pytest.fixture
def api(database: Database, node: Node) -> Api:
    return Api(database, node.operations, node.authenticator)


@pytest.fixture
def caller(api: Api) -> Caller:
    made = api.caller()
    made.post("/v1/queues", QUEUE)
    return made


@pytest.fixture
def pulse(database: Database, caller: Caller) -> Pulse:
    """The same namespace, without HTTP."""
    return Pulse(database)


def test_c069_the_same_request_again_gets_the_same_task_whatever_became_of_it(caller: Caller, pulse: Pulse) -> None:
    first = caller.post("/v1/tasks", TASK, key="pay-1")
    seen = []

    def again() -> None:
        got = caller.post("/v1/tasks", TASK, key="pay-1")
        assert (got.status, got.data["deduplicated"], got.data["task"]) == (200, True, first.data["task"])
        seen.append(got.data["current"]["state"])

    again()
    running = pulse.run()
    again()
    pulse.succeed(running)
    again()
    assert seen == ["WAITING", "RUNNING", "SUCCEEDED"]
    assert pulse.claim() == []


def test_c071_other_params_are_another_meaning_and_never_a_subset(caller: Caller) -> None:
    several: list[dict[str, object]] = [{"field": 1}, {}, {"field": None}, {"field": 1, "x": None}]
    for number, (one, other) in enumerate(permutations(several, 2)):
        assert caller.post("/v1/tasks", TASK | {"params": one}, key=f"k-{number}").status == 201
        conflict = caller.post("/v1/tasks", TASK | {"params": other}, key=f"k-{number}")
        assert (conflict.status, conflict.code) == (409, "IDEMPOTENCY_CONFLICT")
    made = {caller.post("/v1/tasks", TASK | {"params": params}).data["task"]["id"] for params in several}
    assert len(made) == 4


@pytest.mark.parametrize("is_lost", [False, True])
def test_c075_a_retry_needs_no_place_that_a_newer_task_could_take(pulse: Pulse, *, is_lost: bool) -> None:
    first, second = pulse.submit(concurrency_keys=("K",)), pulse.submit(concurrency_keys=("K",))
    running = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    assert running.task.id == first
    if is_lost:
        pulse.pass_time(31)
    else:
        pulse.fail(running, ErrorClass.RETRYABLE)
    for _ in range(2):
        pulse.pass_time(10)
        for item in pulse.claim(safety=RecoverySafety.REPLAY_SAFE):
            assert pulse.start(item).granted
            pulse.succeed(item)
    assert [pulse.task(each).state for each in (first, second)] == [TaskState.SUCCEEDED] * 2


@pytest.mark.requirement("R130")
def test_c077_a_key_counts_within_its_tenant_and_its_operation(api: Api, caller: Caller) -> None:
    other = api.caller(namespace="other")
    other.post("/v1/queues", QUEUE)
    mine, theirs = (each.post("/v1/tasks", TASK, key="order-1") for each in (caller, other))
    assert (mine.status, theirs.status) == (201, 201)
    assert mine.data["task"]["id"] != theirs.data["task"]["id"]
    assert caller.get(f"/v1/tasks/{theirs.data['task']['id']}").status == 404
    source = "orbit: weave/1\nworkflow: w\nversion: 1\nsteps: [{id: a, set: {x: 1}}]\n"
    assert caller.post("/v1/workflows", {"source": source}, key="order-1").status == 201
    started = caller.post("/v1/instances", {"workflow": "w"}, key="order-1")
    assert (started.status, started.data["deduplicated"]) == (201, False)
    assert started.data["instance"]["id"] != mine.data["task"]["id"]
