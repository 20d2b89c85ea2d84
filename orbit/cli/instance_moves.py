"""`orbit instance fork` and `migrate`: run an instance again from a step, let it go on with another version."""

from typing import Any

import click

from orbit.cli.options import as_json, key_of, print_json


@click.command()
@click.argument("instance_id", metavar="ID")
@click.argument("step")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--version", type=click.IntRange(1), help="Of the workflow; the instance's own if not given.")
@click.option("--business-key", help="The instance's own if not given.")
@click.option("--safety-statement", help="Why an effect that is repeated does no harm; asked for where one could be.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied and what would run again.")
@key_of("command")
@as_json
def fork(instance_id: str, step: str, as_json: bool, key: str, **fields: Any) -> None:
    """Run an instance again from STEP, as a new instance that copies the results before it.

    The instance has ended or waits for a person. The first line is the new instance's id.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.fork_instance(instance_id, key, step=step, **fields)
    if as_json:
        print_json(done)
        return
    click.echo("(dry run)" if done.instance is None else done.instance.id)
    click.echo(f"copied  {', '.join(done.copied) or 'nothing'}", err=True)
    click.echo(f"again   {', '.join(done.again)}", err=True)
    for notice in done.warnings:
        click.echo(f"warning: {notice.message}", err=True)


@click.command()
@click.argument("instance_id", metavar="ID")
@click.argument("version", type=click.IntRange(1))
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", "expected_revision", type=click.IntRange(1), help="Only if it is still at this revision.")
@click.option("--dry-run", is_flag=True, help="Say whether it could be, and do nothing.")
@key_of("command")
@as_json
def migrate(instance_id: str, version: int, as_json: bool, key: str, **fields: Any) -> None:
    """Let a running instance go on with another VERSION of its workflow, if it has begun nothing that differs.

    Refused with all reasons otherwise; nothing is changed then.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.errors import APIError

    with Client() as client:
        try:
            done = client.migrate_instance(instance_id, key, version=version, **fields)
        except APIError as refused:
            for reason in (refused.details or {}).get("reasons", []):
                click.echo(f"{reason['step'] or 'definition'}: {reason['what']}", err=True)
            raise
    if as_json:
        print_json(done)
        return
    dry = "  (dry run)" if done.dry_run else ""
    click.echo(f"{done.instance.id}  version {done.from_version} -> {done.to_version}  {done.verdict}{dry}")
