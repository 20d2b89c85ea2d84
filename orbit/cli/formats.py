"""`orbit db finalize`: let nodes write the newest stored forms of this release."""

import click

from orbit.cli.options import database_url


@click.command()
@database_url
def finalize(database_url: str) -> None:
    """Let nodes write what only this release and newer ones can read.

    Run it when no node of an older release runs any more, and none is to come back: until then nodes of both releases
    work side by side, each on what it knows. It can't be undone. Running it again does nothing.
    """
    from contextlib import closing

    from orbit.database import Database
    from orbit.formats import NEWEST
    from orbit.store.formats import formats_finalize

    with closing(Database.open(database_url)) as database:
        raised = database.transaction(formats_finalize)
    for kind, number in NEWEST.items():
        click.echo(f"{'raised' if kind in raised else 'at':8} {kind} format {number}")
