"""`orbit task ...`: submit tasks, find them, and see what became of one and why it waits."""

from typing import TYPE_CHECKING, Any

import click

from orbit.cli.instances import table
from orbit.cli.options import JsonText, Name, as_json, key_of, print_json
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.sdk.decisions import Verdict
    from orbit.sdk.models import Attempt, Task

_STATES = ("WAITING", "LEASED", "RUNNING", "NEEDS_REVIEW", "SUCCEEDED", "FAILED", "CANCELLED")
_FILTERS = ("queue", "state", "type", "business_key", "source", "label", "created_after", "created_before")
_HEAD = ("ID", "TYPE", "QUEUE", "STATE", "ATTEMPTS", "ACCEPTED", "BUSINESS KEY")


class TypeVersion(click.ParamType[tuple[str, int]]):
    """A task type with its version, as type@version."""

    name = "type@version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Part the type from its version."""
        if isinstance(value, tuple):
            return value
        name, _, version = str(value).rpartition("@")
        if not name or not version.isdecimal() or int(version) < 1:
            self.fail("a task type is written type@version, such as mail.send@1", param, ctx)
        return Name().convert(name, param, ctx), int(version)


class Label(click.ParamType[tuple[str, str]]):
    """A label, as name=value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Part the name from the value."""
        if isinstance(value, tuple):
            return value
        name, separator, text = str(value).partition("=")
        if not name or not separator:
            self.fail("a label is written name=value", param, ctx)
        return name, text


@click.command()
@click.argument("type_", type=TypeVersion(), metavar="TYPE@VERSION")
@click.option("--queue", type=Name(), required=True, help="The queue's name.")
@click.option("--params", type=JsonText(), help="JSON, @FILE, or - (stdin); null if not given.")
@click.option("--business-key", help="What you look it up by.")
@click.option("--label", "labels", type=Label(), multiple=True, help="A label; may be given more than once.")
@click.option("--concurrency-key", "concurrency_keys", multiple=True, help="A key that it holds; up to four.")
@click.option("--fairness-key", help="Whose tasks share its lane fairly.")
@click.option("--priority", type=click.IntRange(0, 9), help="9 is the most urgent; 4 if not given.")
@click.option("--delay", "delay_seconds", type=click.FloatRange(min=0), help="Seconds before it may start.")
@click.option("--available-at", metavar="INSTANT", help="When it may start (RFC 3339).")
@click.option("--deadline-at", metavar="INSTANT", help="The end of everything; in 24 hours if not given.")
@click.option("--watch", "is_watched", is_flag=True, help="Wait for its end and print its output.")
@key_of("task")
@as_json
def submit(type_: tuple[str, int], key: str, as_json: bool, is_watched: bool, **said: Any) -> None:
    """Submit a task and print its id, alone on a line."""
    from msgspec import UNSET

    from orbit.sdk.client import Client
    from orbit.sdk.models import SubmitTask

    params = said.pop("params")
    request = SubmitTask(
        type=type_[0],
        version=type_[1],
        params=UNSET if params is None else params,
        labels=dict(said.pop("labels")) or None,
        concurrency_keys=list(said.pop("concurrency_keys")) or None,
        **said,
    )
    with Client() as client:
        done = client.submit_task(key, request)
        if not as_json:
            click.echo(done.task.id)
        elif not is_watched:
            print_json(done)
        if is_watched:
            _end(client.result(done.task.id), as_json=as_json)


