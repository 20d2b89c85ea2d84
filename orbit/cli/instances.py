"""`orbit show` and `orbit watch`: how an instance stands, once or as it goes on."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.options import as_json, print_json

if TYPE_CHECKING:
    from orbit.sdk.client import Client
    from orbit.sdk.models import HistoryEntry, Instance, Step

_WAIT_SECONDS = 10.0
_UNDO = ".undo"
_STEP_HEAD = ("STEP", "KIND", "STATE", "ROUND", "TASK OR CHILD")
# An instance that stands here goes on only when a person acts.
_HELD = "NEEDS_RECOVERY"


@click.command()
@click.argument("instance_id", metavar="ID")
@as_json
def show(instance_id: str, as_json: bool) -> None:
    """Show an instance: its state, each step, and its output or error."""
    from orbit.sdk.client import Client

    with Client() as client:
        instance = client.get_instance(instance_id)
        steps = client.instance_steps(instance_id)
    if as_json:
        from msgspec import to_builtins

        print_json(to_builtins(instance) | {"steps": to_builtins(steps)})
        return
    for line in summary_lines(instance, steps):
        click.echo(line)


@click.command()
@click.argument("instance_id", metavar="ID")
@click.option("--timeout", "timeout_seconds", type=click.FloatRange(0), help="Seconds to watch; for ever if not given.")
def watch(instance_id: str, timeout_seconds: float | None) -> None:
    """Follow an instance: print what happens as it happens, and at the end every step.

    Ends with 0 only if the instance SUCCEEDED; with 1 if it ended otherwise, waits for a person, or the time is up.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        instance = follow(client, instance_id, click.echo, timeout_seconds=timeout_seconds)
        steps = client.instance_steps(instance_id)
    click.echo("")
    for line in summary_lines(instance, steps):
        click.echo(line)
    sys.exit(instance.state != "SUCCEEDED")


@click.command()
@click.argument("instance_id", metavar="ID")
@click.argument("step")
@as_json
def items(instance_id: str, step: str, as_json: bool) -> None:
    """List the items of the foreach STEP that have begun, with their steps: fetch[3] is one of the fourth item.

    These are the names that `orbit instance recover --step` takes.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.instance_items(instance_id, step))
    if as_json:
        print_json({"items": found})
        return
    steps = [part for item in found for part in item.steps]
    for line in table(_STEP_HEAD, [_step_cells(part) for part in steps]):
        click.echo(line)
    for part in steps:
        if part.error is not None:
            click.echo(f"error     in {part.id}: {_error(part.error)}")


def follow(
    client: "Client", instance_id: str, say: Callable[[str], None], *, timeout_seconds: float | None = None
) -> "Instance":
    """Say what happens to an instance, entry by entry, until it ends, is held for a person, or the time is up.

    A server that is away for a moment is asked again: reading changes nothing.
    """
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    said = (-1, -1)
    revision: int | None = None
    while True:
        left = _WAIT_SECONDS if until is None else max(0.0, min(_WAIT_SECONDS, until - time.monotonic()))
        instance = client.get_instance(
            instance_id, wait_seconds=0.0 if revision is None else left, after_revision=revision
        )
        for entry in client.instance_history(instance_id):
            if (entry.revision, entry.index) > said:
                said = (entry.revision, entry.index)
                say(entry_line(entry))
        # History may already tell of later revisions than this reading; the next one catches up.
        is_over = until is not None and time.monotonic() >= until
        if instance.is_finished or instance.state == _HELD or is_over:
            return instance
        revision = instance.revision


def entry_line(entry: "HistoryEntry") -> str:
    """Write one entry of the history: when, what, which step, and the details that a person looks for."""
    clock = entry.at[11:23]
    return f"{clock}  {entry.type:<24}{entry.step or '':<18}{_details(entry.data)}".rstrip()


def summary_lines(instance: "Instance", steps: "list[Step]") -> Iterator[str]:
    """Write an instance's head, a table of its steps, and its outcome."""
    yield f"instance  {instance.id}  {instance.workflow} version {instance.version}  {_standing(instance)}"
    if instance.business_key is not None:
        yield f"key       {instance.business_key}"
    if instance.forked_from is not None:
        yield f"fork of   {instance.forked_from}"
    if instance.pause is not None:
        paused = instance.pause
        yield f"paused    {paused.get('paused_at')}  by {paused.get('by')}: {paused.get('reason')}"
    if instance.parent is not None:
        yield f"parent    {instance.parent.get('id')}  step {instance.parent.get('step')}"
    yield f"started   {instance.started_at}"
    if instance.finished_at:
        yield f"finished  {instance.finished_at}"
    yield ""
    # What would undo a step is of interest only where something is undone.
    shown = [step for step in steps if instance.compensation is not None or not step.id.endswith(_UNDO)]
    yield from table(_STEP_HEAD, [_step_cells(step) for step in shown])
    yield ""
    if instance.output is not None:
        yield f"output    {_short(instance.output)}"
    if instance.error is not None:
        yield f"error     {_error(instance.error)}"
    for step in steps:
        if step.error is not None:
            yield f"error     in {step.id}: {_error(step.error)}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Write rows in columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _standing(instance: "Instance") -> str:
    """Write a state with all that stands beside it."""
    parts = [instance.state + ("" if instance.ending_as is None else f" as {instance.ending_as}")]
    if instance.control not in {"", "ACTIVE"}:
        parts.append(instance.control)
    if instance.compensation is not None:
        parts.append(f"compensation {instance.compensation}")
    return "  ".join([*parts, f"revision {instance.revision}"])


def _step_cells(step: "Step") -> tuple[str, ...]:
    state = step.state if step.reason is None else f"{step.state} ({step.reason})"
    if step.items:
        state += f" {step.items['ended']} of {step.items['count']}"
    return step.id, step.kind, state, "" if not step.round else str(step.round), step.task_id or step.child_id or ""


def _details(data: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_error(value) if name == 'error' else _short(value)}" for name, value in data.items())


def _error(error: Any) -> str:
    if not isinstance(error, dict):
        return _short(error)
    return f"{error.get('code', '')}: {error.get('message', '')}"


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    from orbit.jsontext import dumps

    return dumps(value).decode()
