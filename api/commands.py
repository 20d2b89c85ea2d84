"""The commands that need the node's own code; each imports that when it runs, so that `orbit --help` stays fast."""

from pathlib import Path

import click

from orbit.cli.options import Name, database_url


@click.command()
@database_url
@click.option("--application", type=Name(), required=True, help="Who calls.")
@click.option("--namespace", type=Name(), default="default", show_default=True, help="What the credential can see.")
@click.option("--environment", type=Name(), default="development", show_default=True, help="The environment it is for.")
@click.option("--queue", type=Name(), required=True, help="A queue to make if it is not there.")
@click.option("--worker-access", is_flag=True, help="Let the credential connect workers too.")
@click.option("--max-concurrency", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option("--rate-per-second", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True)
@click.option("--max-unfinished-tasks", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True)
@click.option("--url", help="The server's address, for those who read the file; ORBIT_URL where it is not in it.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The credentials file.")
def bootstrap(database_url: str, output: Path, url: str | None, worker_access: bool, **rest: str | int) -> None:  # noqa: FBT001
    """Make application, namespace, environment, queue and a credential in a file that only you may read.

    Running it again keeps what exists, the credential in the file too. It is for all queues of the namespace. The
    limits are those of a queue that is made now; an existing one keeps its own.
    """
    from contextlib import closing

    from api.bootstrap import Wanted, bootstrap_to_file
    from migrations.upgrade import require_current
    from orbit.database import Database
    from orbit.store.tenancy import NamespaceName
    from pulse.queues import QueueSettings

    wanted = Wanted(
        named=NamespaceName(str(rest["application"]), str(rest["namespace"]), str(rest["environment"])),
        queue=str(rest["queue"]),
        settings=QueueSettings(
            paused=False,
            max_concurrency=int(rest["max_concurrency"]),
            rate_per_second=int(rest["rate_per_second"]),
            max_unfinished_tasks=int(rest["max_unfinished_tasks"]),
        ),
        worker_access=worker_access,
    )
    require_current(database_url)
    with closing(Database.open(database_url)) as database:
        made = bootstrap_to_file(database, wanted, output, url=url)
    click.echo(f"namespace    {made.namespace.id.hex()}")
    click.echo(f"queue        {made.queue}")
    click.echo(f"credentials  {output}")
