"""The way through the command line, on real processes: from an empty database to a workflow's result."""

import json
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from orbit.cli import program
from tests.support.processes import NodeProcess, clean_environment, node_process, orbit_command, python_process
from tests.support.waiting import wait_until

ECHO = """
orbit: weave/1
workflow: echo
version: 1
input: {type: object, required: [text], properties: {text: {type: string}}}
timeout: 1h
defaults: {queue: bootstrap, start_within: 1m}
steps:
  - {id: say, task: echo.say@1, input: {text: "${ input.text }"}}
  - {id: pause, wait: {for: 100ms}}
output: {said: "${ steps.say.output.text }"}
"""
HELD = """
orbit: weave/1
workflow: held
version: 1
input: {type: object}
timeout: 1h
steps:
  - {id: s, set: {n: 1}}
output: {more: "${ input.missing }"}
"""
TWO_TASKS = """
orbit: weave/1
workflow: two
version: 1
defaults: {queue: main}
steps: [{id: a, task: t.a@1}, {id: b, task: t.a@1}]
"""
WORKER = """
import orbit
from orbit import Worker

worker = Worker(queues=["bootstrap"])


@worker.task("echo.say@1", recovery="REPLAY_SAFE")
def say(params, context):
    return {"text": params["text"].upper()}


@worker.task("doubt@1", recovery="MANUAL")
def doubt(params, context):
    raise orbit.UnknownOutcome("nobody knows")
"""


@dataclass(frozen=True)
class Installation:
    """A running node, a worker, and the environment in which commands reach them."""

    node: NodeProcess
    folder: Path
    environment: dict[str, str]

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@pytest.fixture
def installation(blank_database_url: str, short_folder: Path) -> Iterator[Installation]:
    """Orbit as `UPGRADING.md` and the README say how to set it up."""
    database = {"ORBIT_DATABASE_URL": blank_database_url}
    assert orbit("db", "check", environment=database).returncode == 1
    upgraded = orbit("db", "upgrade", environment=database)
    assert upgraded.returncode == 0, upgraded.stderr
    assert orbit("db", "check", environment=database).returncode == 0
    credentials = short_folder / "credentials.json"
    made = orbit(
        *("bootstrap", "--application", "resources-demo", "--namespace", "default", "--environment", "development"),
        *("--queue", "bootstrap", "--worker-access", "--output", str(credentials)),
        environment=database,
    )
    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    (short_folder / "echo_worker.py").write_text(WORKER)
    with ExitStack() as stack:
        served = stack.enter_context(node_process(blank_database_url, credentials, short_folder))
        environment = served.environment | {"PYTHONPATH": str(short_folder)}
        command = orbit_command("worker", "echo_worker:worker")[2:]
        stack.enter_context(python_process(command, environment, short_folder / "worker.log"))
        yield Installation(served, short_folder, served.environment)


