"""`orbit schedule show`, `list`, `firings`, `pause` and `resume`."""

import json
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.instances import table
from orbit.cli.options import as_json, key_of, print_json
from orbit.cli.schedules import show_change

if TYPE_CHECKING:
    from orbit.sdk.schedule_models import Firing, Schedule

_STATES = ("ACTIVE", "PAUSED", "STOPPED", "ENDED")
_FIRING_STATES = ("QUEUED", "FIRED", "SKIPPED", "REFUSED")
_HEAD = ("ID", "NAME", "STATE", "WHEN", "MAKES", "NEXT")
_FIRINGS_HEAD = ("INSTANT", "COUNT", "LAST", "REVISION", "STATE", "WHAT")


@click.command()
@click.argument("schedule_id", metavar="ID")
@as_json
def show(schedule_id: str, as_json: bool) -> None:
    """Show a schedule: its state, its next instant, and its configuration as JSON."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.get_schedule(schedule_id)
    if as_json:
        print_json(found)
        return
    why = found.stop_reason or {}
    stopped = f" ({why.get('code')}: {why.get('message')})" if why else ""
    click.echo(f"{found.state}{stopped}, revision {found.revision}, configured at {found.schedule_revision}")
    click.echo(f"next     {found.next_at or 'never'}")
    if found.backlog:
        click.echo(f"waiting  {found.backlog}")
    if found.latest is not None:
        click.echo(f"latest   {str(found.latest.get('kind')).lower()} {found.latest.get('id')}")
    click.echo(json.dumps(found.configuration, indent=2, ensure_ascii=False))


@click.command("list")
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="In this state.")
@click.option("--count", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@as_json
def list_(count: int, as_json: bool, state: str | None) -> None:
    """List schedules, the newest first."""
    from itertools import islice

    from orbit.sdk.client import Client

    with Client() as client:
        found = list(islice(client.list_schedules(**({} if state is None else {"state": state})), count))
    if as_json:
        print_json(found)
        return
    for line in table(_HEAD, [_cells(each) for each in found]):
        click.echo(line)


@click.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--state", type=click.Choice(_FIRING_STATES, case_sensitive=False), help="In this state.")
@click.option("--count", type=click.IntRange(1), default=20, show_default=True, help="At most so many.")
@as_json
def firings(schedule_id: str, count: int, as_json: bool, state: str | None) -> None:
    """List what became of a schedule's instants, the latest first."""
    from itertools import islice

    from orbit.sdk.client import Client

    with Client() as client:
        query = {} if state is None else {"state": state}
        found = list(islice(client.schedule_firings(schedule_id, **query), count))
    if as_json:
        print_json(found)
        return
    for line in table(_FIRINGS_HEAD, [_firing_cells(each) for each in found]):
        click.echo(line)


@click.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(1), help="Only if it is at this revision.")
@key_of("command")
@as_json
def pause(schedule_id: str, key: str, as_json: bool, reason: str, revision: int | None) -> None:
    """Let a schedule fire nothing more; what it has made goes on."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.pause_schedule(schedule_id, key, reason=reason, expected_revision=revision)
    show_change(done, as_json=as_json)


@click.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(1), help="Only if it is at this revision.")
@key_of("command")
@as_json
def resume(schedule_id: str, key: str, as_json: bool, reason: str, revision: int | None) -> None:
    """Let a paused or stopped schedule fire again; what has passed meanwhile is skipped."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.resume_schedule(schedule_id, key, reason=reason, expected_revision=revision)
    show_change(done, as_json=as_json)


def _cells(each: "Schedule") -> tuple[str, ...]:
    said = each.configuration
    when = f"{said.get('cron')} {said.get('timezone')}" if said.get("cron") else f"every {said.get('every_seconds')} s"
    task, workflow = said.get("task") or {}, said.get("workflow") or {}
    makes = f"{task.get('type')}@{task.get('version')}" if task else str(workflow.get("workflow"))
    return each.id, str(said.get("name")), each.state, when, makes, each.next_at or ""


def _firing_cells(each: "Firing") -> tuple[str, ...]:
    error: dict[str, Any] = each.error or {}
    what = each.task_id or each.instance_id or ""
    if error:
        what = f"{error.get('code')}: {error.get('message')}"
    state = each.state if each.reason is None else f"{each.state} ({each.reason})"
    last = "" if each.count == 1 else each.last_at
    return each.scheduled_at, str(each.count), last, str(each.schedule_revision), state, what
