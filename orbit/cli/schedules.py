"""`orbit schedule create`, `configure` and `preview`: when something is made, what, and by which policies."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.instances import table
from orbit.cli.options import JsonText, Name, as_json, key_of, print_json
from orbit.cli.tasks import Label, TypeVersion

if TYPE_CHECKING:
    from orbit.sdk.schedule_models import ScheduleResult

CommandT = Callable[..., Any]

_TIMES = ("cron", "timezone", "every_seconds", "anchor_at", "starts_at", "ends_at")
# What a rule of one kind has no use for of the other kind.
_INSTEAD = {"cron": ("every_seconds", "anchor_at"), "every_seconds": ("cron", "timezone")}


class WorkflowVersion(click.ParamType[tuple[str, int | None]]):
    """A workflow, with a version as workflow@version or without."""

    name = "workflow[@version]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | None]:
        """Part the workflow from its version."""
        if isinstance(value, tuple):
            return value
        name, separator, version = str(value).partition("@")
        if not name or (separator and (not version.isdecimal() or int(version) < 1)):
            self.fail("a workflow is written name, or name@version", param, ctx)
        return name, int(version) if separator else None


def _tells_when(command: CommandT) -> CommandT:
    """Add the options of a time rule."""
    for decorate in (
        click.option("--ends-at", metavar="INSTANT", help="All instants before this one (RFC 3339)."),
        click.option("--starts-at", metavar="INSTANT", help="No instant before this one."),
        click.option("--anchor-at", metavar="INSTANT", help="What --every counts from; where it begins if not given."),
        click.option("--every", "every_seconds", type=click.FloatRange(min=1), help="Seconds between two instants."),
        click.option("--timezone", help="The time zone of --cron, such as Europe/Berlin or UTC."),
        click.option("--cron", help="Five fields: minute, hour, day of month, month, day of week."),
    ):
        command = decorate(command)
    return command


def _tells_what(command: CommandT) -> CommandT:
    """Add the options of what is made and of the policies."""
    for decorate in (
        click.option("--from", "base", type=JsonText(), help="The whole configuration: JSON, @FILE, or - (stdin)."),
        click.option("--name", type=Name(), help="For people."),
        click.option("--task", type=TypeVersion(), help="Make tasks of this type."),
        click.option("--queue", type=Name(), help="The queue of the tasks."),
        click.option("--params", type=JsonText(), help="Their params: JSON, @FILE, or - (stdin)."),
        click.option("--workflow", type=WorkflowVersion(), help="Start instances of this workflow."),
        click.option("--input", "input_", type=JsonText(), help="Their input: JSON, @FILE, or - (stdin)."),
        click.option("--business-key", help="Business key of what is made."),
        click.option("--label", "labels", type=Label(), multiple=True, help="A label; may be given more than once."),
        click.option(
            "--misfire",
            type=click.Choice(["skip", "coalesce", "catch-up"]),
            help="What becomes of missed instants; catch-up needs --max-count, --max-age and --rate.",
        ),
        click.option("--max-count", type=click.IntRange(1, 100), help="For catch-up: so many, the latest."),
        click.option("--max-age", "max_age_seconds", type=click.FloatRange(min=1), help="For catch-up: in seconds."),
        click.option("--rate", "rate_per_second", type=click.FloatRange(min=0.001), help="For catch-up: in a second."),
        click.option("--grace", "misfire_grace_seconds", type=click.FloatRange(min=0), help="Later is missed; 60."),
        click.option(
            "--overlap",
            type=click.Choice(["allow", "queue", "skip"]),
            help="What becomes of a firing while the one before is not over; queue needs --max-backlog.",
        ),
        click.option("--max-backlog", type=click.IntRange(1, 1_000), help="For queue: so many may wait."),
    )[::-1]:
        command = decorate(command)
    return command


@click.command()
@_tells_what
@_tells_when
@click.option("--paused", is_flag=True, help="Fire nothing before it is resumed.")
@key_of("schedule")
@as_json
def create(key: str, as_json: bool, paused: bool, **said: Any) -> None:
    """Create a schedule and print its id, alone on a line.

    It is described by options, by a JSON object given with --from (the body of POST /v1/schedules, or what `orbit
    schedule show --json` prints as configuration), or by both: options then change what the object says.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.schedule_models import CreateSchedule

    request = CreateSchedule(configuration=_configuration(said, {}), paused=paused or None)
    with Client() as client:
        done = client.create_schedule(key, request)
    if as_json:
        print_json(done)
    else:
        click.echo(done.schedule.id)


