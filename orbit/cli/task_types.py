"""`orbit task-type ...`: what is registered of task types, and registering it from a file."""

from typing import Any

import click

from orbit.cli.instances import table
from orbit.cli.options import JsonText, as_json, print_json
from orbit.cli.tasks import TypeVersion

_HEAD = ("TYPE", "RECOVERY", "VERIFIED BY", "REVISION", "SINCE")
_FIELDS = ("recovery", "verify_with", "params_schema", "params_schemas", "result_schema", "defaults", "redact")


@click.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List the registered task types, by name and version."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.list_task_types())
    if as_json:
        print_json(found)
        return
    rows = [
        (f"{each.type}@{each.version}", each.recovery, each.verify_with or "", str(each.revision), each.created_at[:19])
        for each in found
    ]
    for line in table(_HEAD, rows):
        click.echo(line)


@click.command()
@click.argument("type_", type=TypeVersion(), metavar="TYPE@VERSION")
def show(type_: tuple[str, int]) -> None:
    """Print what a task type is registered as, as JSON."""
    from orbit.sdk.client import Client

    with Client() as client:
        print_json(client.get_task_type(*type_))


@click.command()
@click.argument("type_", type=TypeVersion(), metavar="TYPE@VERSION")
@click.argument("content", type=JsonText(), metavar="JSON")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(0), help="Only at this revision (0: new); default: as it is now.")
@as_json
def put(type_: tuple[str, int], content: Any, reason: str, revision: int | None, as_json: bool) -> None:
    """Register a task type, or replace all that is registered of it.

    JSON is an object (in place, @FILE, or - for stdin) with `recovery` (REPLAY_SAFE, VERIFY or MANUAL) and, as far as
    wanted, `verify_with`, `params_schema` or `params_schemas`, `result_schema`, `defaults` and `redact`. What is left
    out is not registered any more.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.type_models import PutTaskType, Retry, TypeDefaults

    if not isinstance(content, dict) or not isinstance(content.get("recovery"), str):
        raise click.UsageError("JSON is an object with at least `recovery`")
    unknown = sorted(content.keys() - set(_FIELDS))
    if unknown:
        raise click.UsageError(f"not known here: {', '.join(unknown)}; known are {', '.join(_FIELDS)}")
    defaults = content.get("defaults")
    if defaults is not None:
        policy = defaults.get("retry")
        content["defaults"] = TypeDefaults(**defaults | {"retry": None if policy is None else Retry(**policy)})
    with Client() as client:
        expected = _revision(client, type_) if revision is None else revision
        done = client.put_task_type(*type_, PutTaskType(expected_revision=expected, reason=reason, **content))
    if as_json:
        print_json(done)
        return
    kind = done.task_type
    again = ", as it was" if done.deduplicated else ""
    click.echo(f"{kind.type}@{kind.version}  {kind.recovery}  revision {kind.revision}{again}")


def _revision(client: Any, type_: tuple[str, int]) -> int:
    from orbit.sdk.errors import APIError

    try:
        return int(client.get_task_type(*type_).revision)
    except APIError as error:
        if error.code != "NOT_FOUND":
            raise
        return 0
