"""`orbit subscription ...` and `orbit events`: who wants which events, and what is delivered, for operators and shells.

A subscription is named by its name here. What is said of filters replaces them, what is not said stays.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.instances import table
from orbit.cli.options import Name, as_json, key_of, print_json

if TYPE_CHECKING:
    from orbit.sdk.client import Client
    from orbit.sdk.subscription_models import Delivery, Subscription

CommandT = Callable[..., Any]

_FILTERS = ("event_types", "queues", "workflows", "task_types")
_BOUNDS = ("visibility_seconds", "max_deliveries", "max_backlog")
_name = click.argument("name", type=Name())
_reason = click.option("--reason", required=True, help="Why, for the audit.")
_revision = click.option(
    "--revision", type=click.IntRange(1), help="Only if it is at this revision; default: as it is."
)


def _wishes(command: CommandT) -> CommandT:
    """Add the filters and bounds."""
    for decorate in (
        click.option("--max-backlog", type=click.IntRange(1, 100_000), help="More deliveries overflow it; 10000."),
        click.option("--max-deliveries", type=click.IntRange(1, 1_000), help="As often, then it is parked; 10."),
        click.option("--visibility", "visibility_seconds", type=click.FloatRange(1, 43_200), help="Seconds; 30."),
        click.option("--task-type", "task_types", multiple=True, help="About tasks of this type, a.b or a.b@1."),
        click.option("--workflow", "workflows", multiple=True, help="About instances of this workflow."),
        click.option("--queue", "queues", multiple=True, help="About this queue and its tasks."),
        click.option("--type", "event_types", multiple=True, help="Of this type, or all of a subject: task.*"),
    ):
        command = decorate(command)
    return command


@click.command()
@_name
@_wishes
@key_of("subscription")
@as_json
def create(name: str, key: str, as_json: bool, **said: Any) -> None:
    """Subscribe to events under NAME. Filters may be given more than once; several kinds must all fit."""
    from orbit.sdk.client import Client
    from orbit.sdk.subscription_models import CreateSubscription

    wanted = {field: list(said[field]) or None for field in _FILTERS} | {field: said[field] for field in _BOUNDS}
    with Client() as client:
        done = client.create_subscription(key, CreateSubscription(name=name, **wanted))
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.subscription.id}  from {done.subscription.effective_at} on")


@click.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List the subscriptions: how many deliveries wait, and how many are parked."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.list_subscriptions())
    if as_json:
        print_json(found)
        return
    for line in table(("NAME", "STATE", "BACKLOG", "MAX", "POISONED", "REVISION"), [_cells(each) for each in found]):
        click.echo(line)


@click.command()
@_name
@as_json
def show(name: str, as_json: bool) -> None:
    """Show the subscription NAME: what it wants, and how far it has got it."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = _find(client, name)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.state}, {found.backlog} of at most {found.max_backlog} wait, {found.poisoned} parked")
    for field in _FILTERS:
        for word in getattr(found, field) or ():
            click.echo(f"  {field.removesuffix('s').replace('_', ' ')} {word}")
    click.echo(f"  hidden for {found.visibility_seconds:g} s, handed out {found.max_deliveries} times at most")
    if found.stopped_at is not None:
        read = "" if found.read_up_to is None else f", read from the log up to {found.read_up_to}"
        click.echo(f"  missed what happened from {found.stopped_at} on{read}")
    click.echo(f"  revision {found.revision}, in force since {found.effective_at}")


@click.command()
@_name
@_wishes
@_reason
@_revision
@key_of("command")
@as_json
def configure(name: str, key: str, as_json: bool, reason: str, revision: int | None, **said: Any) -> None:
    """Change what the subscription NAME wants, or its bounds. Deliveries that wait stay as they are."""
    from orbit.sdk.client import Client
    from orbit.sdk.subscription_models import ConfigureSubscription

    with Client() as client:
        now = _find(client, name)
        wanted: dict[str, Any] = {field: list(said[field]) or getattr(now, field) for field in _FILTERS}
        bounds = {field: getattr(now, field) if said[field] is None else said[field] for field in _BOUNDS}
        request = ConfigureSubscription(
            expected_revision=now.revision if revision is None else revision, reason=reason, **wanted, **bounds
        )
        done = client.configure_subscription(now.id, key, request)
    if as_json:
        print_json(done)
    else:
        click.echo(f"revision {done.subscription.revision}, from {done.subscription.effective_at} on")


