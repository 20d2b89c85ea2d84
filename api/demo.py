"""`orbit demo`: the payout workflow from its YAML to its end, on real parts, each step shown as it happens.

It makes an environment in a folder of its own (or on the database that is given), starts a node and a worker as
processes of their own, and talks to the node by HTTP as any client would. It ends with 0 only if the instance has
SUCCEEDED.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx

from api.bootstrap import Wanted, bootstrap_to_file
from api.installation import root_folder
from migrations.upgrade import upgrade
from orbit.database import Database
from orbit.errors import NotFound, Unavailable
from orbit.store.tenancy import NamespaceName
from pulse.queues import QueueSettings

QUEUE = "payments"
INPUT = {"order_id": "A-1042", "amount": 12_500.0, "supplier": "northwind"}
SECONDS_MAX = 120
_START_SECONDS = 60
_WAIT_SECONDS = 5
_STOP_SECONDS = 30
_SETTINGS = QueueSettings(paused=False, max_concurrency=10, rate_per_second=100, max_unfinished_tasks=1_000)
_TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})

Say = Callable[[str], None]


class Demo:
    """One run of the demo; `say` gets each line that it prints."""

    def __init__(self, database_url: str | None, *, keep: bool, say: Say) -> None:
        self._database_url = database_url
        self._keep = keep
        self._say = say
        self._began = time.monotonic()
        self._shown: dict[str, tuple[str, int]] = {}
        self._is_approved = False

    def run(self) -> int:
        """Run it and return the exit code."""
        example = root_folder() / "examples" / "payout"
        if not example.is_dir():
            message = f"{example} is not there: run the demo from a clone of the repository"
            raise NotFound(message)
        folder = Path(tempfile.mkdtemp(prefix="orbit-demo-"))
        try:
            with ExitStack() as stack:
                return self._run(stack, example, folder)
        finally:
            if self._keep:
                self._say(f"kept: {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _run(self, stack: ExitStack, example: Path, folder: Path) -> int:
        url, credentials = self._environment(folder)
        node_url = stack.enter_context(_node(folder, url))
        self._tell(f"node       {node_url}")
        environment = {"ORBIT_URL": node_url, "ORBIT_CREDENTIALS_FILE": str(credentials)}
        stack.enter_context(_process([str(example / "worker.py")], folder / "worker.log", environment))
        token = _token(credentials)
        headers = {"Authorization": f"Bearer {token}"}
        client = stack.enter_context(httpx.Client(base_url=node_url, headers=headers, timeout=30.0, trust_env=False))
        self._publish(client, example / "payout.yaml")
        instance = self._start(client)
        final = self._follow(client, instance)
        self._table(client, final)
        return 0 if final["state"] == "SUCCEEDED" else 1

    def _environment(self, folder: Path) -> tuple[str, Path]:
        """Make schema, namespace, queue and credential; return the database's URL and the credential's file."""
        url = self._database_url or f"sqlite:///{folder / 'orbit.db'}"
        upgrade(url)
        credentials = folder / "credentials.json"
        wanted = Wanted(NamespaceName("demo", "default", "demo"), QUEUE, _SETTINGS, worker_access=True)
        with closing(Database.open(url)) as database:
            bootstrap_to_file(database, wanted, credentials)
            where = "embedded SQLite" if database.is_sqlite else f"{database.url.host}/{database.url.database}"
        self._tell(f"database   {where}")
        return url, credentials

    def _publish(self, client: httpx.Client, definition: Path) -> None:
        headers = {"Content-Type": "application/yaml", "Idempotency-Key": os.urandom(16).hex()}
        data = _data(client.post("/v1/workflows", content=definition.read_bytes(), headers=headers))
        bounds = data["bounds"]
        self._tell(
            f"published  {data['workflow']} version {data['version']}: at most {bounds['tasks']} tasks, "
            f"{bounds['concurrent_tasks']} at once"
        )

    def _start(self, client: httpx.Client) -> dict[str, Any]:
        body = {"workflow": "payout", "input": INPUT, "business_key": INPUT["order_id"]}
        data = _data(client.post("/v1/instances", json=body, headers={"Idempotency-Key": os.urandom(16).hex()}))
        instance: dict[str, Any] = data["instance"]
        self._tell(f"instance   {instance['id']}")
        return instance

    def _follow(self, client: httpx.Client, instance: dict[str, Any]) -> dict[str, Any]:
        """Show each change of a step until the instance has ended, or the demo's time is over."""
        path = f"/v1/instances/{instance['id']}"
        revision = "0"
        while True:
            waiting = {"wait_seconds": str(_WAIT_SECONDS), "after_revision": revision}
            now: dict[str, Any] = _data(client.get(path, params=waiting))
            for step in _data(client.get(f"{path}/steps")):
                self._show(step)
                if step.get("reason") == "SIGNAL" and not self._is_approved:
                    self._approve(client, path)
            if now["state"] in _TERMINAL or now["state"] == "NEEDS_RECOVERY":
                return now
            if time.monotonic() - self._began > SECONDS_MAX:
                self._tell(f"given up after {SECONDS_MAX} s: {_data(client.get(f'{path}:explain'))['summary']}")
                return now
            revision = now["revision"]

    def _approve(self, client: httpx.Client, path: str) -> None:
        """Play the person who approves a risky order."""
        body = {"name": "approved", "payload": {"by": "the demo"}}
        _data(client.post(f"{path}:signal", json=body, headers={"Idempotency-Key": os.urandom(16).hex()}))
        self._is_approved = True
        self._tell("signal     sent the signal approved, as whoever may approve would")

    def _show(self, step: dict[str, Any]) -> None:
        seen = (step["state"], step.get("round") or 0)
        if step["state"] == "PENDING" or self._shown.get(step["id"]) == seen:
            return
        self._shown[step["id"]] = seen
        self._tell(f"{step['id']:<14} {step['kind']:<7} {_words(step)}")

    def _table(self, client: httpx.Client, final: dict[str, Any]) -> None:
        """Print every step with what it did and took."""
        self._say("")
        self._say(f"{'STEP':<16}{'KIND':<9}{'STATE':<12}{'ROUNDS':<8}TASK")
        for step in _data(client.get(f"/v1/instances/{final['id']}/steps")):
            rounds = str(step.get("round") or "") if step["kind"] == "POLL" else ""
            task = step.get("task_id") or ""
            self._say(f"{step['id']:<16}{step['kind']:<9}{step['state']:<12}{rounds:<8}{task}")
        self._say("")
        if final.get("output") is not None:
            self._say(f"output     {final['output']}")
        if final.get("error") is not None:
            self._say(f"error      {final['error']}")
        self._say(f"instance   {final['id']} {final['state']} after {time.monotonic() - self._began:.1f} s")

    def _tell(self, line: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.2f} s  {line}")


