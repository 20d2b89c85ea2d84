"""Masked paths of a workflow over HTTP: planted values are in no answer, while workers and expressions get them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from orbit.database import Database
from orbit.jsontext import Json, dumps
from pulse.report import ReportedError
from pulse.states import ErrorClass
from tests.support.http import Api, Caller
from tests.support.weave import Done, Weave

CHILD = """\
orbit: weave/1
workflow: settle
version: 1
input: {type: object, required: [token], properties: {token: {type: string}}}
defaults: {queue: main, start_within: 1h}
redact: [/input/token]
steps:
  - {id: ask, task: do.c@1, input: {token: "${ input.token }"}}
output: {again: "${ input.token }", plain: ok}
"""
PARENT = """\
orbit: weave/1
workflow: pay
version: 1
input:
  type: object
  required: [card, guests]
  properties:
    card: {type: object, required: [number, owner], properties: {number: {type: string}, owner: {type: string}}}
    guests: {type: array, items: {type: object, required: [pass], properties: {pass: {type: string}}}}
defaults: {queue: main, start_within: 1h}
redact:
  - /input/card/number
  - /input/guests/*/pass
  - /signals/approved/pin
  - /steps/charge/output/token
  - /steps/refuse/error/message
  - /steps/refuse/error/details/iban
  - /steps/refuse/evidence/scan
steps:
  - id: charge
    task: do.a@1
    input: {card: "${ input.card }", text: "card ${ input.card.number }", owner: "${ input.card.owner }"}
    compensate: {task: do.x@1, input: {back: "${ input.card.number }"}}
  - {id: kept, set: {token: "${ steps.charge.output.token }", name: "${ steps.charge.output.name }"}}
  - {id: sign, wait: {signal: approved, timeout: 1h}}
  - id: each
    foreach:
      items: input.guests
      max_items: 3
      steps: [{id: check, task: do.b@1, input: {guest: "${ item }", n: "${ index }"}}]
      output: {pass: "${ item.pass }", n: "${ index }"}
  - {id: child, workflow: settle, input: {token: "${ steps.kept.output.token }"}}
  - id: refuse
    task: do.y@1
    input: {pin: "${ steps.sign.output.pin }", all: "${ steps.each.output }"}
output: {end: "${ steps.child.output }", list: "${ steps.each.output }", size: "${ size(steps.sign.output.pin) }"}
"""
SECRET = re.compile(r"s3cr3t-[a-z]+")
INPUT = {
    "card": {"number": "s3cr3t-card", "owner": "Ada"},
    "guests": [{"pass": "s3cr3t-pass"}, {"pass": "s3cr3t-pass"}],
}
EVIDENCE = {"scan": "s3cr3t-scan", "ticket": 7}


@pytest.fixture
def weave(database: Database, api: Api) -> Iterator[Weave]:
    """A second node of the callers' namespace, driven by hand."""
    made = Weave(database)
    made.namespace_id = api.namespace().id
    yield made
    made.close()


def published(caller: Caller, text: str) -> Any:
    return caller.post("/v1/workflows", raw=text.encode(), headers={"Content-Type": "application/yaml"})


def everything(caller: Caller, instance_id: str) -> str:
    """Read all that can be read of an instance, its tasks, and what was recorded."""
    path = f"/v1/instances/{instance_id}"
    parts = [path, "/v1/instances", "/v1/tasks?queue=main", "/v1/events?limit=200", "/v1/audit?limit=200"]
    parts += [f"{path}{end}" for end in ("/steps", "/history", ":explain", "/graph", "/signals", "/recoveries")]
    found = [caller.get(part) for part in parts]
    assert [got.status for got in found] == [200] * len(found)
    tasks = [task["id"] for task in found[2].data]
    children = [child["id"] for child in caller.get(f"/v1/instances?parent_id={instance_id}").data]
    found += [caller.get(f"/v1/tasks/{task_id}{end}") for task_id in tasks for end in ("", "/attempts", ":explain")]
    found += [caller.get(f"/v1/instances/{child}{end}") for child in children for end in ("", "/history")]
    if "each" in found[5].body.decode():
        found.append(caller.get(f"{path}/steps/each/items"))
    return "\n".join(got.body.decode() for got in found)


@pytest.mark.requirement("R189")
def test_r187_what_a_definition_masks_is_in_no_answer(
    caller: Caller, weave: Weave, caplog: pytest.LogCaptureFixture
) -> None:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    assert published(caller, CHILD).status == 201
    assert published(caller, PARENT).status == 201
    signal = {"name": "approved", "payload": {"pin": "s3cr3t-pin", "by": "Bob"}}
    started = caller.post("/v1/instances", {"workflow": "pay", "input": INPUT, "signal": signal})
    instance_id = started.data["instance"]["id"]
    path = f"/v1/instances/{instance_id}"
    got: dict[str, Json] = {}

    def handler(step: str, _number: int, params: Json) -> Done | None:
        got[step] = params
        if step == "refuse":
            error = ReportedError(ErrorClass.NON_RETRYABLE, "NO", "not s3cr3t-words", {"iban": "s3cr3t-iban", "n": 1})
            return Done(error=error)
        return Done({"token": "s3cr3t-token", "name": "n"} if step == "charge" else None)

    weave.drive(handler)
    assert caller.get(path).data["state"] == "NEEDS_RECOVERY"
    shown = everything(caller, instance_id)
    assert SECRET.findall(shown) == []
    assert shown.count("[redacted]") > 15
    # Workers get everything, and what expressions made of it.
    assert got["charge"] == {"card": INPUT["card"], "text": "card s3cr3t-card", "owner": "Ada"}
    assert got["check[1]"] == {"guest": {"pass": "s3cr3t-pass"}, "n": 1}
    assert got["ask"] == {"token": "s3cr3t-token"}
    assert got["refuse"] == {"pin": "s3cr3t-pin", "all": [{"pass": "s3cr3t-pass", "n": n} for n in range(2)]}
    # What is not masked is shown.
    data = caller.get(path).data
    assert data["input"] == {"card": {"number": "[redacted]", "owner": "Ada"}, "guests": [{"pass": "[redacted]"}] * 2}
    assert (data["error"]["code"], data["error"]["message"]) == ("NO", "[redacted]")
    assert data["error"]["details"]["details"] == {"iban": "[redacted]", "n": 1}
    items = caller.get(f"{path}/steps/each/items").data
    assert [item["result"] for item in items] == [{"pass": "[redacted]", "n": n} for n in range(2)]
    steps = {step["id"]: step for step in caller.get(f"{path}/steps").data}
    charged = caller.get(f"/v1/tasks/{steps['charge']['task_id']}").data
    assert charged["params"] == {
        "card": {"number": "[redacted]", "owner": "Ada"}, "text": "[redacted]", "owner": "Ada"
    }  # fmt: skip
    assert charged["output"] == {"token": "[redacted]", "name": "n"}
    assert caller.get(f"{path}/signals").data[0]["payload"] == {"pin": "[redacted]", "by": "Bob"}

    decided = caller.post(
        f"{path}:recover",
        {"step": "refuse", "action": "COMPLETE", "reason": "seen", "evidence": EVIDENCE, "output": 1,
         "expected_revision": data["revision"]},
    )  # fmt: skip
    assert decided.status == 200
    weave.drive(handler)
    ended = caller.get(path).data
    assert ended["state"] == "SUCCEEDED"
    assert ended["output"] == {
        "end": {"again": "[redacted]", "plain": "ok"},
        "list": [{"pass": "[redacted]", "n": n} for n in range(2)],
        "size": "[redacted]",
    }
    (recovery,) = caller.get(f"{path}/recoveries").data
    assert recovery["evidence"] == {"scan": "[redacted]", "ticket": 7}
    assert SECRET.findall(everything(caller, instance_id) + decided.body.decode() + caplog.text) == []


def test_a_refusal_does_not_quote_what_is_masked(caller: Caller) -> None:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    assert published(caller, CHILD).status == 201
    text = PARENT.replace("{pass: {type: string}}}}", "{pass: {type: string, maxLength: 3}}}}")
    assert published(caller, text).status == 201
    refused = caller.post("/v1/instances", {"workflow": "pay", "input": INPUT})
    assert (refused.status, refused.pointer) == (400, "/input/guests/0/pass")
    assert "does not fit its schema (maxLength)" in refused.body.decode()
    assert SECRET.findall(refused.body.decode()) == []


def test_a_signal_that_is_kept_for_a_business_key_is_masked_by_the_default_version(caller: Caller) -> None:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    published(caller, CHILD)
    published(caller, PARENT)
    body = {"workflow": "pay", "business_key": "K-1", "name": "approved", "payload": {"pin": "s3cr3t-pin", "by": "Bob"}}
    assert caller.post("/v1/signals", body).status == 201
    (kept,) = caller.get("/v1/signals?workflow=pay&business_key=K-1").data
    assert kept["payload"] == {"pin": "[redacted]", "by": "Bob"}


@pytest.mark.requirement("R187")
def test_the_type_of_a_task_masks_its_errors_for_the_workflow_too(caller: Caller, weave: Weave) -> None:
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    caller.put(
        "/v1/task-types/do.a/1",
        {"expected_revision": "0", "reason": "r", "recovery": "MANUAL", "redact": ["/error/details/iban"]},
    )
    text = CHILD.replace("redact: [/input/token]\n", "").replace("do.c@1", "do.a@1")
    text = text.replace("}\noutput", ', on_error: [{match: "*", then: continue, value: "${ error.details }"}]}\noutput')
    published(caller, text)
    instance_id = caller.post("/v1/instances", {"workflow": "settle", "input": {"token": "t"}}).data["instance"]["id"]
    seen = ReportedError(ErrorClass.NON_RETRYABLE, "NO", "no", {"iban": "s3cr3t-iban", "n": 1})
    weave.drive(lambda _step, _number, _params: Done(error=seen))
    path = f"/v1/instances/{instance_id}"
    assert caller.get(path).data["state"] == "SUCCEEDED"
    (failed,) = [entry for entry in caller.get(f"{path}/history").data if entry["type"] == "step.failed"]
    assert failed["data"]["error"]["details"] == {"class": "NON_RETRYABLE", "details": {"iban": "[redacted]", "n": 1}}
    assert SECRET.findall(dumps(caller.get(f"{path}/steps").data).decode()) == []
