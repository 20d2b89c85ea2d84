"""`orbit namespace ...`: the limits of the credential's namespace."""

from typing import TYPE_CHECKING, Any

import click

from orbit.cli.limits import Limit
from orbit.cli.options import as_json, key_of, print_json

if TYPE_CHECKING:
    from orbit.sdk.namespaces import Namespace

_RUNNING = Limit(1_000_000)
_BOUND = Limit(10**15, "default")


@click.command()
@as_json
def show(as_json: bool) -> None:
    """Show the limits: of running instances, with how many are counted now, and of what an instance may use at most.

    With --json it is what `orbit check --limits` reads.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.get_namespace()
    if as_json:
        print_json(found)
        return
    limit = "no limit" if found.max_running is None else f"at most {found.max_running} running instances"
    click.echo(f"{limit}, {found.running} counted, revision {found.revision}")
    _echo_bounds(found)


def _echo_bounds(found: "Namespace") -> None:
    for name, value in found.bounds.items():
        click.echo(f"{name:<20}  {value}{'' if name in found.bounds_set else '  (default)'}")


@click.command("set-limit")
@click.argument("limit", type=_RUNNING, metavar="NUMBER|none")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(0), help="Only if it is at this revision; default: as it is.")
@key_of("command")
@as_json
def set_limit(limit: int, reason: str, revision: int | None, key: str, as_json: bool) -> None:
    """Set how many instances of the namespace may run at once; more starts are refused until one has ended.

    What runs already goes on. Children are not counted.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.namespaces import ConfigureNamespaceRequest

    with Client() as client:
        now = client.get_namespace()
        request = ConfigureNamespaceRequest(
            expected_revision=now.revision if revision is None else revision,
            reason=reason,
            max_running=limit or None,
            bounds=now.own_bounds,
        )
        done = client.configure_namespace(key, request)
    if as_json:
        print_json(done)
        return
    wanted = done.namespace.max_running
    click.echo(f"{'no limit' if wanted is None else wanted}, revision {done.namespace.revision}")


@click.command("set-bounds")
@click.option("--max-tasks", type=_BOUND, help="Tasks.")
@click.option("--max-attempts", type=_BOUND, help="Attempts of tasks.")
@click.option("--max-rounds", type=_BOUND, help="Rounds of polls.")
@click.option("--max-concurrent-tasks", type=_BOUND, help="Tasks at once.")
@click.option("--max-stored-bytes", type=_BOUND, help="Bytes in the database.")
@click.option("--max-active-seconds", type=_BOUND, help="Seconds of active time, without undoing.")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(0), help="Only if it is at this revision; default: as it is.")
@key_of("command")
@as_json
def set_bounds(reason: str, revision: int | None, key: str, as_json: bool, **said: Any) -> None:
    """Set what one instance may use at most, a NUMBER or `default`, by the proof of its definition; the rest stays.

    A definition that could use more is not published from now on. What is published starts and runs as before.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.namespaces import ConfigureNamespaceRequest

    given = {name: value for name, value in said.items() if value is not None}
    if not given:
        message = "say at least one limit"
        raise click.UsageError(message)
    with Client() as client:
        now = client.get_namespace()
        wanted = now.own_bounds | given
        request = ConfigureNamespaceRequest(
            expected_revision=now.revision if revision is None else revision,
            reason=reason,
            max_running=now.max_running,
            bounds={name: value for name, value in wanted.items() if value},
        )
        done = client.configure_namespace(key, request)
    if as_json:
        print_json(done)
        return
    click.echo(f"revision {done.namespace.revision}")
    _echo_bounds(done.namespace)