def _words(step: dict[str, Any]) -> str:
    """Say what a step's state means now."""
    details = [step["state"]]
    if step["kind"] == "POLL" and step.get("round"):
        details.append(f"round {step['round']}")
    if step.get("case"):
        details.append(f"chose {step['case']}")
    if step.get("error"):
        details.append(step["error"]["message"])
    return ", ".join(details)


def _data(response: httpx.Response) -> Any:
    """Return an answer's data; raise what the server refused as a line for people."""
    body = response.json()
    if "error" in body:
        message = f"{response.request.method} {response.request.url.path}: {body['error']['message']}"
        raise Unavailable(message)
    return body["data"]


def _token(credentials: Path) -> str:
    return cast("str", json.loads(credentials.read_text(encoding="utf-8"))["token"])


@contextmanager
def _node(folder: Path, database_url: str) -> Iterator[str]:
    """Run a node on a free port; give its address once it listens."""
    log = folder / "node.log"
    arguments = [str(root_folder() / "orbit" / "__main__.py"), "server", "--port", "0", "--processes", "1"]
    # The URL may hold a password, so it is never an argument.
    environment = {"ORBIT_DATABASE_URL": database_url, "ORBIT_LOG_LEVEL": "INFO", "ORBIT_HOST": "127.0.0.1"}
    with _process(arguments, log, environment, pipe=True) as node:
        assert node.stdout is not None
        line = node.stdout.readline().decode().strip()
        if not line.startswith("listening on "):
            node.wait(_START_SECONDS)
            tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-20:])
            message = f"the node did not start:\n{tail}"
            raise Unavailable(message)
        yield line.removeprefix("listening on ")


@contextmanager
def _process(
    arguments: list[str], log: Path, environment: dict[str, str], *, pipe: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python process of ours until the block ends, then drain it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")}
    kept["PYTHONPATH"] = str(root_folder())
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603  (our own command)
            [sys.executable, "-P", *arguments],
            env=kept | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else file,
            stderr=file,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
