"""Signals by client and command line against a scripted server: what they send and what they say."""

import json

import pytest

from orbit.cli import program
from orbit.sdk.client import Client
from orbit.sdk.models import StartInstance
from orbit.sdk.namespaces import ConfigureNamespaceRequest
from orbit.sdk.signal_models import SendSignal
from tests.unit.sdk.scripted_server import Script

ID = "1" * 32
SENT = {
    "id": "2" * 32, "instance_id": ID, "workflow": "approval", "business_key": None, "name": "decided",
    "signal_id": "k", "sent_at": "2026-11-30T12:00:00.000000Z", "expires_at": "2026-12-07T12:00:00.000000Z",
}  # fmt: skip
KEPT = SENT | {"state": "KEPT", "payload": {"by": None}, "sent_by": "me", "taken_at": None, "step": None}


def test_the_client_sends_to_an_instance_and_by_business_key(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "signal": SENT})
    script.success({"deduplicated": True, "signal": SENT | {"instance_id": None}})
    done = client.signal_instance(ID, "k", SendSignal(name="decided", payload=None, ttl_seconds=60))
    assert (done.signal.instance_id, done.signal.name, done.deduplicated) == (ID, "decided", False)
    kept = client.send_signal("approval", "E-1", "k", SendSignal(name="decided", signal_id="mail"))
    assert (kept.signal.instance_id, kept.deduplicated) == (None, True)
    first, second = script.seen
    assert (first.path, json.loads(first.body)) == (
        f"/v1/instances/{ID}:signal", {"name": "decided", "payload": None, "ttl_seconds": 60},
    )  # fmt: skip
    assert (second.path, json.loads(second.body)) == (
        "/v1/signals", {"name": "decided", "signal_id": "mail", "workflow": "approval", "business_key": "E-1"},
    )  # fmt: skip


def test_the_client_lists_signals_with_their_payloads(script: Script, client: Client) -> None:
    for _ in range(2):
        script.success([KEPT], next_cursor=None)
    (listed,) = client.instance_signals(ID)
    assert (listed.state, listed.payload, listed.step) == ("KEPT", {"by": None}, None)
    assert [each.name for each in client.kept_signals("approval", "E 1")] == ["decided"]
    assert [seen.path for seen in script.seen] == [
        f"/v1/instances/{ID}/signals", "/v1/signals?workflow=approval&business_key=E+1",
    ]  # fmt: skip


def test_a_start_carries_its_signal_and_its_breakpoints(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "existing": True, "instance": {"id": ID}})
    request = StartInstance(
        workflow="approval", business_key="E-1", pause_at=["pay"], signal=SendSignal(name="decided", payload=1)
    )
    assert client.start_instance("k", request).existing
    assert json.loads(script.seen[0].body) == {
        "workflow": "approval", "business_key": "E-1", "pause_at": ["pay"],
        "signal": {"name": "decided", "payload": 1},
    }  # fmt: skip


@pytest.mark.usefixtures("environment")
def test_the_commands_send_and_list(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.success({"deduplicated": False, "signal": SENT})
    script.success({"deduplicated": False, "signal": SENT | {"instance_id": None, "business_key": "E-1"}})
    script.success([KEPT], next_cursor=None)
    assert program.run(["instance", "signal", ID, "decided", "--payload", '{"by": "ann"}', "--key", "k"]) == 0
    assert json.loads(script.seen[0].body) == {"name": "decided", "payload": {"by": "ann"}}
    assert program.run(["instance", "signal", "E-1", "decided", "--workflow", "approval", "--ttl", "60"]) == 0
    assert script.seen[1].path == "/v1/signals"
    assert program.run(["instance", "signals", ID]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{SENT['id']}  decided  to {ID}"
    assert said[1] == f"{SENT['id']}  decided  kept until {SENT['expires_at']} for E-1"
    assert said[2].split() == ["SENT", "NAME", "STATE", "STEP", "PAYLOAD"]
    assert said[3].split() == [SENT["sent_at"], "decided", "KEPT", '{"by":null}']


@pytest.mark.usefixtures("environment")
def test_a_start_takes_labels_and_breakpoints(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.success({"deduplicated": False, "instance": {"id": ID}})
    words = ["start", "approval", "--label", "team=red", "--label", "note=a=b", "--pause-at", "pay", "--pause-at", "x"]
    assert program.run(words) == 0
    assert capsys.readouterr().out == f"{ID}\n"
    body = json.loads(script.seen[0].body)
    assert (body["labels"], body["pause_at"]) == ({"team": "red", "note": "a=b"}, ["pay", "x"])
    assert program.run(["start", "approval", "--label", "red"]) == 2


def test_the_client_reads_and_sets_the_limit_of_its_namespace(script: Script, client: Client) -> None:
    bounds = {"max_tasks": 50, "max_rounds": 100_000}
    script.success({"max_running": None, "running": 3, "revision": "0", "bounds": bounds, "bounds_set": ["max_tasks"]})
    script.success({"deduplicated": False, "namespace": {"max_running": 5, "running": 3, "revision": "1"}})
    found = client.get_namespace()
    assert (found.max_running, found.running, found.revision) == (None, 3, 0)
    assert (found.bounds, found.own_bounds) == (bounds, {"max_tasks": 50})
    request = ConfigureNamespaceRequest(
        max_running=5, expected_revision=0, reason="a small database", bounds=found.own_bounds
    )
    done = client.configure_namespace("k", request)
    assert (done.namespace.max_running, done.namespace.revision) == (5, 1)
    assert json.loads(script.seen[1].body) == {
        "max_running": 5, "expected_revision": "0", "reason": "a small database", "bounds": {"max_tasks": 50},
    }  # fmt: skip
