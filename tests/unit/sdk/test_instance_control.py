"""The operators' commands of client and command line against a scripted server: what they send and what they say."""

import json
from collections.abc import Iterator

import pytest

from orbit.cli import program
from orbit.sdk.client import Client
from orbit.sdk.errors import APIError
from tests.unit.sdk.scripted_server import Script, scripted_server

ID = "1" * 32
ENDING = {"id": ID, "state": "ENDING", "ending_as": "CANCELLED", "revision": "4"}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_server() as script:
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with Client(script.url, "key.secret", timeout_seconds=5) as client:
        yield client


@pytest.fixture
def environment(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBIT_URL", script.url)
    monkeypatch.setenv("ORBIT_TOKEN", "key.secret")


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
