"""`orbit workflow ...`: published workflows and their versions; who changes one gives a reason, for the audit."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.instances import table
from orbit.cli.options import as_json, key_of, print_json

if TYPE_CHECKING:
    from orbit.sdk.client import Client
    from orbit.sdk.version_models import WorkflowChangeResult

CommandT = Callable[..., Any]


def _manager(command: CommandT) -> CommandT:
    """Add what every change takes: the reason, the workflow's revision, the key."""
    for decorate in (
        as_json,
        key_of("change"),
        click.option(
            "--revision",
            "expected_revision",
            type=click.IntRange(1),
            help="Only if the workflow is still at this revision.",
        ),
        click.option("--reason", required=True, help="Why, for the audit and for those who start instances."),
    ):
        command = decorate(command)
    return command


_name = click.argument("workflow")
_version = click.argument("version", type=click.IntRange(1))


@click.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List the workflows with their default and highest versions, and how many there are of each."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.list_workflows())
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.workflow,
            _default(each.default_version, pinned=each.default_pinned),
            str(each.highest_version),
            str(each.versions),
        )
        for each in found
    ]
    for line in table(("NAME", "DEFAULT", "HIGHEST", "VERSIONS"), rows):
        click.echo(line)


@click.command()
@_name
@as_json
def show(workflow: str, as_json: bool) -> None:
    """Show a workflow and its versions with their states, the highest first."""
    from orbit.sdk.client import Client

    with Client() as client:
        found, versions = client.get_workflow(workflow), list(client.workflow_versions(workflow))
    if as_json:
        from msgspec import to_builtins

        print_json(to_builtins(found) | {"versions": to_builtins(versions)})
        return
    default = _default(found.default_version, pinned=found.default_pinned)
    click.echo(f"workflow  {found.workflow}  default {default}  revision {found.revision}")
    rows = [
        (str(each.version), each.state, each.published_at, each.digest[:12], each.state_reason or "")
        for each in versions
    ]
    for line in table(("VERSION", "STATE", "PUBLISHED", "DIGEST", "REASON"), rows):
        click.echo(line)


@click.command("set-default")
@_name
@click.argument("version", type=click.IntRange(1), required=False)
@click.option("--follow", is_flag=True, help="Unpin it: the highest version that is not retired, now and later.")
@_manager
def set_default(version: int | None, follow: bool, **said: Any) -> None:
    """Pin the version of WORKFLOW that a start without a number runs, or with --follow let it be the highest again."""
    if (version is None) is not follow:
        message = "give a version, or --follow"
        raise click.UsageError(message)
    _change(lambda client: client.set_default_version, version=version, **said)


@click.command()
@_name
@_version
@_manager
def deprecate(**said: Any) -> None:
    """Let starts of a version warn with the reason; they are still accepted."""
    _change(lambda client: client.deprecate_version, **said)


@click.command()
@_name
@_version
@_manager
def retire(**said: Any) -> None:
    """Refuse starts of a version with the reason. Instances that run on it go on.

    An unpinned default moves to the highest version that is left; a pinned one has to be set elsewhere first.
    """
    _change(lambda client: client.retire_version, **said)


@click.command()
@_name
@_version
@_manager
def activate(**said: Any) -> None:
    """Take a deprecated or retired version back into use."""
    _change(lambda client: client.activate_version, **said)


@click.command()
@_name
@click.argument("old", type=click.IntRange(1))
@click.argument("new", type=click.IntRange(1))
@as_json
def diff(workflow: str, old: int, new: int, as_json: bool) -> None:
    """Say what version NEW means for running instances of version OLD, as `orbit diff` does for two files.

    Ends with 0 for same and safe.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.diff_versions(workflow, old, new)
    if as_json:
        print_json(found)
    else:
        click.echo(" ".join([found.verdict, *found.at]))
        for old_step, new_step in found.mapping.items():
            click.echo(f"  {old_step} seems to be {new_step} now")
        for reason in found.reasons:
            where = "" if reason.get("step") is None else f"step {reason['step']}: "
            change = "" if reason.get("old") is None else f": {reason['old']} → {reason['new']}"
            click.echo(f"  {where}{reason.get('what')}{change}")
    sys.exit(found.verdict not in {"same", "safe"})


def _default(version: int, *, pinned: bool) -> str:
    return f"{version} (pinned)" if pinned else str(version)


def _change(
    verb: Callable[["Client"], Callable[..., "WorkflowChangeResult"]],
    *,
    workflow: str,
    version: int | None,
    key: str,
    as_json: bool,
    **said: Any,
) -> None:
    """Make a change with one of the client's methods and say how the version is then."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = verb(client)(workflow, version, key, **said)
    if as_json:
        print_json(done)
        return
    found, changed = done.workflow, done.version
    default = _default(found.default_version, pinned=found.default_pinned)
    click.echo(f"{found.workflow} version {changed.version}  {changed.state}  default {default}")