@click.command()
@_name
@_reason
@_revision
@key_of("command")
@as_json
def resume(name: str, key: str, as_json: bool, reason: str, revision: int | None) -> None:
    """Let the overflowed subscription NAME read on where it stopped."""
    from orbit.sdk.client import Client

    with Client() as client:
        now = _find(client, name)
        expected = now.revision if revision is None else revision
        done = client.resume_subscription(now.id, key, expected_revision=expected, reason=reason)
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.subscription.state}, revision {done.subscription.revision}")


@click.command()
@_name
@_reason
@_revision
@key_of("command")
@as_json
def delete(name: str, key: str, as_json: bool, reason: str, revision: int | None) -> None:
    """Delete the subscription NAME with all its deliveries; the events stay in the log."""
    from orbit.sdk.client import Client

    with Client() as client:
        now = _find(client, name)
        expected = now.revision if revision is None else revision
        done = client.delete_subscription(now.id, key, expected_revision=expected, reason=reason)
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.subscription.state}")


@click.command()
@_name
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True)
@click.option("--wait", "wait_seconds", type=click.FloatRange(0, 30), default=0, help="Seconds to wait for the first.")
@click.option("--ack", "is_done", is_flag=True, help="Acknowledge what was printed.")
@as_json
def pull(name: str, limit: int, wait_seconds: float, is_done: bool, as_json: bool) -> None:
    """Pull deliveries of the subscription NAME and print them; without --ack they come again."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = _find(client, name)
        pulled = client.pull(found.id, limit=limit, wait_seconds=wait_seconds)
        if as_json:
            print_json(pulled)
        else:
            for line in table(("TOKEN", "COUNT", "TYPE", "SUBJECT", "REVISION"), [_line(each) for each in pulled]):
                click.echo(line)
        if is_done and pulled:
            client.ack(found.id, [each.token for each in pulled])


@click.command()
@_name
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
@as_json
def ack(name: str, tokens: tuple[str, ...], as_json: bool) -> None:
    """Acknowledge deliveries of the subscription NAME by their tokens."""
    from orbit.sdk.client import Client

    with Client() as client:
        results = client.ack(_find(client, name).id, tokens)
    if as_json:
        print_json(results)
        return
    for each in results:
        click.echo(f"{each.token}  {each.outcome}")


@click.command()
@_name
@click.option("--state", type=click.Choice(["POISONED", "PENDING", "LAST"], case_sensitive=False), default="POISONED")
@as_json
def deliveries(name: str, state: str, as_json: bool) -> None:
    """List deliveries of the subscription NAME that wait, the parked ones unless told otherwise."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.list_deliveries(_find(client, name).id, state=state))
    if as_json:
        print_json(found)
        return
    rows = [(each.event.id, *_line(each)[1:], each.visible_at) for each in found]
    for line in table(("EVENT", "COUNT", "TYPE", "SUBJECT", "REVISION", "VISIBLE"), rows):
        click.echo(line)


@click.command()
@_name
@click.argument("event_ids", nargs=-1, metavar="[EVENT...]")
@as_json
def replay(name: str, event_ids: tuple[str, ...], as_json: bool) -> None:
    """Let parked deliveries of the subscription NAME come again: those of these events, or up to 1000."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.replay(_find(client, name).id, event_ids or None)
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.replayed} come again{', and there are more' if done.has_more else ''}")


@click.command()
@click.option("--type", "event_type", help="Of this type, or all of a subject: task.*")
@click.option("--subject", "subject_id", metavar="ID", help="About this task, queue, instance, ...")
@click.option("--after", "created_after", metavar="INSTANT", help="At this instant (RFC 3339) or later.")
@click.option("--before", "created_before", metavar="INSTANT", help="Before this instant.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@as_json
def events(limit: int, as_json: bool, event_type: str | None, **said: str | None) -> None:
    """List what has happened, the newest first."""
    from itertools import islice

    from orbit.sdk.client import Client

    query = {name: value for name, value in {"type": event_type, **said}.items() if value is not None}
    with Client() as client:
        found = list(islice(client.list_events(**query), limit))
    if as_json:
        print_json(found)
        return
    rows = [(each.created_at, each.type, each.subject_id, str(each.subject_revision)) for each in found]
    for line in table(("AT", "TYPE", "SUBJECT", "REVISION"), rows):
        click.echo(line)


def _find(client: "Client", name: str) -> "Subscription":
    found = next((each for each in client.list_subscriptions() if each.name == name), None)
    if found is None:
        raise click.ClickException(f"there is no subscription {name!r} for this credential")
    return found


def _cells(each: "Subscription") -> tuple[str, ...]:
    return each.name, each.state, str(each.backlog), str(each.max_backlog), str(each.poisoned), str(each.revision)


def _line(each: "Delivery") -> tuple[str, ...]:
    event = each.event
    return each.token, str(each.delivery_count), event.type, event.subject_id, str(event.subject_revision)
