"""`orbit application`, `orbit key` and `orbit configure-queue`: the limits of what may wait, run and start."""

from typing import Any

import click

from orbit.cli.options import Name, as_json, key_of, print_json


class Limit(click.ParamType[int]):
    """A number, or a word for none of one's own, which is read as 0. What is allowed is the server's to say."""

    name = "limit"

    def __init__(self, maximum: int, word: str = "none") -> None:
        self._maximum = maximum
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the limit."""
        if value == self._word:
            return 0
        number = int(value) if str(value).isdecimal() else 0
        if not 1 <= number <= self._maximum:
            self.fail(f"a number from 1 to {self._maximum}, or {self._word}", param, ctx)
        return number


@click.command()
@as_json
def application(as_json: bool) -> None:
    """Show the quotas of the credential's application, and what the queues of all its namespaces use."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.get_application()
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.name}  {found.id}  revision {found.revision}")
    click.echo(f"in flight   {found.active_tasks} of {found.max_concurrency or 'any number'}")
    click.echo(f"unfinished  {found.unfinished_tasks} of {found.max_unfinished_tasks or 'any number'}")
    click.echo(f"starts      {found.rate_per_second or 'any number'} a second")


@click.command()
@click.option("--max-concurrency", type=Limit(100_000), help="Tasks in flight in all queues, or none.")
@click.option("--rate-per-second", type=Limit(1_000_000), help="Starts a second in all queues, or none.")
@click.option("--max-unfinished-tasks", type=Limit(1_000_000), help="Unfinished tasks in all queues, or none.")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(0), help="Only if they are at this revision; default: as they are.")
@key_of("command")
@as_json
def set_quotas(key: str, as_json: bool, reason: str, revision: int | None, **said: int | None) -> None:
    """Set quotas of the credential's application; what is not given stays. Nothing that runs is revoked."""
    from orbit.sdk.client import Client
    from orbit.sdk.models import ConfigureApplicationRequest

    with Client() as client:
        now = client.get_application()
        wanted = {name: getattr(now, name) if value is None else value or None for name, value in said.items()}
        request = ConfigureApplicationRequest(
            expected_revision=now.revision if revision is None else revision, reason=reason, **wanted
        )
        done = client.configure_application(now.id, key, request)
    if as_json:
        print_json(done)
    else:
        click.echo(f"revision {done.application.revision}")


@click.command()
@click.argument("key", metavar="KEY")
@as_json
def key_show(key: str, as_json: bool) -> None:
    """Show a concurrency key: its limit, which tasks hold it, and how many wait for it."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.get_concurrency_key(key)
    if as_json:
        print_json(found)
        return
    own = "" if found.own_limit is not None else ", not set for itself"
    click.echo(f"{found.active} of {found.limit} hold it{own}, {found.waiting} wait, revision {found.revision}")
    for task_id in found.held_by:
        click.echo(f"  {task_id}")


@click.command()
@click.argument("key", metavar="KEY")
@click.argument("limit", type=Limit(100_000), metavar="NUMBER|none")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(0), help="Only if it is at this revision; default: as it is.")
@as_json
def key_set(key: str, limit: int, reason: str, revision: int | None, as_json: bool) -> None:
    """Set how many tasks may hold KEY at once, with * at its end each of the keys that begin so; none takes it back."""
    from orbit.sdk.client import Client
    from orbit.sdk.keys import ConfigureKeyRequest

    with Client() as client:
        expected = client.get_concurrency_key(key).revision if revision is None else revision
        request = ConfigureKeyRequest(expected_revision=expected, reason=reason, limit=limit or None)
        done = client.configure_concurrency_key(key, request)
    if as_json:
        print_json(done)
    else:
        click.echo(f"limit {done.limit}, revision {done.revision}")


@click.command()
@click.argument("name", type=Name())
@click.option("--pause/--open", "paused", default=None, help="Nothing is claimed or started while it is paused.")
@click.option("--max-concurrency", type=click.IntRange(1, 100_000), help="Tasks in flight.")
@click.option("--rate-per-second", type=click.IntRange(1, 1_000_000), help="Starts a second.")
@click.option("--max-unfinished-tasks", type=click.IntRange(1, 1_000_000), help="Unfinished tasks.")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--revision", type=click.IntRange(1), help="Only if it is at this revision; default: as it is.")
@key_of("command")
@as_json
def configure_queue(name: str, key: str, as_json: bool, reason: str, revision: int | None, **said: Any) -> None:
    """Pause the queue NAME, open it, or change its limits; what is not given stays. Nothing that runs is revoked."""
    from orbit.sdk.client import Client
    from orbit.sdk.models import ConfigureQueueRequest

    with Client() as client:
        now = next((each for each in client.list_queues() if each.name == name), None)
        if now is None:
            raise click.ClickException(f"there is no queue {name!r} for this credential")
        wanted = {field: getattr(now, field) if value is None else value for field, value in said.items()}
        request = ConfigureQueueRequest(
            expected_revision=now.revision if revision is None else revision, reason=reason, **wanted
        )
        done = client.configure_queue(now.id, key, request).queue
    if as_json:
        print_json(done)
        return
    state = "paused" if done.paused else "open"
    click.echo(
        f"{state}, concurrency {done.max_concurrency}, rate {done.rate_per_second}/s, "
        f"unfinished {done.max_unfinished_tasks}, revision {done.revision}"
    )
