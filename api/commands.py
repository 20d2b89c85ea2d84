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
def bootstrap(database_url: str, output: Path, url: str | None, worker_access: bool, **rest: str | int) -> None:
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


@click.command()
@click.option(
    "--settings", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A YAML file of settings."
)
@click.option("--database-url", metavar="URL", help="mysql+pymysql://user:password@host/name, or sqlite:///file")
@click.option("--host", help="The address to listen on; 127.0.0.1 if not set.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port; 8080 if not set, 0 for any free one.")
@click.option("--processes", type=click.IntRange(1, 128), help="Node processes behind the port: one a core.")
@click.option("--node-name", help="The name of the node; host name and process id if not set.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
@click.option("--drain-seconds", type=float, help="How long SIGTERM waits for what is under way.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate chain (PEM): serve TLS.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="The certificate's key (PEM).")
@click.option("--shared-port", is_flag=True, hidden=True)
def server(settings: Path | None, shared_port: bool, **options: str | float | None) -> None:
    """Run a node until SIGTERM, which drains it. Each option is also ORBIT_NAME, or a line of the settings file."""
    import sys

    from orbit.settings import settings_load

    chosen = settings_load(file=settings, options=options)
    if chosen.processes > 1:
        from api.supervisor import Supervisor, arguments_of
        from orbit.logs import logs_configure

        logs_configure(level=chosen.log_level)
        sys.exit(Supervisor(chosen, arguments_of(chosen)).run())
    from gevent import monkey

    monkey.patch_all()
    from api.server import serve

    sys.exit(serve(chosen, shared_port=shared_port, on_listening=_say_listening))


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(".orbit"), show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True)
def dev(folder: Path, port: int) -> None:
    """Run a node for development: embedded database, schema, credential and queue made when they are missing."""
    import sys

    from gevent import monkey

    monkey.patch_all()
    from api.development import development_prepare
    from api.server import serve
    from orbit.settings import settings_load

    prepared = development_prepare(folder, port=port, say=click.echo)
    options = {"database_url": prepared.database_url, "host": "127.0.0.1", "port": port, "log_level": "WARNING"}
    sys.exit(serve(settings_load(options=options), on_listening=_say_listening))


@click.command()
@click.option("--database-url", metavar="URL", help="Run on this database instead of an embedded one.")
@click.option("--keep", is_flag=True, help="Keep the folder with the database and the logs, and print where it is.")
def demo(database_url: str | None, keep: bool) -> None:
    """Run the payout workflow end to end on a node and a worker of its own, and show each step.

    Ends with 0 only if the instance has SUCCEEDED.
    """
    import sys

    from api.demo import Demo

    sys.exit(Demo(database_url, keep=keep, say=click.echo).run())


@click.command()
@database_url
@click.option("--repair", "is_repair", is_flag=True, help="Repair counters and places of waiting tasks.")
def doctor(database_url: str, is_repair: bool) -> None:
    """Recount every counter, look for tasks and instances that nobody would find, and print how durable a commit is.

    Nodes may run meanwhile: all is compared in one snapshot. Ends with 0 only if nothing is wrong, after the repair if
    one is asked for. A repair adds differences and never sets; what it can't judge it leaves to a person.
    """
    import sys
    from contextlib import closing

    from engine.watchdog import examine as examine_instances
    from migrations.upgrade import require_current
    from orbit.database import Database
    from orbit.database.connect import PATIENT
    from orbit.database.durability import durability_read
    from pulse.doctor import examine, is_repairable, repair

    require_current(database_url)
    with closing(Database.open(database_url, PATIENT)) as database:
        settings = database.transaction(durability_read)
        found = repair(database) if is_repair else examine(database)
        left = set(examine(database)) if is_repair and found else set(found)
        stuck = examine_instances(database)
    for setting in settings:
        click.echo(f"setting  {setting.name} = {setting.value}" + (f": {setting.risk}" if setting.risk else ""))
    for drift in found:
        word = "repaired" if drift not in left else "wrong" if is_repairable(drift) else "a person"
        click.echo(f"{word:8} {drift.name} of {drift.subject.hex()}: stored {drift.stored}, counted {drift.counted}")
    for finding in stuck:
        click.echo(f"a person {finding.code} of instance {finding.instance_id.hex()}: {finding.text}")
    wrong = len(found) + len(stuck)
    click.echo(f"{wrong} found, {len(left) + len(stuck)} left" if wrong else "nothing is wrong")
    sys.exit(bool(left or stuck))


@click.command("after-restore")
@database_url
def after_restore(database_url: str) -> None:
    """After a database was restored from a backup: let nothing that is forgotten be taken for what runs now.

    Stop the nodes first. It raises the fencing epoch, so that every number handed out from now on is higher than all
    that were handed out since the backup, and ends every attempt that the backup has as live: the recovery safety of
    its task decides whether it runs again, is verified or waits for a person.
    """
    from contextlib import closing

    from api.server import Node
    from migrations.upgrade import require_current
    from orbit.database import Database
    from pulse.restore import after_restore as apply

    require_current(database_url)
    with closing(Database.open(database_url)) as database:
        node = Node(database, name="after-restore")
        done = apply(database, node.pulse)
        node.stop()
    click.echo(f"epoch    {done.fencing_epoch}")
    click.echo(f"ended    {done.attempts_ended} attempts")


def _say_listening(url: str) -> None:
    click.echo(f"listening on {url}")
