"""`orbit namespace ...`: the limit of running instances of the credential's namespace."""

import click

from orbit.cli.options import as_json, key_of, print_json

_LIMIT_MAX = 1_000_000


class Limit(click.ParamType[int]):
    """A number of instances, or `none` for no limit, which is read as 0."""

    name = "limit"

    def convert(self, value: int | str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the limit."""
        if value == "none":
            return 0
        number = int(value) if str(value).isdecimal() else 0
        if not 1 <= number <= _LIMIT_MAX:
            self.fail("a number from 1 to 1000000, or none", param, ctx)
        return number


@click.command()
@as_json
def show(as_json: bool) -> None:
    """Show how many instances of the namespace may run at once, and how many that limit counts now."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.get_namespace()
    if as_json:
        print_json(found)
        return
    limit = "no limit" if found.max_running is None else f"at most {found.max_running} running instances"
    click.echo(f"{limit}, {found.running} counted, revision {found.revision}")


@click.command("set-limit")
@click.argument("limit", type=Limit(), metavar="NUMBER|none")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(0), help="Only if it is at this revision; default: as it is.")
@key_of("command")
@as_json
def set_limit(limit: int, reason: str, revision: int | None, key: str, as_json: bool) -> None:
    """Set how many instances of the namespace may run at once; more starts are refused until one has ended.

    What runs already goes on. Children are not counted.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        expected = client.get_namespace().revision if revision is None else revision
        done = client.configure_namespace(key, max_running=limit or None, expected_revision=expected, reason=reason)
    if as_json:
        print_json(done)
        return
    wanted = done.namespace.max_running
    click.echo(f"{'no limit' if wanted is None else wanted}, revision {done.namespace.revision}")
