"""`orbit queues` and `orbit queue`: the queues that the credential may see, and a new one."""

import click

from orbit.cli.instances import table
from orbit.cli.options import as_json, print_json


@click.command()
@as_json
def queues(as_json: bool) -> None:
    """List the queues: how many tasks are unfinished, and the limits."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.list_queues())
    if as_json:
        print_json(found)
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


@click.command()
@click.argument("name")
@click.option("--max-concurrency", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option("--rate-per-second", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True)
@click.option("--max-unfinished-tasks", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True)
def queue(name: str, max_concurrency: int, rate_per_second: int, max_unfinished_tasks: int) -> None:
    """Make the queue NAME and print its id. The same command again finds the same queue."""
    from orbit.sdk.client import Client
    from orbit.sdk.models import CreateQueueRequest

    wanted = CreateQueueRequest(
        name=name,
        max_concurrency=max_concurrency,
        rate_per_second=rate_per_second,
        max_unfinished_tasks=max_unfinished_tasks,
    )
    with Client() as client:
        click.echo(client.create_queue(f"orbit-queue-{name}", wanted).queue.id)
