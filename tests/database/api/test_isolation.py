"""One environment of an application is one namespace, and nothing of another is seen or found by guessing."""

import json
from pathlib import Path
from typing import Any

from api.bootstrap import Wanted, bootstrap_to_file
from orbit.database import Database
from orbit.ids import new_id
from orbit.store.tenancy import NamespaceName
from pulse.queues import QueueSettings
from pulse.store.session import NewSession, session_insert
from tests.support.http import Api, Caller

FLOW = """
orbit: weave/1
workflow: flow
version: 1
timeout: 1h
defaults: {queue: main, start_within: 1m}
steps:
  - {id: a, task: do.a@1}
"""
ROOMY = QueueSettings(paused=False, max_concurrency=9, rate_per_second=9, max_unfinished_tasks=9)


def filled(api: Api, caller: Caller, namespace: str) -> dict[str, str]:
    """Put one of each thing into a namespace, and return the paths by which it is read."""
    queue = caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100}).data["queue"][
        "id"
    ]
    fields = {"queue": "main", "type": "echo", "version": 1, "business_key": "k", "labels": {"team": "red"}}
    task = caller.post("/v1/tasks", fields).data["task"]["id"]
    assert caller.post("/v1/workflows", {"source": FLOW}).status in {200, 201}
    instance = caller.post("/v1/instances", {"workflow": "flow"}).data["instance"]["id"]
    worker = NewSession(
        id=new_id(), namespace_id=api.namespace(namespace).id, credential_id=caller.credential_id, worker=namespace,
        node="n", handlers=("echo@1",), queues=("main",), capacity=1,
    )  # fmt: skip
    api.database.transaction(lambda tx: session_insert(tx, worker))
    return {"queue": f"/v1/queues/{queue}", "task": f"/v1/tasks/{task}", "instance": f"/v1/instances/{instance}"}


def test_r106_a_namespace_sees_nothing_of_another(api: Api) -> None:
    names = ("one", "two")
    callers = {name: api.caller(namespace=name) for name in names}
    paths = {name: filled(api, callers[name], name) for name in names}
    for name, other in (names, names[::-1]):
        caller = callers[name]
        for kind, path in paths[other].items():
            hidden = caller.get(path)
            missing = caller.get(path.rpartition("/")[0] + "/" + "f" * 32)
            assert (hidden.status, hidden.json["error"]) == (404, missing.json["error"]), kind
            assert caller.get(paths[name][kind]).status == 200
        own = {kind: path.rpartition("/")[2] for kind, path in paths[name].items()}
        lists: dict[str, tuple[str, list[Any]]] = {
            "/v1/queues": ("id", [own["queue"]]),
            "/v1/tasks?business_key=k": ("id", [own["task"]]),
            "/v1/tasks?label=team%3Dred": ("id", [own["task"]]),
            "/v1/instances": ("id", [own["instance"]]),
            "/v1/workers": ("worker", [name]),
        }
        for path, (field, wanted) in lists.items():
            assert [each[field] for each in caller.get(path).data] == wanted, path
        theirs = {path.rpartition("/")[2] for path in paths[other].values()}
        for path in ("/v1/events?limit=200", "/v1/audit?limit=200"):
            entries = caller.get(path).data
            assert entries
            assert not theirs & {each["subject_id"] for each in entries}


def test_r106_a_second_environment_is_a_namespace_of_its_own(database: Database, api: Api, tmp_path: Path) -> None:
    made = {}
    for environment in ("test", "live"):
        wanted = Wanted(
            named=NamespaceName("shop", environment, environment), queue="main", settings=ROOMY, worker_access=False
        )
        made[environment] = bootstrap_to_file(database, wanted, tmp_path / f"{environment}.json")
    assert made["test"].namespace.id != made["live"].namespace.id
    token = json.loads((tmp_path / "test.json").read_text())["token"]
    queues = Caller(api, token, b"").get("/v1/queues").data
    assert [each["namespace_id"] for each in queues] == [made["test"].namespace.id.hex()]
