"""Child workflows over HTTP: published within the caller's range, started by their parents, found by them."""

import pytest

from api.server import Node
from tests.support.http import Api, Caller, Got

HEAD = "orbit: weave/1\nworkflow: {name}\nversion: {version}\ndefaults: {{queue: {queue}}}\nsteps:\n"
CHILD = HEAD + "  - {{id: pay, task: bank.pay@1}}\noutput: {{ref: '7'}}\n"
PARENT = HEAD + "  - {{id: c, workflow: child}}\n  - {{id: told, set: {{ref: '${{ steps.c.output.ref }}'}}}}\n"


def publish(caller: Caller, text: str, name: str, *, version: int = 1, queue: str = "qa") -> Got:
    raw = text.format(name=name, version=version, queue=queue).encode()
    return caller.post("/v1/workflows", raw=raw, headers={"Content-Type": "application/yaml"})


@pytest.fixture
def queued(caller: Caller) -> Caller:
    for name in ("qa", "qb"):
        caller.post("/v1/queues", {"name": name, "max_concurrency": 8, "rate_per_second": 100})
    return caller


def test_a_parents_child_is_a_real_instance(queued: Caller, node: Node) -> None:
    unknown = publish(queued, PARENT, "parent")
    assert unknown.code == "DEFINITION_INVALID"
    assert [each["code"] for each in unknown.json["error"]["details"]["findings"]] == ["CHILD_UNKNOWN"]
    assert publish(queued, CHILD, "child").status == 201
    made = publish(queued, PARENT, "parent").data
    assert (made["bounds"]["tasks"], made["warnings"]) == (1, [])
    assert queued.post(
        "/v1/workflows:check", {"source": PARENT.format(name="x", version=1, queue="qa")}, key=None
    ).data["valid"]
    parent = queued.post("/v1/instances", {"workflow": "parent"}).data["instance"]
    node.runner.run_once()
    (child,) = queued.get(f"/v1/instances?parent_id={parent['id']}").data
    assert (child["workflow"], child["version"], child["root_id"]) == ("child", 1, parent["id"])
    assert child["parent"] == {"id": parent["id"], "step": "c", "round": 1}
    assert queued.get(f"/v1/instances/{parent['id']}").data["root_id"] == parent["id"]
    (step, _) = queued.get(f"/v1/instances/{parent['id']}/steps").data
    assert (step["kind"], step["child_id"], step["task_id"]) == ("WORKFLOW", child["id"], None)
    assert child["id"] in queued.get(f"/v1/instances/{parent['id']}:explain").data["summary"]
    assert queued.get("/v1/instances?parent_id=x").status == 400
    for form in ("svg", "mermaid", "json"):
        drawn = queued.get(f"/v1/workflows/parent/versions/1/graph?format={form}")
        assert b"child" in drawn.body
    deprecated = queued.post("/v1/workflows/child/versions/1:deprecate", {"reason": "slow"})
    assert deprecated.status == 200
    again = publish(queued, PARENT, "parent", version=2).data
    assert again["warnings"] == [{"code": "VERSION_DEPRECATED", "message": "version 1 of child is deprecated: slow"}]


def test_c157_what_a_publisher_may_not_use_is_refused_at_publish_at_any_depth(queued: Caller, api: Api) -> None:
    narrow = api.caller(queues=["qa"])
    assert publish(narrow, CHILD, "direct", queue="qb").json["error"]["details"] == {"step": "pay", "queue": "qb"}
    assert publish(queued, CHILD, "child", queue="qb").status == 201
    hidden = publish(narrow, PARENT, "parent")
    assert (hidden.status, hidden.json["error"]["details"]) == (404, {"step": "c", "queue": "qb"})
    assert publish(queued, PARENT, "parent").status == 201
    deeper = PARENT.replace("workflow: child", "workflow: parent").replace(
        "told, set: {{ref: '${{ steps.c.output.ref }}'}}", "t, set: {{}}"
    )
    assert publish(narrow, deeper, "grand").json["error"]["details"] == {"step": "c", "queue": "qb"}
    foreign = publish(api.caller(namespace="other"), PARENT, "parent")
    assert foreign.code == "DEFINITION_INVALID", "another tenant's workflow is one that does not exist"
    computed = CHILD.replace("task: bank.pay@1", "task: bank.pay@1, queue: '${{ input.queue }}'")
    assert publish(narrow, computed, "computed").code == "DEFINITION_INVALID", "a queue is never computed"


def test_c157_a_child_runs_with_the_rights_of_who_started_its_parent(queued: Caller, api: Api, node: Node) -> None:
    publish(queued, CHILD, "child", queue="qb")
    publish(queued, PARENT, "parent")
    parent = api.caller(queues=["qa"]).post("/v1/instances", {"workflow": "parent"}).data["instance"]
    for _ in range(4):
        node.runner.run_once()
    (child,) = queued.get(f"/v1/instances?parent_id={parent['id']}").data
    (pay,) = queued.get(f"/v1/instances/{child['id']}/steps").data
    assert (pay["state"], pay["error"]["code"], pay["task_id"]) == ("FAILED", "NOT_FOUND", None)
