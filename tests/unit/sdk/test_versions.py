"""Versions in client and command line against a scripted server: what they send and what they say."""

import json

import pytest

from orbit.cli import program
from orbit.sdk.client import Client
from tests.unit.sdk.scripted_server import Script

WORKFLOW = {"workflow": "pay.out", "default_version": 2, "default_pinned": True, "revision": "7"}
VERSION = {"workflow": "pay.out", "version": 2, "state": "DEPRECATED", "state_reason": "slow", "digest": "a" * 64}
CHANGED = {"deduplicated": False, "workflow": WORKFLOW, "version": VERSION}
DIFF = {"against": 1, "verdict": "safe-at", "at": ["b"], "mapping": {"b": "c"}, "reasons": []}


def test_each_change_goes_to_its_path_with_key_reason_and_revision(script: Script) -> None:
    script.success(CHANGED)
    with Client(script.url, "key.secret", timeout_seconds=5) as client:
        client.set_default_version("pay.out", None, "k0", reason="r")
        client.set_default_version("pay.out", 2, "k1", reason="r", expected_revision=6)
        for verb in (client.deprecate_version, client.retire_version, client.activate_version):
            done = verb("pay.out", 2, "k2", reason="r")
    assert (done.workflow.revision, done.version.state_reason) == (7, "slow")
    base = "/v1/workflows/pay.out"
    assert [(seen.path, json.loads(seen.body)) for seen in script.seen] == [
        (f"{base}:set-default", {"reason": "r"}),
        (f"{base}:set-default", {"version": 2, "reason": "r", "expected_revision": "6"}),
        *((f"{base}/versions/2:{verb}", {"reason": "r"}) for verb in ("deprecate", "retire", "activate")),
    ]
    assert [seen.headers["Idempotency-Key"] for seen in script.seen] == ["k0", "k1", "k2", "k2", "k2"]


def test_versions_are_read(script: Script) -> None:
    script.success(WORKFLOW)
    script.success([VERSION])
    script.success([WORKFLOW])
    script.success(VERSION | {"source": "x"})
    script.success(DIFF)
    with Client(script.url, "key.secret", timeout_seconds=5) as client:
        assert client.get_workflow("pay.out").default_pinned
        assert [each.state for each in client.workflow_versions("pay.out")] == ["DEPRECATED"]
        assert [each.default_version for each in client.list_workflows()] == [2]
        assert client.get_workflow_version("pay.out", 2).source == "x"
        assert client.diff_versions("pay.out", 1, 2).mapping == {"b": "c"}
    assert script.seen[-1].path == "/v1/workflows/pay.out:diff?from=1&to=2"


@pytest.mark.usefixtures("environment")
def test_the_commands_say_what_is_so(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        assert program.run(["workflow", *arguments]) == 0
        return capsys.readouterr().out

    script.success(CHANGED)
    changed = "pay.out version 2  DEPRECATED  default 2 (pinned)\n"
    for verb in ("deprecate", "retire", "activate", "set-default"):
        assert run(verb, "pay.out", "2", "--reason", "r", "--key", "k") == changed
    assert json.loads(run("set-default", "pay.out", "--follow", "--reason", "r", "--json"))["version"]["version"] == 2
    assert program.run(["workflow", "set-default", "pay.out", "--reason", "r"]) == 2
    assert program.run(["workflow", "retire", "pay.out", "2"]) == 2
    script.answers.clear()
    script.success([WORKFLOW | {"versions": 4, "highest_version": 5}])
    assert run("list").splitlines()[1].split() == ["pay.out", "2", "(pinned)", "5", "4"]
    script.answers.clear()
    for _ in range(2):
        script.success(WORKFLOW)
        script.success([VERSION])
    assert "2        DEPRECATED" in run("show", "pay.out")
    assert json.loads(run("show", "pay.out", "--json"))["versions"][0]["state_reason"] == "slow"
    script.answers.clear()
    script.success(DIFF)
    capsys.readouterr()
    assert program.run(["workflow", "diff", "pay.out", "1", "2"]) == 1
    assert capsys.readouterr().out == "safe-at b\n  b seems to be c now\n"


@pytest.mark.usefixtures("environment")
def test_warnings_stand_beside_the_answer(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    warning = {"code": "VERSION_DEPRECATED", "message": "version 2 of pay.out is deprecated: slow"}
    script.success({"instance": {"id": "1" * 32}, "warnings": [warning]}, status=201)
    assert program.run(["start", "pay.out"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "1" * 32 + "\n"
    assert "warning: version 2 of pay.out is deprecated: slow (VERSION_DEPRECATED)" in printed.err