@click.command("list")
@click.option("--queue", type=Name(), help="In this queue; with a state or type it needs --created-after.")
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="In this state.")
@click.option("--type", "type", type=Name(), help="Of this type, whatever its version.")
@click.option("--business-key", help="With this business key.")
@click.option("--label", metavar="NAME=VALUE", help="With this label.")
@click.option("--source", metavar="KIND:ID", help="Made by this, such as workflow:INSTANCE or schedule:ID.")
@click.option("--created-after", metavar="INSTANT", help="Accepted at this instant (RFC 3339) or later.")
@click.option("--created-before", metavar="INSTANT", help="Accepted before this instant.")
@click.option("--count", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@as_json
def list_(count: int, as_json: bool, **said: str | None) -> None:
    """List tasks, the newest first. It needs a queue, a business key, a label or a source."""
    from itertools import islice

    from orbit.sdk.client import Client

    wanted = {name: value for name in _FILTERS if (value := said[name]) is not None}
    with Client() as client:
        found = list(islice(client.list_tasks(**wanted), count))
    if as_json:
        print_json(found)
        return
    for line in table(_HEAD, [_cells(each) for each in found]):
        click.echo(line)


@click.command()
@click.argument("task_id", metavar="ID")
@as_json
def show(task_id: str, as_json: bool) -> None:
    """Show a task: its state, each attempt, what was decided about it, and its output or error."""
    from orbit.sdk.client import Client

    with Client() as client:
        task = client.get_task(task_id)
        attempts, verdicts = client.task_attempts(task_id), client.task_verdicts(task_id)
    if as_json:
        print_json({"task": task, "attempts": attempts, "verdicts": verdicts})
        return
    for name, value in _facts(task):
        click.echo(f"{name:13}{value}")
    if attempts:
        for line in table(("ATTEMPT", "STATE", "WORKER", "STARTED", "ENDED", "ERROR"), list(map(_tried, attempts))):
            click.echo(line)
    for attempt in attempts:
        for report in attempt.late:
            named = f"{attempt.id}/{report.get('message_id')}"
            click.echo(f"late         {report.get('outcome')} {named} at {report.get('recorded_at')}")
    for verdict in verdicts:
        click.echo(f"decided      {_decided(verdict)}")


@click.command()
@click.argument("task_id", metavar="ID")
@as_json
def explain(task_id: str, as_json: bool) -> None:
    """Say why a task waits: the first thing that stands in its way, and the figures of all that could."""
    from orbit.jsontext import dumps
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.explain_task(task_id)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.state}" if found.reason is None else f"{found.state}: {found.reason}")
    for name, value in found.details.items():
        click.echo(f"  {name} {value if isinstance(value, str) else dumps(value).decode()}")


def _cells(task: "Task") -> tuple[str, ...]:
    state = task.state if task.wait_reason is None else f"{task.state} ({task.wait_reason})"
    what = f"{task.type}@{task.version}"
    return task.id, what, task.queue, state, str(task.attempts), task.accepted_at[:19], task.business_key or ""


def _facts(task: "Task") -> list[tuple[str, Json]]:
    from orbit.jsontext import dumps

    state = task.state if task.wait_reason is None else f"{task.state} ({task.wait_reason})"
    labels = " ".join(f"{name}={value}" for name, value in task.labels.items())
    source = task.source.kind if task.source.id is None else f"{task.source.kind} {task.source.id}"
    error = task.error
    facts: list[tuple[str, Json]] = [
        ("task", f"{task.type}@{task.version} in {task.queue}, priority {task.priority}"),
        ("state", f"{state} at revision {task.revision}"),
        ("accepted", task.accepted_at),
        ("available", task.available_at),
        ("deadline", task.deadline_at),
        ("finished", task.finished_at),
        ("source", source),
        ("retry of", task.retry_of),
        ("business key", task.business_key),
        ("labels", labels),
        ("keys", " ".join(task.concurrency_keys)),
        ("cancel", None if task.cancel_requested_at is None else f"asked for at {task.cancel_requested_at}"),
        ("params", dumps(task.params).decode()),
        ("error", None if error is None else f"{error.code}: {error.message}"),
        ("output", dumps(task.output).decode() if task.state == "SUCCEEDED" and task.output_ref is None else None),
        ("output at", None if task.output_ref is None else task.output_ref.uri),
    ]
    return [(name, value) for name, value in facts if value]


def _tried(attempt: "Attempt") -> tuple[str, ...]:
    error = attempt.error
    words = "" if error is None else f"{error.code}: {error.message}"
    times = ((attempt.started_at or "")[:19], (attempt.finished_at or "")[:19])
    return str(attempt.number), attempt.state, attempt.worker or "", *times, words


def _decided(verdict: "Verdict") -> str:
    from orbit.jsontext import dumps

    late = "" if verdict.late_result is None else f", by the late result {verdict.late_result.message_id}"
    evidence = dumps(verdict.evidence).decode()
    return f"{verdict.kind} by {verdict.actor} at {verdict.created_at[:19]}: {verdict.reason}{late}; {evidence}"


def _end(task: "Task", *, as_json: bool) -> None:
    """Print how a task ended; leave with 1 if it did not succeed."""
    if as_json:
        print_json(task)
    else:
        for name, value in _facts(task):
            if name in {"state", "error", "output", "output at"}:
                click.echo(f"{name:13}{value}")
    if task.state != "SUCCEEDED":
        raise SystemExit(1)
