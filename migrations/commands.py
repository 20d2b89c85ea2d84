"""`orbit db`: upgrade the schema, or say whether it must be. They talk to the database itself; no server is needed."""

import sys

import click

from orbit.cli.options import database_url


@click.command()
@database_url
def upgrade(database_url: str) -> None:
    """Bring the database's schema to this release's version.

    Stop the nodes first, unless `orbit db check` says that they may run on. On MySQL a DDL statement can't be rolled
    back: make a backup before.
    """
    from migrations.upgrade import check, upgrade

    for revision in upgrade(database_url):
        click.echo(f"done     {revision.name}: {revision.summary}")
    click.echo(f"schema   {check(database_url).current}")


@click.command()
@database_url
def check(database_url: str) -> None:
    """Say how the database's schema stands to this release; write nothing.

    Ends with 0 only if nodes of this release can start. This is no substitute for stopping, upgrading and starting in
    that order.
    """
    from migrations.upgrade import SchemaState, check

    schema = check(database_url)
    click.echo(f"schema   {schema.current or 'none'}")
    click.echo(f"release  {schema.head}")
    for revision in schema.pending:
        beside = "old nodes may run on" if revision.old_nodes_may_run else "stop all nodes first"
        click.echo(f"pending  {revision.name}: {revision.summary} ({beside})")
    match schema.state:
        case SchemaState.CURRENT:
            click.echo("current: nothing to do")
        case SchemaState.EMPTY | SchemaState.BEHIND:
            click.echo("behind: run `orbit db upgrade`")
        case SchemaState.UNKNOWN:
            click.echo("unknown: this release is older than the schema; use a newer one")
    sys.exit(schema.state is not SchemaState.CURRENT)
