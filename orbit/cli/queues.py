"""`orbit queues`: the queues that the credential may see."""

import click

from orbit.cli.instances import table
from orbit.cli.options import as_json, print_json


@click.command()
@as_json
def queues(as_json: bool) -> None:  # noqa: FBT001
    """List the queues: how many tasks are unfinished, and the limits."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.list_queues())
    if as_json:
        from msgspec import to_builtins

        print_json(to_builtins(found))
        return
    head = ("NAME", "STATE", "UNFINISHED", "MAX", "CONCURRENCY", "RATE/S", "REVISION", "ID")
    rows = [
        (
            queue.name,
            "paused" if queue.paused else "open",
            str(queue.unfinished_tasks),
            str(queue.max_unfinished_tasks),
            str(queue.max_concurrency),
            str(queue.rate_per_second),
            str(queue.revision),
            queue.id,
        )
        for queue in found
    ]
    for line in table(head, rows):
        click.echo(line)