@click.command()
@click.argument("schedule_id", metavar="ID")
@_tells_what
@_tells_when
@click.option("--effective-at", metavar="INSTANT", help="Instants from here on follow it; now if not given.")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(1), help="Only if it is at this revision; default: as it is.")
@key_of("command")
@as_json
def configure(schedule_id: str, key: str, as_json: bool, **said: Any) -> None:
    """Give a schedule a new revision; what is not given stays. Instants before --effective-at follow the old one.

    Masked params read [redacted] and can't be sent back: give them again.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.schedule_models import ConfigureSchedule

    with Client() as client:
        now = client.get_schedule(schedule_id)
        request = ConfigureSchedule(
            configuration=_configuration(said, now.configuration),
            expected_revision=said["revision"] or now.revision,
            reason=said["reason"],
            effective_at=said["effective_at"],
        )
        done = client.configure_schedule(schedule_id, key, request)
    show_change(done, as_json=as_json)


@click.command()
@click.option("--schedule", "schedule_id", metavar="ID", help="An existing schedule; a rule then changes it.")
@_tells_when
@click.option("--effective-at", metavar="INSTANT", help="From when on the rule changes the schedule.")
@click.option("--after", metavar="INSTANT", help="Instants from here on; now if not given.")
@click.option("--count", type=click.IntRange(1, 200), default=10, show_default=True, help="So many.")
@as_json
def preview(as_json: bool, **said: Any) -> None:
    """Say when a rule or a schedule would fire; nothing is stored."""
    from orbit.sdk.client import Client
    from orbit.sdk.schedule_models import PreviewSchedule

    with Client() as client:
        points = client.preview_schedule(PreviewSchedule(**said))
    if as_json:
        print_json(points)
        return
    rows = [
        (each.scheduled_at, each.local or "", "" if each.schedule_revision is None else str(each.schedule_revision))
        for each in points
    ]
    for line in table(("INSTANT", "LOCAL TIME", "REVISION"), rows):
        click.echo(line)


def show_change(done: "ScheduleResult", *, as_json: bool) -> None:
    """Print what a schedule has become."""
    if as_json:
        print_json(done)
        return
    schedule = done.schedule
    click.echo(f"{schedule.state}, revision {schedule.revision}, next {schedule.next_at or 'never'}")


def _configuration(said: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Make a configuration of options, upon a JSON object, upon what a schedule has now."""
    base = said["base"]
    if base is not None and not isinstance(base, dict):
        raise click.UsageError("--from is a JSON object")
    made: dict[str, Any] = dict(now) if base is None else dict(base)
    for name, others in _INSTEAD.items():
        if said[name] is not None:
            made.update(dict.fromkeys(others))
    given = {name: said[name] for name in (*_TIMES, "name", "misfire_grace_seconds") if said[name] is not None}
    made |= given
    bounds = ("max_count", "max_age_seconds", "rate_per_second")
    _policy(made, "misfire", said, bounds)
    _policy(made, "overlap", said, ("max_backlog",))
    _target(made, said)
    return made


def _policy(made: dict[str, Any], name: str, said: dict[str, Any], bounds: tuple[str, ...]) -> None:
    rule = dict(made.get(name) or {})
    if said[name] is not None:
        rule = {"policy": said[name].upper().replace("-", "_")}
    rule |= {bound: said[bound] for bound in bounds if said[bound] is not None}
    if rule:
        made[name] = rule


def _target(made: dict[str, Any], said: dict[str, Any]) -> None:
    more = {name: said[name] for name in ("business_key",) if said[name] is not None}
    if said["labels"]:
        more["labels"] = dict(said["labels"])
    if said["task"] is not None or (said["workflow"] is None and made.get("task") is not None):
        task = dict(made.get("task") or {}) | more
        if said["task"] is not None:
            task |= {"type": said["task"][0], "version": said["task"][1]}
        task |= {name: said[name] for name in ("queue", "params") if said[name] is not None}
        made |= {"task": task, "workflow": None}
    elif said["workflow"] is not None or made.get("workflow") is not None:
        workflow = dict(made.get("workflow") or {}) | more
        if said["workflow"] is not None:
            workflow |= {"workflow": said["workflow"][0], "version": said["workflow"][1]}
        if said["input_"] is not None:
            workflow["input"] = said["input_"]
        made |= {"workflow": workflow, "task": None}