def orbit(
    *arguments: str, environment: Mapping[str, str] | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end; `text` is its standard input."""
    return subprocess.run(
        orbit_command(*arguments),
        env=clean_environment(environment or {}),
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_workflow_goes_through_the_command_line(installation: Installation) -> None:
    env = installation.environment
    definition = installation.file("echo.yaml", ECHO)
    published = orbit("publish", definition, environment=env)
    assert published.returncode == 0, published.stderr
    assert "published  echo version 1\n" in published.stdout
    assert "echo version 1 (known already)" in orbit("publish", "-", environment=env, text=ECHO).stdout

    started = orbit("start", "echo", "--input", '{"text": "häl"}', "--key", "one", environment=env)
    assert started.returncode == 0, started.stderr
    instance_id = started.stdout.strip()
    assert re.fullmatch("[0-9a-f]{32}", instance_id)
    again = orbit("start", "echo", "--input", '{"text": "häl"}', "--key", "one", environment=env)
    assert again.stdout.strip() == instance_id

    watched = orbit("watch", instance_id, environment=env)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    happened = [line.split()[1] for line in watched.stdout.splitlines() if re.match(r"\d\d:\d\d:\d\d\.\d{3}  ", line)]
    assert happened[0] == "instance.started"
    assert happened[-1] == "instance.succeeded"
    assert happened.count("step.succeeded") == 2
    assert "INFO orbit.worker: connected to " in (installation.folder / "worker.log").read_text()
    assert re.search(r"^say +TASK +SUCCEEDED", watched.stdout, re.MULTILINE)
    assert 'output    {"said":"HÄL"}' in watched.stdout

    shown = orbit("show", instance_id, "--json", environment=env)
    content = json.loads(shown.stdout)
    assert (content["state"], content["output"]) == ("SUCCEEDED", {"said": "HÄL"})
    assert [step["id"] for step in content["steps"]] == ["say", "pause"]

    listed = orbit("queues", environment=env)
    assert re.search(r"^bootstrap +open +0 +100000 +100 +1000 +1 +[0-9a-f]{32}$", listed.stdout, re.MULTILINE)
    assert "Traceback" not in installation.node.log.read_text()


@pytest.mark.databases("sqlite")
def test_refusals_are_lines_and_exit_codes(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands run in this process here, which is faster; the node is real all the same."""

    def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
        for name, value in {**installation.environment, **variables}.items():
            monkeypatch.setenv(name, value)
        code = program.run(arguments)
        return code, *capsys.readouterr()

    wrong = installation.file("wrong.yaml", ECHO.replace("steps.say", "steps.sya").replace("100ms", "soon"))
    code, out, err = run("publish", wrong)
    assert (code, out) == (1, "")
    assert len(re.findall(rf"^{re.escape(wrong)}:\d+:\d+: ", err, re.MULTILINE)) == 2
    assert re.search(r"^ +\^$", err, re.MULTILINE)

    code, out, err = run("show", "0" * 32)
    assert (code, out) == (1, "")
    assert err.startswith("orbit: NOT_FOUND (404)")
    assert run("start", "echo", "--input", "{")[0] == 2

    code, _, err = run("queues", ORBIT_TOKEN="0" * 32 + "." + "x" * 43)
    assert code == 1
    assert "UNAUTHENTICATED" in err
    assert "x" * 43 not in err
    assert run("queues", ORBIT_TOKEN="", ORBIT_URL="http://127.0.0.1:9")[0] == 3
    code, _, err = run("queues", ORBIT_URL="", ORBIT_CREDENTIALS_FILE="")
    assert code == 1
    assert "ORBIT_URL is not set" in err

    slow = installation.file("slow.yaml", ECHO.replace("100ms", "30m").replace("workflow: echo", "workflow: slow"))
    assert run("publish", slow)[0] == 0
    code, out, _ = run("start", "slow", "--input", '{"text": "x"}')
    assert code == 0
    instance_id = out.strip()
    wait_until(lambda: re.search(r"^pause +WAIT +WAITING", run("show", instance_id)[1], re.MULTILINE))
    code, out, _ = run("watch", instance_id, "--timeout", "1")
    assert code == 1
    assert "step.submitted" in out
    assert re.search(r"^pause +WAIT ", out, re.MULTILINE)


def test_r088_a_node_refuses_a_schema_that_is_not_its_own(short_folder: Path) -> None:
    variables = {"ORBIT_DATABASE_URL": f"sqlite:///{short_folder / 'empty.db'}"}
    refused = orbit("server", "--port", "0", environment=variables)
    assert refused.returncode == 3
    assert "run `orbit db upgrade`" in refused.stderr
    assert not (short_folder / "empty.db").exists()


@pytest.mark.databases("sqlite")
def test_many_instances_are_decided_about_at_the_command_line(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        for name, value in installation.environment.items():
            monkeypatch.setenv(name, value)
        code = program.run(arguments)
        return code, *capsys.readouterr()

    batch = ("instance", "batch")
    slow = installation.file("slow.yaml", ECHO.replace("100ms", "30m").replace("workflow: echo", "workflow: slow"))
    assert run("publish", slow)[0] == 0
    ids = [run("start", "slow", "--input", '{"text": "x"}', "--label", "team=a")[1].strip() for _ in range(3)]
    for each in ids:
        wait_until(lambda each=each: re.search(r"^pause +WAIT +WAITING", run("show", each)[1], re.MULTILINE))  # type: ignore[misc]

    code, out, _ = run(*batch, "preview", "pause", "--label", "team=a")
    assert (code, out.splitlines()[0]) == (0, "3 instances: 3 RUNNING")
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [[each, "slow@1"] for each in ids]
    assert run(*batch, "preview", "pause")[0] == 1, "everything is no selection"

    code, out, _ = run(*batch, "start", "pause", "--workflow", "slow", "--reason", "a look", "--rate", "500", "--watch")
    assert (code, out.splitlines()[-1]) == (0, "instance.pause  DONE  3 of 3 done")
    batch_id = out.splitlines()[0]
    listed = run("instance", "list", "--workflow", "slow", "--control", "PAUSED")[1]
    assert len(listed.splitlines()) == 4
    one = run("show", ids[0])[1]
    assert re.search(rf"^instance  {ids[0]}  slow version 1  RUNNING  PAUSED  revision \d+$", one, re.MULTILINE)
    assert re.search(r"^paused    20\S+  by [0-9a-f]{32}: a look$", one, re.MULTILINE)
    shown = run(*batch, "items", batch_id)[1].splitlines()
    assert [line.split()[:4] for line in shown[1:]] == [[each, "DONE", "RUNNING", "PAUSED"] for each in ids]
    assert "reason    a look" in run(*batch, "show", batch_id)[1]
    assert batch_id in run(*batch, "list")[1]
    assert "STATE_CONFLICT" in run(*batch, "stop", batch_id, "--reason", "late")[2]

    code, out, _ = run(*batch, "start", "migrate", "--id", ids[0], "--to-version", "7", "--reason", "newer", "--watch")
    assert code == 1, "an item was refused"
    assert "instance.migrate  DONE  0 of 1 done, 1 refused" in out.splitlines()
    assert re.search(rf"^{ids[0]}  REFUSED  NOT_FOUND: ", out, re.MULTILINE)

    code, out, _ = run(*batch, "start", "cancel", "--workflow", "slow", "--reason", "over", "--compensate", "--json")
    assert code == 0
    assert run(*batch, "watch", json.loads(out)["batch"]["id"])[0] == 0
    assert {run("watch", each)[0] for each in ids} == {1}, "cancelled"

    held = installation.file("held.yaml", HELD)
    assert run("publish", held)[0] == 0
    one = run("start", "held")[1].strip()
    assert run("watch", one)[0] == 1
    told = ("--reason", "the books say so", "--evidence", '{"page": 7}')
    assert "NEEDS_RECOVERY -> SUCCEEDED" in run("instance", "recover", one, "complete", "--output", "{}", *told)[1]
    decided = run("instance", "recoveries", one)[1]
    assert re.search(r"^20\S+  COMPLETE of the instance, to revision 2$", decided, re.MULTILINE)
    assert ': the books say so\n  evidence  {"page":7}  sha256 ' in decided

    assert run("namespace", "show")[1].startswith(
        "no limit, 0 counted, revision 0\nmax_tasks             100000  (default)"
    )
    assert run("namespace", "set-limit", "1", "--reason", "a small machine")[1] == "1, revision 1\n"
    assert run("start", "slow", "--input", '{"text": "x"}')[0] == 0
    assert "TOO_MANY_RUNNING" in run("start", "slow", "--input", '{"text": "x"}')[2]
    assert run("namespace", "show")[1].startswith("at most 1 running instances, 1 counted, revision 1\n")
    assert "STATE_CONFLICT" in run("namespace", "set-limit", "2", "--reason", "x", "--revision", "7")[2]
    assert run("namespace", "set-limit", "none", "--reason", "a large one")[1] == "no limit, revision 2\n"
    assert run("namespace", "set-limit", "nothing", "--reason", "x")[0] == 2


@pytest.mark.databases("sqlite")
def test_what_a_namespace_publishes_is_limited_at_the_command_line(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        for name, value in installation.environment.items():
            monkeypatch.setenv(name, value)
        code = program.run(arguments)
        return code, *capsys.readouterr()

    def limit(*arguments: str) -> tuple[int, str, str]:
        return run("namespace", "set-bounds", *arguments, "--reason", "short ones only")

    assert "\nmax_tasks             1\n" in limit("--max-tasks", "1", "--max-rounds", "7")[1]
    assert "\nmax_rounds            100000  (default)\n" in limit("--max-rounds", "default")[1]
    assert limit()[0] == 2
    assert limit("--max-tasks", "none")[0] == 2
    assert "1000000" in limit("--max-tasks", "1000001")[2]
    limits = installation.file("limits.json", run("namespace", "show", "--json")[1])
    two = installation.file("two.yaml", TWO_TASKS)
    assert run("check", two)[0] == 0
    said = "one instance could use 2 tasks (`max_tasks` of the namespace is 1)"
    code, found, _ = run("check", two, "--limits", limits)
    assert (code, said in found) == (1, True)
    code, _, refused = run("publish", two)
    assert (code, said in refused) == (1, True)
    assert limit("--max-tasks", "default")[0] == 0
    assert run("publish", two)[0] == 0


@pytest.mark.databases("sqlite")
def test_tasks_and_their_limits_are_looked_after_at_the_command_line(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        for name, value in installation.environment.items():
            monkeypatch.setenv(name, value)
        code = program.run(arguments)
        return code, *capsys.readouterr()

    def submit(*arguments: str) -> str:
        code, out, err = run("task", "submit", *arguments, "--queue", "bootstrap")
        assert code == 0, err
        return out.splitlines()[0]

    echo = ("echo.say@1", "--params", '{"text": "hi"}')
    code, out, _ = run("task", "submit", *echo, "--queue", "bootstrap", "--label", "team=red", "--watch")
    assert (code, out.splitlines()[1:]) == (0, ["state        SUCCEEDED at revision 4", 'output       {"text":"HI"}'])
    done = out.splitlines()[0]
    assert run("task", "submit", "echo", "--queue", "bootstrap")[0] == 2

    waiting = [submit("nobody@1", "--label", "team=red", "--business-key", "k") for _ in range(3)]
    listed = run("task", "list", "--label", "team=red")[1].splitlines()[1:]
    assert [line.split()[0] for line in listed] == [*waiting[::-1], done]
    assert "NO_COMPATIBLE_WORKER" in run("task", "explain", waiting[0])[1].splitlines()[0]
    assert run("task", "list")[0] == 1, "everything is no search"
    code, out, _ = run("task", "reschedule", waiting[0], "--priority", "9", "--reason", "urgent")
    assert (code, out) == (0, "WAITING at revision 2\n")
    stale = run("task", "reschedule", waiting[0], "--priority", "1", "--reason", "x", "--revision", "1")
    assert "STATE_CONFLICT" in stale[2]

    doubtful = submit("doubt@1")
    wait_until(lambda: "NEEDS_REVIEW" in run("task", "show", doubtful)[1])
    evidence = ("--evidence", '{"seen": "at the bank"}', "--reason", "looked")
    assert "safety statement" in run("task", "review", doubtful, "retry", *evidence)[2]
    late = ("--late", f"{'0' * 32}/{'1' * 32}")
    assert "no such late result" in run("task", "review", doubtful, "succeeded", *evidence, *late)[2]
    assert run("task", "review", doubtful, "failed", *evidence)[1].startswith("FAILED at revision ")
    assert "FAILED by " in run("task", "show", doubtful)[1]
    code, out, _ = run("task", "retry", doubtful, *evidence, "--safety-statement", "it was refused")
    assert code == 0
    assert f"retry of     {doubtful}" in run("task", "show", out.strip())[1]

    batch = ("task", "batch")
    assert run(*batch, "preview", "cancel", "--label", "team=red")[1].splitlines()[0] == "3 tasks: 3 WAITING"
    code, out, _ = run(*batch, "start", "cancel", "--business-key", "k", "--reason", "over", "--rate", "500", "--watch")
    assert (code, out.splitlines()[-1]) == (0, "task.cancel  DONE  3 of 3 done")
    items = run(*batch, "items", out.splitlines()[0])[1].splitlines()[1:]
    assert [line.split() for line in items] == [[each, "DONE", "CANCELLED"] for each in waiting]
    assert run("task", "cancel", waiting[0], "--reason", "again")[1] == "CANCELLED\n"


@pytest.mark.databases("sqlite")
def test_types_and_limits_are_set_at_the_command_line(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        for name, value in installation.environment.items():
            monkeypatch.setenv(name, value)
        code = program.run(arguments)
        return code, *capsys.readouterr()

    kind = '{"recovery": "REPLAY_SAFE", "defaults": {"retry": {"max_attempts": 2}}}'
    code, out, _ = run("task-type", "put", "pay.out@1", kind, "--reason", "new")
    assert (code, out) == (0, "pay.out@1  REPLAY_SAFE  revision 1\n")
    assert run("task-type", "put", "pay.out@1", kind, "--reason", "new", "--revision", "0")[1].endswith(", as it was\n")
    assert json.loads(run("task-type", "show", "pay.out@1")[1])["defaults"] == {"retry": {"max_attempts": 2}}
    assert "pay.out@1" in run("task-type", "list")[1]
    assert run("task-type", "put", "pay.out@1", '{"recovery": "MANUAL", "more": 1}', "--reason", "x")[0] == 2

    assert run("key", "set", "supplier:*", "3", "--reason", "they ask for it")[1] == "limit 3, revision 1\n"
    assert run("key", "show", "supplier:acme")[1].startswith("0 of 3 hold it, not set for itself, 0 wait")
    assert run("application", "set-quotas", "--max-concurrency", "7", "--reason", "small")[1] == "revision 1\n"
    assert "in flight   0 of 7" in run("application", "show")[1]
    assert run("application", "set-quotas", "--max-concurrency", "none", "--reason", "large")[1] == "revision 2\n"
    assert run("configure-queue", "bootstrap", "--pause", "--reason", "a look")[1].startswith(
        "paused, concurrency 100,"
    )
    assert run("configure-queue", "bootstrap", "--open", "--reason", "seen")[1].startswith("open, ")
    assert "no queue" in run("configure-queue", "nowhere", "--open", "--reason", "x")[2]
