"""The operators' commands of client and command line against a scripted server: what they send and what they say."""

import json

import pytest

from orbit.cli import program
from orbit.sdk.client import Client
from orbit.sdk.errors import APIError
from orbit.sdk.models import RecoverInstance
from tests.unit.sdk.scripted_server import Script

ID = "1" * 32
ENDING = {"id": ID, "state": "ENDING", "ending_as": "CANCELLED", "revision": "4"}


def test_a_cancel_carries_its_reason_and_its_revision(script: Script, client: Client) -> None:
    script.success({"deduplicated": False, "instance": ENDING})
    done = client.cancel_instance(ID, "k", reason="not wanted", expected_revision=3)
    assert (done.instance.state, done.instance.ending_as, done.instance.revision) == ("ENDING", "CANCELLED", 4)
    (seen,) = script.seen
    assert (seen.method, seen.path) == ("POST", f"/v1/instances/{ID}:cancel")
    assert seen.headers["Idempotency-Key"] == "k"
    assert json.loads(seen.body) == {"reason": "not wanted", "expected_revision": "3"}


def test_a_lost_race_tells_the_current_revision(script: Script, client: Client) -> None:
    script.refusal(409, "STATE_CONFLICT", details={"state": "SUCCEEDED", "current_revision": "9"})
    with pytest.raises(APIError) as refused:
        client.cancel_instance(ID, "k", reason="not wanted")
    assert refused.value.details["current_revision"] == "9"


@pytest.mark.usefixtures("environment")
def test_the_command_asks_for_a_reason_and_says_the_state(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["instance", "cancel", ID]) == 2
    script.success({"deduplicated": False, "instance": ENDING})
    script.success({"deduplicated": False, "instance": ENDING})
    assert program.run(["instance", "cancel", ID, "--reason", "not wanted", "--key", "k"]) == 0
    assert capsys.readouterr().out == f"{ID}  ENDING as CANCELLED  revision 4\n"
    assert program.run(["instance", "cancel", ID, "--reason", "not wanted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["instance"]["revision"] == 4
    assert [seen.headers["Idempotency-Key"] == "k" for seen in script.seen] == [True, False]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pause_and_resume_say_where_the_instance_stands(
    script: Script, client: Client, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    control = "PAUSING" if verb == "pause" else "ACTIVE"
    for _ in range(2):
        script.success({"instance": {"id": ID, "state": "RUNNING", "control": control, "revision": "4"}})
    call = client.pause_instance if verb == "pause" else client.resume_instance
    assert call(ID, "k", reason="the bank is away").instance.control == control
    assert program.run(["instance", verb, ID, "--reason", "the bank is away", "--revision", "3"]) == 0
    assert capsys.readouterr().out.split() == [ID, "RUNNING", *([control] * (verb == "pause")), "revision", "4"]
    assert [seen.path for seen in script.seen] == [f"/v1/instances/{ID}:{verb}"] * 2
    assert json.loads(script.seen[1].body) == {"reason": "the bank is away", "expected_revision": "3"}


RECOVERED = {
    "deduplicated": False, "dry_run": True, "instance": {"id": ID, "state": "RUNNING", "revision": "5"},
    "before": {"state": "NEEDS_RECOVERY", "step": {"id": "pay", "state": "FAILED"}},
    "after": {"state": "RUNNING", "step": {"id": "pay", "state": "RUNNING"}},
}  # fmt: skip


def test_a_decision_carries_what_was_given(script: Script, client: Client) -> None:
    script.success(RECOVERED)
    script.success([{"revision": "5", "action": "RETRY", "step": "pay", "evidence": {"ticket": 7}}])
    request = RecoverInstance(
        action="COMPLETE", step="pay", expected_revision=4, evidence={"ticket": 7}, reason="seen", output=None
    )
    done = client.recover_instance(ID, "k", request)
    assert (done.dry_run, done.before["state"], done.after["step"]["state"]) == (True, "NEEDS_RECOVERY", "RUNNING")
    assert json.loads(script.seen[0].body) == {
        "action": "COMPLETE", "step": "pay", "expected_revision": "4", "evidence": {"ticket": 7}, "reason": "seen",
        "output": None,
    }  # fmt: skip
    assert [(each.revision, each.action) for each in client.instance_recoveries(ID)] == [(5, "RETRY")]


@pytest.mark.usefixtures("environment")
def test_the_command_decides_at_the_revision_that_it_reads(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.success({"id": ID, "state": "NEEDS_RECOVERY", "revision": "4"})
    script.success(RECOVERED)
    arguments = ["--step", "pay", "--evidence", '{"ticket": 7}', "--reason", "repaired", "--dry-run"]
    assert program.run(["instance", "recover", ID, "retry", *arguments]) == 0
    out = capsys.readouterr().out
    assert out == f"{ID}  NEEDS_RECOVERY -> RUNNING  (dry run)\npay  FAILED -> RUNNING\n"
    assert json.loads(script.seen[1].body) == {
        "action": "RETRY", "step": "pay", "expected_revision": "4", "evidence": {"ticket": 7}, "reason": "repaired",
        "dry_run": True,
    }  # fmt: skip


@pytest.mark.usefixtures("environment")
def test_the_items_of_a_foreach_are_listed_with_their_errors(
    script: Script, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"id": "fetch[1]", "kind": "TASK", "title": None, "state": "FAILED", "reason": None, "round": 1}
    error = {"code": "GONE", "message": "no such document"}
    items = [
        {"index": 0, "steps": [{"id": "fetch[0]", "kind": "TASK", "title": None, "state": "SUCCEEDED"}], "result": 3},
        {"index": 1, "steps": [broken | {"task_id": ID, "error": error}], "result": None},
    ]
    script.success(items)
    script.success(items)
    first, second = client.instance_items(ID, "each")
    assert (first.result, second.result, second.steps[0].id) == (3, None, "fetch[1]")
    assert script.seen[0].path == f"/v1/instances/{ID}/steps/each/items"
    assert program.run(["instance", "items", ID, "each"]) == 0
    shown = capsys.readouterr().out
    assert f"fetch[1]  TASK  FAILED     1      {ID}" in shown
    assert "error     in fetch[1]: GONE: no such document" in shown
